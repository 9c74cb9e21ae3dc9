"""One measured training run in a process of its own: what it is, what came of it, and the table of variants.

For benchmarks/step.py and benchmarks/time_to_accuracy.py.  ``measure`` starts the process, waits, and keeps its
result in a file, so that a benchmark that was interrupted goes on where it stopped.  A result is kept under a
name that holds a digest of the run's settings and of the kit's sources: what was changed is measured anew.

An optimisation gets its line in the ablation by a line in ``VARIANTS``.
"""

from __future__ import annotations

import rloo_kit  # isort: skip - unsloth first

import dataclasses
import hashlib
import inspect
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from phases import PHASES, Meter, Spent, Step, peak_bytes, reset_peak

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "out" / "benchmarks"
RESULTS = HERE / "results"
PACKAGES = ("torch", "transformers", "trl", "peft", "unsloth", "bitsandbytes")


@dataclass(frozen=True)
class Variant:
    """A trainer, and what is switched off in it.

    Attributes:
        config: arguments of ``RLOOConfig`` besides those that all variants share.
        environment: variables of the run's process.
        stock: TRL's own trainer under unsloth, in place of the kit's.
    """

    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    stock: bool = False


# The kit's defaults for a CPU's allocator and log-probabilities act on a whole process: stock gets neither.
AS_IT_COMES = {"RLOO_KIT_KEEP_MEMORY": "0"}
CHUNK = "UNSLOTH_CPU_CE_CHUNK_ELEMENTS"

VARIANTS = {
    "stock": Variant(stock=True, environment=AS_IT_COMES),
    "kit": Variant(),
    "no-single-pass": Variant({"single_pass": False}),
    "no-fast-sampling": Variant({"fast_sampling": False}),
    "no-dead-group-skipping": Variant({"skip_dead_groups": False}),
    "no-kept-memory": Variant(environment={**AS_IT_COMES, CHUNK: str(4 * 2**20)}),
    "no-small-chunks": Variant(environment={CHUNK: str(16 * 2**20)}),
}
"""Name -> trainer: stock, the kit with everything on, and the kit with one optimisation off."""


@dataclass(frozen=True)
class Spec:
    """The settings of a run; two runs of equal settings are one.

    Attributes:
        variant: a key of :data:`VARIANTS`.
        policy: a name or folder for ``load_policy``.
        level: of the task, a key of ``rloo_kit.tasks.LEVELS``.
        seed: of the LoRA, the task's draw and the sampling.
        repeat: sets runs apart that are otherwise equal.
        steps: updates at least; the run goes on to ``max_steps`` where ``target`` has not been reached.
        micro_batch: completions in one forward and backward pass.
        evaluate_every: updates between evaluations, with the clock stopped; 0 for none.
        problems: held-out ones, for each evaluation.
        target: held-out greedy accuracy to reach.
    """

    variant: str
    policy: str = "tiny"
    level: int = 1
    seed: int = 0
    repeat: int = 0
    steps: int = 8
    max_steps: int = 8
    num_generations: int = 8
    prompts_per_step: int = 4
    micro_batch: int = 32
    max_completion_length: int = 32
    learning_rate: float = 1e-3
    beta: float = 0.0
    evaluate_every: int = 0
    problems: int = 200
    target: float = 1.0


