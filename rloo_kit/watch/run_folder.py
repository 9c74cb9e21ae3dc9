"""A run's folder: its log, its checkpoints, which of them are whole, and those of an earlier run.

For the trainer, when it starts or resumes, and for :mod:`.plots` and :mod:`.health`, which read the log
of any run: the kit's, plain TRL's or unsloth's.  Files only: what the entries mean is :mod:`.log`'s job,
and what is in a checkpoint is transformers'.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rloo_kit.errors import ConfigError

STATE = "trainer_state.json"

# --- the log ----------------------------------------------------------------------------------------------


def read_history(source: Any, caller: str) -> tuple[list[dict[str, Any]], Path | None]:
    """Every entry of a run's log, evaluations too, and its folder where it is known.

    Args:
        source: a trainer, its ``state.log_history``, a ``trainer_state.json``, or the folder of a run or of a
            checkpoint.  Stock trainers leave the state in their checkpoints alone: the newest whole one is read.
        caller: the function that was asked, for its errors: "plot".

    Raises:
        ConfigError: this is no run, or it has no training step.
    """
    folder: Path | None = None
    if hasattr(source, "state"):
        history, output_dir = source.state.log_history, source.args.output_dir
        folder = Path(output_dir) if output_dir else None
    elif isinstance(source, str | os.PathLike):
        folder = Path(source) if Path(source).is_dir() else Path(source).parent
        history = _read_state(_state_file(Path(source)), caller)
    elif isinstance(source, list | tuple):
        history = source
    else:
        raise ConfigError(
            "this is no run",
            where=f"{caller}, got {type(source).__name__}",
            todo=f"pass a trainer, its state.log_history, a {STATE} or the run's folder",
        )
    if not training_steps(history):
        raise ConfigError(
            f"there is no training step to {caller}",
            where=caller if folder is None else f"{caller}, {folder}",
            todo="call trainer.train() first, or name its folder",
        )
    return list(history), folder


def training_steps(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of training steps, without evaluations and summaries."""
    return [entry for entry in history if entry.get("reward") is not None]


def _state_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    own = path / STATE
    newest = None if own.is_file() else last_whole_checkpoint(path)
    return newest / STATE if newest else own


def _read_state(file: Path, caller: str) -> list[dict[str, Any]]:
    try:
        history: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["log_history"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "there is no log of a run to read",
            where=f"{caller}, {file} ({type(error).__name__})",
            todo=f"name a {STATE}, a checkpoint, or an output_dir that has one of them",
        ) from error
    return history


# --- checkpoints ------------------------------------------------------------------------------------------


def last_whole_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest ``checkpoint-N`` that was written to its end, or None.

    transformers writes ``trainer_state.json`` last, so a checkpoint without a readable one for its own step
    was cut off.
    """
    whole = [folder for folder in _checkpoints(output_dir) if _is_whole(folder)]
    return whole[-1] if whole else None


def check(folder: Path, output_dir: str | Path | None = None) -> None:
    """Refuse what cannot be resumed from.

    Args:
        folder: what is to be resumed from.
        output_dir: the run's own folder, where it is known.

    Raises:
        ConfigError: there is no such folder, it holds no checkpoint, or one that was cut off; names those that are
            whole, inside it, beside it or in ``output_dir``.
    """
    if _is_whole(folder):
        return
    missing = "is not a checkpoint that was written to its end" if folder.exists() else "does not exist"
    places = [("inside it", folder), ("beside it", folder.parent)]
    places += [(f"in {output_dir}", Path(output_dir))] if output_dir else []
    raise ConfigError(
        f"{folder} {missing}",
        where="train(resume_from_checkpoint=...)",
        todo=next(
            (f"take one of those {place}: {names}" for place, there in places if (names := _whole_in(there))),
            "call train() without it to start at step 0",
        ),
    )


def _whole_in(folder: Path) -> str:
    return ", ".join(checkpoint.name for checkpoint in _checkpoints(folder) if _is_whole(checkpoint))


def _checkpoints(output_dir: str | Path) -> list[Path]:
    folders = [f for f in Path(output_dir).glob("checkpoint-*") if f.name.split("-")[-1].isdigit()]
    return sorted(folders, key=step_of)


def step_of(folder: Path) -> int:
    """The step in a checkpoint's name, or, in a folder of another name, that of its state; 0 without one."""
    digits = folder.name.split("-")[-1]
    return int(digits) if digits.isdigit() else _saved_step(folder) or 0


def _saved_step(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / "trainer_state.json").read_text())["global_step"])
    except (OSError, ValueError, TypeError, KeyError):  # not there, cut off, or no state at all
        return None


def _is_whole(folder: Path) -> bool:
    saved = _saved_step(folder)
    return saved is not None and saved == step_of(folder)


def remove_broken(output_dir: str | Path) -> None:
    """Delete the checkpoints that were cut off while they were written."""
    for folder in _checkpoints(output_dir):
        if not _is_whole(folder):
            shutil.rmtree(folder)


def set_aside(output_dir: str | Path) -> None:
    """Move what an earlier run left to ``earlier``, in place of what was there."""
    folders = _checkpoints(output_dir)
    if not folders:
        return
    earlier = Path(output_dir) / "earlier"
    shutil.rmtree(earlier, ignore_errors=True)
    earlier.mkdir()
    for folder in folders:
        folder.rename(earlier / folder.name)
    print(f"checkpoints of an earlier run are now in {earlier}")
