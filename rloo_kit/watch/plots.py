"""Pictures of a run: one figure that reads in grey and on a small screen, and the same as lines of text.

For the end of a notebook and for ``out/``; :mod:`rloo_kit.watch.live` redraws it while the policy trains.  It draws
what :mod:`.panels` finds in the log of a trainer, ours, TRL's or unsloth's, or in a ``trainer_state.json``.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from rloo_kit.session.show import shown_figure
from rloo_kit.watch.log import Entry
from rloo_kit.watch.panels import PERCENT, Curve, Panel, panels, running_mean, window_of
from rloo_kit.watch.run_folder import Source, read_history, training_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BARS = "▁▂▃▄▅▆▇█"
PICTURE = "training.png"
CAPTION = "<picture of a run>"
"""What a figure is as plain text.  It never changes, so that a stored notebook compares equal."""

WIDTH_INCHES, TALL_INCHES, ROW_INCHES = 7.0, 2.2, 1.75
STYLES = (("-", ""), ("--", ""), (":", ""), ("-.", ""), ("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))
"""Dash and marker of the first, second, ... line of a panel: they differ without colour."""


def plot(source: Source, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw a run in one figure: reward and its terms, dead groups, KL, entropy, length, truncation.

    Where a run has at least 20 logged steps, a light line gives each of them and a dark one their running
    mean.  ``print(plot(...))`` gives the same as text.

    Args:
        source: a trainer (ours, TRL's or unsloth's), its log history, a ``trainer_state.json``, or the folder
            of a run or of a checkpoint.
        path: where to save the PNG; None saves it as ``training.png`` in the run's folder, where there is one.

    Returns:
        The matplotlib figure, which a notebook shows when it is a cell's last value.

    Raises:
        ConfigError: there is no training step to plot, or no log where ``source`` points.
    """
    history, folder = read_history(source, "plot")
    figure = draw(history)
    target = Path(path) if path else folder / PICTURE if folder else None
    if target:
        save(figure, target)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a PNG, 1050 pixels wide."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def draw(history: Sequence[Entry]) -> Figure:
    """The figure of a log history, saved nowhere."""
    found = panels(history)
    rows = list(_rows(found))
    heights = [TALL_INCHES if row[0].wide else ROW_INCHES for row in rows]
    size = (WIDTH_INCHES, sum(heights))
    figure = shown_figure(CAPTION, lambda: as_text(history), figsize=size, layout="constrained")
    grid = figure.add_gridspec(len(rows), 2, height_ratios=heights)
    window = window_of(len(training_steps(history)))
    for index, row in enumerate(rows):
        for column, panel in enumerate(row):
            place = grid[index, :] if len(row) == 1 else grid[index, column]
            _draw_panel(figure.add_subplot(place), panel, window)
    return figure


def _rows(found: Sequence[Panel]) -> Iterator[list[Panel]]:
    """Wide panels alone, the others in pairs; the last of an odd number has a row to itself."""
    yield from ([panel] for panel in found if panel.wide)
    narrow = [panel for panel in found if not panel.wide]
    yield from (narrow[i : i + 2] for i in range(0, len(narrow), 2))


def _draw_panel(axis: Axes, panel: Panel, window: int) -> None:
    if panel.band:
        low, high, meaning = panel.band
        bottom, top = (running_mean(edge.values, window) for edge in (low, high))
        axis.fill_between(low.steps, bottom, top, color="0.86", linewidth=0, label=meaning)
    for curve, (dash, marker) in zip(panel.curves, cycle(STYLES), strict=False):
        _draw_curve(axis, curve, window, dash, marker, alone=len(panel.curves) == 1)
    if panel.points:
        axis.plot(panel.points.steps, panel.points.values, "D", color="black", mfc="white", label="held out")
    axis.set_title(panel.title, loc="left", fontsize=9, fontweight="bold")
    axis.set_xlabel("step", fontsize=8, labelpad=1)
    axis.set_ylabel(panel.unit, fontsize=8)
    axis.set_ylim(*panel.limits)
    _tidy(axis)
    if panel.limits == PERCENT:
        axis.set_yticks((0, 25, 50, 75, 100))
    if panel.wide:
        _legend_above(axis)


