"""Names of other recipes in RLOO's terms: of older TRL releases, of verl, and of TRL's and Unsloth's ``GRPOConfig``.

For :class:`rloo_kit.RLOOConfig`, the trainer and the command line.  Every field of ``GRPOConfig`` that ``RLOOConfig``
lacks has a row in :data:`FIELDS`: it becomes settings of ours, means nothing here, or is refused with what to do.
docs/coming-from-grpo.md is written from the same rows.  No formula stands here, and nothing of TRL's is imported.
"""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rloo_kit.errors import ArgumentError, ConfigError
from rloo_kit.session import processes
from rloo_kit.values import shown

if TYPE_CHECKING:
    import trl

Settings = dict[str, Any]

CONFIG_OLD = {
    "kl_coef": "beta",
    "init_kl_coef": "beta",
    "rloo_k": "num_generations",
    "cliprange": "epsilon",
    "num_ppo_epochs": "num_iterations",
    "response_length": "max_completion_length",
    "max_new_tokens": "max_completion_length",
    "normalize_reward": "normalize_advantages",
    "normalize_advantage": "normalize_advantages",
    "loss_agg_mode": "loss_aggregation",  # verl's
    "push_to_hub_token": "hub_token",
    "warmup_ratio": "warmup_steps",  # below 1 a share of all steps
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
}
"""Arguments of older TRL and transformers configs, and what they are called today."""

CONFIG_GONE = {
    "token_level_kl": "remove it: the KL term is summed over the sequence, as in Ahmadian et al. 2024",
    "total_episodes": "set max_steps = total_episodes / (batch size x accumulation x processes)",
    "num_sample_generations": "set log_completions=True, or look with policy.generate",
    "whiten_rewards": "use normalize_advantages=True, which whitens the advantages of a generation batch",
    "num_mini_batches": "set steps_per_generation to how often one generation batch is split",
    "local_rollout_forward_batch_size": "remove it: per_device_train_batch_size is used",
    "missing_eos_penalty": "write it as a reward function, or set mask_truncated_completions=True",
    "stop_token": "remove it: every eos id of the model's generation config ends a completion",
    "stop_token_id": "put the id into model.generation_config.eos_token_id",
    "sft_model_path": "load the policy with rloo_kit.load_policy(path)",
    "reward_model_path": "pass the path to the trainer, as reward_funcs=path",
    "dataset_num_proc": "map the dataset yourself before training",
    "reward_clip_value": "use reward_clip_range=(-value, value)",
    "advantage_clip_range": "clip the rewards instead, with reward_clip_range",
    "exp_name": "use run_name",
    "overwrite_output_dir": "remove it: checkpoints are overwritten one by one, and resuming is asked for",
    "save_safetensors": "remove it: every checkpoint is in safetensors",
    "prompt_sampling": "remove it: prompts come as often as each other, as in TRL",
    "use_liger_loss": "remove it: the log-probabilities are fused already",
}
"""Config arguments without an equal today, and what to do instead."""

ELSEWHERE = dict.fromkeys(
    (
        "peft_config",
        "lora_rank",
        "lora_alpha",
        "target_modules",
        "load_in_4bit",
        "fast_inference",
        "thinking",
    ),
    "give it to rloo_kit.load_policy: the LoRA is lora_rank, lora_alpha and target_modules there",
) | dict.fromkeys(
    ("model", "reward_funcs", "train_dataset", "eval_dataset", "processing_class", "tokenizer", "callbacks"),
    "give it to rloo_kit.RLOOTrainer",
)
"""Names that are no setting of a run's, and whose they are."""

TRAINER_OLD = {
    "policy": "model",
    "tokenizer": "processing_class",
    "reward_model": "reward_funcs",
    "config": "args",
}
"""Arguments of older TRL trainers, and what they are called today."""

TRAINER_GONE = {
    "ref_policy": "remove it: the reference is the policy as it was when the trainer was made",
    "ref_model": "remove it: the reference is the policy as it was when the trainer was made",
    "value_model": "remove it: the leave-one-out baseline needs no value model",
    "data_collator": "remove it: prompts are tokenized by the trainer",
}
"""Trainer arguments without an equal today, and what to do instead."""

