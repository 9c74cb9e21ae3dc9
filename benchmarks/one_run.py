"""One measured training run, for a process that does nothing else: ``runs.measure`` starts it.

    python benchmarks/one_run.py SPEC_AS_JSON RESULT_FILE

It trains the variant that the spec names, evaluates with the clock stopped, and writes one ``Result``.
"""

from __future__ import annotations

import rloo_kit  # isort: skip - unsloth first

import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from learned import TASKS
from phases import Meter, Spent, peak_bytes, reset_peak
from runs import VARIANTS, Evaluated, Result, Spec
from tables import cpu_name

from rewards.signature import Reward as TRLReward
from rewards.signature import reward_name
from rloo_kit.train import cpu_logprobs

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainerControl, TrainerState
    from trl import RLOOTrainer

    from rloo_kit.policy.policy import Policy
    from rloo_kit.tasks import Task

PACKAGES = ("torch", "transformers", "trl", "peft", "unsloth", "bitsandbytes")
SHARED = (
    *("seed", "max_steps", "num_generations", "num_iterations", "max_completion_length", "learning_rate"),
    "beta",
)
"""Fields that ``Spec`` has in common with TRL's config."""


def run(spec: Spec) -> Result:
    """Train as specified and measure."""
    if VARIANTS[spec.variant].untiled:
        cpu_logprobs.is_exact = lambda *given: False
    learned = TASKS[spec.task]
    policy = rloo_kit.load_policy(spec.policy, seed=spec.seed, **learned.load)
    task = learned.make(policy, spec.level, spec.seed)
    reward = Reward(learned.score(task), spec.num_generations)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(spec, policy, task, reward, folder)
        meter = Meter(trainer)
        watcher = watcher_of(spec, meter, policy, task)
        trainer.add_callback(watcher)
        trainer.train()
    device = policy.device.type
    if spec.evaluate_every:
        # With its adapter off the policy is as before training; measured last, so that nothing is disturbed.
        with policy.model.disable_adapter():
            watcher.evaluated.insert(0, Evaluated(0, 0, Spent(), watcher.accuracy()))
    return Result(
        spec=spec,
        steps=tuple(meter.steps),
        evaluated=tuple(watcher.evaluated),
        dead=tuple(reward.dead),
        rewards=tuple(reward.means),
        start_bytes=watcher.start_bytes,
        peak_bytes=watcher.peak_bytes or peak_bytes(device),
        load=os.getloadavg()[0],
        machine=machine(device),
    )


def make_trainer(spec: Spec, policy: Policy, task: Task, reward: Reward, folder: str) -> RLOOTrainer:
    """TRL's trainer or the kit's, with every setting alike that both have."""
    import trl

    variant = VARIANTS[spec.variant]
    on_gpu = policy.device.type == "cuda"
    bf16 = on_gpu and torch.cuda.is_bf16_supported()
    kit = trl if variant.stock else rloo_kit
    config = getattr(kit, f"{variant.algorithm}Config")(
        output_dir=folder,
        **{name: getattr(spec, name) for name in SHARED},
        per_device_train_batch_size=spec.micro_batch,
        gradient_accumulation_steps=spec.num_generations * spec.prompts_per_step // spec.micro_batch,
        lr_scheduler_type="constant",
        # TRL's defaults, set because unsloth has others on a GPU.
        optim="adamw_torch_fused",
        weight_decay=0.0,
        warmup_steps=0,
        bf16=bf16,
        fp16=on_gpu and not bf16,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        temperature=policy.checkpoint.temperature,
        **variant.config,
    )
    given = {"model": policy.model, "processing_class": policy.tokenizer, "train_dataset": task.train}
    trainer: RLOOTrainer = getattr(kit, f"{variant.algorithm}Trainer")(
        **given, reward_funcs=[reward], args=config
    )
    trainer.memory = None  # the kit's own meter resets CUDA's high-water mark in every phase
    return trainer


class Reward:
    """Pays what ``score`` does, and counts groups of ``k`` without spread."""

    def __init__(self, score: TRLReward, k: int) -> None:
        self.score, self.k = score, k
        self.__name__ = reward_name(score)
        self.means: list[float] = []
        self.dead: list[float] = []

    def __call__(self, **columns: Any) -> list[float]:
        """One number per completion."""
        rewards: list[float] = self.score(**columns)
        groups = [rewards[start : start + self.k] for start in range(0, len(rewards), self.k)]
        self.dead.append(sum(len(set(group)) == 1 for group in groups) / len(groups))
        self.means.append(round(sum(rewards) / len(rewards), 4))
        return rewards


def watcher_of(spec: Spec, meter: Meter, policy: Policy, task: Task) -> TrainerCallback:
    """The callback that starts the clock, ends each step, and evaluates while the clock is stopped."""
    from transformers import TrainerCallback, TrainingArguments

    class Watcher(TrainerCallback):
        def __init__(self) -> None:
            self.evaluated: list[Evaluated] = []
            self.start_bytes = self.peak_bytes = 0

        def on_train_begin(self, *args: object, **kwargs: object) -> None:
            self.start_bytes = reset_peak(policy.device.type)
            meter.begin()

        def on_step_end(
            self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
        ) -> None:
            meter.end_step()
            tokens = sum(step.tokens for step in meter.steps)
            last = self.evaluated[-1].tokens if self.evaluated else 0
            due = tokens - last >= spec.evaluate_every or state.global_step == state.max_steps
            if spec.evaluate_every and due:
                # What an evaluation leaves in the allocator is not the training's memory.
                self.peak_bytes = self.peak_bytes or peak_bytes(policy.device.type)
                with meter.paused(), same_randomness():
                    found = Evaluated(state.global_step, tokens, meter.total, self.accuracy())
                self.evaluated.append(found)
                print(found, flush=True)
            reached = spec.target <= max((item.accuracy for item in self.evaluated), default=0.0)
            over = reached or not spec.evaluate_every or tokens >= spec.most
            if state.global_step >= spec.steps and over:
                control.should_training_stop = True

        def accuracy(self) -> float:
            length = TASKS[spec.task].length
            found = rloo_kit.evaluate(policy, task, n=spec.problems, max_new_tokens=length).accuracy
            assert found is not None  # the task has answers
            return found.value

    return Watcher()


@contextmanager
def same_randomness() -> Iterator[None]:
    """Restore Python's, NumPy's and torch's generators afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
    random.setstate(python)
    np.random.set_state(numpy)


def machine(device: str) -> dict[str, str]:
    """What the figures were taken on."""
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "cpu": cpu_name(),
        "threads": str(torch.get_num_threads()),
        "versions": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    }


if __name__ == "__main__":
    target = Path(sys.argv[2])
    scratch = target.with_suffix(".part")
    scratch.write_text(run(Spec(**json.loads(sys.argv[1]))).to_json())
    scratch.replace(target)  # whole or not at all