def _draw_curve(axis: Axes, curve: Curve, window: int, dash: str, marker: str, alone: bool) -> None:
    """The running mean; alone in its panel, with each step as a light line behind it."""
    label = _shortened(curve.label)
    every = max(1, len(curve.steps) // 10) if marker else None
    if alone and window > 1:
        axis.plot(curve.steps, curve.values, color="0.62", linewidth=0.8, label="each step")
        label = f"mean of {window}"
    elif alone and len(curve.steps) < 3:
        marker = "o"  # a line of one point is invisible
    means = running_mean(curve.values, window)
    (line,) = axis.plot(curve.steps, means, dash, color="black", linewidth=1.5, label=label)
    line.set(marker=marker, markerfacecolor="white", markevery=every)
    if every:
        line.set(markersize=4)
    if dash == "-" and not alone:
        line.set(color="0.6", linewidth=2.6, zorder=1.9)  # wider and lighter, it shows under a dashed line


def _tidy(axis: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axis.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", color="0.92", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _legend_above(axis: Axes) -> None:
    """Beside the title, where no curve can run under it."""
    _, labels = axis.get_legend_handles_labels()
    columns = 3 if max(map(len, labels)) <= 18 else 2
    ncols = min(4, len(labels)) if sum(map(len, labels)) < 50 else columns
    space = {"borderpad": 0.1, "borderaxespad": 0.2, "handlelength": 2.6, "columnspacing": 1.2}
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=ncols, frameon=False, fontsize=8, **space)


def _shortened(name: str, width: int = 26) -> str:
    return name if len(name) <= width else name[: width // 2 - 1] + "…" + name[-(width - width // 2) :]


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The course of a figure in one line of text, averaged into at most ``width`` bars; NaN leaves a gap."""
    size = max(1, -(-len(values) // width))
    parts = [[v for v in values[i : i + size] if not math.isnan(v)] for i in range(0, len(values), size)]
    means = [sum(part) / len(part) if part else None for part in parts]
    finite = [mean for mean in means if mean is not None] or [0.0]
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    return "".join(" " if m is None else BARS[round((m - low) / span * (len(BARS) - 1))] for m in means)


def as_text(source: Source, width: int | None = None) -> str:
    """What :func:`plot` draws, as one sparkline per curve between its first and its last figure, in lines of so many
    characters; None takes the terminal's width."""
    history, _ = read_history(source, "plot")
    rows = [(panel, curve) for panel in panels(history) for curve in _text_curves(panel)]
    label_width = max(len(_shortened(curve.label)) for _, curve in rows) + 1
    unit_width = max(len(panel.unit) for panel, _ in rows)
    room = (width or shutil.get_terminal_size().columns) - label_width - 2 * 9 - unit_width - 3
    lines = []
    for panel, curve in rows:
        finite = [value for value in curve.values if not math.isnan(value)]
        first, last = (f"{value:.{panel.decimals}f}" for value in (finite[0], finite[-1]))
        bars = sparkline(curve.values, max(8, min(60, room)))
        lines.append(f"{_shortened(curve.label):<{label_width}}{first:>9} {bars} {last:<9} {panel.unit}")
    return "\n".join(lines)


def _text_curves(panel: Panel) -> tuple[Curve, ...]:
    """A panel's curves; for the reward also half the height of its band, the standard deviation."""
    if not panel.band or panel.title != "Reward":
        return panel.curves
    low, high, _ = panel.band
    half = tuple((b - a) / 2 for a, b in zip(low.values, high.values, strict=True))
    return (*panel.curves, Curve("  spread", low.steps, half))
