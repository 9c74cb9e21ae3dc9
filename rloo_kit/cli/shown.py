"""What a verb prints where something is wrong, an error's three parts and no traceback; options of several verbs.

A bug of the kit's keeps its traceback.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

import typer

from rloo_kit.errors import RLOOKitError

P = ParamSpec("P")
R = TypeVar("R")

FAULTY = 2  # the exit status of what was asked for wrongly; 1 is a verb's own "no"
INTERRUPTED = 130

ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG.yaml", help="The run: policy, task, rewards, trainer.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Replace a value: trainer.max_steps=5.  As often as needed."
    ),
]

Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from the newest whole checkpoint in trainer.output_dir.")
]


def explained(verb: Callable[P, R]) -> Callable[P, R]:
    """The verb, whose errors are printed in three lines each; exit status 2, or 130 where it was interrupted."""

    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return verb(*args, **kwargs)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if not all(map(_is_meant, found := _each(error))):
                raise
            typer.echo("\n\n".join(map(str, found)), err=True)
            raise typer.Exit(FAULTY) from None

    return run


def _each(error: Exception) -> list[Exception]:
    return list(error.exceptions) if isinstance(error, ExceptionGroup) else [error]


def _is_meant(error: Exception) -> bool:
    """Whether it was raised on purpose, in three parts: by the kit, or by ``rewards``, which may raise built-ins."""
    return isinstance(error, RLOOKitError) or "\nWhat to do: " in str(error)
