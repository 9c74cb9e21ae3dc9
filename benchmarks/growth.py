"""How a step grows: CPU seconds and memory against K, completion length, prompts a step, and rows of the dataset.

    OMP_NUM_THREADS=1 python benchmarks/growth.py

The tiny policy on a CPU, all completions of a step in one micro-batch.  No completion ends before its length: the
end's logits are put out of reach while sampling, so that a step's tokens are what the setting says.  One setting is
varied at a time, the others as in ``BASE``; each size has a run of its own for its seconds, and one of a step in which
every tensor is counted for its memory.  Writes benchmarks/results/growth.md, growth.json and growth.png; --stored
writes the .md and the .png again from the .json and runs nothing.
"""

import rloo_kit  # isort: skip - unsloth first

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from datasets import Dataset
from one_run import machine
from tables import RESULTS, command_line, document, table
from transformers import TrainerCallback

from rloo_kit.memory import reading
from rloo_kit.memory.meter import Meter

MIB = 2**20


@dataclass(frozen=True)
class Size:
    """The settings of a step that are varied."""

    num_generations: int = 8
    completion_tokens: int = 32
    prompts: int = 2
    dataset_rows: int = 64

    @property
    def tokens(self) -> int:
        """Generated in a step."""
        return self.num_generations * self.completion_tokens * self.prompts


BASE = Size()

SWEEPS = {
    "num_generations": ("K", (2, 4, 8, 16, 32)),
    "completion_tokens": ("tokens of a completion", (16, 32, 64, 128, 256, 512)),
    "prompts": ("prompts a step", (1, 2, 4, 8, 16)),
    "dataset_rows": ("rows of the dataset", (64, 1_000, 10_000, 100_000)),
}
"""Setting -> its name in the table, and its values."""


@dataclass(frozen=True)
class Found:
    """What one size took: CPU seconds of each step but the first, bytes beyond what is always held, at the peak."""

    setting: str
    value: int
    tokens: int
    seconds: tuple[float, ...]
    bytes: int

    @property
    def middle(self) -> float:
        """Median seconds of a step."""
        return statistics.median(self.seconds)


