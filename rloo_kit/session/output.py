"""What is shown: tables and figures, the one output of a cell that trains, warnings, and lines that are dropped.

It never loads IPython, and matplotlib for a figure only.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import html
import io
import logging
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.session import multi_process

if TYPE_CHECKING:
    from IPython.core.display_functions import DisplayHandle
    from IPython.core.interactiveshell import InteractiveShell
    from matplotlib.figure import Figure

MIB, GIB = 2**20, 2**30


def running_shell() -> InteractiveShell | None:
    """The running IPython, or None."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython() if get_ipython else None


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    return getattr(running_shell(), "kernel", None) is not None


def scale_of(size: int) -> tuple[int, str]:
    """The unit for a size in bytes, and its name: GiB, or MiB below one."""
    return (GIB, "GiB") if size >= GIB else (MIB, "MiB")


def shortened(name: str, width: int = 26) -> str:
    """A name in at most so many characters: its beginning and its end."""
    return name if len(name) <= width else name[: width // 2 - 1] + "…" + name[-(width - width // 2) :]


def text_table(rows: Sequence[Sequence[str]], total: bool = False) -> str:
    """Aligned columns, a rule below the header; with ``total`` another above the last row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *figures in rows:
        right = (figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True))
        lines.append("  ".join([name.ljust(widths[0]), *right]).rstrip())
    rule = "-" * max(map(len, lines))
    if total:
        lines.insert(-1, rule)
    return "\n".join([lines[0], rule, *lines[1:]])


def shown_figure(caption: str, text: Callable[[], str], **how: Any) -> Figure:
    """A figure that a cell shows, and that prints as text; without pyplot, which keeps every figure alive."""
    from matplotlib.figure import Figure

    def png(figure: Figure) -> bytes:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()

    said = {"__repr__": lambda _: caption, "__str__": lambda _: text(), "_repr_png_": png}
    made: Figure = type("Shown", (Figure,), said)(**how)
    return made


# --- the one output of a cell -----------------------------------------------------------------------------

FIRST, LAST = 10, 300  # lines that are shown of more: each update sends them all
BYTES_PER_SECOND = 500_000  # sent at most, in the mean; a Jupyter server drops what is above 1 MB/s


class Output:
    """A picture above lines, redrawn in place: a stored notebook would keep each print as an output of its own."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.picture = b""
        self._handle: DisplayHandle | None = None
        self._sent_until, self.is_behind = 0.0, False

    def update(self, now: bool = False) -> None:
        """Send what there is, unless so much was sent of late that a later update has to do."""
        started = time.monotonic()
        self.is_behind = not now and self._sent_until > started + 1.0
        if self.is_behind:
            return
        between = len(self.lines) - FIRST - LAST
        cut = [*self.lines[:FIRST], f"... {between} lines ...", *self.lines[-LAST:]]
        text, data = "\n".join(cut if between > 0 else self.lines), base64.b64encode(self.picture).decode()
        image = f'<img src="data:image/png;base64,{data}" alt="picture of the run" style="max-width: 100%">'
        shown = f'<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'
        bundle = {"text/html": (image if data else "") + shown, "text/plain": text}
        if self._handle is None:
            from IPython.display import display

            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
        self._sent_until = max(started, self._sent_until) + len(bundle["text/html"]) / BYTES_PER_SECOND


_output: Output | None = None


@contextlib.contextmanager
def one_output() -> Iterator[None]:
    """While inside, what the kit says in a notebook is one output of the running cell."""
    global _output
    if _output is not None or not in_notebook():
        yield
        return
    mine = _output = Output()
    try:
        yield
    finally:
        _output = None
        if mine.is_behind:
            mine.update(now=True)


def say(text: object) -> None:
    """A line of the cell's one output, printed where there is none; on the main process of several alone."""
    if _output is not None:
        _output.lines += str(text).split("\n")
        _output.update()
    elif multi_process.is_main():
        print(text, flush=True)


def shows_pictures() -> bool:
    """Whether there is an output that a picture can be put into."""
    return _output is not None


def show(png: bytes) -> None:
    """Put a picture above the lines, in place of the last one; nowhere but in a notebook."""
    if _output is not None:
        _output.picture = png
        _output.update()


# --- warnings ----------------------------------------------------------------------------------------------


def warn(message: str, category: type[Warning] = UserWarning, *, main_alone: bool = True) -> None:
    """Warn at the user's line; with ``main_alone`` on the main process, where the others would say it too."""
    if main_alone and not multi_process.is_main():
        return
    here = sys._getframe(1)
    frames = (one for one, _ in traceback.walk_stack(here))
    frame = next((one for one in frames if not _is_library(one.f_code.co_filename)), here)
    names = frame.f_globals
    registry, module = names.setdefault("__warningregistry__", {}), names.get("__name__")
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)


