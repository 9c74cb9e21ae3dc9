"""Translate names of other recipes into RLOO's: older TRL releases, verl, and TRL's and Unsloth's ``GRPOConfig``.

Used by :class:`rloo_kit.RLOOConfig`, the trainer and the command line.  docs/coming-from-grpo.md is written from the
tables.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from rloo_kit.argument_types import did_you_mean
from rloo_kit.errors import ArgumentError, ConfigError
from rloo_kit.redact import shown
from rloo_kit.session import output

if TYPE_CHECKING:
    import trl

Settings = dict[str, Any]


def _each(names: str, said: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), said)


CONFIG_OLD = {
    "kl_coef": "beta",
    "rloo_k": "num_generations",
    "cliprange": "epsilon",
    "num_ppo_epochs": "num_iterations",
    **_each("response_length max_new_tokens", "max_completion_length"),
    **_each("normalize_reward normalize_advantage", "normalize_advantages"),
    "loss_agg_mode": "loss_aggregation",  # verl's
    "warmup_ratio": "warmup_steps",  # below 1 a share of all steps
    "evaluation_strategy": "eval_strategy",
}
"""Arguments of older TRL and transformers configs, and what they are called today."""

TRAINER_OLD = {"policy": "model", "tokenizer": "processing_class", "reward_model": "reward_funcs", "config": "args"}
"""Arguments of older TRL trainers, and what they are called today."""

_GRPO, _DR_GRPO = {"advantage_estimator": "grpo"}, {"advantage_estimator": "dr_grpo"}

GRPO: dict[str, dict[Any, Settings]] = {
    "loss_type": {
        "grpo": {"loss_aggregation": "seq-mean-token-mean"},
        "dapo": {"loss_aggregation": "token-mean"},
        "bnpo": {"loss_aggregation": "token-mean"},
        "dr_grpo": {"loss_aggregation": "seq-mean-token-sum-norm"},
        "luspo": {"loss_aggregation": "seq-mean-token-sum", "importance_sampling_level": "sequence"},
    },
    "scale_rewards": {"group": _GRPO, True: _GRPO, "none": _DR_GRPO, False: _DR_GRPO},
}
"""GRPO's setting -> its value -> our settings."""

LEFT_OUT = {
    "max_prompt_length": "prompts are not cut, and one that is too long for max_seq_length is named before training",
    "max_seq_length": "it is load_policy's",
    **_each(
        "unsloth_num_chunks unsloth_logit_chunk_multiplier unsloth_grpo_mini_batch",
        "log-probabilities are computed in chunks already",
    ),
}
"""Settings that are left out with a warning, and why that is safe."""

_MEANT = {"lr": "learning_rate", "batch_size": "per_device_train_batch_size", "epochs": "num_train_epochs"}
_MEANT |= {"steps": "max_steps", "k": "num_generations", "group_size": "num_generations", "kl_beta": "beta"}
_MEANT |= _each("max_tokens max_length", "max_completion_length")
"""Names that no RLOO recipe uses, and the settings that they mean."""

CONFIG_GONE = {
    "total_episodes": "set max_steps = total_episodes / (batch size x accumulation x processes)",
    "whiten_rewards": "use normalize_advantages=True, which whitens the advantages of a generation batch",
    "missing_eos_penalty": "write it as a reward function, or set mask_truncated_completions=True",
    # settings of GRPO, or values of these, without an equivalent
    "loss_type": "use loss_aggregation='token-mean', DAPO's, or train with trl.GRPOTrainer",
    "scale_rewards": "use advantage_estimator='dr_grpo', normalize_advantages=True: it divides by the batch's spread",
    # arguments of other calls
    **_each(
        "peft_config lora_rank lora_alpha target_modules load_in_4bit fast_inference thinking model reward_funcs "
        "train_dataset eval_dataset processing_class tokenizer callbacks",
        "give what belongs to the model to rloo_kit.load_policy, and what it is trained on to rloo_kit.RLOOTrainer",
    ),
}
"""Arguments without an equivalent in ``RLOOConfig``, and what to write instead."""

_OF_THE_UPDATE = (
    *("loss_type", "scale_rewards", "importance_sampling_level", "use_bias_correction_kl", "beta", "seed"),
    *("num_generations", "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation"),
    *("per_device_eval_batch_size", "learning_rate", "optim", "weight_decay", "warmup_steps"),
)
"""Settings of a ``GRPOConfig`` that are carried over even at their defaults, since our defaults differ."""


