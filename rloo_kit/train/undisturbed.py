"""What reward functions must leave as it is: the model's mode and adapters, torch's settings, its random numbers, the
folder.

For the trainer, which calls functions that others wrote between sampling and the loss.  A judge that switches gradients
off, or the policy to evaluation, would stop the run with an error that names neither; one that switches the adapter off
would have the base trained on, and one that seeds torch would make every step draw the same completions.  The state is
put back, and a warning names the functions, once a run.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rloo_kit.session import processes

ADAPTERS = ("_disable_adapters", "_active_adapter", "active_adapter", "_adapters_disabled")
"""Where PEFT's layers and models keep which adapter is on (tuners_utils.py, peft_model.py)."""


def _set_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)  # None takes torch's wrapper away


SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, _set_device),
    (torch.get_num_threads, torch.set_num_threads),
)
"""Of torch: what reads each, and what sets it."""


@dataclass(frozen=True)
class State:
    """Of a process, between two calls."""

    switches: dict[torch.nn.Module, dict[str, object]]
    trainable: dict[torch.nn.Parameter, bool]
    settings: tuple[object, ...]
    folder: Path

    @classmethod
    def of(cls, model: torch.nn.Module) -> State:
        """As it is now."""
        return cls(
            switches={module: _switches(module) for module in model.modules()},
            trainable={parameter: parameter.requires_grad for parameter in model.parameters()},
            settings=tuple(read() for read, _ in SETTINGS),
            folder=processes.folder(),
        )

    def restore(self) -> list[str]:
        """Put back what is different; return what it was, in words.

        Raises:
            RunFolderError: the process's folder was deleted.
        """
        found = dict.fromkeys(_switch_back(self.switches))
        for parameter, was_trained in self.trainable.items():
            if parameter.requires_grad != was_trained:
                parameter.requires_grad_(was_trained)
                found["changed which of the model's parameters are trained"] = None
        for (read, put), was in zip(SETTINGS, self.settings, strict=True):
            if (now := read()) != was:
                put(was)
                found[f"changed torch.{read.__name__}() from {was} to {now}"] = None
        try:
            now_in = str(Path.cwd())
        except FileNotFoundError:
            now_in = "one that was deleted"
        if now_in != str(self.folder):
            if self.folder.is_dir():
                os.chdir(self.folder)
            processes.folder()
            found[f"changed the process's folder to {now_in}"] = None
        return list(found)


def _switches(module: torch.nn.Module) -> dict[str, object]:
    kept = vars(module)
    return {name: kept[name] for name in ("training", *ADAPTERS) if name in kept}


def _switch_back(before: dict[torch.nn.Module, dict[str, object]]) -> Iterator[str]:
    for module, was in before.items():
        now = _switches(module)
        if now == was:
            continue
        for name in now:
            del vars(module)[name]
        vars(module).update(was)
        if module.training != now["training"]:
            yield f"switched the model to {'evaluation' if module.training else 'training'}"
        if any(now.get(name) != was.get(name) for name in ADAPTERS):
            yield "switched the model's adapters"


class Draws:
    """torch's random numbers, which are the completions': the functions get a stream of their own meanwhile.

    Its seed is one that no function sets, so that a function that seeds is found out, also with the run's own seed.
    It is made of the state before, so that a run can be repeated and the functions draw anew at each step.
    """

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        states = (state.numpy().tobytes() for state in (self._cpu, *self._gpus))
        self._theirs = _OWN | zlib.crc32(b"".join(states))
        self._seed(self._theirs)

    def _seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)
        if self._gpus:
            torch.cuda.manual_seed_all(seed)

    def restore(self) -> list[str]:
        """Put them back; return what the functions did to theirs, in words."""
        seeded = torch.initial_seed() != self._theirs  # what seeds the GPU's seeds the CPU's, too
        torch.set_rng_state(self._cpu)
        if self._gpus:
            torch.cuda.set_rng_state_all(self._gpus)
        return ["seeded torch, so that every step would draw the same completions"] if seeded else []


_OWN = 1 << 62
"""Added to the seeds of :class:`Draws`; seeds that people choose are smaller."""


@contextmanager
def undisturbed(model: torch.nn.Module, names: Sequence[str], told: set[str]) -> Iterator[None]:
    """Put back what the functions called inside have changed.

    Args:
        names: of the functions, for the warning.
        told: what a warning has said in this run; added to.
    """
    before, draws = State.of(model), Draws()
    try:
        yield
    finally:
        new = [what for what in (*before.restore(), *draws.restore()) if what not in told]
        told.update(new)
        if new:
            processes.warn(
                f"{'Reward' if len(names) == 1 else 'One of the rewards'} {', '.join(map(repr, names))} "
                f"{' and '.join(new)}. It is put back after each call; let the function restore what it changes."
            )