MEANT = {"lr": "learning_rate", "batch_size": "per_device_train_batch_size", "epochs": "num_train_epochs"}
MEANT |= {"steps": "max_steps", "k": "num_generations", "group_size": "num_generations", "kl_beta": "beta"}
MEANT |= {"max_tokens": "max_completion_length", "max_length": "max_completion_length"}
"""Names that no recipe of RLOO's has, and what they mean; others are compared letter by letter."""


@dataclass(frozen=True)
class Row:
    """What a field of ``GRPOConfig`` is here.

    Attributes:
        becomes: settings of ours, by its value.
        nothing: values that change nothing here; they are taken without a word.
        left_out: why any other value may be left out, which is warned of.
        todo: what to do about any other value, which is refused.
    """

    becomes: Mapping[Any, Settings] = field(default_factory=dict)
    nothing: tuple[Any, ...] = ()
    left_out: str = ""
    todo: str = ""


def _aggregation(name: str, **more: str) -> Settings:
    return {"loss_aggregation": name, **more}


_GRPO, _DR_GRPO = {"advantage_estimator": "grpo"}, {"advantage_estimator": "dr_grpo"}
_ENTROPY = "remove it; RLOOConfig has no entropy term, and diagnose says when the entropy collapses"
_CHUNKS = "log-probabilities are computed in chunks already"
_CORRECTION = "neither TRL's RLOO nor the kit corrects what vLLM samples"


def _refused(todo: str, **defaults: Any) -> dict[str, Row]:
    """Rows of fields that change nothing at their default and are refused at any other."""
    return {name: Row(nothing=(value,), todo=todo) for name, value in defaults.items()}


def _left_out(why: str, **defaults: Any) -> dict[str, Row]:
    """Rows of fields that are left out, with a warning but at their default."""
    return {name: Row(nothing=(value,), left_out=why) for name, value in defaults.items()}


