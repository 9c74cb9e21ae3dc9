"""``RLOOConfig``: TRL's configuration, with the same defaults on a CPU and on a GPU, and with old argument names.

On a GPU unsloth replaces TRL's config by its own, which has other defaults (learning rate, optimizer, batch, seed);
this class sets every such default.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
import trl
import unsloth
from accelerate.utils import patch_environment

from rloo_kit import advantages
from rloo_kit.argument_types import Hint
from rloo_kit.memory.plan_settings import PLAIN, Configured
from rloo_kit.redact import without_secrets
from rloo_kit.session import distributed, output
from rloo_kit.train import check_config, renamed_args
from rloo_kit.train.check_config import HANDLERS

if TYPE_CHECKING:  # a stub with every argument written out
    from datasets import Dataset

    from rloo_kit.memory.policy_tensors import Plannable
    from rloo_kit.tasks import Task
    from rloo_kit.train.signature import Signature as Base
else:
    Base = trl.RLOOConfig

PRECISION = "ACCELERATE_MIXED_PRECISION"
"""If bf16 and fp16 are both False, transformers reads this variable (training_args.py, ``__post_init__``)."""


@dataclass(init=False)
class RLOOConfig(Base):
    """TRL's ``RLOOConfig``, argument for argument, with these defaults and additions.

    The defaults suit a real Qwen3 on a small card; settings that unsloth would change on a GPU keep TRL's values.
    Precision follows the device: bfloat16 if a GPU has it, else float16; a CPU computes in the dtype its policy was
    loaded in.  ``seed`` governs prompt order and sampling; ``load_policy`` seeds the LoRA's initial values.

    Added, the method:
        advantage_estimator: "rloo", "grpo", "dr_grpo", "reinforce", or a pure function of the rewards (groups, K)
            that returns advantages of that shape; see :mod:`rloo_kit.advantages`.
        kl_placement: "reward" subtracts beta x KL, summed over a completion, from its reward (Ahmadian et al.
            2024 and TRL); "loss" adds beta x KL per token to the loss (GRPO).
        kl_estimator: "k1", "k2" or "k3"; None means k1 in the reward, as in TRL, and k2 in the loss, where its
            gradient is that of each token's KL divergence.
        loss_aggregation: "seq-mean-token-sum" (TRL's RLOO), "seq-mean-token-mean" (GRPO), "token-mean" (DAPO) or
            "seq-mean-token-sum-norm" (Dr. GRPO).
        importance_sampling_level: one ratio per "token" (GRPO), or per "sequence", normalised by its length (GSPO).
            None means one per completion for "seq-mean-token-sum", as in TRL's RLOO, else one per token.
        use_bias_correction_kl: multiply a KL term in the loss by the ratio, as TRL's GRPO does: the expected
            gradient of k3 is then that of each token's KL(policy || reference).

    Added, less work or memory for the same update:
        single_pass: skip the forward pass for the old log-probabilities if each generation batch is used once and
            there is no KL term in the reward.
        skip_zero_variance_groups: leave completions without a signal out of the training pass.  None means only if
            beta is 0, so that the update stays the same.  True drops zero-variance groups (all advantages before the
            KL term are 0) and their KL term even if beta is above 0.  False trains on all.
        fast_sampling: on a CPU, draw tokens by inverse CDF and stop computing completions that have ended
            (same distribution, a fraction of the time); on a GPU, read lm_head once per token, and for many
            rows hold 4-bit weights in 16 bit if there is room.
        generation_rows: maximum number of completions sampled at once; the rest follows in slices.  None means as many
            as the memory plan says fit.  If memory still runs out, the number is halved for the rest of the run.

    Added, to see and to be safe:
        progress: print a line per step that samples.  False prints only problems, and plots nothing.
        live_plot: in a notebook, plot the run above its lines while it trains.
        metric_for_best_model: "eval_reward" if the best checkpoint is requested, since the loss stays near 0.
        on_unhealthy: "warn" prints what is wrong and the setting to change (:mod:`rloo_kit.watch`), "stop" also saves a
            checkpoint and ends the training; a function gets the ``Finding`` instead.
        reward_limit: largest magnitude a reward may have before it is taken for a mistake.

    TRL's that matter most:
        num_generations: K: completions sampled per prompt. The baseline of each is the mean reward of the other K - 1.
        per_device_train_batch_size: Completions in one forward and backward pass. Lower it first when memory is short.
        gradient_accumulation_steps: Passes in one update. Batch x accumulation is a multiple of K.
        steps_per_generation: Passes between two rounds of sampling; None means ``gradient_accumulation_steps``.
        max_completion_length: Longest completion in tokens. ``evaluate`` counts a truncated one as wrong.
        learning_rate: AdamW's, for the LoRA. The first setting to lower when a run goes wrong.
        beta: Weight of the KL term that holds the policy near the reference; 0 saves the reference pass.
        temperature: Sampling temperature. Below 1, a prompt's completions become alike and teach less;
            small models can be incoherent at 1. ``policy.checkpoint.temperature`` is the checkpoint's.
        max_steps: Updates in the run; -1 trains ``num_train_epochs`` epochs instead.
        output_dir: Folder of the run's log, checkpoints and plot.

    Raises:
        ArgumentError: an argument does not exist; the message suggests another, or what to do instead.
        ConfigError: a value is out of range, or two values contradict each other.
    """

    # The kit's own.
    advantage_estimator: str = "rloo"
    kl_placement: Literal["reward", "loss"] = "reward"
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    loss_aggregation: Literal["seq-mean-token-sum", "seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"] = (
        "seq-mean-token-sum"
    )
    importance_sampling_level: Literal["token", "sequence"] | None = None
    use_bias_correction_kl: bool = False
    single_pass: bool = Configured.single_pass
    skip_zero_variance_groups: bool | None = None
    fast_sampling: bool = True
    generation_rows: int | None = None
    progress: bool = True
    live_plot: bool = True
    on_unhealthy: str = "warn"
    reward_limit: float = 1e6
    # TRL's settings, for a real Qwen3 on a small card.
    output_dir: str | None = "out/rloo"
    num_generations: int | None = Configured.num_generations
    beta: float = Configured.beta
    learning_rate: float = 1e-5
    per_device_train_batch_size: int = Configured.per_device_train_batch_size
    gradient_accumulation_steps: int = Configured.gradient_accumulation_steps
    logging_steps: float = 1
    save_steps: float = 25
    save_total_limit: int | None = 2
    disable_tqdm: bool | None = True
    # Settings that unsloth's generated config changes on a GPU, at TRL's values.
    optim: str = Configured.optim
    weight_decay: float = 0.0
    warmup_steps: float = 0
    seed: int = 42
    torch_empty_cache_steps: int | None = None
    logging_nan_inf_filter: bool = False
    include_num_input_tokens_seen: str | bool = "no"
    # unsloth replaces an 8, TRL's default, by the train batch.  If none is given, 4 is rounded up to whole groups.
    per_device_eval_batch_size: int = 4
    eval_accumulation_steps: int | None = None
    generation_kwargs: dict[str, Any] | str | None = None

    reasons = tuple[Any, ...]()  # set by suggested: (setting, value, why)

    def _settle(self, output_dir: str | None = None, **kwargs: Any) -> None:
        kwargs |= {} if output_dir is None else {"output_dir": output_dir}
        given = renamed_args.todays(kwargs, known_names(type(self)), "RLOOConfig")
        _keep_functions(given)
        fields = dataclasses.fields(type(self))
        defaults = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
        ours = {name: defaults[name] for name in inspect.get_annotations(RLOOConfig)}
        values = ours | check_config.checked(given, types()) | _precision(given)
        if "per_device_eval_batch_size" not in given:
            k = values.get("num_generations_eval") or values["num_generations"]
            values["per_device_eval_batch_size"] = -(-values["per_device_eval_batch_size"] // k) * k
        if values["kl_estimator"] is None:
            values["kl_estimator"] = "k2" if values["kl_placement"] == "loss" else "k1"
        if values.get("load_best_model_at_end") or values.get("save_strategy") == "best":
            values.setdefault("metric_for_best_model", "eval_reward")  # transformers would take the loss
        # Checked before TRL's and unsloth's code runs, which changes settings that contradict each other.
        complete: Any = SimpleNamespace(**defaults | values)
        check_config.check_together(complete, distributed.process_count())
        for doubt in check_config.doubts(complete):
            output.warn(doubt)
        for name in OWN:
            setattr(self, name, values.pop(name))
        with check_config.refused_as_ours("RLOOConfig", given), patch_environment(**{PRECISION: "no"}):
            super().__init__(**values)
        self._given, self._as_made = given, dict(vars(self))

    if not TYPE_CHECKING:
        __init__ = _settle

    def given(self) -> dict[str, Any]:
        """Return the settings it was made with, by today's names, and those set since."""
        made = self._as_made
        return self._given | {n: v for n, v in vars(self).items() if n in made and v != made[n]}

    @classmethod
    def from_grpo(cls, config: trl.GRPOConfig, **changes: Any) -> Self:
        """Return the configuration whose update matches TRL's ``GRPOTrainer`` with this ``GRPOConfig``.

        Settings that the update depends on are carried over, others only if they differ from ``GRPOConfig``'s
        defaults.  ``changes``, by our names or GRPO's, override them: ``from_grpo(config, advantage_estimator="rloo")``
        changes only the advantages.

        Raises:
            ArgumentError: a setting exists only in GRPO's trainer.
        """
        return cls(**renamed_args.of_grpo(config, changes, known_names(cls)))

    @classmethod
    def suggested(
        cls,
        policy: Plannable,
        task: Task | Dataset | None,
        output_dir: str = "out/rloo",
        card: str | float | None = None,
        named: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> Self:
        """Suggest settings for a policy and a task or dataset, from the memory plan, lengths and measured runs.

        Settings in ``given`` stay as they are; None leaves the choice.  Settings, values and reasons are printed, and
        kept as ``reasons``.  ``card`` plans for a GPU that is not here; the policy may then be a name, and
        ``named`` what ``load_policy`` would be given: ``{"thinking": False, "max_seq_length": 2048}``.

        Raises:
            ConfigError: no batch of the policy fits, or a given size is invalid.
        """
        from rloo_kit.train.suggested import suggest

        given = {"output_dir": output_dir} | {name: v for name, v in given.items() if v is not None}
        given = renamed_args.todays(given, known_names(cls), "RLOOConfig")
        planned = {field.name for field in dataclasses.fields(Configured)} | {"generation_batch_size"}
        given |= check_config.checked({name: given[name] for name in planned & given.keys()}, types())
        rows = suggest(policy, task, card, given, named)
        config = cls(**{row.setting: row.value for row in rows})
        config.reasons = tuple(rows)
        output.say("\n".join(map(str, rows)))
        return config

    # --- tokens: kept by the configuration and its copies, left out of all that is printed, logged or pickled --

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as transformers does, for loggers, without tokens or .env values."""
        return {name: without_secrets(value, name) for name, value in super().to_dict().items()}

    def __str__(self) -> str:
        settings = "".join(f"{name}={value},\n" for name, value in sorted(self.to_dict().items()))
        return f"{type(self).__name__}(\n{settings})"

    __repr__ = __str__

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a checkpoint's ``training_args.bin``, without secrets: people publish that file."""
        kept = {name: without_secrets(value, name) for name, value in vars(self).items()}
        return kept | {"hub_token": None}  # the reader of a published file must use their own token

    def __copy__(self) -> Self:
        copied = type(self).__new__(type(self))
        copied.__dict__.update(vars(self))
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = copy.copy(self)
        copied.__dict__.update(copy.deepcopy(vars(self), memo))
        return copied


OWN = tuple(n for n in inspect.get_annotations(RLOOConfig) if n not in trl.RLOOConfig.__dataclass_fields__)
"""The settings that TRL does not have."""


def known_names(config_class: type) -> set[str]:
    """Return the arguments that a configuration takes: its fields, and those that unsloth's generated class adds."""
    known = {field.name for field in dataclasses.fields(config_class) if field.init}
    return known | set(inspect.signature(trl.RLOOConfig.__init__).parameters) - {"self", "kwargs"}


@functools.cache
def types() -> Mapping[str, Hint]:
    """The type of every setting, with its range."""
    ranges = {name: hint for hint, names in check_config.RANGES.items() for name in names.split()}
    return typing.get_type_hints(RLOOConfig) | typing.get_type_hints(trl.RLOOConfig) | ranges


def check(args: trl.RLOOConfig) -> trl.RLOOConfig:
    """Check a configuration as it is now, since it may have been read from a file or changed after it was made.
    A plain ``trl.RLOOConfig`` comes back as a copy, with the kit's settings at the values that match plain TRL."""
    if not isinstance(args, RLOOConfig):
        plain = {"kl_estimator": "k1", "skip_zero_variance_groups": False, "live_plot": False, **PLAIN}
        theirs, args = vars(args), copy.copy(args)
        vars(args).update({name: getattr(RLOOConfig, name) for name in OWN} | plain | theirs)
    check_config.checked({name: value for name, value in vars(args).items() if name in types()}, types())
    check_config.check_together(args, distributed.process_count())
    return args


def _keep_functions(given: dict[str, Any]) -> None:
    """Replace functions by names, so that the configuration can be saved, logged and compared."""
    if callable(given.get("advantage_estimator")):
        given["advantage_estimator"] = advantages.register(given["advantage_estimator"])
    if callable(handler := given.get("on_unhealthy")):
        given["on_unhealthy"] = f"{getattr(handler, '__name__', 'function')} at {id(handler):#x}"
        HANDLERS[given["on_unhealthy"]] = handler


def _precision(given: Mapping[str, Any]) -> dict[str, bool]:
    """Choose the device's 16-bit type, unless the configuration names one."""
    named, on_gpu = given.get("bf16") or given.get("fp16"), torch.cuda.is_available()
    if named and not on_gpu:
        output.warn("bf16 and fp16 of RLOOConfig have no effect on a CPU. What to do: leave them out.")
    if named or given.get("bf16") is not None:  # command lines always pass fp16=False
        return {}
    in_bf16 = on_gpu and unsloth.is_bfloat16_supported()
    return {"bf16": in_bf16, "fp16": on_gpu and not in_bf16}


def signature(config_class: type) -> inspect.Signature:
    """Return all arguments, for ``help``, notebook completion and ``signature.pyi`` (scripts/docs.py): ``output_dir``,
    the only positional one, then the kit's own, then TRL's."""
    kind = inspect.Parameter
    defaults = {field.name: field.default for field in dataclasses.fields(config_class) if field.init}
    kinds: dict[str, Any] = dict.fromkeys(("output_dir", *OWN, *defaults), kind.KEYWORD_ONLY)
    kinds["output_dir"] = kind.POSITIONAL_OR_KEYWORD
    return inspect.Signature([kind(name, kinds[name], default=defaults[name]) for name in kinds])


RLOOConfig.__signature__ = signature(RLOOConfig)
