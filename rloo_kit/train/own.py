"""``Own``: what ``RLOOConfig`` adds to TRL's arguments, and what a configuration without them means.

For :mod:`rloo_kit.train`, which reads its settings from here whatever the class of the configuration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rloo_kit.passes import PLAIN
from rloo_kit.watch.symptoms import Finding

if TYPE_CHECKING:
    import trl

Handler = Callable[[Finding], object]

HANDLERS: dict[str, Handler] = {}
"""Functions given as ``on_unhealthy``, by the name under which a configuration keeps them: it is saved with every
checkpoint, and a notebook's functions cannot be."""


@dataclass(frozen=True)
class Own:
    """The kit's own settings, as :class:`rloo_kit.RLOOConfig` describes them; the defaults are what a plain
    ``trl.RLOOConfig`` means."""

    advantage_estimator: str = "rloo"
    kl_placement: str = "reward"
    kl_estimator: str = "k1"
    loss_aggregation: str = "seq-mean-token-sum"
    importance_sampling_level: str | None = None
    use_bias_correction_kl: bool = False
    vllm_importance_sampling_correction: bool = False
    vllm_importance_sampling_mode: str = "sequence_mask"
    vllm_importance_sampling_clip_max: float | None = 3.0
    vllm_importance_sampling_clip_min: float | None = None
    single_pass: bool = PLAIN["single_pass"]
    skip_dead_groups: bool | None = False
    fast_sampling: bool = PLAIN["fast_sampling"]
    generation_rows: int | None = None
    progress: bool = True
    live_plot: bool = False
    on_unhealthy: str = "warn"
    reward_limit: float = 1e6

    @classmethod
    def of(cls, args: trl.RLOOConfig) -> Own:
        """The settings of a configuration, the kit's or TRL's."""
        there: dict[str, Any] = {name: getattr(args, name) for name in NAMES if hasattr(args, name)}
        return cls(**there)

    @property
    def handler(self) -> str | Handler:
        """What to do with a finding: "warn", "stop", or the function that was given."""
        return HANDLERS.get(self.on_unhealthy, self.on_unhealthy)


NAMES = tuple(one.name for one in dataclasses.fields(Own))
