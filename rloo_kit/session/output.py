"""Output in a notebook or a terminal: tables, figures, lines, warnings, and the noise that is dropped.

It never imports IPython, and imports matplotlib only for a figure.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.session import distributed

if TYPE_CHECKING:
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
    """Shorten a name to at most ``width`` characters: its beginning and its end."""
    return name if len(name) <= width else name[: width // 2 - 1] + "…" + name[-(width - width // 2) :]


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Align a table whose last row is a total."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *figures in rows:
        right = (figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True))
        lines.append("  ".join([name.ljust(widths[0]), *right]).rstrip())
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def shown_figure(caption: str, text: Callable[[], str], **how: Any) -> Figure:
    """Return a figure that a cell shows and that prints as text; it avoids pyplot, which keeps every figure alive."""
    from matplotlib.figure import Figure

    def png(figure: Figure) -> bytes:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()

    shown = {"__repr__": lambda _: caption, "__str__": lambda _: text(), "_repr_png_": png}
    figure: Figure = type("Shown", (Figure,), shown)(**how)
    return figure


def say(text: object) -> None:
    """Print a line, on the main process only."""
    if distributed.is_main():
        print(text, flush=True)


def warn(message: str, category: type[Warning] = UserWarning, *, main_alone: bool = True) -> None:
    """Warn at the user's line; with ``main_alone`` on the main process only, as the others would repeat it."""
    if main_alone and not distributed.is_main():
        return
    caller = sys._getframe(1)
    frames = (frame for frame, _ in traceback.walk_stack(caller))
    frame = next((frame for frame in frames if not _is_library(frame.f_code.co_filename)), caller)
    names = frame.f_globals
    registry, module = names.setdefault("__warningregistry__", {}), names.get("__name__")
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)


INSTALLED = {"site-packages", "dist-packages", "unsloth_compiled_cache"}
HOMES = (Path(__file__).parents[1], Path(__file__).parents[2] / "rewards", Path(os.__file__).parent)
"""Folders of the kit, which may be outside site-packages, and of Python's standard library."""


@functools.cache
def _is_library(file: str) -> bool:
    path = Path(file)
    inside = not INSTALLED.isdisjoint(path.parts) or any(map(path.is_relative_to, HOMES))
    return inside or file.startswith("<frozen ")


PRINTED = (
    r"^🦥|^Unsloth \S+: no GPU found|^Unsloth \(CPU\): (\w+ on \d+ CPU threads|.* is a LoRA adapter; loading its base)"
    r'|^==\(\(=+\)\)==|^ *\\\\ +/\||^O\^O/|^\\ {6,}/ |^ "-_+-"'
)
"""Unsloth's banners, and lines that prepare() or the policy print themselves."""

LOGGED = {
    "transformers.trainer": r"^==\(\(=+\)\)==|^Unsloth \S+ patched \d+ layers",
    "transformers.models.llama.modeling_llama": r"^Unsloth: Restored added_tokens_decoder metadata",
    "transformers.generation.utils": r"^Passing `generation_config` together with generation-related",
    "bitsandbytes.backends.cpu.ops": r"^Failed to load CPU gemm_4bit_forward",  # an optional kernel
    "torchao.kernel.intmm": r"Detected no triton",
    "torch.utils._pytree": r"register_constant\(\) on Enum|is an Enum subclass and is now natively supported",
}
"""Logger -> the lines of it that are known, harmless and always there."""


def drop_logged_noise() -> None:
    """Filter the loggers of :data:`LOGGED`, and a warning, for the whole process: some log at import."""
    for name in LOGGED:
        logging.getLogger(name).addFilter(lambda record: not re.search(LOGGED[record.name], record.getMessage()))
    # Offline, PEFT warns at each save that it cannot compare the vocabulary with the hub's; the kit never resizes it.
    warnings.filterwarnings("ignore", "Could not find a config file in", module="peft")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold back what is printed inside, and print it afterwards without the lines of :data:`PRINTED`."""
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
