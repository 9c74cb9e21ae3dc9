"""Make a measured training run in its own process, from its settings to its result.

The scripts beside it use it.  ``measure`` starts this file as a process that trains one variant, evaluates with the
clock stopped and writes one ``Result`` to a file.  ``measured`` stores each result at once, so that an interrupted
benchmark continues where it stopped.
"""

from __future__ import annotations

import rloo_kit  # isort: skip - unsloth first

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gpu import work
from learned import TASKS
from phases import CLOCKS, PHASES, Meter, Spent, Step, peak_bytes, reset_peak
from tables import RESULTS, cpu_name

from rewards.trl_interface import Reward, reward_name

if TYPE_CHECKING:
    from transformers import TrainerCallback
    from trl import RLOOTrainer

    from rloo_kit.policy.policy import Policy
    from rloo_kit.tasks import Task

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "out" / "benchmarks"
PACKAGES = ("torch", "transformers", "trl", "peft", "unsloth", "bitsandbytes")


@dataclass(frozen=True)
class Variant:
    """A trainer, and what is switched off in it.

    Attributes:
        config: arguments of ``RLOOConfig`` besides those that all variants share.
        stock: TRL's own trainer under unsloth, instead of the kit's.
        untiled: log-probabilities as unsloth computes them on a CPU.
        unshared, unshared_prefill: a prompt is computed for each of its completions, in the loss or in sampling.
        by_torch: float32 products are computed by torch, as in ``stock``.
    """

    config: dict[str, object] = field(default_factory=dict)
    stock: bool = False
    untiled: bool = False
    unshared: bool = False
    unshared_prefill: bool = False
    by_torch: bool = False


TOKEN: dict[str, object] = {"importance_sampling_level": "token"}
MEAN: dict[str, object] = {"loss_aggregation": "token-mean"}
CONSTANT: dict[str, object] = {"loss_aggregation": "seq-mean-token-sum-norm"}
VARIANTS = {
    "stock": Variant(stock=True),
    "kit": Variant(),
    "kit-token": Variant(TOKEN),
    "kit, token mean": Variant(MEAN),
    "kit-token, token mean": Variant(TOKEN | MEAN),
    "kit, constant length": Variant(CONSTANT),
    "kit-token, constant length": Variant(TOKEN | CONSTANT),
    "no-fast-sampling": Variant({"fast_sampling": False}),
    "no-tiles": Variant(untiled=True),
    "kit, torch's products": Variant(by_torch=True),
    "kit, nothing shared": Variant(unshared=True, unshared_prefill=True),
    "kit, shared prefill": Variant(unshared=True),
    "kit, shared loss": Variant(unshared_prefill=True),
    "stock, recomputing": Variant({"gradient_checkpointing": True}, stock=True),
    "kit, recomputing": Variant({"gradient_checkpointing": True}),
}


@dataclass(frozen=True)
class Spec:
    """The settings of a run; runs with equal settings count as the same run.

    Attributes:
        variant, level, task: keys of :data:`VARIANTS`, of ``rloo_kit.tasks.LEVELS`` and of ``learned.TASKS``.
        setting: what a benchmark calls this combination of settings.
        seed: of the LoRA, the task's draw and the sampling.
        repeat: distinguishes runs that are otherwise equal.
        steps: minimum number of updates; the run continues to ``max_steps`` or ``most`` generated tokens until
            ``target``, a held-out greedy accuracy, is reached.
        micro_batch: completions in one forward and backward pass.
        evaluate_every: least number of tokens generated between evaluations, which stop the clock; 0 means none.  The
            last of ``max_steps`` is always followed by an evaluation.
        room: the argument of ``rloo_kit.evaluate``.
        no_ties: add a thousandth more from row to row of a group, so that no group has zero variance.
        lora_rank, lora_alpha: arguments of ``load_policy``; None means the task's own.
    """

    variant: str
    policy: str = "tiny"
    level: int = 1
    task: str = "arithmetic"
    setting: str = ""
    seed: int = 0
    repeat: int = 0
    steps: int = 8
    max_steps: int = 8
    most: int = 1_000_000
    num_generations: int = 8
    prompts_per_step: int = 4
    num_iterations: int = 1
    micro_batch: int = 32
    max_completion_length: int = 32
    learning_rate: float = 1e-3
    beta: float = 0.0
    evaluate_every: int = 0
    problems: int = 200
    room: int = 1
    target: float = 1.0
    no_ties: bool = False
    warmup_steps: int = 0
    lora_rank: int | None = None
    lora_alpha: int | None = None