INSTALLED = {"site-packages", "dist-packages", "unsloth_compiled_cache"}
HOMES = (Path(__file__).parents[1], Path(__file__).parents[2] / "rewards", Path(os.__file__).parent)
"""Of the kit, also where it is not installed, and of Python's own library."""


@functools.cache
def _is_library(file: str) -> bool:
    path = Path(file)
    inside = not INSTALLED.isdisjoint(path.parts) or any(map(path.is_relative_to, HOMES))
    return inside or file.startswith("<frozen ")


# --- lines that are dropped -------------------------------------------------------------------------------

PRINTED = (
    r"^🦥|^Unsloth \S+: no GPU found, training on CPU|^Unsloth: `?triton`? is not available|^On Windows, Triton is"
    r"|^Unsloth \(CPU\): \w+ on \d+ CPU threads|^Unsloth \(CPU\): this CPU has no native bfloat16"
    r"|^Unsloth( \(CPU\))?: .* is a LoRA adapter; loading its base"
    r'|^==\(\(=+\)\)==|^ *\\\\ +/\||^O\^O/|^\\ {6,}/ |^ "-_+-"'
)
"""Unsloth's banners, and what prepare() or the policy say themselves."""

LOGGED = {
    "transformers.trainer": r"^==\(\(=+\)\)==|^Unsloth \S+ patched \d+ layers",
    "transformers.models.llama.modeling_llama": r"^Unsloth: Restored added_tokens_decoder metadata",
    "transformers.generation.utils": r"^Passing `generation_config` together with generation-related",
    "bitsandbytes.backends.cpu.ops": r"^Failed to load CPU gemm_4bit_forward",  # an optional kernel
    "torchao.kernel.intmm": r"Detected no triton",
    "torch.utils._pytree": r"register_constant\(\) on Enum|is an Enum subclass and is now natively supported",
}
"""A logger -> its lines that are known, harmless and always there."""

ONCE = {"trl.trainer.rloo_trainer": "All reward functions returned None for the following kwargs:"}
"""A logger -> its line that comes in every step, and is let through once; rloo_kit.watch says what it means."""

_said: set[str] = set()


def _is_wanted(record: logging.LogRecord) -> bool:
    line = record.getMessage()
    if record.name in ONCE and ONCE[record.name] in line:
        again = record.name in _said
        _said.add(record.name)
        return not again
    return record.name not in LOGGED or not re.search(LOGGED[record.name], line)


def drop_logged_noise() -> None:
    """Filter the loggers of :data:`LOGGED` and :data:`ONCE`, for good: some log when they are imported."""
    for name in (*ONCE, *LOGGED):
        logging.getLogger(name).addFilter(_is_wanted)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Print what is printed inside afterwards, without the lines of :data:`PRINTED`."""
    try:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            yield
    finally:
        lines = said.getvalue().splitlines(keepends=True)
        print(*(line for line in lines if not re.search(PRINTED, line)), sep="", end="", flush=True)


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Hide the progress bars of weights that are loaded or written inside; a download's progress stays.

    Works around: ``transformers.utils.logging.disable_progress_bar`` switches the hub's bars off together with its own.
    """
    from transformers.utils import logging as of_transformers

    shown, of_transformers._tqdm_active = of_transformers._tqdm_active, False
    try:
        yield
    finally:
        of_transformers._tqdm_active = shown
