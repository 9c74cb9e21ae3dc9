"""A policy against a reward model that does not see everything, with the KL term and without, on several seeds.

    OMP_NUM_THREADS=1 python benchmarks/reward_hacking.py --seeds 0 1 2

The task, the pairs, the reward model and RLOO's settings are those of notebooks/05_reward_model.ipynb: its cells tagged
``shared`` are run here, so that they are written once.  A seed draws the pairs and their errors, the reward model's
output, the LoRA and the sampling.  Each run is added to benchmarks/results/reward_hacking.json as soon as it is done,
and is not run again.  ``--stored`` writes the table and the picture again.  Needs the extra real-cpu.
"""

from __future__ import annotations

import rloo_kit  # isort: skip - unsloth first

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from student import student
from tables import RESULTS, command_line, cpu_name, document, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STORED = RESULTS / "reward_hacking.json"
ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "05_reward_model.ipynb"
FOLDER = ROOT / "out" / "benchmarks" / "reward_hacking"
PAIRS, HELD_OUT_PAIRS, ERRORS = 192, 100, 0.15

ARMS: dict[str, dict[str, Any]] = {
    "RLOO, beta 0": {"beta": 0.0},
    "RLOO, beta 0.05": {"beta": 0.05},
    "RLOO, beta 0.2": {"beta": 0.2},
    "GRPO's division, beta 0": {"beta": 0.0, "advantage_estimator": "grpo", "kl_placement": "loss"},
}
"""What differs from the notebook's settings; the untrained policy, and DPO on the same pairs, come beside them."""

UNTRAINED, DPO = "untrained", "DPO"
OF_DPO = "DPO makes as many steps of 8 pairs, with beta 0.1 and the same learning rate. "
LAST = 3  # steps of which a curve's end is the mean

Run = dict[str, Any]


def main() -> None:
    """Run what is missing, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument(
        "--stored", action="store_true", help="write the stored runs' table and picture again"
    )
    asked = parser.parse_args()
    arms = [UNTRAINED, *ARMS, DPO]
    results = json.loads(STORED.read_text()) if STORED.exists() else {"judges": {}, "runs": []}
    for seed in [] if asked.stored else asked.seeds:
        run_seed(seed, arms, asked.steps, results)
    results["command"] = results.get("command") if asked.stored else command_line()
    write(results)


def write(results: dict[str, Any]) -> None:
    """The raw results, and the table and the picture where a seed is whole."""
    scratch = STORED.with_suffix(".part")
    scratch.write_text(json.dumps(results, indent=1) + "\n")
    scratch.replace(STORED)
    if results.get("command"):
        STORED.with_suffix(".md").write_text(report(results))
        picture(results["runs"]).savefig(STORED.with_suffix(".png"), dpi=120)


# --- a seed


def notebook() -> dict[str, Any]:
    """What the notebook's shared cells define."""
    names: dict[str, Any] = {"rloo_kit": rloo_kit}
    for cell in nbformat.read(NOTEBOOK, 4).cells:
        if "shared" in cell.metadata.get("tags", ()):
            exec(compile(cell.source, str(NOTEBOOK), "exec"), names)
    return names


def run_seed(seed: int, arms: list[str], steps: int, results: dict[str, Any]) -> None:
    """Every run of a seed that is not stored yet, all of them against one reward model."""
    done = {run["arm"] for run in results["runs"] if run["seed"] == seed}
    missing = [arm for arm in arms if arm not in done]
    if not missing:
        return
    of = notebook()
    data = of["pairs"](of["THINGS"], PAIRS, ERRORS, seed)
    policy, started = fresh(seed), time.monotonic()
    base = policy.model.peft_config["default"].base_model_name_or_path
    judge = of["train_judge"](base, policy.tokenizer, data, seed, str(FOLDER / "judge"))
    agrees = of["agreement"](judge, of["pairs"](of["HELD_OUT"], HELD_OUT_PAIRS, 0.0, 1000 + seed))
    results["judges"][str(seed)] = {"agreement": agrees, "seconds": time.monotonic() - started}
    for arm in missing:
        policy, started = fresh(seed), time.monotonic()
        curves: dict[str, list[float]] = {}
        if arm == DPO:
            train_dpo(policy, data, steps, seed)
        elif arm != UNTRAINED:
            curves = train_rloo(of, policy, judge, ARMS[arm], steps, seed)
        run = {"arm": arm, "seed": seed, "seconds": time.monotonic() - started, **curves}
        results["runs"].append(run | held_out(of, policy, judge))
        print({name: value for name, value in results["runs"][-1].items() if name != "texts"}, flush=True)
        write(results)
        rloo_kit.release(policy)


def fresh(seed: int) -> rloo_kit.Policy:
    """The policy before training."""
    return rloo_kit.load_policy("smollm2-135m", gradient_checkpointing=False, seed=seed)


def train_rloo(
    of: dict[str, Any], policy: rloo_kit.Policy, judge: Any, arm: dict[str, Any], steps: int, seed: int
) -> dict[str, list[float]]:
    """RLOO against the reward model: the mean score, true score and KL of each step."""
    config = of["rloo_config"](str(FOLDER / f"run-{seed}"), steps=steps, seed=seed, live_plot=False, **arm)
    rewards = [judge, of["true_score"]]
    trainer = rloo_kit.RLOOTrainer(policy, rewards, config, of["questions"](of["THINGS"]))
    trainer.train()
    found: dict[str, list[float]] = of["curves"](trainer)
    rloo_kit.release(trainer)
    return found


