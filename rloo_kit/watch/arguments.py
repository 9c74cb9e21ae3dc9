"""The settings of a run, read off the ``training_args.bin`` beside its log.

For :func:`rloo_kit.diagnose` of a folder or a checkpoint, which can tell more where the size of a batch is known.  The
file is a pickle, and loading one runs what it says; here it is taken apart instead, and nothing of it is run: each
object in it becomes an empty one with the same attributes.
"""

from __future__ import annotations

import contextlib
import pickle
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NAME = "training_args.bin"

NEEDED = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_generations")

STOCK: dict[str, Any] = {
    "generation_batch_size": None,
    "steps_per_generation": None,
    "num_iterations": 1,
    "reward_weights": None,
}
"""What may be missing, as in older releases and GRPO's config."""


class _Inert:
    """Stands for any class or function: called, it gives an empty object, which takes what is put into it."""

    def __new__(cls, *args: object, **kwargs: object) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            vars(self).update({str(name): value for name, value in state.items()})

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def append(self, value: object) -> None:
        """Of a list."""

    def extend(self, values: object) -> None:
        """Of a list."""


class _Parts(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_Inert]:
        return _Inert

    def persistent_load(self, key: object) -> None:
        return None  # a tensor's storage


def beside(folder: Path) -> Any | None:
    """The settings of a run in this folder, or None where there are none that can be read."""
    file = folder / NAME
    with contextlib.suppress(
        OSError, ValueError, zipfile.BadZipFile, pickle.UnpicklingError, EOFError, *BROKEN
    ):
        with zipfile.ZipFile(file) as archive:
            content = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(content) as stream:
                found = vars(_Parts(stream).load())
        return settings_of(found)
    return None


BROKEN = (AttributeError, IndexError, KeyError, StopIteration, TypeError)
"""What a pickle that is none, or that was cut off, raises."""


def settings_of(found: dict[str, Any]) -> Any | None:
    """Attributes of a config, with how many processes there were; None where a batch cannot be computed from them."""
    if not all(isinstance(found.get(name), int) and found[name] > 0 for name in NEEDED):
        return None
    settings = {**STOCK, **{name: value for name, value in found.items() if not isinstance(value, _Inert)}}
    # It is not stored, but is in the size of the generation batch.
    each = settings["per_device_train_batch_size"] * (settings["steps_per_generation"] or 0)
    batch = settings["generation_batch_size"]
    settings["world_size"] = max(1, batch // each) if each and batch else 1
    return SimpleNamespace(**settings)
