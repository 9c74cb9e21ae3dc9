"""What a run leaves in its folder: checkpoints, each with the log up to its step.

For the trainer, when it starts or resumes, and for :mod:`.plots` and :mod:`.health`, which read the log of any run:
the kit's, plain TRL's or unsloth's.  Everything here depends on one file, ``trainer_state.json``, which transformers
writes last into a checkpoint: it holds the log, and a checkpoint without a readable one for its own step was cut off.
:mod:`.log` interprets the entries; weights and optimizer states are transformers' own.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rloo_kit.errors import ConfigError
from rloo_kit.watch import arguments
from rloo_kit.watch.log import Entry
from rloo_kit.watch.reading import entries_of

if TYPE_CHECKING:
    import trl
    from transformers import TrainerState

STATE = "trainer_state.json"
UNREADABLE = (OSError, ValueError, TypeError, KeyError)
"""What reading a state raises where it is not there, was cut off, or is something else."""


class TrainerLike(Protocol):
    """A trainer of the kit's, TRL's or unsloth's, before or after training."""

    state: TrainerState
    args: trl.RLOOConfig


Source = TrainerLike | Sequence[Entry] | str | os.PathLike[str]
"""A run: its trainer, the trainer's ``state.log_history``, a ``trainer_state.json``, or the folder of a run or of a
checkpoint."""


def read_history(source: Source, caller: str) -> tuple[list[Entry], Path | None]:
    """Every entry of a run's log, evaluations too, and its folder where it is known; errors name the ``caller``.

    Stock trainers leave the state in their checkpoints: of a folder without one the newest whole checkpoint is read.

    Raises:
        ConfigError: this is no run, it has no training step, or an entry cannot be read.
    """
    folder: Path | None = None
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        folder = path if path.is_dir() else path.parent
        history = entries_of(_log_in(path, caller), f"{caller}, {path}")
    elif isinstance(source, list | tuple):
        history = entries_of(source, caller)
    elif isinstance(source, Sequence) or not hasattr(source, "state"):
        raise ConfigError(
            "this is no run",
            where=f"{caller}, got {type(source).__name__}",
            todo=f"pass a trainer, its state.log_history, a {STATE} or the run's folder",
        )
    else:
        history, output_dir = source.state.log_history, source.args.output_dir
        folder = Path(output_dir) if output_dir else None
    if not training_steps(history):
        raise ConfigError(
            f"there is no training step to {caller}",
            where=caller if folder is None else f"{caller}, {folder}",
            todo="call trainer.train() first, or name its folder",
        )
    return history, folder


def settings_of(source: Source) -> Any | None:
    """A run's settings: a trainer's, or those that lie beside a log; None where they are not known."""
    if hasattr(source, "args"):
        return source.args
    if not isinstance(source, str | os.PathLike):
        return None
    folder = Path(source) if Path(source).is_dir() else Path(source).parent
    return arguments.beside(folder) or arguments.beside(last_whole_checkpoint(folder) or folder)


def training_steps(history: Sequence[Entry]) -> list[Entry]:
    """The entries of training steps, without evaluations and summaries."""
    return [entry for entry in history if entry.get("reward") is not None]


def _log_in(path: Path, caller: str) -> object:
    file = path / STATE if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        file = (last_whole_checkpoint(path) or path) / STATE
    try:
        history = json.loads(file.read_text(encoding="utf-8"))["log_history"]
    except UNREADABLE as error:
        raise ConfigError(
            "there is no log of a run to read",
            where=f"{caller}, {file} ({type(error).__name__})",
            todo=f"name a {STATE}, a checkpoint, or an output_dir that has one of them",
        ) from error
    return history


def last_whole_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest ``checkpoint-N`` that was written to its end, or None."""
    return next((folder for folder in reversed(_checkpoints(output_dir)) if _is_whole(folder)), None)


def check(folder: Path, output_dir: str | Path | None = None) -> None:
    """Refuse a folder that cannot be resumed from.

    Raises:
        ConfigError: there is no such folder, it is not a checkpoint, or one that was cut off; names the whole ones
            inside it, beside it or in the run's ``output_dir``, where that is known.
    """
    if _is_whole(folder):
        return
    missing = "is not a checkpoint that was written to its end" if folder.exists() else "does not exist"
    places = {"inside it": folder, "beside it": folder.parent}
    if output_dir:
        places[f"in {output_dir}"] = Path(output_dir)
    todo = "call train() without it to start at step 0"
    for place, there in places.items():
        if whole := [checkpoint.name for checkpoint in _checkpoints(there) if _is_whole(checkpoint)]:
            todo = f"take one of those {place}: {', '.join(whole)}"
            break
    raise ConfigError(f"{folder} {missing}", where="train(resume_from_checkpoint=...)", todo=todo)


def step_of(folder: Path) -> int:
    """The step in a checkpoint's name, or, in a folder of another name, that of its state; 0 without one."""
    digits = folder.name.split("-")[-1]
    return int(digits) if digits.isdigit() else _saved_step(folder) or 0


def remove_broken(output_dir: str | Path) -> None:
    """Delete the checkpoints that were cut off while they were written."""
    for folder in _checkpoints(output_dir):
        if not _is_whole(folder):
            shutil.rmtree(folder)


def set_aside(output_dir: str | Path) -> None:
    """Move an earlier run's checkpoints to ``earlier``, in place of what was there."""
    if not (folders := _checkpoints(output_dir)):
        return
    earlier = Path(output_dir) / "earlier"
    shutil.rmtree(earlier, ignore_errors=True)
    earlier.mkdir()
    for folder in folders:
        folder.rename(earlier / folder.name)
    print(f"checkpoints of an earlier run are now in {earlier}")


def _checkpoints(output_dir: str | Path) -> list[Path]:
    folders = [f for f in Path(output_dir).glob("checkpoint-*") if f.name.split("-")[-1].isdigit()]
    return sorted(folders, key=step_of)


def _is_whole(folder: Path) -> bool:
    saved = _saved_step(folder)
    return saved is not None and saved == step_of(folder)


def _saved_step(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / STATE).read_text(encoding="utf-8"))["global_step"])
    except UNREADABLE:
        return None