def train_dpo(policy: rloo_kit.Policy, data: Any, steps: int, seed: int) -> None:
    """TRL's DPO on the reward model's own pairs: as many updates of as many completions as RLOO's, the same rate."""
    import trl

    config = trl.DPOConfig(
        output_dir=str(FOLDER / "dpo"),
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=5e-4,
        lr_scheduler_type="constant",
        beta=0.1,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=4,
        seed=seed,
    )
    trl.DPOTrainer(
        model=policy.model, args=config, train_dataset=data, processing_class=policy.tokenizer
    ).train()


def held_out(of: dict[str, Any], policy: rloo_kit.Policy, judge: Any) -> dict[str, Any]:
    """Both scores of greedy answers about things that were in no training, and six of the answers."""
    rows = of["questions"](of["HELD_OUT"])
    found = rloo_kit.evaluate(policy, rows, [judge, of["true_score"]], max_new_tokens=20)
    texts = [completion.text for completion in found.completions[::4]]
    return {"held_out": found.reward_means, "texts": texts}


# --- the table


def report(results: dict[str, Any]) -> str:
    """The table, with the command and the machine."""
    runs, judges = results["runs"], results["judges"]
    seeds, steps = len(judges), max(len(run.get("true", ())) for run in runs)
    arms = [arm for arm in (UNTRAINED, *ARMS, DPO) if any(run["arm"] == arm for run in runs)]
    shares = ", ".join("{:.2f} [{:.2f}, {:.2f}]".format(*judge["agreement"]) for judge in judges.values())
    columns = ("", f"judge, last {LAST} steps", "true", "KL", "held out: judge", "true", "seeds", "minutes")
    return document(
        "Reward hacking: what a policy makes of a reward model",
        results["command"],
        f"SmolLM2-135M, in float32, on {cpu_name()}, {os.environ.get('OMP_NUM_THREADS', 'all')} threads. The task, the "
        "reward model (judge) and the settings are those of notebooks/05_reward_model.ipynb. "
        f"The judge is trained on {PAIRS} pairs, {ERRORS:.0%} of them with the wrong label; RLOO makes {steps} steps "
        f"of 2 prompts and K = 8. {OF_DPO if DPO in arms else ''}"
        "True score: 0 without the right place or with more than 16 words, else 0.5, and 1 if polite.",
        f"The judge scores the better answer of {HELD_OUT_PAIRS} held-out pairs higher: {shares} (a seed each; 95 %, "
        "Wilson).",
        table(columns, "llllllrr", [arm_row(arm, runs) for arm in arms]),
        f"Means over {seeds} seeds with Student's 95 % interval. KL: nats per token. Held out: greedy answers on 24 "
        "questions about things that were in no training. Minutes: wall time of a run, beside whatever else ran.",
        "## Differences, seed by seed",
        table(("", "held out: judge", "true"), "lll", [gap_row(*pair, runs) for pair in compared(arms)]),
        f"![Curves]({STORED.stem}.png)",
    )


def compared(arms: list[str]) -> list[tuple[str, str]]:
    """Pairs of arms whose difference is of interest."""
    first, *_ = ARMS
    return [(arm, first) for arm in arms if arm not in (UNTRAINED, first)]


def ends(runs: list[Run], arm: str, name: str) -> list[float]:
    """The mean over a curve's last steps, for each run of an arm that has that curve."""
    return [statistics.fmean(run[name][-LAST:]) for run in runs if run["arm"] == arm and name in run]


def final(runs: list[Run], arm: str, name: str) -> list[float]:
    """A held-out mean, for each run of an arm in the order of seeds."""
    chosen = sorted((run for run in runs if run["arm"] == arm), key=lambda run: run["seed"])
    return [run["held_out"][name] for run in chosen]


def spelled(values: list[float], sign: str = "") -> str:
    """Mean and interval; a dash where nothing was measured."""
    if not values:
        return "-"
    return f"{student(values):{sign}.2f}" if len(values) > 1 else f"{values[0]:{sign}.2f}"


def arm_row(arm: str, runs: list[Run]) -> list[str]:
    """What became of an arm."""
    seconds = [run["seconds"] for run in runs if run["arm"] == arm]
    curves = [spelled(ends(runs, arm, name)) for name in ("judge", "true", "kl")]
    after = [spelled(final(runs, arm, name)) for name in ("judge", "true_score")]
    return [arm, *curves, *after, str(len(seconds)), f"{statistics.fmean(seconds) / 60:.1f}"]


def gap_row(arm: str, other: str, runs: list[Run]) -> list[str]:
    """What an arm has more than another, on the same seeds."""
    gaps = (
        [a - b for a, b in zip(final(runs, arm, name), final(runs, other, name), strict=False)]
        for name in ("judge", "true_score")
    )
    return [f"{arm} - {other}", *(spelled(gap, "+") for gap in gaps)]


def picture(runs: list[Run]) -> Figure:
    """Score, true score and KL by step: each seed thin, the mean thick."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    titles = {"judge": "reward model's score", "true": "true score", "kl": "KL, nats per token"}
    for axes, (name, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        for arm, dash in zip(ARMS, ("-", "--", ":", "-."), strict=True):
            curves = [run[name] for run in runs if run["arm"] == arm and name in run]
            for curve in curves:
                axes.plot(range(1, len(curve) + 1), curve, dash, color="0.75", linewidth=0.6)
            if curves:
                mean = [statistics.fmean(step) for step in zip(*curves, strict=False)]
                axes.plot(range(1, len(mean) + 1), mean, dash, color="black", label=arm)
        axes.set(xlabel="step", title=title)
    axes.legend(frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    main()
