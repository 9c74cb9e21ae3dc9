"""What a run leaves in its folder: checkpoints, each with the log up to its step.

For the trainer, when it starts or resumes, and for :mod:`.plots` and :mod:`.diagnose`, which read the log of any run:
the kit's, plain TRL's or unsloth's.  Nothing here writes, moves or deletes.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from rloo_kit.errors import ConfigError
from rloo_kit.watch.log import Entry, is_step
from rloo_kit.watch.manifest import NAME, STATE, UNREADABLE, facts, fault, is_ours, saved_step, step_of

if TYPE_CHECKING:
    import trl
    from transformers import TrainerState


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
    folder: Path | None = None
    if isinstance(source, str | os.PathLike):
        path = _place(source)
        folder = path if path.is_dir() else path.parent
        history = _entries_of(_log_in(path, caller), f"{caller}, {path}")
    elif isinstance(source, list | tuple):
        history = _entries_of(source, caller)
    elif not isinstance(source, Sequence) and hasattr(source, "state"):
        history, output_dir = source.state.log_history, source.args.output_dir
        folder = Path(output_dir) if output_dir else None
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
    return history, folder


def training_steps(history: Sequence[Entry]) -> list[Entry]:
    """The entries of training steps, without evaluations and summaries."""
    return [entry for entry in history if is_step(entry)]


def _place(source: str | os.PathLike[str]) -> Path:
    """The path with the user's home for "~", as the trainer takes ``output_dir``."""
    return Path(os.path.expanduser(source))  # noqa: PTH111 - Path.expanduser raises for an unknown user


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


OLD_NAMES = {"completion_length": "completions/mean_length", "clip_ratio": "clip_ratio/region_mean"}
"""Metrics that earlier releases of TRL logged under another name."""


def _entries_of(history: object, where: str) -> list[Entry]:
    """Entries with figures as floats, also of a log that has been through a table; other text is left out.

    An entry without a step gets the one after the entry before it.
    """
    if not isinstance(history, list | tuple) or not all(isinstance(entry, Mapping) for entry in history):
        raise ConfigError(
            "a log history is a list of entries, each a mapping of metrics",
            where=where,
            todo="pass a trainer's state.log_history, or the file or folder that it is in",
        )
    found: list[Entry] = []
    for entry in history:
        known = {_name(str(name)): _figure(value) for name, value in entry.items()}
        known = {name: value for name, value in known.items() if value != ""}
        last = found[-1]["step"] if found else 0
        step = known.get("step")
        found.append({**known, "step": last + ("reward" in known) if step is None else int(step)})
    return found


def _name(name: str) -> str:
    """A metric's name today: earlier releases of TRL logged a reward function's mean without the word."""
    is_bare_reward = name.startswith("rewards/") and name.count("/") == 1
    return f"{name}/mean" if is_bare_reward else OLD_NAMES.get(name, name)


def _figure(value: Any) -> float | str | None:
    """A number, None as trainers log it, or "" for what is no figure."""
    with contextlib.suppress(ValueError, TypeError, RuntimeError):
        return None if value is None else float(value)
    return ""


def settings_of(source: Source) -> Any | None:
    """A run's settings: a trainer's, or those that a checkpoint of the kit's names; None where they are not known.

    How many processes there were is not written down, and is taken for 1.
    """
    if hasattr(source, "args"):
        return source.args
    if not isinstance(source, str | os.PathLike):
        return None
    path = _place(source)
    folder = path if path.is_dir() else path.parent
    run = facts(folder).get("run") or facts(_newest_with_log(folder)).get("run")
    with contextlib.suppress(
        *UNREADABLE, AttributeError, IndexError
    ):  # of another release, or changed by hand
        settings = {"num_iterations": 1, "steps_per_generation": None, **run["settings"]}  # type: ignore[index]
        batch = settings["per_device_train_batch_size"]
        settings["generation_batch_size"] = batch * (
            settings["steps_per_generation"] or settings["gradient_accumulation_steps"]
        )
        settings["reward_weights"] = [float(one.rsplit(" x ", 1)[1]) for one in run["rewards"]]  # type: ignore[index]
        return SimpleNamespace(world_size=1, **settings)
    return None


# --- its checkpoints ------------------------------------------------------------------------------------------


def checkpoints(output_dir: str | Path) -> list[Path]:
    """Whatever has a checkpoint's exact name, by step: folders, whole or not, and what else is called so."""
    try:
        named = [path for path in Path(output_dir).iterdir() if NAME.fullmatch(path.name)]
    except OSError:
        return []
    return sorted(named, key=lambda path: (step_of(path), path.name))


def newest_whole(output_dir: str | Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest whole checkpoint or None, and each one looked at before it, with what is wrong with it.

    The kit's own go first: beside them a checkpoint of plain TRL is another run's.
    """
    passed_over: list[tuple[Path, str]] = []
    newest_first = checkpoints(output_dir)[::-1]
    for folder in sorted(newest_first, key=is_ours, reverse=True):
        if not (wrong := fault(folder)):
            return folder, passed_over
        passed_over.append((folder, wrong))
    return None, passed_over


def last_whole_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest checkpoint that can be resumed from, or None."""
    return newest_whole(output_dir)[0]


def check_asked(asked: object) -> None:
    """Refuse a ``resume_from_checkpoint`` that names nothing: an empty one would start at step 0 without a word.

    Raises:
        ConfigError: it is no truth value and no path.
    """
    named = isinstance(asked, str | os.PathLike) and os.fspath(asked)
    if asked is not None and not isinstance(asked, bool) and not named:
        raise ConfigError(
            f"a checkpoint is named by its folder, not by {asked!r}",
            where="train(resume_from_checkpoint=...)",
            todo="True takes the newest whole one in output_dir; a path such as 'out/run/checkpoint-50' that one",
        )


def check(folder: Path, output_dir: str | Path | None = None) -> None:
    """Refuse a folder that cannot be resumed from.

    Raises:
        ConfigError: there is no such folder, it is not a checkpoint, or one that is damaged; names the whole ones
            inside it, beside it, in the run's ``output_dir``, or in a folder of much the same name.
    """
    if not (wrong := fault(folder)):
        return
    missing = (
        f"is not a checkpoint that can be resumed from: {wrong}" if folder.exists() else "does not exist"
    )
    todo = "call train() without it to start at step 0"
    for place in (folder, folder.parent, *([Path(output_dir)] if output_dir else []), *alike(folder.parent)):
        if whole := [checkpoint.name for checkpoint in checkpoints(place) if not fault(checkpoint)]:
            todo = f"take one of those in {place}: {', '.join(whole)}"
            break
    raise ConfigError(f"{folder} {missing}", where="train(resume_from_checkpoint=...)", todo=todo)


def alike(output_dir: Path) -> list[Path]:
    """Folders beside a run's that are called much like it and have checkpoints, for one that was mistyped."""
    try:
        names = [path.name for path in output_dir.parent.iterdir() if path.is_dir() and path != output_dir]
    except OSError:
        return []
    near = map(output_dir.with_name, difflib.get_close_matches(output_dir.name, names))
    return [place for place in near if last_whole_checkpoint(place)]
