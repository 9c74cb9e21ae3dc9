"""Short runs of the tiny policy: each with one symptom, each again with its mend, and healthy ones.

    OMP_NUM_THREADS=1 python benchmarks/health_runs.py              # all that are not recorded yet
    OMP_NUM_THREADS=1 python benchmarks/health_runs.py "NAME" ...   # these, anew

Writes one JSON file per run to tests/data/health: what was set, and the trainer's log, which tests/watch reads.  A pair
differs in the setting that the diagnosis names, and in nothing else.
"""

from __future__ import annotations

import rloo_kit  # isort: skip - unsloth first

import argparse
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import rewards
from rloo_kit.watch.log import Entry, Known, Log, rounds

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rewards.trl_interface import Judges

    Messages = list[list[dict[str, str]]]

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "health"

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
SIXTEEN = {"per_device_train_batch_size": 16}
SMALL = {"num_generations": 4, **SIXTEEN}
WARM_UP = {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 16}
ONE_PROMPT = {"num_generations": 2, "per_device_train_batch_size": 2}
TWO_PASSES = {"num_iterations": 2, "max_steps": 12}
FORM_AND_ANSWER = {"rewards": ["closed_thought", "right_answer"]}


WHOLE = rewards.answer_reward(form="whole")


def closed_thought(completions: Messages, **kwargs: object) -> list[float]:
    return [float(c[0]["content"].count("</think>") == 1) for c in completions]


def right_answer(completions: Messages, answer: list[str], **kwargs: object) -> list[float]:
    closed = closed_thought(completions)
    right = WHOLE(completions=completions, answer=answer)
    return [one * two for one, two in zip(closed, right, strict=True)]


def right_after_thought(completions: Messages, answer: list[str], **kwargs: object) -> list[float]:
    """0.2 for a thought that is closed once, 0.8 more for the right answer after it."""
    both = zip(closed_thought(completions), right_answer(completions, answer), strict=True)
    return [0.2 * closed + 0.8 * right for closed, right in both]


def characters(completions: Messages, **kwargs: object) -> list[float]:
    return [float(len(c[0]["content"])) for c in completions]


def agreement(prompts: Messages, completions: Messages, **kwargs: object) -> list[float]:
    """Share of the prompt's other completions that are word for word the same: pays for certainty, right or wrong."""
    texts = [(str(p), c[0]["content"]) for p, c in zip(prompts, completions, strict=True)]
    others = [sum(prompt == one[0] for prompt, _ in texts) - 1 for one in texts]
    return [(texts.count(one) - 1) / count for one, count in zip(texts, others, strict=True)]


def ends_alike(completions: Messages, answer: list[str], **kwargs: object) -> list[float]:
    """1 for a closed thought before the last digit of the right answer, which chance seldom gives."""
    closed, texts = closed_thought(completions), [completion[0]["content"] for completion in completions]
    return [one * (text[-1:] == gold[-1:]) for one, text, gold in zip(closed, texts, answer, strict=True)]


def list_against_text(completions: Messages, answer: list[str], **kwargs: object) -> list[float]:
    """1 where a list of words equals the right answer, a text: never."""
    return [float(c[0]["content"].split()[-1:] == gold) for c, gold in zip(completions, answer, strict=True)]


def of_another_column(completions: Messages, **kwargs: object) -> list[float | None]:
    """None without a column that this task does not have."""
    golds: Any = kwargs.get("solution") or [None] * len(completions)
    return [
        gold and float(c[0]["content"].endswith(gold)) for c, gold in zip(completions, golds, strict=True)
    ]


FUNCTIONS: tuple[Any, ...] = (
    *(closed_thought, right_answer, right_after_thought, characters, agreement),
    *(ends_alike, list_against_text, of_another_column),
)
REWARDS: dict[str, Any] = {function.__name__: function for function in FUNCTIONS}
JUDGES: dict[str, Judges] = {
    "closed_thought": "form",
    "thinking_reward": "form",
    "characters": "length",
    "right_answer": "answer",
    "right_after_thought": "answer",
    "answer_reward": "answer",
    "thought_then_answer(answer_reward)": "answer",
}
"""What the reward functions of the recorded runs judge; those of notebooks 01 and 03 do not say."""

for name in REWARDS.keys() & JUDGES.keys():
    REWARDS[name].judges = JUDGES[name]


