"""A run's log, wherever it lies: in a trainer, in its history, in a ``trainer_state.json`` or in a run's folder.

For :mod:`rloo_kit.plots` and :mod:`rloo_kit.health`, which take any of these, of the kit's runs and of plain
TRL's and unsloth's.  It reads; what the entries mean is :mod:`rloo_kit.runlog`'s business, and it neither writes
nor resumes a run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rloo_kit.checkpoints import last_whole_checkpoint
from rloo_kit.errors import ConfigError

STATE = "trainer_state.json"


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
