"""Output in a notebook or a terminal: tables and figures, the output of a cell that trains, warnings, dropped lines.

It loads IPython in a notebook only, and matplotlib for a figure only.
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
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython() if get_ipython else None


def in_notebook() -> bool:
    return getattr(running_shell(), "kernel", None) is not None


def scale_of(size: int) -> tuple[int, str]:
    return (GIB, "GiB") if size >= GIB else (MIB, "MiB")


def shortened(name: str, width: int = 26) -> str:
    """A name in at most so many characters: its beginning and its end."""
    return name if len(name) <= width else name[: width // 2 - 1] + "…" + name[-(width - width // 2) :]


def text_table(rows: Sequence[Sequence[str]], total: bool = False) -> str:
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

    shown = {"__repr__": lambda _: caption, "__str__": lambda _: text(), "_repr_png_": png}
    figure: Figure = type("Shown", (Figure,), shown)(**how)
    return figure


FIRST, LAST = 10, 300  # lines that are shown of more: each update sends them all
LEAST_SECONDS = 0.3  # between two updates with a picture: a Jupyter server drops what is above 1 MB/s


class Output:
    """A picture above lines, redrawn in place: a stored notebook would keep each print as an output of its own."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.picture = ""
        self._handle: DisplayHandle | None = None
        self._next_update = 0.0

    def add(self, text: str) -> None:
        self.lines += text.split("\n")
        if not self.picture or time.monotonic() >= self._next_update:
            self.update()

    def update(self) -> None:
        between = len(self.lines) - FIRST - LAST
        cut = [*self.lines[:FIRST], f"... {between} lines ...", *self.lines[-LAST:]]
        text = "\n".join(cut if between > 0 else self.lines)
        image = f'<img src="data:image/png;base64,{self.picture}" alt="picture of the run" style="max-width: 100%">'
        lines = f'<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'
        bundle = {"text/html": (image if self.picture else "") + lines, "text/plain": text}
        if self._handle is None:
            from IPython.display import display

            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
        self._next_update = time.monotonic() + LEAST_SECONDS


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
        if mine.lines or mine.picture:
            mine.update()  # with lines that came too soon after others


def say(text: object) -> None:
    """A line of the cell's one output, printed where there is none; on the main process of several alone."""
    if _output is not None:
        _output.add(str(text))
    elif multi_process.is_main():
        print(text, flush=True)


def shows_pictures() -> bool:
    return _output is not None


def show(png: bytes) -> None:
    """Put a picture above the lines, in place of the last one; nowhere but in a notebook."""
    if _output is not None:
        _output.picture = base64.b64encode(png).decode()
        _output.update()


def warn(message: str, category: type[Warning] = UserWarning, *, main_alone: bool = True) -> None:
    """Warn at the user's line; with ``main_alone`` on the main process, where the others would say it too."""
    if main_alone and not multi_process.is_main():
        return
    caller = sys._getframe(1)
    frames = (frame for frame, _ in traceback.walk_stack(caller))
    frame = next((frame for frame in frames if not _is_library(frame.f_code.co_filename)), caller)
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


PRINTED = (
    r"^🦥|^Unsloth \S+: no GPU found|^Unsloth \(CPU\): (\w+ on \d+ CPU threads|.* is a LoRA adapter; loading its base)"
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


def drop_logged_noise() -> None:
    """Filter the loggers of :data:`LOGGED`, and a warning, for good: some log when they are imported."""
    for name in LOGGED:
        logging.getLogger(name).addFilter(lambda record: not re.search(LOGGED[record.name], record.getMessage()))
    # Offline PEFT cannot compare the vocabulary with the hub's whenever it saves; the kit resizes none.
    warnings.filterwarnings("ignore", "Could not find a config file in", module="peft")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Print what is printed inside afterwards, without the lines of :data:`PRINTED`."""
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            yield
    finally:
        lines = printed.getvalue().splitlines(keepends=True)
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
