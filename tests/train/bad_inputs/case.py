"""What a wrong or odd input is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Bad:
    """An input, and what a message must name to be clear.

    Attributes:
        culprit: a part of every clear message: the setting, the column, the reward's name.
        aka: what a clear message of TRL's may call it instead.
        config: settings.
        trainer: arguments of the trainer; a function of a policy of its own makes those that need one.
        says: further parts of the kit's message.
        when: the kit refuses it in the config or the trainer, stops in a step, warns and trains, or mends it.
    """

    culprit: str
    config: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] | Callable[[Any], dict[str, Any]] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    when: Literal["config", "trainer", "step", "warned", "mended"] = "trainer"
    aka: str = ""