FIELDS: dict[str, Row] = {
    "loss_type": Row(
        {
            "grpo": _aggregation("seq-mean-token-mean"),
            "dapo": _aggregation("token-mean"),
            "bnpo": _aggregation("token-mean"),
            "dr_grpo": _aggregation("seq-mean-token-sum-norm"),
            "luspo": _aggregation("seq-mean-token-sum", importance_sampling_level="sequence"),
        },
        todo="use loss_aggregation='token-mean', DAPO's, or train with trl.GRPOTrainer",
    ),
    "kl_in_reward": Row(
        {True: {"kl_placement": "reward"}, False: {"kl_placement": "loss"}},
        todo="use kl_placement='reward' or kl_placement='loss'; beta=0 leaves the KL term out",
    ),
    "scale_rewards": Row(
        {"group": _GRPO, True: _GRPO, "none": _DR_GRPO, False: _DR_GRPO},
        todo="use advantage_estimator='dr_grpo', normalize_advantages=True: it divides by the batch's spread of "
        "advantages, not of rewards",
    ),
    **_refused(
        "remove it: rewards are weighed by reward_weights and added; or normalise in a reward of your own",
        multi_objective_aggregation="sum_then_normalize",
    ),
    **_refused("remove it; a smaller epsilon, or num_iterations=1, keeps ratios near 1", delta=None),
    **_refused("remove it: every token counts", top_entropy_quantile=1.0),
    **_refused(_ENTROPY, entropy_coef=0.0, use_adaptive_entropy=False, entropy_coef_min=0.0),
    **_refused(_ENTROPY, entropy_coef_max=1.0, entropy_coef_delta=0.005, entropy_target=0.2),
    **_refused(
        "remove it: only loss_type='sapo' and 'vespo' read it, which RLOOConfig does not have",
        **{"sapo_temperature_neg": 1.05, "sapo_temperature_pos": 1.0, "vespo_k_pos": 2.0},
        **{"vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0},
    ),
    **_refused(
        "remove it; num_iterations=1 and steps_per_generation=None train on policy, where it masks nothing",
        off_policy_mask_threshold=None,
    ),
    **_refused(
        "remove it: Qwen3's small models tie lm_head to the embedding, and TRL refuses it for those",
        cast_lm_head_to_fp32=False,
    ),
    **_refused(
        "remove it: a completion is one turn; train agents with trl.GRPOTrainer",
        max_tool_calling_iterations=None,
    ),
    **_refused(
        "remove it; log_completions=True prints them, and report_to sends them to a logger",
        log_completions_hub_repo=None,
    ),
    # on by default, and of vLLM alone
    "vllm_importance_sampling_correction": Row(nothing=(False,), left_out=_CORRECTION),
    **_left_out(
        _CORRECTION, vllm_importance_sampling_mode="sequence_mask", vllm_importance_sampling_cap=None
    ),
    **_left_out(_CORRECTION, vllm_importance_sampling_clip_max=3.0, vllm_importance_sampling_clip_min=None),
    # of older releases, and of the class that unsloth generates on a GPU
    **_left_out(
        "prompts are not cut, and one that is too long for max_seq_length is named before training",
        max_prompt_length=None,
    ),
    **_left_out("it is load_policy's", max_seq_length=None),
    "unsloth_num_chunks": Row(nothing=(None, -1), left_out=_CHUNKS),
    **_left_out(_CHUNKS, unsloth_logit_chunk_multiplier=None, unsloth_grpo_mini_batch=None),
    **_refused("set temperature, top_p, top_k and min_p themselves", vllm_sampling_params=None),
}
"""Fields of ``GRPOConfig`` that ``RLOOConfig`` has not, by name; and ``kl_in_reward``, as others call its placement."""

OF_THE_UPDATE = (
    *("loss_type", "scale_rewards", "importance_sampling_level", "use_bias_correction_kl"),
    *("num_generations", "beta", "learning_rate", "per_device_train_batch_size"),
    *("gradient_accumulation_steps", "per_device_eval_batch_size", "optim", "weight_decay"),
    *("warmup_steps", "seed"),
)
"""Settings of a ``GRPOConfig`` that are carried over even where it has them by default, since ours are others."""


@dataclass(frozen=True)
class Translated:
    """Settings in RLOO's terms, and a clause each on what was ``mapped`` and what was ``left_out``."""

    settings: Settings
    mapped: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def translated(given: Mapping[str, Any], known: set[str], where: str) -> Translated:
    """Settings with those that only GRPO has replaced by ours.

    Args:
        given: by name; others than GRPO's are passed through.
        known: names that the configuration takes itself.
        where: the call that was given them.

    Raises:
        ArgumentError: values without an equal, or a setting and one that it stands for with another value.
    """
    foreign = [name for name in given if name in FIELDS and name not in known]
    settings = {name: value for name, value in given.items() if name not in foreign}
    mapped, left_out, refused = [], [], {}
    for name in foreign:
        row, value = FIELDS[name], given[name]
        written = f"{name}={shown(name, value)}"
        if isinstance(value, Hashable) and value in row.becomes:
            ours = row.becomes[value]
            _join(settings, ours, written, where)
            mapped.append(f"{written} is {', '.join(f'{key}={one!r}' for key, one in ours.items())}")
        elif value not in row.nothing:
            if row.left_out:
                left_out.append(f"{written} is left out: {row.left_out}")
            else:
                names = [one for one in row.becomes if isinstance(one, str)]
                near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.8)
                refused[written] = f"did you mean {near[0]!r}?" if near else row.todo
    if refused:
        raise ArgumentError(
            f"{' and '.join(refused)}: GRPO's, without an equal here",
            where=f"{where}({', '.join(refused)})",
            todo="; ".join(dict.fromkeys(refused.values())),
        )
    return Translated(settings, tuple(mapped), tuple(left_out))


def _join(settings: Settings, ours: Settings, written: str, where: str) -> None:
    for key, value in ours.items():
        if settings.setdefault(key, value) != value:
            raise ArgumentError(
                f"{written} stands for {key}={value!r}, and {key}={settings[key]!r} is given too",
                where=where,
                todo=f"set {key}={value!r}, or leave {written.partition('=')[0]} out",
            )


