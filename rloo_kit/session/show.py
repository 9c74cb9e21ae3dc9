"""Tables, sizes in bytes and figures, as text and in a notebook; whether this process is a notebook's.

For every room that prints.  What is shown is decided there.  It never loads IPython, and matplotlib for a figure only.
"""

from __future__ import annotations

import html
import io
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell
    from matplotlib.figure import Figure

MIB, GIB = 2**20, 2**30


def scale_of(size: int) -> tuple[int, str]:
    """The unit for a size in bytes, and its name: GiB, or MiB below one."""
    return (GIB, "GiB") if size >= GIB else (MIB, "MiB")


def shortened(name: str, width: int = 26) -> str:
    """A name in at most so many characters: its beginning and its end."""
    return name if len(name) <= width else name[: width // 2 - 1] + "…" + name[-(width - width // 2) :]


def text_table(rows: Sequence[Sequence[str]], total: bool = False) -> str:
    """Lines of aligned columns, a rule below the header; with ``total`` another above the last row."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for name, *figures in rows:
        right = (figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True))
        lines.append("  ".join([name.ljust(widths[0]), *right]).rstrip())
    rule = "-" * max(map(len, lines))
    head, body, last = lines[:1], lines[1 : -1 if total else None], [rule, lines[-1]] if total else []
    return "\n".join([*head, rule, *body, *last])


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


def running_shell() -> InteractiveShell | None:
    """The running IPython, or None."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython() if get_ipython else None


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    return getattr(running_shell(), "kernel", None) is not None
