"""The least time that a step's arithmetic takes on this machine, beside what the step takes, phase by phase.

    OMP_NUM_THREADS=1 python benchmarks/floor.py
    OMP_NUM_THREADS=1 python benchmarks/floor.py --policy qwen3-0.6b --steps 3

The machine is measured first: a matrix product and exponentials whose tiles stay in cache, and a copy that does not.
A phase's floor is the longer of two: its operations at these speeds, and its bytes at the copy's.  It counts matrix
products and one exponential per logit; bytes are the weights, once a pass, and once a token while sampling.
One training run follows.  Its last step is profiled, which shows where a phase's time goes; the others are timed.
CPU seconds throughout.  Writes benchmarks/results/floor.md.
"""

import rloo_kit  # isort: skip - unsloth first

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from learned import after_thought
from one_run import Reward, machine, make_trainer
from phases import Meter
from runs import Spec
from tables import RESULTS, command_line, document, table
from torch.profiler import profile, record_function
from transformers import TrainerCallback

SHOWN = ("generate", "loss forward", "backward")
FLOAT = 4

KINDS = {
    "matrix products": (
        "mm",
        "bmm",
        "addmm",
        "addmm_",
        "gemm_4bit",
        "_scaled_dot_product_flash_attention_for_cpu",
    ),
    "4-bit weights": ("dequantize_4bit", "dequantize_blockwise"),
    "exponentials": ("exp", "exp_", "_softmax", "silu", "softplus"),
}
"""Kinds of operators and their names; every other operator passes over tensors, and what lies in none is Python's."""


@dataclass(frozen=True)
class Speed:
    """Of this machine, a second of one process's CPU time: operations, exponentials, bytes copied."""

    operations: float
    exponentials: float
    bytes: float


@dataclass(frozen=True)
class Work:
    """What a phase cannot do without."""

    operations: float
    exponentials: float
    bytes: float

    def seconds(self, speed: Speed) -> float:
        """The longer of arithmetic and memory."""
        arithmetic = self.operations / speed.operations + self.exponentials / speed.exponentials
        return max(arithmetic, self.bytes / speed.bytes)


@dataclass(frozen=True)
class Batch:
    """What one step sampled: prompt tokens once a completion, and each completion's length."""

    prompt_tokens: int
    lengths: tuple[int, ...]


def main() -> None:
    """Measure the machine and a run, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", default="tiny")
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    speed = measured_speed()
    spec = Spec("kit", policy=arguments.policy, max_steps=arguments.steps)
    run = Run(spec)
    run.train()
    text = report(run, speed)
    print(text)
    (RESULTS / "floor.md").write_text(text)


def measured_speed() -> Speed:
    """The best of several tries of each."""
    left, right, out = torch.randn(512, 512), torch.randn(512, 512), torch.empty(512, 512)
    logits = torch.rand(512, 512).neg_()
    source = torch.empty(2**28 // FLOAT)
    target = torch.empty_like(source)
    return Speed(
        2 * 512**3 / fastest(lambda: torch.mm(left, right, out=out), 50),
        512**2 / fastest(lambda: torch.exp(logits, out=out), 50),
        2 * 2**28 / fastest(lambda: target.copy_(source), 1),
    )


def fastest(call: Callable[[], object], times: int) -> float:
    """CPU seconds of one call, the least of ten means over so many calls."""
    means = []
    for _ in range(10):
        start = time.process_time()
        for _ in range(times):
            call()
        means.append((time.process_time() - start) / times)
    return min(means)


class Traced(Meter):
    """A meter whose phases a profiler sees as well."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """As the meter's, under the same name in a profile."""
        with super().phase(name), record_function(name):
            yield


class Run:
    """One training run of the kit, of which the last step is profiled."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.policy = rloo_kit.load_policy(spec.policy, lora_alpha=32, seed=spec.seed)
        self.batches: list[Batch] = []
        self.profile = profile(activities=[torch.profiler.ProfilerActivity.CPU])

    def train(self) -> None:
        """Fill ``batches``, ``meter`` and ``profile``."""
        task = rloo_kit.tasks.arithmetic(self.spec.level, seed=self.spec.seed)
        reward = Reward(after_thought(task), self.spec.num_generations)
        with tempfile.TemporaryDirectory() as folder:
            trainer = make_trainer(self.spec, self.policy, task, reward, folder)
            self._watch_batches(trainer)
            self.meter = Traced(trainer)
            trainer.add_callback(Steps(self))
            trainer.train()

    def _watch_batches(self, trainer: Any) -> None:
        sample = trainer._generate_single_turn

        def watched(prompt_ids: list[list[int]], *args: object, **how: object) -> Any:
            found = sample(prompt_ids, *args, **how)
            self.batches.append(Batch(sum(map(len, prompt_ids)), tuple(map(len, found))))
            return found

        trainer._generate_single_turn = watched

    def timed(self, phase: str) -> float:
        """Median CPU seconds of a phase, the first step and the profiled one left out."""
        return statistics.median(step.spent[phase].cpu_seconds for step in self.meter.steps[1:-1])

    def floor(self, phase: str, speed: Speed) -> float:
        """Median of the same steps' floors."""
        works = (work(phase, batch, self.policy) for batch in self.batches[1:-1])
        return statistics.median(one.seconds(speed) for one in works)