def todays(
    given: Mapping[str, Any], known: set[str], where: str, old: Mapping[str, str] = CONFIG_OLD, *, mapped: bool = True
) -> Settings:
    """Return arguments by today's names, which are ``known``.  One warning lists all that were renamed or left out;
    with ``mapped`` False, only those left out.  An ArgumentError names one without an equivalent or given twice."""
    of_config = old is CONFIG_OLD
    settings: Settings = {}
    notes = []
    for name, value in given.items():
        written, equals = f"{name}={shown(name, value)}", GRPO.get(name, {}) if of_config else {}
        if name in known:
            ours = {name: value}
        elif of_config and name in LEFT_OUT:
            notes.append(f"{written} is left out: {LEFT_OUT[name]}")
            continue
        elif name in old:
            ours = {old[name]: value}
            notes += [f"{name} is now {old[name]}"] * mapped
        elif isinstance(value, Hashable) and value in equals:
            ours = equals[value]
            notes += [f"{written} is {', '.join(f'{key}={one!r}' for key, one in ours.items())}"] * mapped
        else:
            raise _without_equal(name, written, where, known, of_config)
        if twice := next((new for new in ours if new in settings and settings[new] != ours[new]), None):
            what = f"{twice} is given twice, with different values"
            raise ArgumentError(what, where=f"{where}({written})", todo=f"keep {twice} alone")
        settings |= ours
    if notes:
        output.warn(f"{where}: {'; '.join(notes)}.", FutureWarning)
    return settings


def _without_equal(name: str, written: str, where: str, known: set[str], of_config: bool) -> ArgumentError:
    import trl  # not before unsloth

    what = f"{name} is no argument"
    todo = did_you_mean(_MEANT.get(name, name), {*known, *GRPO}, f"see help(rloo_kit.{where})")
    if of_config and name in trl.GRPOConfig.__dataclass_fields__:
        what = f"{written} is GRPO's, and has no counterpart here"
        todo = "remove it, since RLOO has no such part; or train with trl.GRPOTrainer"
    if of_config and name in CONFIG_GONE:
        what, todo = f"{name} has no counterpart here", CONFIG_GONE[name]
    return ArgumentError(what, where=f"{where}({written})", todo=todo)


def of_grpo(config: trl.GRPOConfig, changes: Mapping[str, Any], known: set[str]) -> Settings:
    """Translate the settings of a ``GRPOConfig`` that differ from its defaults, and all that its update depends on;
    GRPO's KL term is k3 in the loss.  ``changes`` override what was carried over."""
    where = "RLOOConfig.from_grpo"
    if not hasattr(config, "loss_type"):
        what = f"from_grpo takes TRL's GRPOConfig, and this is a {type(config).__name__}"
        raise ConfigError(what, where=where, todo="pass trl.GRPOConfig(...)")
    precision = {"bf16": config.bf16, "fp16": config.fp16}  # bf16 is on by default, for any device
    with warnings.catch_warnings(action="ignore"):
        plain = vars(type(config)(output_dir=config.output_dir, **precision))
    settings = {item.name: getattr(config, item.name) for item in dataclasses.fields(config) if item.init}
    settings = {n: v for n, v in settings.items() if n in _OF_THE_UPDATE or v != plain[n]}
    if settings["loss_type"] == "luspo":  # TRL allows either level with it, and its default is not the paper's
        settings["loss_aggregation"] = GRPO["loss_type"][settings.pop("loss_type")]["loss_aggregation"]
    settings |= {"output_dir": config.output_dir, "kl_placement": "loss", "kl_estimator": "k3"}
    if config.fp16 or not config.bf16:
        settings |= precision
    settings.pop("generation_batch_size", None)  # derived from the others
    if config.steps_per_generation == config.gradient_accumulation_steps:
        settings.pop("steps_per_generation")
    kept = {n: v for n, v in settings.items() if n not in changes}
    changes = {n: v for n, v in changes.items() if n in {*known, *GRPO} or v != plain.get(n, ...)}
    return todays(kept, known, where, mapped=False) | todays(changes, known, where, mapped=False)