SHARED = ["seed", "max_steps", "num_generations", "num_iterations", "max_completion_length"]
SHARED += ["learning_rate", "beta", "warmup_steps"]
"""Fields that ``Spec`` has in common with TRL's config."""


@dataclass(frozen=True)
class Evaluated:
    step: int
    tokens: int
    spent: Spent
    accuracy: float
    with_room: float | None = None  # None unless ``Spec.room`` is above 1


@dataclass(frozen=True)
class Result:
    """What a run measured.

    Attributes:
        dead, rewards, gradients: per step: share of zero-variance groups, mean reward, gradient norm before clipping.
        start_bytes, peak_bytes: memory held when training began, and its peak until the first evaluation.
        load: the machine's load average over the last minute, at the end.
    """

    spec: Spec
    steps: tuple[Step, ...]
    evaluated: tuple[Evaluated, ...]
    dead: tuple[float, ...]
    rewards: tuple[float, ...]
    start_bytes: int
    peak_bytes: int
    load: float
    machine: dict[str, str]
    gradients: tuple[float, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(step.tokens for step in self.steps)

    def seconds(self, clock: str, phase: str | None = None) -> list[float]:
        return [getattr(step.spent[phase] if phase else step.total, clock) for step in self.steps]

    def to_json(self) -> str:
        """Return one line of JSON: seconds to a tenth of a millisecond, phases in the order of ``phases.PHASES``."""
        steps = [
            {"tokens": step.tokens}
            | {clock: [round(getattr(step.spent[name], clock), 4) for name in PHASES] for clock in CLOCKS}
            for step in self.steps
        ]
        return json.dumps(dataclasses.asdict(self) | {"steps": steps}, separators=(",", ":"))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        steps = []
        for step in data["steps"]:
            spent = map(Spent, *(step[clock] for clock in CLOCKS))
            steps.append(Step(dict(zip(PHASES, spent, strict=True)), step["tokens"]))
        evaluated = [Evaluated(**{**item, "spent": Spent(**item["spent"])}) for item in data["evaluated"]]
        lists: dict[str, Any] = {"steps": steps, "evaluated": evaluated}
        lists |= {name: data.get(name, ()) for name in ("dead", "rewards", "gradients")}
        return cls(**{**data, "spec": Spec(**data["spec"]), **{name: tuple(v) for name, v in lists.items()}})


# --- a run's file


def measure(spec: Spec) -> Result:
    """Run in a new process and return the result; the log is in out/benchmarks while the process runs."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{spec.variant}-{spec.seed}-", dir=OUT) as folder:
        file, log = Path(folder) / "result.json", Path(folder) / "log"
        command = [sys.executable, str(HERE / "runs.py"), json.dumps(dataclasses.asdict(spec)), str(file)]
        with log.open("w") as out:
            done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            raise RuntimeError(f"{spec} failed; the end of its log:\n{log.read_text()[-2000:]}")
        return Result.from_json(json.loads(file.read_text()))


def stored(name: str) -> list[Result]:
    file = RESULTS / f"{name}.json"
    return [Result.from_json(data) for data in json.loads(file.read_text())] if file.exists() else []


def measured(name: str, wanted: Iterable[Spec], order: Callable[[Result], Any], fresh: bool = False) -> list[Result]:
    """Return all runs of results/NAME.json in their order.  First measure those of ``wanted`` that are missing, or all
    of them if ``fresh``, and store each as soon as it is done."""
    known, file = {run.spec: run for run in stored(name)}, RESULTS / f"{name}.json"
    for spec in wanted:
        if fresh or spec not in known:
            run = known[spec] = measure(spec)
            lines = ",\n".join(one.to_json() for one in sorted(known.values(), key=order))
            scratch = file.with_suffix(".part")
            scratch.write_text(f"[\n{lines}\n]\n")
            scratch.replace(file)  # whole or not at all
            accuracy = f", accuracy {run.evaluated[-1].accuracy}" if run.evaluated else ""
            named = f"{spec.setting or spec.variant}, seed {spec.seed}"
            print(f"{named}: {run.tokens} tokens{accuracy}", flush=True)
    return sorted(known.values(), key=order)


def described(results: Sequence[Result]) -> str:
    first, loads = results[0].machine, sorted(result.load for result in results)
    threads = f"{first['threads']} thread{'s' if first['threads'] != '1' else ''}"
    runs_on = Counter(result.machine["cpu"] for result in results)
    machines = "; ".join(f"{count} on {cpu}" for cpu, count in runs_on.most_common())
    return (
        f"Device: {first['device']}, {threads} (runs: {machines}; load average of a run's last minute {loads[0]:.1f} "
        f"to {loads[-1]:.1f}, the run itself included). Versions: {first['versions']}."
    )


# --- in the process of a run


def run(spec: Spec) -> Result:
    from rloo_kit.policy import generate, onednn_linear
    from rloo_kit.train import cpu_logprobs

    variant = VARIANTS[spec.variant]
    if variant.stock or variant.by_torch:
        onednn_linear.by_onednn = lambda *given: False
    if variant.untiled:
        cpu_logprobs.is_exact = lambda *given: False
    if variant.unshared:
        cpu_logprobs.fits = lambda *given: False
    if variant.unshared_prefill:
        generate._distinct = lambda ids, mask: (torch.arange(len(ids)), torch.arange(len(ids)))
    learned = TASKS[spec.task]
    given: dict[str, Any] = {n: v for n, v in variant.config.items() if n == "gradient_checkpointing"}
    given |= {name: getattr(spec, name) for name in ("lora_rank", "lora_alpha") if getattr(spec, name)}
    policy = rloo_kit.load_policy(spec.policy, seed=spec.seed, **learned.load | given)
    task = learned.make(policy, spec.level, spec.seed)
    reward = CountedReward(learned.score(task), spec.num_generations, spec.no_ties)

    def accuracies() -> tuple[float, float | None]:
        found = rloo_kit.evaluate(policy, task, n=spec.problems, max_new_tokens=learned.length, room=spec.room)
        assert found.accuracy is not None  # the task has answers
        with_room = found.accuracy_with_room
        return found.accuracy.value, with_room.value if with_room else None

    device = policy.device.type
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(spec, policy, task, reward, folder)
        watcher: Any = watcher_of(spec, Meter(trainer), device, accuracies)
        trainer.add_callback(watcher)
        trainer.train()
    if spec.evaluate_every:
        # With its adapter off the policy is as before training.  Measured last, so as not to disturb the run.
        with policy.model.disable_adapter():
            watcher.evaluated.insert(0, Evaluated(0, 0, Spent(), *accuracies()))
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    return Result(
        spec=spec,
        steps=tuple(watcher.meter.steps),
        evaluated=tuple(watcher.evaluated),
        dead=tuple(reward.dead),
        rewards=tuple(reward.means),
        start_bytes=watcher.start_bytes,
        peak_bytes=watcher.peak_bytes or peak_bytes(device),
        load=os.getloadavg()[0],
        gradients=tuple(round(norm, 4) for norm in norms),
        machine={
            "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
            "cpu": cpu_name(),
            "threads": str(torch.get_num_threads()),
            "versions": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        },
    )


def make_trainer(spec: Spec, policy: Policy, task: Task, reward: CountedReward, folder: str) -> RLOOTrainer:
    import trl

    variant = VARIANTS[spec.variant]
    on_gpu = policy.device.type == "cuda"
    bf16 = on_gpu and torch.cuda.is_bf16_supported()
    kit = trl if variant.stock else rloo_kit
    # On a CPU the config decides, whatever load_policy was given.
    recomputing = TASKS[spec.task].load.get("gradient_checkpointing", True)
    own = {"gradient_checkpointing": recomputing, **variant.config}
    args: dict[str, Any] = {name: getattr(spec, name) for name in SHARED}
    # TRL's defaults, set because unsloth's differ on a GPU.
    args |= {"lr_scheduler_type": "constant", "weight_decay": 0.0, "bf16": bf16, "fp16": on_gpu and not bf16}
    args |= {"temperature": policy.checkpoint.temperature, **own}
    k, tokens = spec.num_generations, spec.max_completion_length
    config = kit.RLOOConfig(**work.settings(folder, k, spec.prompts_per_step, spec.micro_batch, tokens, **args))
    given = {"model": policy.model, "processing_class": policy.tokenizer, "train_dataset": task.train}
    trainer: RLOOTrainer = kit.RLOOTrainer(**given, reward_funcs=[reward], args=config)
    return trainer


class CountedReward:
    """Pays what ``score`` pays, and counts zero-variance groups of ``k``."""

    def __init__(self, score: Reward, k: int, no_ties: bool = False) -> None:
        self.score, self.k, self.no_ties, self.__name__ = score, k, no_ties, reward_name(score)
        self.means: list[float] = []
        self.dead: list[float] = []

    def __call__(self, **columns: Any) -> list[float]:
        rewards: list[float] = self.score(**columns)
        if self.no_ties:
            rewards = [reward + 1e-3 * (row % self.k) for row, reward in enumerate(rewards)]
        groups = [rewards[start : start + self.k] for start in range(0, len(rewards), self.k)]
        self.dead.append(sum(len(set(group)) == 1 for group in groups) / len(groups))
        self.means.append(round(sum(rewards) / len(rewards), 4))
        return rewards


def watcher_of(spec: Spec, meter: Meter, device: str, accuracies: Any) -> TrainerCallback:
    from transformers import TrainerCallback

    class Watcher(TrainerCallback):
        def __init__(self) -> None:
            self.meter = meter
            self.evaluated: list[Evaluated] = []
            self.start_bytes = self.peak_bytes = 0

        def on_train_begin(self, *args: object, **kwargs: object) -> None:
            self.start_bytes = reset_peak(device)
            meter.begin()

        def on_step_end(self, args: object, state: Any, control: Any, **kwargs: object) -> None:
            meter.end_step()
            tokens = sum(step.tokens for step in meter.steps)
            last = self.evaluated[-1].tokens if self.evaluated else 0
            due = tokens - last >= spec.evaluate_every or state.global_step == state.max_steps
            if spec.evaluate_every and due:
                # Read before an evaluation, since what it leaves in the allocator is not the training's memory.
                self.peak_bytes = self.peak_bytes or peak_bytes(device)
                with meter.paused():  # the random state stays as it is
                    found = Evaluated(state.global_step, tokens, meter.total, *accuracies())
                self.evaluated.append(found)
                print(found, flush=True)
            reached = spec.target <= max((item.accuracy for item in self.evaluated), default=0.0)
            over = reached or not spec.evaluate_every or tokens >= spec.most
            if state.global_step >= spec.steps and over:
                control.should_training_stop = True

    return Watcher()


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(run(Spec(**json.loads(sys.argv[1]))).to_json())
