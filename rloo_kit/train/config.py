"""``RLOOConfig``: TRL's, with defaults that mean the same on a CPU and on a GPU, and with the old names.

On a GPU unsloth replaces TRL's config by one of its own with other defaults
(learning rate, optimizer, batch, warm-up, seed, ...), so that one notebook means two things; here every such
default is set.  Names of older TRL releases that have an equal today are taken, once with a warning, so that
published recipes run as pasted.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import inspect
import json
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args, get_origin

from rloo_kit import advantages
from rloo_kit.forward_passes import DEFAULTS
from rloo_kit.redact import without_hidden
from rloo_kit.session import processes
from rloo_kit.session.import_order import import_unsloth, without_variable
from rloo_kit.train import renamed_args, validate
from rloo_kit.train.validate import HANDLERS, NAMES, Own
from rloo_kit.values import Hint, without_secrets

import_unsloth()

import torch  # noqa: E402 - unsloth first
import trl  # noqa: E402
import unsloth  # noqa: E402

if TYPE_CHECKING:  # with every argument written out
    from rloo_kit.train.signature import Signature as Base
else:
    Base = trl.RLOOConfig


DEFAULT_EVAL_BATCH = 4
"""At least; a multiple of an evaluation's K."""

PRECISION = "ACCELERATE_MIXED_PRECISION"
ASKED = os.environ.get(PRECISION, "no").lower()  # before unsloth's trainer for GPUs writes it
"""Where bf16 and fp16 are both False transformers takes this variable's (training_args.py, ``__post_init__``)."""

