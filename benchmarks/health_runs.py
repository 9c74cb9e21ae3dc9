"""Record short runs of the tiny policy: runs with one symptom each, the same runs with a fix, and healthy runs.

    OMP_NUM_THREADS=1 python benchmarks/health_runs.py              # all that are not recorded yet
    OMP_NUM_THREADS=1 python benchmarks/health_runs.py "NAME" ...   # these, anew

A run is a JSON file in tests/data/health: its "config", and the trainer's log, which this script writes and tests/watch
reads.  To add a run, copy another's config and change a setting.  A run and its fix differ only in the setting that the
diagnosis names.
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
from rloo_kit.watch.statistics import Entry, Known, Log, rounds, term_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rewards.trl_interface import Judges

    Messages = list[list[dict[str, str]]]

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "health"

WHOLE = rewards.answer_reward(form="whole")


def texts(completions: Messages) -> list[str]:
    return [completion[0]["content"] for completion in completions]


def closed_thought(completions: Messages, **kwargs: object) -> list[float]:
    return [float(text.count("</think>") == 1) for text in texts(completions)]


def right_answer(completions: Messages, answer: list[str], **kwargs: object) -> list[float]:
    right = WHOLE(completions=completions, answer=answer)
    return [closed * paid for closed, paid in zip(closed_thought(completions), right, strict=True)]


def right_after_thought(completions: Messages, answer: list[str], **kwargs: object) -> list[float]:
    """Pay 0.2 for a thought that is closed once, and 0.8 more for the right answer after it."""
    both = zip(closed_thought(completions), right_answer(completions, answer), strict=True)
    return [0.2 * closed + 0.8 * right for closed, right in both]


def characters(completions: Messages, **kwargs: object) -> list[float]:
    return [float(len(text)) for text in texts(completions)]


def agreement(prompts: Messages, completions: Messages, **kwargs: object) -> list[float]:
    """Pay the share of the prompt's other completions with the same text: this rewards certainty, right or wrong."""
    asked = [str(prompt) for prompt in prompts]
    both = list(zip(asked, texts(completions), strict=True))
    return [(both.count(pair) - 1) / (asked.count(pair[0]) - 1) for pair in both]


def ends_alike(completions: Messages, answer: list[str], **kwargs: object) -> list[float]:
    """Pay 1 for a closed thought and the last digit of the right answer, which chance seldom gives."""
    rows = zip(closed_thought(completions), texts(completions), answer, strict=True)
    return [closed * (text[-1:] == gold[-1:]) for closed, text, gold in rows]


def list_against_text(completions: Messages, answer: list[str], **kwargs: object) -> list[float]:
    """Pay 1 where a list of words equals the right answer, which is a text: never."""
    return [float(text.split()[-1:] == gold) for text, gold in zip(texts(completions), answer, strict=True)]


def of_another_column(completions: Messages, solution: object = None, **kwargs: object) -> list[None]:
    """Return None throughout, as a reward does whose column the task lacks."""
    return [None for _ in completions]


JUDGES: dict[str, Judges] = {
    "closed_thought": "form",
    "thinking_reward": "form",
    "characters": "length",
    "right_answer": "answer",
    "right_after_thought": "answer",
    "answer_reward": "answer",
    "thought_then_answer(answer_reward)": "answer",
}
"""What the reward functions of the recorded runs judge; the functions of notebooks 01 and 03 do not say it."""

FUNCTIONS: tuple[Any, ...] = (
    *(closed_thought, right_answer, right_after_thought, characters, agreement),
    *(ends_alike, list_against_text, of_another_column),
)
REWARDS: dict[str, Any] = {function.__name__: function for function in FUNCTIONS}
for name in REWARDS.keys() & JUDGES.keys():
    REWARDS[name].judges = JUDGES[name]


WORDS = {"rewards": ["right_after_thought"], "level": 1, "operands": None, "stale_sampler": False}
"""A run's config besides the trainer's settings: reward functions; the task's level; the range of its operands; whether
completions are drawn from the initial weights, as by an engine that never gets the new ones.  Sums of one-digit numbers
are harder for the tiny policy: they are one in 25 of what it has seen."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="of runs; those that are not recorded yet if none is given")
    names = parser.parse_args().names
    for file in map(file_of, names) if names else sorted(DATA.glob("*.json")):
        run = json.loads(file.read_text())
        if names or "log_history" not in run:
            run |= {"made_by": f"benchmarks/health_runs.py {file.stem}", "log_history": train(run["config"])}
            file.write_text(recorded(run))
            print(file.stem, rloo_kit.diagnose(read(file).entries), sep="\n", flush=True)


def file_of(name: str) -> Path:
    return DATA / f"{name.replace(', ', ' ').replace(' ', '_')}.json"


def read(file: Path) -> Log:
    """Return a recorded run's log, with what its trainer would know of it."""
    run = json.loads(file.read_text())
    stock = {"world_size": 1, "generation_batch_size": None, "reward_weights": None, "num_iterations": 1}
    entries, config = rounds(run["log_history"]), SimpleNamespace(**{**stock, **run["config"]})
    return Log(entries, Known.of(config, JUDGES, term_names(entries[0])))


def train(config: dict[str, Any]) -> list[Entry]:
    setting = {**WORDS, **config}
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
    """Have the model generate without its adapter, which holds everything learned."""
    generate = model.generate

    def stale(*args: object, **kwargs: object) -> object:
        with model.disable_adapter():
            return generate(*args, **kwargs)

    model.generate = stale


KEPT = ["step", "reward", "kl", "entropy", "grad_norm", "learning_rate", "zero_variance_groups"]
KEPT += ["frac_reward_zero_std", "clip_ratio/region_mean", "completions/mean_length"]
KEPT += ["completions/max_length", "completions/clipped_ratio"]
"""Prefixes of the metrics that a diagnosis reads; "reward" also stands for each reward function."""


def recorded(run: dict[str, Any]) -> str:
    """Return a run as JSON: one line per step, with what a diagnosis reads, to four significant digits."""
    short = lambda value: float(f"{value:.4g}") if isinstance(value, float) else value  # noqa: E731
    log, kept = run["log_history"], tuple(KEPT)
    steps = [{key: short(value) for key, value in entry.items() if key.startswith(kept)} for entry in log]
    rows = ",\n  ".join(map(json.dumps, steps))
    head = f'"made_by": {json.dumps(run["made_by"])},\n "config": {json.dumps(run["config"])}'
    return f'{{{head},\n "log_history": [\n  {rows}\n]}}\n'


if __name__ == "__main__":
    main()
