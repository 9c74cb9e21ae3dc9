"""Read a run of the kit, of plain TRL or of unsloth: its log, its settings and its files.

It is read from a trainer, a log history, a file, or a folder of checkpoints.  Nothing here writes, moves or deletes.
"""

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from rewards.trl_interface import Judges, judges_of, reward_name
from rloo_kit.errors import ConfigError
from rloo_kit.watch.statistics import Entry, Known, Log, rounds

if TYPE_CHECKING:
    import trl

STATE = "trainer_state.json"
MANIFEST = "rloo_kit_manifest.json"
NAME = re.compile(r"checkpoint-(\d+)")

RECIPE = "_run.json"  # what a run of the kit's was started with; rloo_kit.train.run_record writes it
NOTEBOOK = "notebook.py"  # stands in RECIPE for the file of functions that were written in a notebook

UNREADABLE = (OSError, ValueError, TypeError, KeyError)
"""What reading a JSON file raises if it is missing, cut off, or something else."""


Source: TypeAlias = "trl.RLOOTrainer | Sequence[Entry] | str | os.PathLike[str]"
"""A run: its trainer (the kit's, TRL's or unsloth's), the trainer's ``state.log_history``, a ``trainer_state.json``, or
the folder of a run or checkpoint."""


class Run(NamedTuple):
    history: Sequence[Entry]  # including evaluations
    log: Log  # its training steps, with what is known of them
    folder: Path | None
    assumed: str  # what was guessed from the log, for the report; empty where the settings are known


def read_run(source: Source, caller: str, judges: Mapping[str, Judges] | None = None) -> Run:
    """Read a run; errors name the ``caller``.  ``judges`` adds to what a trainer's reward functions say themselves.

    A run of the kit has its state in its checkpoints and, once training has ended, in its folder; the latest is read.
    """
    history: Any = source
    folder, where, settings = None, caller, None
    names: Sequence[str] = ()
    if isinstance(source, str | os.PathLike):
        place, where = Path(source).expanduser(), f"{caller}, {source}"
        folder = place if place.is_dir() else place.parent
        whole = (path for path in reversed(checkpoints_in(folder)) if saved_step(path) == step_of(path))
        newest = next(whole, folder)
        # Only the kit sets an earlier run's checkpoints aside; beside another trainer's state they may be left over.
        places = (folder, newest) if (folder / RECIPE).is_file() or not (folder / STATE).is_file() else (folder,)
        latest = max(places, key=lambda path: saved_step(path) or 0)
        file = latest / STATE if place.is_dir() else place
        try:
            history = json.loads(file.read_text(encoding="utf-8-sig"))["log_history"]
        except UNREADABLE as error:
            raise ConfigError(
                "there is no log of a run to read",
                where=f"{caller}, {file} ({type(error).__name__})",
                todo=f"name a {STATE}, a checkpoint, or an output_dir that has one of them",
            ) from error
        settings = _settings(manifest_of(folder).get("run") or manifest_of(newest).get("run"))
        names = getattr(settings, "reward_func_names", ())
    elif not isinstance(source, Sequence) and hasattr(source, "state"):
        history, settings = source.state.log_history, source.args
        folder = Path(settings.output_dir) if settings.output_dir else None
        names = getattr(source, "reward_func_names", ())
        judges = {**judged_by(getattr(source, "reward_funcs", ()), names), **(judges or {})}
    if not isinstance(history, list | tuple) or not all(isinstance(entry, Mapping) for entry in history):
        raise ConfigError(
            "this is no run: a log history is a list of entries, each a mapping of metrics",
            where=f"{where}, got {type(history).__name__}",
            todo=f"pass a trainer, its state.log_history, a {STATE} or the run's folder",
        )
    if len({frozenset(entry) for entry in history}) == 1 and "train_runtime" in history[0]:
        # A pandas table has every metric in every row, NaN if it was not logged.
        history = [{name: value for name, value in entry.items() if value == value} for entry in history]
    # A log that was put together by hand may leave the step out.
    history = [{"step": place, **entry} for place, entry in enumerate(history, 1)]
    if not (steps := rounds(history)):
        raise ConfigError(
            f"there is no training step to {caller}",
            where=caller if folder is None else f"{caller}, {folder}",
            todo="call trainer.train() first, or name its folder",
        )
    if settings:
        return Run(history, Log(steps, Known.of(settings, judges, names)), folder, "")
    known = Known.guessed(steps, judges)
    assumed = f"{known.completions} completions a step, {known.groups} groups or more"
    return Run(history, Log(steps, known), folder, f"assumed, by the log alone: {assumed}")


def judged_by(reward_funcs: Sequence[object], names: Sequence[str] = ()) -> dict[str, Judges]:
    """Metric name -> "answer", "form" or "length": what each reward function's attribute ``judges`` says it judges.
    ``names`` are a trainer's ``reward_func_names``; without them the functions' own are taken."""
    names = names or [reward_name(function) for function in reward_funcs]  # type: ignore[arg-type]
    judged = zip(names, map(judges_of, reward_funcs), strict=True)
    return {name: what for name, what in judged if what}


def _settings(run: Any) -> Any | None:
    """Return the config of a run of the kit from what its manifest records; None if it cannot be read."""
    with contextlib.suppress(*UNREADABLE, AttributeError, IndexError):  # a manifest of another release, or none
        config = SimpleNamespace(**run["settings"])
        of_process = config.per_device_train_batch_size * config.steps_per_generation
        config.world_size = config.generation_batch_size // of_process
        named = [reward.rsplit(" x ", 1) for reward in run["rewards"]]
        config.reward_func_names = [name for name, _ in named]
        config.reward_weights = [float(weight) for _, weight in named]
        return config
    return None


def checkpoints_in(output_dir: str | Path) -> list[Path]:
    """Return all paths with a checkpoint's exact name, by step: folders, complete or not, and files of that name."""
    with contextlib.suppress(OSError):
        return sorted((path for path in Path(output_dir).iterdir() if NAME.fullmatch(path.name)), key=step_of)
    return []


def step_of(folder: Path) -> int:
    """Return the step in a checkpoint's name or, for another name, the step in its state; 0 if it has none."""
    named = NAME.fullmatch(folder.name)
    return int(named[1]) if named else saved_step(folder) or 0


def saved_step(folder: Path) -> int | None:
    """Return the step in a checkpoint's state; None if no state can be read."""
    try:
        return int(json.loads((folder / STATE).read_text(encoding="utf-8"))["global_step"])
    except UNREADABLE:
        return None


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's manifest without its list of files; empty if no manifest can be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return {name: value for name, value in manifest.items() if name != "files"}
    except (*UNREADABLE, AttributeError):
        return {}