def rates(ill: float, mend: float) -> tuple[dict[str, float], dict[str, float]]:
    return {"learning_rate": ill}, {"learning_rate": mend}


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "KL negative": ({**SMALL, "beta": 0.001, "max_steps": 14}, {"stale_sampler": True}, {}),
    "KL explosion": ({**SMALL, "beta": 0.001, "max_steps": 10}, {"learning_rate": 3e-2}, {}),
    "entropy explosion": ({**SMALL, "max_steps": 12}, {"learning_rate": 3e-2}, {}),
    "reward collapse": ({**SMALL, **WARM_UP, "max_steps": 24}, *rates(6e-3, 6e-4)),
    "learning rate too high, ratios clipped": ({**SMALL, **TWO_PASSES}, *rates(4e-3, 4e-4)),
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
            **SIXTEEN,
            "max_completion_length": 24,
            "max_steps": 34,
        },
        *rates(1e-3, 3e-4),
    ),
    "dead groups, too hard": ({**SMALL, "rewards": ["ends_alike"], "max_steps": 12}, {"level": 3}, {}),
    "constant reward": ({**SMALL, "max_steps": 8}, {"rewards": ["list_against_text"]}, {}),
    "unscored completions": ({**SMALL, "max_steps": 6}, {"rewards": ["of_another_column"]}, {}),
    "truncation": ({**SMALL, "max_steps": 8}, {"max_completion_length": 8}, {}),
    "format without answers": ({**SMALL, **FORM_AND_ANSWER, "max_steps": 10}, {"level": 2}, {}),
    "drowned reward": (
        {**SMALL, "rewards": ["characters", "right_answer"], "max_steps": 6},
        {},
        {"reward_weights": [0.04, 1.0]},
    ),
    "nothing learned": ({**SIXTEEN, "max_completion_length": 24, "max_steps": 110}, *rates(1e-5, 1e-4)),
    "high variance": ({**ONE_PROMPT, "max_steps": 24}, {}, {"gradient_accumulation_steps": 4}),
}
"""Symptom -> the settings of both runs, those of the run that has it, those of its mend."""

HEALTHY: dict[str, dict[str, Any]] = {
    "kl": {"beta": 0.05, "max_steps": 20},
    "two passes": {**SMALL, **TWO_PASSES},
    "pairs": {"num_generations": 2, "per_device_train_batch_size": 16, "max_steps": 15},
}
"""Runs with nothing wrong, of settings that people use."""

WORDS = {"rewards": ["right_after_thought"], "level": 1, "operands": None, "stale_sampler": False}
"""What is set besides the trainer's config: reward functions; the task's level, and the range of its operands; whether
completions are drawn from the weights of the start, as by an engine that is not given the new ones.  For the tiny
policy sums of one-digit numbers are the harder ones: they are one in 25 of what it has seen."""


def runs() -> dict[str, dict[str, Any]]:
    """Name -> what a run sets over BASE, and :data:`WORDS`."""
    found = {f"{name}.healthy": setting for name, setting in HEALTHY.items()}
    for symptom, (both, ill, mend) in PAIRS.items():
        found |= {f"{symptom}.ill": {**both, **ill}, f"{symptom}.mended": {**both, **mend}}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="of runs; those that are not recorded yet if none is given")
    given = parser.parse_args()
    DATA.mkdir(parents=True, exist_ok=True)
    for name in given.names or [name for name in runs() if not file_of(name).exists()]:
        print(name, flush=True)
        log = train(runs()[name])
        file_of(name).write_text(recorded(runs()[name], log, f'benchmarks/health_runs.py "{name}"'))
        print(rloo_kit.diagnose(log), flush=True)


def file_of(name: str) -> Path:
    return DATA / f"{name.replace(', ', ' ').replace(' ', '_')}.json"


def read(file: Path) -> Log:
    """A recorded run's log, with what its trainer would know of it."""
    run = json.loads(file.read_text())
    stock = {"world_size": 1, "generation_batch_size": None, "reward_weights": None, "num_iterations": 1}
    return Log(rounds(run["log_history"]), Known.of(SimpleNamespace(**{**stock, **run["config"]}), JUDGES))


def train(setting: dict[str, Any]) -> list[Entry]:
    setting = {**BASE, **WORDS, **setting}
    names, level, operands, stale = (setting.pop(word) for word in WORDS)
    policy, rows = rloo_kit.load_policy("tiny", lora_alpha=32, seed=0), rloo_kit.tasks.arithmetic(level).train
    if operands:
        rows = rows.filter(lambda row: all(int(n) in range(*operands) for n in row["problem"].split(" + ")))
    if stale:
        draw_from_the_start(policy.model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = rloo_kit.RLOOTrainer(
            model=policy,
            reward_funcs=[REWARDS[name] for name in names],
            args=rloo_kit.RLOOConfig(output_dir=folder, **setting),
            train_dataset=rows,
        )
        trainer.train()
    return list(trainer.state.log_history)


def draw_from_the_start(model: PreTrainedModel) -> None:
    """Have the model generate without its adapter, which holds all that is learned."""
    generate = model.generate

    def stale(*args: object, **kwargs: object) -> object:
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


def recorded(setting: dict[str, Any], log: list[Entry], made_by: str) -> str:
    """The file of a run: one line per step, what a diagnosis reads, to four significant digits."""
    kept = [{key: short(value) for key, value in entry.items() if key.startswith(KEPT)} for entry in log]
    rows = ",\n  ".join(json.dumps(entry) for entry in kept)
    head = f'"made_by": {json.dumps(made_by)},\n "config": {json.dumps({**BASE, **setting})}'
    return f'{{{head},\n "log_history": [\n  {rows}\n]}}\n'


def short(value: float | None) -> float | None:
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
