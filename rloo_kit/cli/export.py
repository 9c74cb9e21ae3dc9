"""``rloo-kit export``: what a notebook trained becomes a file that ``train`` repeats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rloo_kit.cli.document import written
from rloo_kit.errors import ConfigError

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder: its trainer's output_dir.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE.yaml", help="Where to; beside the run's folder if left out."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]


def export(run: RunFolder, out: Out = None, force: Force = False) -> None:
    """Write a run as a file that 'train' repeats.

    With the same policy, task, rewards, settings and seed.  Functions from a notebook are written into a .py beside
    it.  What cannot be written is named, with what to do.
    """
    found = read_recipe(run)
    refuse_what_is_missing(found, run)
    file = out or Path(f"{run.absolute()}.yaml")
    functions = file.with_name(f"{file.stem}_rewards.py")
    texts = {file: as_yaml(found, run, functions.name)}
    if found["functions"]:
        texts[functions] = found["functions"]
    for path in texts:
        if path.exists() and not force:
            raise ConfigError(
                "the file is there already", where=str(path), todo="give another --out, or --force"
            )
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        typer.echo(path)


def read_recipe(run: Path) -> dict[str, Any]:
    """What a run was started with.

    Raises:
        ConfigError: this is no folder of a run of the kit's.
    """
    from rloo_kit.watch.run_folder import RECIPE

    try:
        found: dict[str, Any] = json.loads((run / RECIPE).read_text(encoding="utf-8"))
        return {name: found[name] for name in ("config", "cannot", "notes", "functions")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"this is no folder of a run that can be exported: {RECIPE} {_why(error)}",
            where=str(run),
            todo="name the output_dir of a run; runs of plain TRL, and of releases before 0.2, have none",
        ) from None


def _why(error: Exception) -> str:
    return "is not there" if isinstance(error, OSError) else "cannot be read"


def refuse_what_is_missing(found: dict[str, Any], run: Path) -> None:
    """Raise for what the run could not write down, each by name.

    Raises:
        ExceptionGroup: of a ConfigError for each.
    """
    faults = [
        ConfigError(what, where=f"{run}, {section}", todo=f"{todo}; then run it again")
        for section, what, todo in found["cannot"]
    ]
    if faults:
        raise ExceptionGroup(f"{run} cannot be exported", faults)


def as_yaml(found: dict[str, Any], run: Path, functions: str) -> str:
    """The run as a configuration; it writes into a folder of its own, so that the two logs can be compared."""
    from rloo_kit.watch.run_folder import NOTEBOOK

    config = renamed(found["config"], NOTEBOOK, functions)
    trainer = config.get("trainer") or {}
    trainer["output_dir"] = f"{run}-again"
    notes = [f"The run in {run}, as it was started.  'rloo-kit train' repeats it into trainer.output_dir."]
    notes += [f"Not in it: {note}." for note in found["notes"]]
    notes += ["To measure before and after, add 'evaluate: {n: 100}'; to keep the adapter, 'save: FOLDER'."]
    head = "".join(f"# {note}\n" for note in notes)
    return head + written(config | {"trainer": trainer})


def renamed(entry: Any, file: str, now: str) -> Any:
    """An entry that names functions of ``file`` by where they are now."""
    if isinstance(entry, str):
        return f"{now}{entry.removeprefix(file)}" if entry.startswith(f"{file}:") else entry
    if isinstance(entry, list):
        return [renamed(one, file, now) for one in entry]
    if isinstance(entry, dict):
        return {renamed(name, file, now): renamed(value, file, now) for name, value in entry.items()}
    return entry
