"""Short runs of the tiny policy: each with one symptom, each again with its mend, and healthy ones.

    OMP_NUM_THREADS=1 python benchmarks/health_runs.py              # all that are not recorded yet
    OMP_NUM_THREADS=1 python benchmarks/health_runs.py "NAME" ...   # these, anew
    python benchmarks/health_runs.py --left                         # those that notebooks 01 and 02 leave in out/

Writes one JSON file per run to tests/data/health: what was set, and the trainer's log, which tests/watch/test_health.py
gives to ``rloo_kit.diagnose``.  A pair differs in the setting that the diagnosis names, and in nothing else.
"""

from __future__ import annotations

import rloo_kit  # isort: skip - unsloth first

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rewards

ROOT = Path(__file__).resolve().parent.parent
DATA, OUT = ROOT / "tests" / "data" / "health", ROOT / "out"

BASE = {
    "num_generations": 8,
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 1,
    "max_steps": 20,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "beta": 0.0,
    "max_completion_length": 32,
    "save_strategy": "no",
    "seed": 0,
}
SMALL = {"num_generations": 4, "per_device_train_batch_size": 16}
WARM_UP = {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 16}
ONE_PROMPT = {"num_generations": 2, "per_device_train_batch_size": 2}


def closed_thought(completions: Any, **kwargs: Any) -> list[float]:
    """1 for a thought that is closed exactly once."""
    return [float(c[0]["content"].count("</think>") == 1) for c in completions]


def right_answer(completions: Any, answer: Any, **kwargs: Any) -> list[float]:
    """1 for the right answer after a closed thought."""
    closed = closed_thought(completions)
    right = [rloo_kit.tasks.answer_of(c) == gold for c, gold in zip(completions, answer, strict=True)]
    return [one * two for one, two in zip(closed, right, strict=True)]


def right_after_thought(completions: Any, answer: Any, **kwargs: Any) -> list[float]:
    """0.2 for a thought that is closed once, 0.8 more for the right answer after it."""
    both = zip(closed_thought(completions), right_answer(completions, answer), strict=True)
    return [0.2 * closed + 0.8 * right for closed, right in both]


def characters(completions: Any, **kwargs: Any) -> list[float]:
    """How long the completion is, unscaled."""
    return [float(len(c[0]["content"])) for c in completions]


def agreement(prompts: Any, completions: Any, **kwargs: Any) -> list[float]:
    """Share of the prompt's other completions that are word for word the same: pays for being sure, right or wrong."""
    texts = [(str(p), c[0]["content"]) for p, c in zip(prompts, completions, strict=True)]
    others = [sum(prompt == one[0] for prompt, _ in texts) - 1 for one in texts]
    return [(texts.count(one) - 1) / count for one, count in zip(texts, others, strict=True)]


def answer_reward(**kwargs: Any) -> Any:
    """The kit's, with Qwen3's boundary."""
    return rewards.answer_reward(tokens=rewards.QWEN3)(**kwargs)


def copied_thinking(**kwargs: Any) -> Any:
    """The rule that is copied from notebook to notebook: paid by length of thought alone."""
    return rewards.thinking_reward(rewards.QWEN3, bands=((0, 0.3), (13, 0.7), (16, 1.0)))(**kwargs)


REWARDS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        closed_thought,
        right_answer,
        right_after_thought,
        characters,
        agreement,
        answer_reward,
        copied_thinking,
    )
}

FORMAT_AND_ANSWER = ["closed_thought", "right_answer"]

PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "KL negative": ({**SMALL, "beta": 0.001, "max_steps": 14}, {"stale_sampler": True}, {}),
    "KL explosion": ({**SMALL, "beta": 0.001, "max_steps": 10}, {"learning_rate": 3e-2}, {}),
    "entropy explosion": ({**SMALL, "max_steps": 12}, {"learning_rate": 3e-2}, {}),
    "reward collapse": (
        {**SMALL, **WARM_UP, "max_steps": 24},
        {"learning_rate": 6e-3},
        {"learning_rate": 6e-4},
    ),
    "learning rate too high, ratios clipped": (
        {**SMALL, "num_iterations": 2, "max_steps": 12},
        {"learning_rate": 4e-3},
        {"learning_rate": 4e-4},
    ),
    "learning rate too high, gradient grows": (
        {
            "per_device_train_batch_size": 16,
            **WARM_UP,
            "warmup_steps": 12,
            "temperature": 0.5,
            "max_steps": 18,
        },
        {"learning_rate": 5e-3},
        {"learning_rate": 5e-4},
    ),
    "dead groups, too easy": (
        {**SMALL, "temperature": 0.3, "learning_rate": 1e-5, "max_steps": 12},
        {"operands": [25, 50]},
        {"operands": [0, 10]},
    ),
    "truncation, policy worsened": ({**SMALL, "max_steps": 14}, {"learning_rate": 1e-2}, {}),
    "dead groups, policy worsened": ({**SMALL, "max_steps": 20}, {"learning_rate": 5e-3}, {}),
    "dead groups, completions alike": (
        {**SMALL, "rewards": ["right_answer"], "operands": [0, 10], "learning_rate": 1e-5, "max_steps": 12},
        {"temperature": 0.1},
        {},
    ),
    "entropy collapse": (
        {
            "rewards": ["agreement", "right_answer"],
            "reward_weights": [1.0, 0.0],
            "operands": [3, 5],
            "skip_dead_groups": False,  # else entropy is a mean over live groups, which are the uncertain ones
            "per_device_train_batch_size": 16,
            "max_completion_length": 24,
            "max_steps": 34,
        },
        {"learning_rate": 1e-3},
        {"learning_rate": 3e-4},
    ),
    "format without answers": ({**SMALL, "rewards": FORMAT_AND_ANSWER, "max_steps": 10}, {"level": 2}, {}),
    "drowned reward": (
        {**SMALL, "rewards": ["characters", "right_answer"], "max_steps": 6},
        {},
        {"reward_weights": [0.04, 1.0]},
    ),
    "nothing learned": (
        {"per_device_train_batch_size": 16, "max_completion_length": 24, "max_steps": 110},
        {"learning_rate": 1e-5},
        {"learning_rate": 1e-4},
    ),
    "high variance": ({**ONE_PROMPT, "max_steps": 24}, {}, {"gradient_accumulation_steps": 4}),
}
"""Symptom -> the settings of both runs, those of the run that has it, those of its mend."""

HEALTHY: dict[str, dict[str, Any]] = {
    "kl": {"beta": 0.05, "max_steps": 20},
    "two passes": {**SMALL, "num_iterations": 2, "max_steps": 12},
    "pairs": {"num_generations": 2, "per_device_train_batch_size": 16, "max_steps": 15},
}
"""Runs with nothing wrong, of settings that people use."""


WORDS = {"rewards": ["right_after_thought"], "level": 1, "operands": None, "stale_sampler": False}
"""What a run says that is no setting of the trainer's: its reward functions; the task's level, and the range that its
operands are taken from; whether completions are drawn from the weights of the start, as by an engine that is not given
the new ones.  For the tiny policy sums of one-digit numbers are the harder ones: one in 25 that it has seen."""


@dataclass(frozen=True)
class Left:
    """A run that a notebook or another benchmark leaves in out/: what makes it, where, and with what."""

    made_by: str
    folder: str
    config: dict[str, Any]


NOTEBOOK_2 = "notebooks/02_thinking_rewards.ipynb, seed 0"
LEFT = {
    "quickstart seed 0.healthy": Left(
        "notebooks/01_quickstart.ipynb, seed 0", "quickstart", {"max_steps": 30}
    ),
    "quickstart seed 2.healthy": Left(
        "benchmarks/quickstart_seeds.py --seeds 2",
        "quickstart/earlier/checkpoint-30",
        {"max_steps": 30, "seed": 2},
    ),
    "noisy reward.healthy": Left(
        "notebooks/03_rloo_vs_grpo.ipynb, its last run",
        "rloo_vs_grpo/run",
        {"max_steps": 16, "reward_weights": [1.0, 0.0]},
    ),
    "length hacking.ill": Left(
        NOTEBOOK_2, "thinking_rewards/copied", {"max_steps": 15, "reward_weights": [1.0, 0.0, 0.0, 0.0]}
    ),
    "length hacking.mended": Left(
        NOTEBOOK_2, "thinking_rewards/better", {"max_steps": 15, "reward_weights": [0.0, 1.0, 0.0, 0.0]}
    ),
}
"""Taken as they are, with ``--left``; the config is what differs from BASE."""


