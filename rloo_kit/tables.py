"""A small table as text and as HTML: rows of cells, a header first, names on the left and figures on the right."""

from __future__ import annotations

import html
from collections.abc import Sequence


def as_text(rows: Sequence[Sequence[str]], total: bool = False) -> str:
    """Lines of aligned columns, a rule below the header; with ``total`` another above the last row.

    >>> print(as_text([["MiB", "planned"], ["weights", "12.5"], ["total", "12.5"]], total=True))
    MiB      planned
    ----------------
    weights     12.5
    ----------------
    total       12.5
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for name, *figures in rows:
        right = (figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True))
        lines.append("  ".join([name.ljust(widths[0]), *right]).rstrip())
    rule = "-" * max(map(len, lines))
    head, body, last = lines[:1], lines[1 : -1 if total else None], [rule, lines[-1]] if total else []
    return "\n".join([*head, rule, *body, *last])


def as_html(rows: Sequence[Sequence[str]], total: bool = False) -> str:
    """The same as an HTML table; with ``total`` the last row is bold."""
    lines = []
    for number, (name, *figures) in enumerate(rows):
        tag = "th" if number == 0 or (total and number == len(rows) - 1) else "td"
        cells = "".join(f"<{tag}>{html.escape(figure)}</{tag}>" for figure in figures)
        lines.append(f'<tr><{tag} style="text-align:left">{html.escape(name)}</{tag}>{cells}</tr>')
    return f"<table>{''.join(lines)}</table>"