class Steps(TrainerCallback):
    """Starts the meter, ends each step, and profiles the last."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_train_begin(self, *args: object, **kwargs: object) -> None:
        """The optimizer exists by now."""
        self.run.meter.begin()

    def on_step_begin(self, args: Any, state: Any, *_: object, **kwargs: object) -> None:
        """The last step begins."""
        if state.global_step == self.run.spec.max_steps - 1:
            self.run.profile.start()

    def on_step_end(self, args: Any, state: Any, *_: object, **kwargs: object) -> None:
        """It ends."""
        self.run.meter.end_step()
        if state.global_step == self.run.spec.max_steps:
            self.run.profile.stop()


def work(phase: str, batch: Batch, policy: Any) -> Work:
    """Of one phase, by the shape of the policy: layers' products with LoRA left out, attention left out."""
    shape = policy.checkpoint
    layers, head = shape.linear_parameters, shape.vocabulary * shape.hidden_size
    scored = sum(batch.lengths)
    tokens = batch.prompt_tokens + scored
    if phase == "generate":  # every prompt once, then a token at a time
        passes = max(batch.lengths)
        bytes_read = FLOAT * passes * (layers + head)
        return Work(2 * tokens * layers + 2 * scored * head, scored * shape.vocabulary, bytes_read)
    if phase == "loss forward":  # the head's gradient is formed here: two products
        return Work(
            2 * tokens * layers + 4 * scored * head, scored * shape.vocabulary, FLOAT * (layers + 2 * head)
        )
    return Work(4 * tokens * layers, 0.0, FLOAT * 2 * layers)  # the layers once more, and their gradient


def shares(run: Run) -> dict[str, dict[str, float]]:
    """Phase -> kind -> share of its CPU time in the profiled step."""
    found: dict[str, dict[str, float]] = {phase: defaultdict(float) for phase in SHOWN}
    for event in run.profile.events():
        phase = phase_of(event)
        if phase:
            found[phase][kind_of(event.name)] += event.self_cpu_time_total
    return {
        phase: {kind: t / sum(kinds.values()) for kind, t in kinds.items()} for phase, kinds in found.items()
    }


def phase_of(event: Any) -> str | None:
    """The phase that an event lies in."""
    while event is not None:
        if event.name in SHOWN:
            return str(event.name)
        event = event.cpu_parent
    return None


def kind_of(name: str) -> str:
    """Of an operator by its name; what is no operator is Python's."""
    if "::" not in name:
        return "Python"
    operator = name.split("::")[1].removesuffix("_backward")
    return next((kind for kind, names in KINDS.items() if operator in names), "other passes over tensors")


def report(run: Run, speed: Speed) -> str:
    """The tables, with the command and the machine."""
    found = shares(run)
    kinds = ("matrix products", "exponentials", "4-bit weights", "other passes over tensors", "Python")
    rows, total, least = [], 0.0, 0.0
    for phase in SHOWN:
        seconds, floor = run.timed(phase), run.floor(phase, speed)
        total, least = total + seconds, least + floor
        rows.append([phase, f"{floor:.3f}", f"{seconds:.3f}", f"{seconds / floor:.1f}"])
    rows.append(["all three", f"{least:.3f}", f"{total:.3f}", f"{total / least:.1f}"])
    about = machine("cpu")
    tokens = statistics.median(sum(batch.lengths) for batch in run.batches[1:-1])
    return document(
        "A step and its floor",
        command_line(),
        f"Device: CPU, {about['threads']} thread (the machine: {about['cpu']}). Versions: {about['versions']}.",
        f"The machine: {speed.operations / 1e9:.0f} GFLOP/s in float32 products of 512 x 512, "
        f"{speed.exponentials / 1e9:.2f} billion exponentials a second, {speed.bytes / 1e9:.1f} GB/s copied, "
        "read and written; each the best of ten.",
        f"Policy {run.spec.policy}, {run.spec.prompts_per_step} prompts of K {run.spec.num_generations}, "
        f"{tokens:.0f} tokens a step. CPU seconds, medians over {run.spec.max_steps - 2} steps.",
        table(("phase", "floor", "measured", "times the floor"), "lrrr", rows),
        "The floor counts matrix products, one exponential a logit, and each weight's bytes once a pass or sampled "
        "token, at the speeds above. LoRA, attention, norms and the optimizer are not in it.",
        "## Where a phase's time goes",
        table(
            ("phase", *kinds),
            "l" + "r" * len(kinds),
            [[phase, *(f"{found[phase].get(kind, 0.0):.0%}" for kind in kinds)] for phase in SHOWN],
        ),
        "Shares of CPU time in one profiled step. Python: also the operators' dispatch between them, which the "
        "profiler makes longer.",
    )


if __name__ == "__main__":
    main()