TEN = (
    *("num_generations", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("steps_per_generation", "max_completion_length", "learning_rate", "beta", "temperature"),
    *("max_steps", "output_dir"),
)
"""The arguments of TRL's that matter most here."""


@dataclass(init=False)
class RLOOConfig(Base, Own):
    """TRL's ``RLOOConfig``, argument for argument, with these defaults and additions.

    Defaults of the kit, for a real Qwen3 on a small card: ``num_generations`` 4, ``learning_rate`` 1e-5,
    ``beta`` 0.05, batch 4 x accumulation 2, a checkpoint every 25 steps of which two are kept, a log line
    every step.  What unsloth would change on a GPU stands at TRL's own value.  Precision follows the device:
    bfloat16 where a GPU has it, else float16; a CPU computes in what its policy was loaded in.  ``seed`` (42, TRL's)
    governs the run: the order of prompts and the sampling; the LoRA's first values are ``load_policy``'s, the rest
    ``prepare``'s.

    Added, the method:
        advantage_estimator: "rloo", "grpo", "dr_grpo", "reinforce", or a function of the rewards (groups, K)
            that returns advantages of that shape, pure, since a step may call it several times; see
            :mod:`rloo_kit.advantages`.
        kl_placement: "reward" takes beta x KL, summed over a completion, off its reward (Ahmadian et al. 2024
            and TRL); "loss" adds beta x KL per token to the loss (GRPO).
        kl_estimator: "k1", "k2" or "k3"; None is k1 in the reward, as in TRL, and k2 in the loss, where its
            gradient is that of each token's KL divergence.
        loss_aggregation: "seq-mean-token-sum" (TRL's RLOO, with one ratio per completion), and with a ratio
            per token "seq-mean-token-mean" (GRPO), "token-mean" (DAPO) and "seq-mean-token-sum-norm" (Dr. GRPO);
            see :func:`rloo_kit.train.losses.row_weights`.
        importance_sampling_level: what has a ratio of its own: None is the aggregation's, "token" GRPO's, and
            "sequence" GSPO's, a completion's ratio normalised by its length; see
            :func:`rloo_kit.train.losses.policy_loss`.
        use_bias_correction_kl: multiply the KL term in the loss by the ratio, as TRL's GRPO does: the expected
            gradient of k3 is then that of each token's KL(policy || reference).

    Added, less work for the same update:
        single_pass: leave out the forward pass for the old log-probabilities where each generation batch is
            used once, so that they equal the new ones (without dropout, which ``load_policy`` leaves out).  With
            beta in the reward the advantages are then computed in the loss, for which whole groups must fit a
            micro-batch.
        skip_dead_groups: leave completions without a signal out of the training pass.  None: where beta is 0,
            so that the update stays the same.  True drops dead groups (all advantages before the KL term are 0:
            for the group estimators, their K rewards are all equal) also where beta is above 0, and with them
            their KL term, which then holds the policy only on prompts that it is still learning from.  False
            trains on all.  "kl" and "entropy" are means over what is trained on.
        fast_sampling: on a CPU, draw tokens by inverse CDF and stop computing completions that have ended
            (same distribution, a fraction of the time); on a GPU, read lm_head once a token, not once a completion.

    Added, less memory for the same update:
        generation_rows: completions sampled at once, at most; the rest of the batch follows, slice by slice.  None: as
            many as the memory plan says fit, all where all fit.  Fewer take longer and less key-value cache; their
            distribution is the same.  Where memory runs out all the same, the number is halved for the rest of the
            run, and what was sampled is kept.  Not with vLLM or continuous batching, which have their own limits.

    Added, to see and to be safe:
        progress: a line a step.  False is for many runs in one cell: only what goes wrong is said, and nothing drawn.
        live_plot: in a notebook, draw the run above its lines while it trains.
        metric_for_best_model: "eval_reward" where the best checkpoint is asked for, since the loss reads about 0.
        on_unhealthy: "warn" says what is wrong and the setting to change (:mod:`rloo_kit.watch`), "stop" also saves a
            checkpoint and ends the training; a function gets the ``Finding`` instead.
        reward_limit: largest magnitude a reward may have before it is taken for a mistake.

    TRL's that matter most:
        num_generations: K: completions sampled for each prompt. The baseline of each is the mean of the other K - 1.
        per_device_train_batch_size: Completions in one forward and backward pass. Lower it first when memory is short.
        gradient_accumulation_steps: Passes in one update. Batch x accumulation completions, a multiple of K, make an
            update.
        steps_per_generation: Passes between two rounds of sampling; None takes ``gradient_accumulation_steps``. A
            smaller number samples an update's completions in more rounds of fewer; for memory alone see
            ``generation_rows``.
        max_completion_length: Longest completion in tokens. What is cut cannot be right.
        learning_rate: Of AdamW on the LoRA. The first setting to lower when a run goes wrong.
        beta: Weight of the KL term that holds the policy near the reference; 0 switches it off, and saves a pass.
        temperature: Of sampling. Below 1, a prompt's completions become alike and teach less; a small model says noise
            at 1, and ``policy.checkpoint.temperature`` has what suits it.
        max_steps: Updates in the run; -1 trains ``num_train_epochs`` epochs instead.
        output_dir: Log, checkpoints and picture of the run.

    Raises:
        ArgumentError: an argument that does not exist, with the one that was meant or what to do instead.
        ConfigError: a value out of range or two that contradict each other.
    """

    output_dir: str | None = field(default="out/rloo")
    num_generations: int | None = field(default=DEFAULTS.num_generations)
    beta: float = field(default=DEFAULTS.beta)
    learning_rate: float = field(default=1e-5)
    per_device_train_batch_size: int = field(default=DEFAULTS.per_device_train_batch_size)
    gradient_accumulation_steps: int = field(default=DEFAULTS.gradient_accumulation_steps)
    logging_steps: float = field(default=1)
    save_steps: float = field(default=25)
    save_total_limit: int | None = field(default=2)
    disable_tqdm: bool | None = field(default=True)
    # What unsloth's generated config changes on a GPU, at TRL's values.
    optim: str = field(default=DEFAULTS.optim)
    weight_decay: float = field(default=0.0)
    warmup_steps: float = field(default=0)
    seed: int = field(default=42)
    torch_empty_cache_steps: int | None = field(default=None)
    logging_nan_inf_filter: bool = field(default=False)
    include_num_input_tokens_seen: str | bool = field(default="no")
    # unsloth puts the train batch in place of an 8
    per_device_eval_batch_size: int = field(default=DEFAULT_EVAL_BATCH)
    eval_accumulation_steps: int | None = field(default=None)
    generation_kwargs: dict[str, Any] | str | None = field(default=None)

    if not TYPE_CHECKING:

        def __init__(self, output_dir: str | None = None, **kwargs: Any) -> None:
            self._settle(kwargs if output_dir is None else {**kwargs, "output_dir": output_dir})

    def _settle(self, kwargs: dict[str, Any]) -> None:
        """Make the configuration of what was given, two calls up."""
        known = known_names(type(self))
        given = renamed_args.todays(kwargs, known, "RLOOConfig")
        _keep_functions(given)
        values = {**_own_defaults(type(self)), **validate.checked(given), **_precision(given)}
        if "per_device_eval_batch_size" not in given:
            values["per_device_eval_batch_size"] = _whole_groups(values)
        if values["kl_estimator"] is None:
            values["kl_estimator"] = "k2" if values["kl_placement"] == "loss" else "k1"
        if values.get("load_best_model_at_end") or values.get("save_strategy") == "best":
            values.setdefault("metric_for_best_model", "eval_reward")  # transformers would take the loss
        own = Own(**{name: values.pop(name) for name in NAMES})
        items = dataclasses.fields(type(self))
        defaults = {item.name: item.default for item in items if item.default is not dataclasses.MISSING}
        complete = SimpleNamespace(**(defaults | values))
        validate.check_together(complete, own, processes.process_count())
        for doubt in validate.doubts(complete, own):
            processes.warn(doubt)
        for name in NAMES:
            setattr(self, name, getattr(own, name))
        with validate.refused_as_ours("RLOOConfig", given), without_variable(PRECISION):
            super().__init__(**values)
        self._given, self._as_made = given, dict(vars(self))

    def given(self) -> dict[str, Any]:
        """What it was made with, by today's names, and what was set on it since; empty where it was unpickled."""
        if "_given" not in vars(self):
            return {}
        since = {name: value for name, value in vars(self).items() if name not in ("_given", "_as_made")}
        return self._given | {n: v for n, v in since.items() if n in self._as_made and v != self._as_made[n]}

    @classmethod
    def from_grpo(cls, config: trl.GRPOConfig, **changes: Any) -> Self:
        """The configuration whose update is that of TRL's ``GRPOTrainer`` with this ``GRPOConfig``.

        What the update depends on is carried over, GRPO's advantages, loss and KL term included, and of the rest what
        differs from ``GRPOConfig``'s defaults.  ``from_grpo(config, advantage_estimator="rloo")`` then changes the
        advantages alone.

        Args:
            config: TRL's, or the one that unsloth generates.
            changes: arguments of this class, or GRPO's, in place of what was carried over.

        Raises:
            ArgumentError: a setting that only GRPO's trainer has.
        """
        kept = {
            name: value for name, value in renamed_args.settings_of(config).items() if name not in changes
        }
        carried = renamed_args.translated(kept, known_names(cls), "RLOOConfig.from_grpo")
        if carried.left_out:
            processes.warn(f"RLOOConfig.from_grpo: {'; '.join(carried.left_out)}.", FutureWarning)
        changed = renamed_args.translated(changes, known_names(cls), "RLOOConfig.from_grpo")
        return cls(**{**carried.settings, **changed.settings})

    def __str__(self) -> str:
        """As transformers has it, one setting a line: no token, and no value from .env."""
        return without_hidden(super().__str__())

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """As transformers has it, for loggers: no token, and no value from .env."""
        return {name: without_secrets(value) for name, value in super().to_dict().items()}

    def __getstate__(self) -> dict[str, Any]:
        """For a checkpoint's ``training_args.bin``, which people publish: no token, and no value from .env."""
        kept = {name: value for name, value in vars(self).items() if name not in ("_given", "_as_made")}
        return {n: None if n.endswith("_token") else without_secrets(value) for n, value in kept.items()}

    def __copy__(self) -> Self:
        """With its token, unlike what is written to a file."""
        made = type(self).__new__(type(self))
        made.__dict__.update(vars(self))
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """As ``__copy__``."""
        made = memo[id(self)] = copy.copy(self)
        made.__dict__.update(copy.deepcopy(vars(self), memo))
        return made


def known_names(config_class: type) -> set[str]:
    """The arguments that a configuration takes: its fields, and what unsloth's generated class adds."""
    known = {item.name for item in dataclasses.fields(config_class) if item.init}
    return known | set(inspect.signature(trl.RLOOConfig.__init__).parameters) - {"self", "kwargs"}


def _keep_functions(given: dict[str, Any]) -> None:
    """Replace functions by names, so that the configuration can be saved, logged and compared."""
    if callable(given.get("advantage_estimator")):
        given["advantage_estimator"] = advantages.register(given["advantage_estimator"])
    if callable(handler := given.get("on_unhealthy")):
        given["on_unhealthy"] = f"{getattr(handler, '__name__', 'function')} at {id(handler):#x}"
        HANDLERS[given["on_unhealthy"]] = handler


def _own_defaults(config_class: type) -> dict[str, Any]:
    """The defaults written in :class:`RLOOConfig`; the others stay with whichever class is below."""
    written = {*inspect.get_annotations(RLOOConfig), *NAMES}
    return {item.name: item.default for item in dataclasses.fields(config_class) if item.name in written}


def _whole_groups(values: Mapping[str, Any]) -> int:
    """The evaluation's batch where none was asked for, of groups that an evaluation samples: TRL refuses others."""
    default, k = DEFAULT_EVAL_BATCH, values.get("num_generations_eval") or values["num_generations"]
    return -(-default // k) * k if isinstance(k, int) and k > 0 else default


def _precision(given: Mapping[str, Any]) -> dict[str, bool]:
    """The device's 16-bit type, unless the user names one: in the configuration, or on a GPU by the variable."""
    on_gpu = torch.cuda.is_available()
    named = next((name for name in ("bf16", "fp16") if given.get(name)), "")
    chosen = bool(named) or given.get("bf16") is not None  # command lines always pass fp16=False
    taken = "float32"
    if on_gpu and not (chosen and not named):
        taken = named or ("bf16" if unsloth.is_bfloat16_supported() else "fp16")
    if named and not on_gpu:
        processes.warn(f"{named}=True of RLOOConfig has no effect on a CPU. What to do: leave it out.")
    elif ASKED not in ("no", taken):
        if on_gpu and not chosen and ASKED in ("bf16", "fp16"):
            taken, said = ASKED, f"decides: the run computes in {ASKED}"
        else:
            said = f"has no effect: the run computes in {taken}"
        processes.warn(
            f"{PRECISION}={ASKED} {said}. What to do: unset it; RLOOConfig(bf16=True) chooses on a GPU."
        )
    if chosen:
        return {}
    return {name: taken == name for name in ("bf16", "fp16")}


# --- the signature ----------------------------------------------------------------------------------------


def signature(config_class: type) -> inspect.Signature:
    """All arguments, for ``help``, for what completes in a notebook, and for ``signature.pyi`` (scripts/docs.py).

    ``output_dir``, which may be given by place, comes first, then the kit's own, :data:`TEN`, and the rest.
    """
    kinds, there = (
        inspect.Parameter,
        {item.name: item for item in dataclasses.fields(config_class) if item.init},
    )
    parameters = []
    for name in dict.fromkeys(("output_dir", *NAMES, *TEN, *there)):
        item, first = there[name], name == "output_dir"
        value = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
        value = value.value if isinstance(value, enum.Enum) else value
        may_be_function = name in ("advantage_estimator", "on_unhealthy")
        hint = "str | Callable[..., Any]" if may_be_function else written(validate.hints()[name])
        kind = kinds.POSITIONAL_OR_KEYWORD if first else kinds.KEYWORD_ONLY
        parameters.append(kinds(name, kind, default=value, annotation=hint))
    return inspect.Signature(parameters)


def written(hint: Hint) -> str:
    """A type as Python source that needs no import; a choice of an enumeration is text, what is no builtin is ``Any``.

    >>> written(Annotated[int, "at least 1"] | None), written(list[str] | Literal["a"]), written(inspect.Signature)
    ('int | None', 'list[str] | Literal["a"]', 'Any')
    """
    origin: Any = get_origin(hint)
    if origin is Annotated:
        return written(get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(sorted(dict.fromkeys(map(written, get_args(hint))), key="None".__eq__))
    if origin is Literal:
        choices = (json.dumps(one) if isinstance(one, str) else repr(one) for one in get_args(hint))
        return f"Literal[{', '.join(choices)}]"
    if origin in (list, dict, tuple):
        return f"{origin.__name__}[{', '.join(map(written, get_args(hint)))}]"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "str"
    if hint is type(None):
        return "None"
    return hint.__name__ if getattr(hint, "__module__", "") == "builtins" else "Any"


RLOOConfig.__signature__ = signature(RLOOConfig)
