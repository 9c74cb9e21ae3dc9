"""What is shown: tables and figures, the one output of a notebook cell that trains, and the lines that are dropped.

A notebook that is executed and stored keeps each print of a cell as an output of its own, 32 for a run of 30 steps; the
kit's are one, a picture above lines, redrawn by its display handle, which JupyterLab, VS Code and nbclient all update.
What the user's own code prints is left alone.  It never loads IPython, and matplotlib for a figure only.
"""

from __future__ import annotations

import base64
import contextlib
import html
import io
import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

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


# --- tables and figures -----------------------------------------------------------------------------------


def scale_of(size: int) -> tuple[int, str]:
    """The unit for a size in bytes, and its name: GiB, or MiB below one."""
    return (GIB, "GiB") if size >= GIB else (MIB, "MiB")


def shortened(name: str, width: int = 26) -> str:
    """A name in at most so many characters: its beginning and its end."""
    return name if len(name) <= width else name[: width // 2 - 1] + "…" + name[-(width - width // 2) :]


def text_table(rows: Sequence[Sequence[str]], total: bool = False) -> str:
    """Lines of aligned columns, a rule below the header; with ``total`` another above the last row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *figures in rows:
        right = (figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True))
        lines.append("  ".join([name.ljust(widths[0]), *right]).rstrip())
    rule = "-" * max(map(len, lines))
    if total:
        lines.insert(-1, rule)
    return "\n".join([lines[0], rule, *lines[1:]])


def html_table(rows: Sequence[Sequence[str]], total: bool = False) -> str:
    """The same as an HTML table; with ``total`` the last row is bold."""
    lines = []
    for number, (name, *figures) in enumerate(rows):
        tag = "th" if number == 0 or (total and number == len(rows) - 1) else "td"
        cells = "".join(f"<{tag}>{html.escape(figure)}</{tag}>" for figure in figures)
        lines.append(f'<tr><{tag} style="text-align:left">{html.escape(name)}</{tag}>{cells}</tr>')
    return f"<table>{''.join(lines)}</table>"


def shown_figure(
    caption: str,
    text: Callable[[], str] | None = None,
    *,
    figsize: tuple[float, float],
    layout: Literal["constrained", "tight"],
) -> Figure:
    """A figure that a notebook shows as a cell's value, made without pyplot, which keeps every figure alive.

    Its repr is the caption, and it prints as ``text()``, or as the caption without one; ``figsize`` is in inches.
    """
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=100)
            return buffer.getvalue()

        def __repr__(self) -> str:
            return caption

        def __str__(self) -> str:
            return text() if text else caption

    return Shown(figsize=figsize, layout=layout)


# --- the one output of a cell -----------------------------------------------------------------------------

FIRST, LAST = 10, 300  # lines that are shown of more: each update sends them all
BYTES_PER_SECOND = 500_000  # sent at most, in the mean; a Jupyter server drops what is above 1 MB/s


class Output:
    """A picture above lines, as one output of a cell."""

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
        if self._handle is None:
            from IPython.display import display

            self._handle = display(self, display_id=True)
        else:
            self._handle.update(self)
        size = len(self.picture) * 4 / 3 + sum(map(len, self._shown()))
        self._sent_until = max(started, self._sent_until) + size / BYTES_PER_SECOND

    def _shown(self) -> list[str]:
        between = len(self.lines) - FIRST - LAST
        if between <= 0:
            return self.lines
        return [*self.lines[:FIRST], f"... {between} lines ...", *self.lines[-LAST:]]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        text = "\n".join(self._shown())
        data = base64.b64encode(self.picture).decode()
        image = f'<img src="data:image/png;base64,{data}" alt="picture of the run" style="max-width: 100%">'
        lines = f'<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'
        return {"text/html": (image if data else "") + lines, "text/plain": text}


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


def say(text: str) -> None:
    """A line of the cell's one output; printed where there is none."""
    if _output is None:
        print(text, flush=True)
    else:
        _output.lines += text.split("\n")
        _output.update()


def shows_pictures() -> bool:
    """Whether there is an output that a picture can be put into."""
    return _output is not None


def show(png: bytes) -> None:
    """Put a picture above the lines, in place of the last one; nowhere but in a notebook."""
    if _output is not None:
        _output.picture = png
        _output.update()


# --- lines that are dropped -------------------------------------------------------------------------------

NOISE = {
    # printed: unsloth's banners, and what prepare() or the policy say themselves
    "print": (
        r"^🦥",
        r"^Unsloth \S+: no GPU found, training on CPU",
        r"^Unsloth \(CPU\): \w+ on \d+ CPU threads",
        r"^Unsloth \(CPU\): this CPU has no native bfloat16",  # where the user asked for dtype=bfloat16
        r"^Unsloth: `?triton`? is not available",  # a CPU install does not use it
        r"^On Windows, Triton is published",  # the second line of the one above
        r"^Unsloth( \(CPU\))?: .* is a LoRA adapter; loading its base",
        r"^==\(\(=+\)\)==|^ *\\\\ +/\||^O\^O/|^\\ {6,}/ |^ \"-_+-\"",
    ),
    # Unsloth's GPU path logs by transformers' loggers (its models/llama.py).
    "transformers.trainer": (r"^==\(\(=+\)\)==", r"^Unsloth \S+ patched \d+ layers"),
    # unsloth's save.py completes a file of the tokenizer, at every save
    "transformers.models.llama.modeling_llama": (r"^Unsloth: Restored added_tokens_decoder metadata",),
    "transformers.generation.utils": (  # unsloth's call
        r"^Passing `generation_config` together with generation-related",
    ),
    # an optional kernel for CPUs with AVX512-BF16; the built-in one is used
    "bitsandbytes.backends.cpu.ops": (r"^Failed to load CPU gemm_4bit_forward",),
    "torchao.kernel.intmm": (r"Detected no triton",),
    "torch.utils._pytree": (  # torchao's call
        r"register_constant\(\) on Enum|is an Enum subclass and is now natively supported",
    ),
}
"""Lines of the stack that are known, harmless and always there, by their logger or "print"."""

ONCE = {"trl.trainer.rloo_trainer": "All reward functions returned None for the following kwargs:"}
"""A logger -> its line that shows one row of a batch, in every step, and is let through once; tests/contract pins it,
and rloo_kit.watch says what it means."""

_said: set[str] = set()


def is_noise(line: str, source: str = "print") -> bool:
    """Whether a line is one of :data:`NOISE`; an empty line is not."""
    return any(re.search(pattern, line) for pattern in NOISE.get(source, ()))


def _not_noise(record: logging.LogRecord) -> bool:
    line = record.getMessage()
    if record.name in ONCE and ONCE[record.name] in line:
        again = record.name in _said
        _said.add(record.name)
        return not again
    return not is_noise(line, record.name)


def drop_logged_noise() -> None:
    """Filter the loggers of :data:`NOISE` and :data:`ONCE`, for good: some log when they are imported."""
    for name in {*ONCE, *NOISE} - {"print"}:
        logging.getLogger(name).addFilter(_not_noise)


class _PrintFilter(io.TextIOBase):
    """A stdout that drops known lines and passes the rest on, unchanged."""

    def __init__(self, target: io.TextIOBase) -> None:
        self._target, self._pending = target, ""

    def write(self, text: str) -> int:
        self._pending += text
        *lines, self._pending = self._pending.split("\n")
        for line in lines:
            if not is_noise(line):
                self._target.write(line + "\n")
        return len(text)

    def close_line(self) -> None:
        """Pass on a last line that has no newline."""
        if self._pending and not is_noise(self._pending):
            self._target.write(self._pending)
        self._pending = ""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop the lines of :data:`NOISE` that are printed inside."""
    out = _PrintFilter(sys.stdout)  # type: ignore[arg-type]
    try:
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            # From extensions that were built with SWIG; the user cannot act on it.
            warnings.filterwarnings("ignore", message=r"builtin type \w+ has no __module__ attribute")
            yield
    finally:
        out.close_line()


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Hide the progress bars of weights that are loaded or written inside; a download's progress stays.

    Works around: transformers switches the hub's bars off together with its own.
    """
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from transformers.utils import logging as of_transformers

    shown, of_downloads = of_transformers.is_progress_bar_enabled(), not are_progress_bars_disabled()
    of_transformers.disable_progress_bar()
    if of_downloads:
        enable_progress_bars()
    try:
        yield
    finally:
        if shown:
            of_transformers.enable_progress_bar()
        if not of_downloads:
            disable_progress_bars()
