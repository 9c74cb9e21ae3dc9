"""``rloo-kit diagnose``: what was wrong with a run, from its log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Log = Annotated[
    Path, typer.Argument(metavar="LOG", help="A run's folder, a checkpoint or a trainer_state.json.")
]


def diagnose(log: Log) -> None:
    """Say what was wrong with a run.

    Of the kit's or of plain TRL's: with figures, and the setting to change.
    Exit status 1 where something was found.
    """
    from rloo_kit.watch.health import diagnose as found_in

    found = found_in(log)
    typer.echo(found)
    if found.findings:
        raise typer.Exit(1)
