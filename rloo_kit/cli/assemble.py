"""From a configuration to what a notebook has in its variables: policy, task, rewards, trainer."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import rewards
import rloo_kit
from rewards.trl_interface import Reward
from rloo_kit import Plan, data_checks, tasks
from rloo_kit.cli.callables import CORRECT, made
from rloo_kit.cli.config import Config
from rloo_kit.errors import ConfigError
from rloo_kit.evaluation.evaluate import SAMPLING, Evaluation, evaluate
from rloo_kit.memory.hardware import device_of
from rloo_kit.policy import load
from rloo_kit.policy.load import load_policy
from rloo_kit.policy.policy import Policy
from rloo_kit.session import output
from rloo_kit.tasks import Task
from rloo_kit.train.trainer import RLOOTrainer


@dataclass(frozen=True)
class Run:
    """What a configuration describes, made."""

    config: Config
    policy: Policy
    task: Task
    rewards: Sequence[Reward]

    def plan(self) -> Plan:
        """The memory of this run, at the longest of its prompts."""
        _, longest = data_checks.longest_prompts(self.task.train)
        tokens = max(map(len, self.policy.tokenize(longest, **self.config.template)))
        return rloo_kit.plan(self.policy, self.config.trainer, prompt_tokens=tokens)

    def first_prompt(self) -> str:
        """The first problem as the policy reads it."""
        tokens = self.policy.tokenize([self.task.train[0]["prompt"]], **self.config.template)[0]
        return str(self.policy.tokenizer.decode(tokens))

    def trainer(self) -> RLOOTrainer:
        """The trainer, not started."""
        args = self.config.trainer
        evaluates = str(getattr(args.eval_strategy, "value", args.eval_strategy)) != "no"
        held_out = self.task.held_out if evaluates else None
        return RLOOTrainer(self.policy, list(self.rewards), args, self.task.train, held_out)

    def measure(self, **settings: Any) -> Evaluation:
        """How good the policy is on the held-out problems, on the prompts and at the length that it is trained on.

        Where completions are sampled, as in training, too.  ``settings`` are ``evaluate``'s, and go first.
        """
        args = self.config.trainer
        drawn = ("chat_template_kwargs",) if settings.get("greedy", True) else SAMPLING
        asked = {name: getattr(args, name) for name in drawn}
        asked |= {"max_new_tokens": args.max_completion_length, "reward_weights": args.reward_weights}
        return evaluate(self.policy, self.task, list(self.rewards), **asked | settings)

    def measured(self, name: str) -> dict[str, Any]:
        """An evaluation by its name, printed; empty where the configuration asks for none."""
        if self.config.evaluate is None:
            return {}
        found = {name: self.measure(**self.config.evaluate)}
        output.say(f"\n{name}\n{found[name]}\n")
        self.policy.model.measured = found  # for the cards of checkpoints
        return found


def assembled(config: Config) -> Run:
    """Load the policy, make the task and the rewards.

    Raises:
        ConfigError: a reward refuses its arguments or cannot be called by TRL; with the line.
        RLOOKitError: the policy or the task cannot be had.
    """
    args = config.trainer
    policy = load_policy(**config.policy)
    with _located(config, "task", config.task):
        make = getattr(tasks, config.task)
        takes = inspect.signature(make).parameters
        given: dict[str, Any] = {"policy": policy} if "policy" in takes else {}
        if "chat_template_kwargs" in takes:  # it samples the policy, which is to say what it says in training
            given["chat_template_kwargs"] = config.template or None
            given["max_new_tokens"] = args.max_completion_length
        task: Task = make(**given | config.task_arguments)
    tokens, tokenizer = policy.checkpoint.tokens, policy.tokenizer
    known = {CORRECT: task.correct, "policy.tokenizer": tokenizer, "policy.tokens": tokens}
    found: list[Reward] = []
    for index, entry in enumerate(config.rewards):
        with _located(config, "rewards", index):
            found.append(made(entry, config.document.folder, known))
            rewards.check_signature(found[-1], data_checks.reward_columns(task.train))
    return Run(config, policy, task, found)


@contextmanager
def _located(config: Config, *key: str | int) -> Iterator[None]:
    """Say on which line an entry stands that makes nothing; errors of the kit's and of ``rewards`` have three parts."""
    try:
        yield
    except (ValueError, TypeError) as error:
        what, *rest = str(error).splitlines() or [type(error).__name__]
        said = dict(line.partition(": ")[::2] for line in rest)
        place = ": ".join(filter(None, [config.document.where(key), said.get("Where", "").rstrip(".")]))
        todo = said.get("What to do", "look at the arguments of this entry")
        raise ConfigError(what, where=place, todo=todo) from error


def planned(config: Config, card: str | None = None, prompt_tokens: int | None = None) -> Plan:
    """The memory of a run, from its policy's shape alone."""
    asked, device = load.settled(config.policy), device_of(card)
    shape: dict[str, Any] = {"load_in_4bit": asked.four_bit, "gradient_checkpointing": asked.checkpointing}
    if asked.lora is None:
        shape["full_finetuning"] = True
    else:
        shape |= {"lora_rank": asked.lora.rank, "target_modules": asked.lora.modules}
    vllm = ("fast_inference", "gpu_memory_utilization")
    shape |= {name: asked.further[name] for name in vllm if name in asked.further}
    name = asked.name or (rloo_kit.fit(device).model.checkpoint.name if device.on_gpu else "tiny")
    return rloo_kit.plan(name, config.trainer, device, prompt_tokens=prompt_tokens, **shape)
