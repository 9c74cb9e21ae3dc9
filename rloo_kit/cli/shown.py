"""What a verb prints where something is wrong, an error's three parts and no traceback; options of several verbs.

A bug of the kit's keeps its traceback.  What the kit says to a notebook is said in the words of the command line.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

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

WORDS = {
    r"(?:rloo_kit\.release\(\), )?load the policy anew, (and|or) ": "",
    r"train\(resume_from_checkpoint=[^)]*\)": "--resume",
    r"call train\(\) without it": "leave --resume out",
    r",? and call prepare\(\) before (?:importing it|any other import)": "",
    r"\b([Rr])estart the kernel(?: and make `import rloo_kit` its first line)?": r"\1un it again",
    r"\b(?:call )?prepare\(offline=False\) in a fresh kernel": "run it again with HF_HUB_OFFLINE=0",
    r"\band start a fresh kernel": "and run it again",
}
"""What a notebook is told, and what to say here."""

IN_YAML = {
    r"\b(write|use|mean) ([a-z_]+)=('?)([\w.+-]+)\3": r"\1 \2: \4",
    r"plan\(card='?([^)']*)'?\)": r"card \1",
    r"\bsee help\(rloo_kit\.\w+\)": "see docs/settings.md",
}
"""What an error or a warning says in Python, and how a configuration has it."""


def here(text: str, words: Mapping[str, str] = WORDS) -> str:
    """A message in the words of the command line."""
    for notebook, said in words.items():
        text = re.sub(notebook, said, text)
    return text


class _Here:
    """A stream that is told messages for a notebook."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(here(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def explained(verb: Callable[P, R]) -> Callable[P, R]:
    """The verb, whose errors are printed in three lines each; exit status 2, or 130 where it was interrupted."""

    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        out, err = _Here(sys.stdout), _Here(sys.stderr)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _short_warnings():
            try:
                return verb(*args, **kwargs)
            except KeyboardInterrupt:
                raise typer.Exit(INTERRUPTED) from None
            except Exception as error:
                found = list(error.exceptions) if isinstance(error, ExceptionGroup) else [error]
                if not all(map(_is_meant, found)):
                    raise
                typer.echo(here("\n\n".join(map(str, found)), IN_YAML), err=True)
                raise typer.Exit(FAULTY) from None

    return run


@contextlib.contextmanager
def _short_warnings() -> Iterator[None]:
    """Warnings in a line each, without the line of Python that warned; of a configuration with its line."""

    def short(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        of_file = f"{filename}, line {lineno}: " if filename.endswith((".yaml", ".yml")) else ""
        place = f"{filename}: " if filename.startswith("--set") else of_file
        return f"warning: {place}{here(' '.join(str(message).split()), IN_YAML)}\n"

    before, warnings.formatwarning = warnings.formatwarning, short
    try:
        yield
    finally:
        warnings.formatwarning = before


def _is_meant(error: Exception) -> bool:
    """Whether it was raised on purpose, in three parts: by the kit, or by ``rewards``, which may raise built-ins."""
    return isinstance(error, RLOOKitError) or "\nWhat to do: " in str(error)