def runs() -> dict[str, dict[str, Any]]:
    """Name -> what a run sets over BASE, and :data:`WORDS`."""
    found: dict[str, dict[str, Any]] = {}
    for symptom, (both, ill, mend) in PAIRS.items():
        found[f"{symptom}.ill"] = {**both, **ill}
        found[f"{symptom}.mended"] = {**both, **mend}
    return {**found, **{f"{name}.healthy": setting for name, setting in HEALTHY.items()}}


def main() -> None:
    """Record the runs that were asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="of runs; those that are not recorded yet if none is given")
    parser.add_argument("--left", action="store_true", help="take the logs that notebooks left in out/")
    given = parser.parse_args()
    DATA.mkdir(parents=True, exist_ok=True)
    if given.left:
        for name, run in LEFT.items():
            state = json.loads((OUT / run.folder / "trainer_state.json").read_text())
            file_of(name).write_text(recorded(run.config, state["log_history"], run.made_by))
        return
    for name in given.names or [name for name in runs() if not file_of(name).exists()]:
        print(name, flush=True)
        log = train(runs()[name])
        file_of(name).write_text(recorded(runs()[name], log, f'benchmarks/health_runs.py "{name}"'))
        print(rloo_kit.diagnose(log), flush=True)


def file_of(name: str) -> Path:
    """Where a run is recorded."""
    return DATA / f"{name.replace(', ', ' ').replace(' ', '_')}.json"


def train(setting: dict[str, Any]) -> list[dict[str, Any]]:
    """One run of the tiny policy; its log."""
    setting = {**BASE, **WORDS, **setting}
    names, level, operands, stale = (setting.pop(word) for word in WORDS)
    policy = rloo_kit.load_policy("tiny", lora_alpha=32, seed=0)
    if stale:
        draw_from_the_start(policy.model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = rloo_kit.RLOOTrainer(
            model=policy,
            reward_funcs=[REWARDS[name] for name in names],
            args=rloo_kit.RLOOConfig(output_dir=folder, **setting),
            train_dataset=problems(level, operands),
        )
        trainer.train()
    return list(trainer.state.log_history)


def problems(level: int, operands: list[int] | None) -> Any:
    """A task's training set, or its problems whose operands are all in a range."""
    train_set = rloo_kit.tasks.arithmetic(level).train
    if operands is None:
        return train_set
    within = range(*operands)
    return train_set.filter(lambda row: all(int(one) in within for one in row["problem"].split(" + ")))


def draw_from_the_start(model: Any) -> None:
    """Have the model generate without its adapter, which holds all that is learned."""
    generate = model.generate

    def stale(*args: Any, **kwargs: Any) -> Any:
        with model.disable_adapter():
            return generate(*args, **kwargs)

    model.generate = stale


KEPT = (
    "step",
    "reward",
    "kl",
    "entropy",
    "grad_norm",
    "learning_rate",
    "dead_groups",
    "frac_reward_zero_std",
    "clip_ratio/region_mean",
    "completions/mean_length",
    "completions/max_length",
    "completions/clipped_ratio",
)
"""How the metrics begin that a diagnosis reads; "reward" stands for each reward function too."""


def recorded(setting: dict[str, Any], log: list[dict[str, Any]], made_by: str) -> str:
    """The file of a run: one line per step, what a diagnosis reads, to four significant digits."""
    kept = [{key: short(value) for key, value in entry.items() if key.startswith(KEPT)} for entry in log]
    rows = ",\n  ".join(json.dumps(entry) for entry in kept)
    head = f'"made_by": {json.dumps(made_by)},\n "config": {json.dumps({**BASE, **setting})}'
    return f'{{{head},\n "log_history": [\n  {rows}\n]}}\n'


def short(value: Any) -> Any:
    """Four significant digits of a float."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
