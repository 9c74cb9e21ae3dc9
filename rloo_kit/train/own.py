"""``Own``: what ``RLOOConfig`` adds to TRL's arguments, with types, ranges and defaults.

For :mod:`rloo_kit.train`, which reads its settings from here whatever the class of the configuration.  It imports
neither torch nor TRL, so that a configuration's file can be looked at without them.
"""

# ruff: noqa: RUF009 - _set is dataclasses.field

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Gt

from rloo_kit import passes
from rloo_kit.values import INFINITE, Count, NotNegative, Positive

if TYPE_CHECKING:
    import trl

    from rloo_kit.watch.symptoms import Finding

    Handler = Callable[[Finding], object]

HANDLERS: dict[str, Handler] = {}
"""Functions given as ``on_unhealthy``, by the name under which a configuration keeps them: it is saved with every
checkpoint, and a notebook's functions cannot be."""


def _set(default: Any, says: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": says})


@dataclass
class Own:
    """The kit's own settings, as :class:`rloo_kit.RLOOConfig` describes them."""

    advantage_estimator: str = _set("rloo", "rloo, grpo, dr_grpo, reinforce.")
    kl_placement: Literal["reward", "loss"] = _set("reward", "reward or loss.")
    kl_estimator: Literal["k1", "k2", "k3"] | None = _set(None, "k1, k2 or k3.")
    loss_aggregation: Literal[
        "seq-mean-token-sum", "seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"
    ] = _set("seq-mean-token-sum", "How the loss is averaged.")
    importance_sampling_level: Literal["token", "sequence"] | None = _set(
        None, "token or sequence; None: as loss_aggregation has it."
    )
    use_bias_correction_kl: bool = _set(False, "The KL term in the loss times the ratio.")
    vllm_importance_sampling_correction: bool = _set(
        False, "With vLLM: weigh completions for what sampled them."
    )
    vllm_importance_sampling_mode: Literal[
        "sequence_mask", "sequence_truncate", "token_mask", "token_truncate"
    ] = _set("sequence_mask", "sequence_mask, sequence_truncate, token_mask, token_truncate.")
    vllm_importance_sampling_clip_max: Positive | None = _set(3.0, "Highest weight; None: no bound.")
    vllm_importance_sampling_clip_min: NotNegative | None = _set(None, "Lowest weight; None: no bound.")
    single_pass: bool = _set(passes.DEFAULTS.single_pass, "No pass for old log-probs where they are the new.")
    skip_dead_groups: bool | None = _set(None, "Train on no dead groups.")
    fast_sampling: bool = _set(passes.DEFAULTS.fast_sampling, "Sample with less work, the same distribution.")
    generation_rows: Count | None = _set(None, "Completions sampled at once; None: as many as fit.")
    progress: bool = _set(True, "A line a step; False says only what goes wrong, and draws nothing.")
    live_plot: bool = _set(True, "In a notebook, draw the run while it trains.")
    on_unhealthy: str = _set("warn", "warn or stop.")
    reward_limit: Annotated[float, Gt(0), INFINITE] = _set(1e6, "Largest magnitude a reward may have.")

    @staticmethod
    def of(args: trl.RLOOConfig) -> Own:
        """The settings of a configuration, the kit's or TRL's."""
        there: dict[str, Any] = {name: getattr(args, name) for name in NAMES if hasattr(args, name)}
        return dataclasses.replace(PLAIN, **there)

    @property
    def handler(self) -> str | Handler:
        """What to do with a finding: "warn", "stop", or the function that was given."""
        return HANDLERS.get(self.on_unhealthy, self.on_unhealthy)


NAMES = tuple(one.name for one in dataclasses.fields(Own))

PLAIN = Own(
    kl_estimator="k1",
    skip_dead_groups=False,
    live_plot=False,
    single_pass=passes.PLAIN["single_pass"],
    fast_sampling=passes.PLAIN["fast_sampling"],
)
"""What a plain ``trl.RLOOConfig`` means."""