@dataclass(frozen=True)
class Evaluated:
    """Held-out greedy accuracy after so many updates, tokens and seconds of training."""

    step: int
    tokens: int
    spent: Spent
    accuracy: float


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        dead: share of groups whose K rewards are all equal, per step.
        rewards: mean reward, per step.
        start_bytes, peak_bytes: held when training began, and at most before the first evaluation.
        load: the machine's load average over the last minute, at the end.
        machine: of the process: device, threads, versions.
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

    @property
    def tokens(self) -> int:
        """Generated in the whole run."""
        return sum(step.tokens for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """As plain numbers, seconds to the millisecond; phases in the order of ``phases.PHASES``."""
        return {
            "spec": dataclasses.asdict(self.spec),
            "steps": [
                {
                    "tokens": step.tokens,
                    "cpu_seconds": [round(step.spent[name].cpu_seconds, 4) for name in PHASES],
                    "wall_seconds": [round(step.spent[name].wall_seconds, 4) for name in PHASES],
                }
                for step in self.steps
            ],
            "evaluated": [dataclasses.asdict(item) for item in self.evaluated],
            "dead": self.dead,
            "rewards": [round(reward, 4) for reward in self.rewards],
            **{name: getattr(self, name) for name in ("start_bytes", "peak_bytes", "load", "machine")},
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        """What :meth:`to_json` wrote."""
        steps = tuple(
            Step(
                {
                    name: Spent(*pair)
                    for name, *pair in zip(PHASES, step["cpu_seconds"], step["wall_seconds"], strict=True)
                },
                step["tokens"],
            )
            for step in data["steps"]
        )
        evaluated = tuple(
            Evaluated(**{**item, "spent": Spent(**item["spent"])}) for item in data["evaluated"]
        )
        rest = {name: data[name] for name in ("start_bytes", "peak_bytes", "load", "machine")}
        return cls(
            Spec(**data["spec"]), steps, evaluated, tuple(data["dead"]), tuple(data["rewards"]), **rest
        )


# --- outside: start it, wait, keep what came of it --------------------------------------------------------


def measure(spec: Spec, fresh: bool = False) -> Result:
    """The result of a run, from its file if it is there, else from a process of its own.

    Args:
        spec: what to run.
        fresh: run it even if there is a result.

    Raises:
        RuntimeError: the process failed; with the end of what it said.
    """
    file = OUT / f"{spec.variant}-{spec.seed}-{spec.repeat}-{digest(spec)}.json"
    if fresh or not file.exists():
        OUT.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, json.dumps(dataclasses.asdict(spec)), str(file)]
        environment = {**os.environ, **VARIANTS[spec.variant].environment}
        log = file.with_suffix(".log")
        with log.open("w") as output:
            done = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False
            )
        if done.returncode:
            raise RuntimeError(f"{spec} failed; the end of {log}:\n{log.read_text()[-2000:]}")
    return Result.from_json(json.loads(file.read_text()))


def digest(spec: Spec) -> str:
    """Ten letters for the settings, the variant's switches, and the sources that they run.

    Of this file only what a run is made of counts, so that a new line in ``VARIANTS`` leaves the others' results.
    """
    package = Path(rloo_kit.__file__).parent
    sources = [path.read_text() for path in (*sorted(package.glob("*.py")), HERE / "phases.py")]
    sources += [inspect.getsource(part) for part in (run, make_trainer, Reward, _watcher)]
    text = repr((spec, VARIANTS[spec.variant])) + "".join(sources)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


# --- inside: the run --------------------------------------------------------------------------------------


def run(spec: Spec) -> Result:
    """Train as told and measure; for a process that does nothing else."""
    policy = rloo_kit.load_policy(spec.policy, lora_alpha=32, seed=spec.seed)
    task = rloo_kit.tasks.ladder.task_at(spec.level, "arithmetic", None, None, spec.seed)
    reward = Reward(task.answer_of, spec.num_generations)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(spec, policy, task, reward, folder)
        trainer.memory = None  # the kit's own meter sets CUDA's high-water mark back in every phase
        meter = Meter(trainer)
        watch = _watcher(spec, meter, policy, task)
        trainer.add_callback(watch)
        trainer.train()
    if spec.evaluate_every:
        # The adapter switched off is the policy before training; measured last, so as to disturb nothing.
        with policy.model.disable_adapter():
            watch.evaluated.insert(0, Evaluated(0, 0, Spent(), watch.accuracy()))
    return Result(
        spec=spec,
        steps=tuple(meter.steps),
        evaluated=tuple(watch.evaluated),
        dead=tuple(reward.dead),
        rewards=tuple(reward.means),
        start_bytes=watch.start_bytes,
        peak_bytes=watch.peak_bytes or peak_bytes(policy.device.type),
        load=os.getloadavg()[0],
        machine=machine(policy.device.type),
    )