def settings_of(config: trl.GRPOConfig) -> Settings:
    """The settings of a ``GRPOConfig`` that differ from its defaults, and all that its update depends on; GRPO's KL
    term, which is k3 in the loss, under our names.

    Raises:
        ConfigError: not a ``GRPOConfig``.
    """
    if not hasattr(config, "loss_type"):
        raise ConfigError(
            "from_grpo takes TRL's GRPOConfig",
            where=f"RLOOConfig.from_grpo({type(config).__name__})",
            todo="pass trl.GRPOConfig(...); RLOOConfig(**settings) takes GRPO's names too",
        )
    precision = {"bf16": config.bf16, "fp16": config.fp16}  # bf16 is on by default, for any device
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = type(config)(output_dir=config.output_dir, **precision)
    names = [item.name for item in dataclasses.fields(config) if item.init]
    found = {name: getattr(config, name) for name in names}
    found = {k: v for k, v in found.items() if k in OF_THE_UPDATE or v != getattr(plain, k)}
    found |= {"output_dir": config.output_dir, "kl_placement": "loss", "kl_estimator": "k3"}
    if config.fp16 or not config.bf16:
        found |= precision
    if config.use_vllm and config.vllm_importance_sampling_correction:
        found["vllm_importance_sampling_correction"] = True
    found.pop("generation_batch_size", None)  # derived from the others
    if config.steps_per_generation == config.gradient_accumulation_steps:
        found.pop("steps_per_generation", None)
    if config.metric_for_best_model == "loss":
        found = {k: v for k, v in found.items() if k not in ("metric_for_best_model", "greater_is_better")}
    return found


def todays(given: Mapping[str, Any], known: set[str], where: str) -> Settings:
    """Settings by today's names, which are ``known``; a warning for all that had others.

    Raises:
        ArgumentError: a name without an equal, an unknown name, or one setting by two names.
    """
    if given.get("generation_batch_size") and given.get("steps_per_generation") and "loss_type" in given:
        raise ArgumentError(
            "these are all the settings of a GRPOConfig, with what TRL derived from the others",
            where=f"{where}(**config.to_dict())",
            todo="RLOOConfig.from_grpo(config), which carries over what its update depends on",
        )
    found = translated(given, known, where)
    if said := found.mapped + found.left_out:
        processes.warn(f"{where}: {'; '.join(said)}.", FutureWarning)
    return modern_names(found.settings, CONFIG_OLD, CONFIG_GONE, known, where)


def modern_names(
    given: Mapping[str, Any],
    old: Mapping[str, str],
    gone: Mapping[str, str],
    known: set[str],
    where: str,
) -> dict[str, Any]:
    """The same arguments under today's names; an old one is warned of.

    Raises:
        ArgumentError: a name without an equal, an unknown name, or an old name beside its new one.
    """
    renamed = {name: old[name] for name in given if name in old and name not in known}
    if renamed:
        pairs = ", ".join(f"{before} is now {after}" for before, after in renamed.items())
        processes.warn(f"{where}: {pairs}.", FutureWarning)
    values: dict[str, Any] = {}
    for name, value in given.items():
        new = renamed.get(name, name)
        if new not in known:
            todo = gone.get(name) or _suggestion(name, known, where)
            state = "has no equal in today's TRL" if name in gone else "is no argument"
            raise ArgumentError(f"{name} {state}", where=f"{where}({name}={shown(name, value)})", todo=todo)
        if new in values:
            before = next(old for old in given if renamed.get(old) == new)
            raise ArgumentError(
                f"{new} is given twice", where=f"{where}: {before} is its old name", todo=f"keep {new} alone"
            )
        values[new] = value
    return values


def _suggestion(name: str, known: set[str], where: str) -> str:
    if "beta" in known and name in ELSEWHERE:
        return ELSEWHERE[name]
    names = {*known, *(FIELDS if "beta" in known else ())}
    close = [MEANT[name]] if MEANT.get(name) in known else difflib.get_close_matches(name, names, n=2)
    return f"did you mean {' or '.join(close)}?" if close else f"remove it; see help(rloo_kit.{where})"
