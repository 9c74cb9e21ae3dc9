"""The command ``rloo-kit``: its verbs, and what all of them share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

import rloo_kit
from rloo_kit.cli import audit, cards, diagnose, doctor, evaluate, export, launch, plan, train
from rloo_kit.cli.shown import explained

VERBS: dict[str, Callable[..., None]] = {
    "doctor": doctor.doctor,
    "cards": cards.cards,
    "plan": plan.plan,
    "train": train.train,
    "launch": launch.launch,
    "evaluate": evaluate.evaluate,
    "audit": audit.audit,
    "diagnose": diagnose.diagnose,
    "export": export.export,
}
"""In the order in which they are needed."""

# Plain text: it reads in any terminal and in a log, and rich takes longer to import than the rest.
app = typer.Typer(
    name="rloo-kit",
    help="Train Qwen3 with RLOO: the same run as in a notebook, from a YAML file.",
    epilog="A run from beginning to end: rloo-kit doctor; rloo-kit plan CONFIG.yaml; rloo-kit train CONFIG.yaml",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

for _name, _verb in VERBS.items():
    app.command(_name)(explained(_verb))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(rloo_kit.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    here = str(Path.cwd())
    if here not in sys.path:  # rewards by dotted names may live in the working directory, as in a notebook
        sys.path.append(here)


def main() -> None:
    """Run the command line."""
    app()