def make_trainer(spec: Spec, policy: Any, task: Any, reward: Any, folder: str) -> Any:
    """TRL's trainer or the kit's, with every setting alike that both have."""
    import torch
    import trl

    variant = VARIANTS[spec.variant]
    completions = spec.num_generations * spec.prompts_per_step
    on_gpu = policy.device.type == "cuda"
    bf16 = on_gpu and torch.cuda.is_bf16_supported()
    settings: dict[str, Any] = {
        "output_dir": folder,
        "seed": spec.seed,
        "max_steps": spec.max_steps,
        "num_generations": spec.num_generations,
        "per_device_train_batch_size": spec.micro_batch,
        "gradient_accumulation_steps": completions // spec.micro_batch,
        "max_completion_length": spec.max_completion_length,
        "learning_rate": spec.learning_rate,
        "lr_scheduler_type": "constant",
        "beta": spec.beta,
        # TRL's defaults, said because unsloth has others on a GPU.
        "optim": "adamw_torch_fused",
        "weight_decay": 0.0,
        "warmup_steps": 0,
        "bf16": bf16,
        "fp16": on_gpu and not bf16,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    trainer_class, config_class = (
        (trl.RLOOTrainer, trl.RLOOConfig) if variant.stock else (rloo_kit.RLOOTrainer, rloo_kit.RLOOConfig)
    )
    return trainer_class(
        model=policy.model,
        processing_class=policy.tokenizer,
        reward_funcs=[reward],
        args=config_class(**settings, **variant.config),
        train_dataset=task.train,
    )


class Reward:
    """The quickstart's: 0.2 for a thought closed once, 0.8 more for the right answer after it.

    Args:
        answer_of: completion to the answer that it asserts.
        k: completions per prompt, which TRL hands over side by side.
    """

    __name__ = "correct_after_thought"

    def __init__(self, answer_of: Callable[[Any], str | None], k: int) -> None:
        self.answer_of, self.k = answer_of, k
        self.means: list[float] = []
        self.dead: list[float] = []

    def __call__(self, completions: Any, answer: Any, **kwargs: Any) -> list[float]:
        """One number per completion."""
        rewards = []
        for completion, gold in zip(completions, answer, strict=True):
            closed_once = completion[0]["content"].count("</think>") == 1
            rewards.append(0.2 * closed_once + 0.8 * (closed_once and self.answer_of(completion) == gold))
        groups = [rewards[start : start + self.k] for start in range(0, len(rewards), self.k)]
        self.dead.append(sum(len(set(group)) == 1 for group in groups) / len(groups))
        self.means.append(sum(rewards) / len(rewards))
        return rewards


def _watcher(spec: Spec, meter: Meter, policy: Any, task: Any) -> Any:
    """The callback that starts the clock, closes each step, and evaluates while the clock stands."""
    from transformers import TrainerCallback

    class Watcher(TrainerCallback):
        def __init__(self) -> None:
            self.evaluated: list[Evaluated] = []
            self.start_bytes = self.peak_bytes = 0

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.start_bytes = reset_peak(policy.device.type)
            meter.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            meter.end_step()
            if spec.evaluate_every and state.global_step % spec.evaluate_every == 0:
                with meter.paused(), same_randomness():
                    self.evaluate(state.global_step)
            reached = spec.target <= max((item.accuracy for item in self.evaluated), default=0.0)
            if state.global_step >= spec.steps and (reached or not spec.evaluate_every):
                control.should_training_stop = True

        def evaluate(self, step: int) -> None:
            # What an evaluation leaves in the allocator is no memory of the training's.
            self.peak_bytes = self.peak_bytes or peak_bytes(policy.device.type)
            tokens = sum(item.tokens for item in meter.steps)
            self.evaluated.append(Evaluated(step, tokens, meter.clock.total, self.accuracy()))
            print(self.evaluated[-1], flush=True)

        def accuracy(self) -> float:
            found = rloo_kit.evaluate(
                policy, task, n=spec.problems, max_new_tokens=spec.max_completion_length
            ).accuracy
            assert found is not None  # the task has answers
            return found.value

    return Watcher()


@contextmanager
def same_randomness() -> Iterator[None]:
    """Give Python's, NumPy's and torch's generators back as they were."""
    import random

    import numpy as np
    import torch

    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
    random.setstate(python)
    np.random.set_state(numpy)


def machine(device: str) -> dict[str, str]:
    """What the figures were taken on."""
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    cpu = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "cpu": f"{cpu}, {os.cpu_count()} cores",
        "threads": str(torch.get_num_threads()),
        "versions": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    }


def command_line() -> str:
    """How this benchmark was called, for the top of its table."""
    threads = os.environ.get("OMP_NUM_THREADS")
    words = [f"OMP_NUM_THREADS={threads}"] if threads else []
    return " ".join([*words, "python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def described(results: list[Result]) -> str:
    """The machine in a sentence or two, for the top of a table."""
    first = results[0].machine
    loads = sorted(result.load for result in results)
    threads = f"{first['threads']} thread{'s' if first['threads'] != '1' else ''}"
    return (
        f"Device: {first['device']}, {threads} (the machine: {first['cpu']}; load average of a run's last minute "
        f"{loads[0]:.1f} to {loads[-1]:.1f}, the run itself included). Versions: {first['versions']}."
    )


if __name__ == "__main__":
    result = run(Spec(**json.loads(sys.argv[1])))
    target = Path(sys.argv[2])
    scratch = target.with_suffix(".part")
    scratch.write_text(json.dumps(result.to_json()))
    scratch.replace(target)  # whole or not at all
