"""Build a run from a configuration: policy, task, rewards, trainer."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers.integrations import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations

import rewards
import rloo_kit
from rewards.trl_interface import Reward
from rloo_kit import Plan, data_checks, tasks
from rloo_kit.cli import reward_entries
from rloo_kit.cli.config import Config
from rloo_kit.errors import ConfigError
from rloo_kit.evaluation.evaluate import SAMPLING, Evaluation, evaluate
from rloo_kit.memory import model_choice
from rloo_kit.memory.hardware import device_of
from rloo_kit.memory.plan_settings import settings_of
from rloo_kit.policy import load
from rloo_kit.policy.load import load_policy
from rloo_kit.policy.policy import Policy
from rloo_kit.policy.resolve import base_named
from rloo_kit.policy.save import check_target
from rloo_kit.session import output
from rloo_kit.tasks import Task
from rloo_kit.train.config import RLOOConfig
from rloo_kit.train.trainer import RLOOTrainer


@dataclass(frozen=True)
class Run:
    config: Config
    args: RLOOConfig
    policy: Policy
    task: Task
    rewards: Sequence[Reward]

    def plan(self) -> Plan:
        """Plan the memory and the time of this run, at its longest prompt."""
        _, longest = data_checks.longest_prompts(self.task.train)
        held_out, evaluated = len(self.task.held_out), self.config.evaluate
        if evaluated is not None:
            evaluated = {**evaluated, "n": min(evaluated.get("n") or held_out, held_out)}
        tokens = max(map(len, self._tokens(longest)))
        planned = rloo_kit.plan(self.policy, self.args, prompt_tokens=tokens, eval_rows=held_out, evaluate=evaluated)
        return _with_reach(planned, self.config, len(self.task.train))

    def first_prompt(self) -> str:
        return str(self.policy.tokenizer.decode(self._tokens([self.task.train[0]["prompt"]])[0]))

    def _tokens(self, prompts: Sequence[Any]) -> list[list[int]]:
        return self.policy.tokenize(prompts, **self.args.chat_template_kwargs or {})

    def within_reach(self) -> Run:
        """Return the run on only the problems that the policy solves sometimes, sampled as in training."""
        how = {"max_new_tokens": self.args.max_completion_length, "temperature": self.args.temperature}
        asked = {**how, "chat_template_kwargs": self.args.chat_template_kwargs, **(self.config.within_reach or {})}
        with self.config.at("within_reach"):
            return replace(self, task=self.task.within_reach(self.policy, **asked))

    def trainer(self) -> RLOOTrainer:
        held_out = self.task.held_out if self.args.eval_strategy != "no" else None
        return RLOOTrainer(self.policy, list(self.rewards), self.args, self.task.train, held_out)

    def measure(self, **settings: Any) -> Evaluation:
        """Evaluate the policy on the held-out problems, with the prompts and the completion length of training.

        Unless greedy, it samples as in training, too.  ``settings`` are arguments of ``evaluate``, and take precedence.
        """
        drawn = ("chat_template_kwargs",) if settings.get("greedy", True) else SAMPLING
        asked = {name: getattr(self.args, name) for name in drawn}
        asked["max_new_tokens"] = self.args.max_completion_length
        asked["reward_weights"] = self.args.reward_weights
        return evaluate(self.policy, self.task, list(self.rewards), **asked | settings)

    def measured(self, name: str) -> dict[str, Any]:
        """Evaluate, print the result, and return it by its name; empty if the configuration asks for no evaluation."""
        if self.config.evaluate is None:
            return {}
        results = {name: self.measure(**self.config.evaluate)}
        output.say(f"\n{name}\n{results[name]}\n")
        self.policy.model.measured = results  # for the model cards of checkpoints
        return results


def assembled(config: Config) -> Run:
    """Load the policy, make the task and the rewards.

    Raises:
        ConfigError: a reward refuses its arguments or cannot be called by TRL; with its place in the file.
        RLOOKitError: the policy cannot be loaded or the task cannot be made.
    """
    policy = load_policy(**config.policy)
    ((name, arguments),) = config.task.items()
    # Settings of the run, for a task that takes them: a task that samples the policy does so as in training.
    of_run = {"policy": policy, "chat_template_kwargs": config.settings.get("chat_template_kwargs")}
    length = RLOOConfig.max_completion_length
    if config.args is None:  # the suggested length depends on the task's prompts, which need room
        length = min(length, policy.model.max_seq_length // 2)
    of_run["max_new_tokens"] = config.settings.get("max_completion_length") or length
    make = getattr(tasks, name)
    takes = inspect.signature(make).parameters
    with config.at("task", name):
        task: Task = make(**{key: of_run[key] for key in of_run if key in takes} | arguments)
    known = dict(zip(reward_entries.NAMES, (task.correct, policy.tokenizer, policy.checkpoint.tokens), strict=True))
    functions: list[Reward] = []
    for index, entry in enumerate(config.rewards):
        with config.at("rewards", index):
            functions.append(reward_entries.made(entry, known))
            rewards.check_signature(functions[-1], data_checks.reward_columns(task.train))
    return Run(config, config.args_for(policy, task), policy, task, functions)


def check_training(config: Config) -> None:
    """Check before a policy is loaded that rewards and weights are as many, that the loggers are installed, and that
    the adapter can be written."""
    with config.at("trainer"):
        data_checks.check_weights(config.rewards, config.settings.get("reward_weights"), where="RLOOConfig")
    with config.at("trainer", "report_to"):
        _check_loggers(config.settings.get("report_to") or "none")
    if config.save is None:
        return
    target, name = Path(config.save).expanduser().resolve(), load.settled(config.policy).name or "tiny"
    with config.at("save"):
        check_target(target, "", base_named(name))
        output_dir = config.settings.get("output_dir") or str(RLOOConfig.output_dir)
        if Path(output_dir).expanduser().resolve().is_relative_to(target):
            what = "the run writes its checkpoints into this folder, and the adapter would replace them"
            raise ConfigError(what, todo="name a folder of its own, such as out/adapter")


def _check_loggers(asked: Any) -> None:
    # Whether these are installed, transformers does not say, or only together with whether they are configured.
    untold = ["none", "all", "azure_ml", "comet_ml", "flyte", "kubeflow"]
    for name in asked if isinstance(asked, list) else [asked]:
        reward_entries.check_known(name, ["none", "all", *INTEGRATION_TO_CALLBACK], "there is no logger")
        if name not in untold + get_available_reporting_integrations():
            raise ConfigError(f"the logger {name} is not installed", todo=f"pip install {name}, or leave report_to out")


def planned(config: Config, card: str | None = None, prompt_tokens: int | None = None) -> Plan:
    settled, device = load.settled(config.policy), device_of(card)
    shape: dict[str, Any] = {
        "load_in_4bit": settled.four_bit,
        "gradient_checkpointing": settled.gradient_checkpointing,
        "full_finetuning": settled.lora is None,
        "evaluate": config.evaluate,
    }
    if settled.lora is not None:
        shape |= {"lora_rank": settled.lora["r"], "target_modules": settled.lora["target_modules"]}
    name, thinking = model_choice.chosen(settled.name, settled.four_bit, settled.thinking, device)
    named = {"thinking": thinking, "max_seq_length": settled.max_seq_length}
    args = config.args_for(name, None, device, named=named)
    tokens = settings_of(args, prompt_tokens, settled.max_seq_length).prompt_tokens
    return _with_reach(rloo_kit.plan(name, args, device, prompt_tokens=tokens, **shape), config)


def _with_reach(planned: Plan, config: Config, rows: int | None = None) -> Plan:
    """Count what is sampled before training to find the problems within reach; rows: the task's, None if unknown."""
    if (asked := config.within_reach) is None:
        return planned
    sampled = {"n": min(filter(None, (asked.get("n_prompts"), rows)), default=0), "samples": asked.get("n", 8)}
    return planned.with_settings(evaluations=(*planned.settings.evaluations, (1, sampled)))