def main() -> None:
    """Measure, and write table and picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=4, help="of a timed run; the first is left out")
    parser.add_argument("--stored", action="store_true", help="write the stored runs' table again")
    arguments = parser.parse_args()
    file = RESULTS / "growth.json"
    if not arguments.stored:
        found = list(measured(arguments.steps))
        lines = ",\n".join(json.dumps(asdict(one)) for one in found)
        file.write_text(f"[\n{lines}\n]\n")
    stored = [Found(**{**one, "seconds": tuple(one["seconds"])}) for one in json.loads(file.read_text())]
    text = report(stored)
    print(text)
    (RESULTS / "growth.md").write_text(text)
    picture(stored).savefig(RESULTS / "growth.png", dpi=110)


def measured(steps: int) -> Iterator[Found]:
    """Each size of each sweep."""
    policy = rloo_kit.load_policy("tiny", seed=0)
    for setting, (_, values) in SWEEPS.items():
        for value in values:
            size = replace(BASE, **{setting: value})
            seconds = timed(policy, size, steps)
            held = peak(policy, size)
            found = Found(setting, value, size.tokens, tuple(round(s, 4) for s in seconds[1:]), held)
            print(found, flush=True)
            yield found


def timed(policy: Any, size: Size, steps: int) -> list[float]:
    """CPU seconds of each step."""
    ends = [0.0]

    class Clock(TrainerCallback):
        def on_train_begin(self, *args: object, **kwargs: object) -> None:
            ends[0] = time.process_time()

        def on_step_end(self, *args: object, **kwargs: object) -> None:
            ends.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder, unending(policy):
        trainer = make_trainer(policy, size, steps, folder)
        trainer.add_callback(Clock())
        trainer.train()
    return [after - before for before, after in pairwise(ends)]


def peak(policy: Any, size: Size) -> int:
    """Bytes of tensors at the peak of a step, beyond the weights."""
    with tempfile.TemporaryDirectory() as folder, unending(policy):
        trainer = make_trainer(policy, size, 1, folder)
        trainer.memory = Meter.for_model(trainer.model, count_tensors=True)
        trainer.train()
        phases = trainer.memory_plan.compare(trainer).phases
    return int(max(row.measured_bytes for row in phases if row.measured_bytes)) - standing(policy)


def standing(policy: Any) -> int:
    """Bytes of the weights."""
    return int(reading.bytes_of(reading.standing_tensors(policy.model)))


def make_trainer(policy: Any, size: Size, steps: int, folder: str) -> Any:
    """A trainer whose steps have this size."""
    asked = [
        [{"role": "user", "content": f"What is {a} + {b}?"}] for a in range(10, 18) for b in range(10, 18)
    ]
    repeated = asked * -(-size.dataset_rows // len(asked))
    batch: dict[str, Any] = {
        "num_generations": size.num_generations,
        "per_device_train_batch_size": size.num_generations * size.prompts,
        "gradient_accumulation_steps": 1,
        "max_completion_length": size.completion_tokens,
    }
    config = rloo_kit.RLOOConfig(
        folder, max_steps=steps, beta=0.0, save_strategy="no", report_to="none", live_plot=False, **batch
    )
    dataset = Dataset.from_dict({"prompt": repeated[: size.dataset_rows]})
    return rloo_kit.RLOOTrainer(model=policy, reward_funcs=[by_ids], args=config, train_dataset=dataset)


def by_ids(completion_ids: list[list[int]], **_: object) -> list[float]:
    """Differs between completions, so that no group is dead."""
    return [(sum(ids) % 97) / 97 for ids in completion_ids]


@contextmanager
def unending(policy: Any) -> Iterator[None]:
    """While inside, no token that ends a completion is sampled."""
    head = policy.model.get_output_embeddings()
    ends = [policy.tokenizer.eos_token_id, policy.tokenizer.convert_tokens_to_ids("<|endoftext|>")]

    def hide(_module: object, _given: object, logits: torch.Tensor) -> None:
        logits[..., ends] = -torch.inf

    handle = head.register_forward_hook(hide)
    try:
        yield
    finally:
        handle.remove()


def slope(found: list[Found], of: str) -> float:
    """The slope of a line through logarithms: 1 is linear in the setting, 0 is flat."""
    sizes = np.log([one.value for one in found])
    return float(np.polyfit(sizes, np.log([getattr(one, of) for one in found]), 1)[0])


def report(found: list[Found]) -> str:
    """The tables, with the command and the machine."""
    about = machine("cpu")
    parts = [
        command_line(),
        f"Device: CPU, {about['threads']} thread (the machine: {about['cpu']}). Versions: {about['versions']}.",
        f"Policy tiny. One setting is varied, the others are K {BASE.num_generations}, "
        f"{BASE.completion_tokens} tokens a completion, {BASE.prompts} prompts a step, {BASE.dataset_rows} rows. "
        "CPU seconds of a step, the first left out: median [lowest, highest]. MiB: tensors at a step's peak, the "
        "weights left out.",
    ]
    for setting, (name, _) in SWEEPS.items():
        chosen = [one for one in found if one.setting == setting]
        columns = (name, "tokens a step", "CPU seconds", "milliseconds a token", "MiB")
        parts += [
            f"## {name[0].upper()}{name[1:]}",
            table(columns, "rrlrr", [cells(one) for one in chosen]),
            f"Slope of a line through the logarithms: time {slope(chosen, 'middle'):.2f}, "
            f"memory {slope(chosen, 'bytes'):.2f}.",
        ]
    return document("How a step grows", *parts, "![Time and memory against each setting](growth.png)")


def cells(one: Found) -> list[str]:
    """A size's line."""
    return [
        *(f"{one.value:,}", f"{one.tokens:,}"),
        f"{one.middle:.2f} [{min(one.seconds):.2f}, {max(one.seconds):.2f}]",
        *(f"{1000 * one.middle / one.tokens:.2f}", f"{one.bytes / MIB:.1f}"),
    ]


def picture(found: list[Found]) -> Any:
    """Seconds above, memory below, a column a setting, logarithmic; dotted: in proportion to the last."""
    figure, axes = plt.subplots(2, len(SWEEPS), figsize=(13, 5.5), constrained_layout=True, sharey="row")
    for column, (setting, (name, _)) in enumerate(SWEEPS.items()):
        chosen = [one for one in found if one.setting == setting]
        sizes = np.array([one.value for one in chosen], dtype=float)
        tops = [[one.middle for one in chosen], [one.bytes / MIB for one in chosen]]
        for row, values in enumerate(tops):
            axis = axes[row, column]
            axis.loglog(sizes, values, "o-")
            if setting != "dataset_rows":
                axis.loglog(sizes, values[-1] * sizes / sizes[-1], "k:", linewidth=1)
            axis.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])
            axis.minorticks_off()
            axis.set_xlabel(name)
            axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("CPU seconds a step")
    axes[1, 0].set_ylabel("MiB at the peak")
    return figure


if __name__ == "__main__":
    main()
