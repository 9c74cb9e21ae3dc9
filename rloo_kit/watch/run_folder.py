"""Read a run: its log, its settings and its folder, of the kit's, of plain TRL or of unsloth.

From a trainer, its log history, a file, or a folder of checkpoints.  Nothing here writes, moves or deletes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rewards.trl_interface import Judges, judges_of, reward_name
from rloo_kit.errors import ConfigError
from rloo_kit.watch.log import Entry, Known, Log, rounds

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


class Run(NamedTuple):
    """A run that was read."""

    history: list[Entry]  # evaluations too
    log: Log  # its training steps, with what is known of them
    folder: Path | None
    assumed: str  # what was guessed from the log, for the report; empty where the settings are known


def read_run(source: Source, caller: str, judges: Mapping[str, Judges] | None = None) -> Run:
    """Read a run; errors name the ``caller``.

    Stock trainers leave the state in their checkpoints: of a folder without one the newest readable one is read.

    Args:
        judges: what reward functions judge, beside what a trainer's say themselves.

    Raises:
        ConfigError: this is no run, or it has no training step.
    """
    history: object = source
    folder, where = None, caller
    if isinstance(source, str | os.PathLike):
        place = Path(source).expanduser()
        folder, where = place if place.is_dir() else place.parent, f"{caller}, {source}"
        history = _log_in(place, caller)
    elif not isinstance(source, Sequence) and hasattr(source, "state"):
        folder = Path(source.args.output_dir) if source.args.output_dir else None
        history = source.state.log_history
    entries = _entries_of(history, where)
    if not (steps := rounds(entries)):
        raise ConfigError(
            f"there is no training step to {caller}",
            where=caller if folder is None else f"{caller}, {folder}",
            todo="call trainer.train() first, or name its folder",
        )
    if hasattr(source, "args"):
        settings: Any = source.args
        funcs, names = getattr(source, "reward_funcs", ()), getattr(source, "reward_func_names", None)
        judges = {**judged_by(funcs, names), **(judges or {})}
    else:
        settings = saved_settings(folder) if folder else None
    if settings:
        return Run(entries, Log(steps, Known.of(settings, judges)), folder, "")
    known = Known.guessed(steps, judges)
    assumed = (
        f"assumed, by the log alone: {known.completions} completions a step, {known.groups} groups or more"
    )
    return Run(entries, Log(steps, known), folder, assumed)


def judged_by(reward_funcs: Sequence[object], names: Sequence[str] | None = None) -> dict[str, Judges]:
    """What reward functions say that they judge, by their attribute ``judges``: metric name -> "answer", "form" or
    "length".  ``names`` are a trainer's ``reward_func_names``; by default the functions' own."""
    named = names or [reward_name(function) for function in reward_funcs]  # type: ignore[arg-type]
    said = zip(named, map(judges_of, reward_funcs), strict=True)
    return {name: what for name, what in said if what}


def _log_in(place: Path, caller: str) -> object:
    file = place / STATE if place.is_dir() else place
    if place.is_dir() and not file.is_file():
        file = _newest_with_log(place) / STATE
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


def saved_settings(folder: Path) -> Any | None:
    """The settings that a checkpoint of the kit's names, in it or in its run's folder; None where there are none.

    How many processes there were is not written down, and is taken for 1.
    """
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


# --- checkpoints ----------------------------------------------------------------------------------------------


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
