"""What a run leaves in its folder: checkpoints, each with the log up to its step.

For the trainer, which resumes, and for plots and diagnoses of any run: the kit's, plain TRL's or unsloth's.  Nothing
here writes, moves or deletes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from rloo_kit.errors import ConfigError
from rloo_kit.watch.log import Entry, is_step

if TYPE_CHECKING:
    import trl
    from transformers import TrainerState


STATE = "trainer_state.json"
MANIFEST = "rloo_kit_manifest.json"
NAME = re.compile(r"checkpoint-(\d+)")

UNREADABLE = (OSError, ValueError, TypeError, KeyError)
"""What reading a JSON file raises where it is not there, was cut off, or is something else."""

RECIPE = "_run.json"
"""What a run of the kit's was started with; :mod:`rloo_kit.train.run_record` writes it."""

NOTEBOOK = "notebook.py"
"""In it, the file of functions that were written in a notebook."""


class TrainerLike(Protocol):
    """A trainer of the kit's, TRL's or unsloth's, before or after training."""

    state: TrainerState
    args: trl.RLOOConfig


Source = TrainerLike | Sequence[Entry] | str | os.PathLike[str]
"""A run: its trainer, the trainer's ``state.log_history``, a ``trainer_state.json``, or the folder of a run or of a
checkpoint."""


# --- its log --------------------------------------------------------------------------------------------------


def read_history(source: Source, caller: str) -> tuple[list[Entry], Path | None]:
    """Every entry of a run's log, evaluations too, and its folder where it is known; errors name the ``caller``.

    Stock trainers leave the state in their checkpoints: of a folder without one the newest readable one is read.

    Raises:
        ConfigError: this is no run, or it has no training step.
    """
    history: object = source
    folder, where = None, caller
    if isinstance(source, str | os.PathLike):
        folder, where = _folder_of(source), f"{caller}, {source}"
        history = _log_in(Path(source).expanduser(), caller)
    elif not isinstance(source, Sequence) and hasattr(source, "state"):
        folder = Path(source.args.output_dir) if source.args.output_dir else None
        history = source.state.log_history
    entries = _entries_of(history, where)
    if not training_steps(entries):
        raise ConfigError(
            f"there is no training step to {caller}",
            where=caller if folder is None else f"{caller}, {folder}",
            todo="call trainer.train() first, or name its folder",
        )
    return entries, folder


def training_steps(history: Sequence[Entry]) -> list[Entry]:
    """The entries of training steps, without evaluations and summaries."""
    return [entry for entry in history if is_step(entry)]


def _folder_of(source: str | os.PathLike[str]) -> Path:
    path = Path(source).expanduser()
    return path if path.is_dir() else path.parent


def _log_in(path: Path, caller: str) -> object:
    file = path / STATE if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        file = _newest_with_log(path) / STATE
    try:
        return json.loads(file.read_text(encoding="utf-8"))["log_history"]
    except UNREADABLE as error:
        raise ConfigError(
            "there is no log of a run to read",
            where=f"{caller}, {file} ({type(error).__name__})",
            todo=f"name a {STATE}, a checkpoint, or an output_dir that has one of them",
        ) from error


def _newest_with_log(folder: Path) -> Path:
    return next((f for f in reversed(checkpoints(folder)) if saved_step(f) == step_of(f)), folder)


def _entries_of(history: object, where: str) -> list[Entry]:
    """Entries with figures as floats, also of a log that has been through a table; other text is left out.

    An entry without a step gets the one after the entry before it.
    """
    if not isinstance(history, list | tuple) or not all(isinstance(entry, Mapping) for entry in history):
        raise ConfigError(
            "this is no run: a log history is a list of entries, each a mapping of metrics",
            where=f"{where}, got {type(history).__name__}",
            todo=f"pass a trainer, its state.log_history, a {STATE} or the run's folder",
        )
    found: list[Entry] = []
    for entry in history:
        known: Entry = {"step": None}
        for name, value in entry.items():
            with contextlib.suppress(ValueError, TypeError, RuntimeError):
                known[str(name)] = None if value is None else float(value)
        last = found[-1]["step"] if found else 0
        step = known["step"]
        found.append({**known, "step": last + ("reward" in known) if step is None else int(step)})
    return found


def settings_of(source: Source) -> Any | None:
    """A run's settings: a trainer's, or those that a checkpoint of the kit's names; None where they are not known.

    How many processes there were is not written down, and is taken for 1.
    """
    if hasattr(source, "args"):
        return source.args
    if not isinstance(source, str | os.PathLike):
        return None
    folder = _folder_of(source)
    run = facts(folder).get("run") or facts(_newest_with_log(folder)).get("run")
    with contextlib.suppress(*UNREADABLE, AttributeError, IndexError):  # of another release, or none
        found = SimpleNamespace(**{"num_iterations": 1, "steps_per_generation": None, **run["settings"]})  # type: ignore[index]
        found.generation_batch_size = found.per_device_train_batch_size * (
            found.steps_per_generation or found.gradient_accumulation_steps
        )
        found.reward_weights = [float(one.rsplit(" x ", 1)[1]) for one in run["rewards"]]  # type: ignore[index]
        found.world_size = 1
        return found
    return None


# --- its checkpoints ------------------------------------------------------------------------------------------


def checkpoints(output_dir: str | Path) -> list[Path]:
    """Whatever has a checkpoint's exact name, by step: folders, whole or not, and what else is called so."""
    try:
        named = [path for path in Path(output_dir).iterdir() if NAME.fullmatch(path.name)]
    except OSError:
        return []
    return sorted(named, key=step_of)


def step_of(folder: Path) -> int:
    """The step in a checkpoint's name, or, in a folder of another name, that of its state; 0 without one."""
    named = NAME.fullmatch(folder.name)
    return int(named[1]) if named else saved_step(folder) or 0


def saved_step(folder: Path) -> int | None:
    """The step of a checkpoint's state, or None where there is no readable one."""
    try:
        return int(json.loads((folder / STATE).read_text(encoding="utf-8"))["global_step"])
    except UNREADABLE:
        return None


def facts(folder: Path) -> dict[str, Any]:
    """What a checkpoint's manifest says beside its files; empty where it has none that can be read."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return {name: value for name, value in found.items() if name != "files"}
    except (*UNREADABLE, AttributeError):
        return {}
