"""Pictures of a run: one figure that reads in grey and on a small screen, and the same as lines of text.

For the end of a notebook and for ``out/``; :mod:`rloo_kit.watch.live` redraws it while the policy trains.  It draws
what :mod:`.panels` finds in the log of a trainer, ours, TRL's or unsloth's, or in a ``trainer_state.json``.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.session.show import shortened, shown_figure
from rloo_kit.watch.log import Entry
from rloo_kit.watch.panels import (
    PERCENT,
    Curve,
    Panel,
    isolated,
    panels,
    reward_names,
    running_mean,
    span_of,
    window_of,
)
from rloo_kit.watch.run_folder import Source, read_history, training_steps
from rloo_kit.watch.styles import PLAIN, Style, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BARS = "▁▂▃▄▅▆▇█"
PICTURE = "training.png"
CAPTION = "<picture of a run>"
"""What a figure is as plain text.  It never changes, so that a stored notebook compares equal."""

BAND, EACH_STEP = "0.86", Style("0.62")
HELD_OUT = Style(dash="none", mark="D", marked=True)
WIDTH_INCHES, TALL_INCHES, ROW_INCHES = 7.0, 2.2, 1.75


def plot(source: Source, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw a run in one figure: reward and its terms, dead groups, KL, entropy, length, truncation.

    Where a run has at least 20 logged steps, a light line gives each of them and a dark one their running
    mean.  A reward function has the same colour and dash in every figure of a notebook.  ``print(plot(...))`` gives
    the same as text.

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
    log = training_steps(history)
    for name in reward_names(log):
        style_of(name)  # in the log's order, which does not change as figures do
    window = window_of(len(log))
    for index, row in enumerate(rows):
        for column, panel in enumerate(row):
            place = grid[index, :] if len(row) == 1 else grid[index, column]
            shared = figure.axes[0] if figure.axes else None
            _draw_panel(figure.add_subplot(place, sharex=shared), panel, window)
    figure.axes[0].set_xlim(*span_of(found))
    return figure


def _rows(found: Sequence[Panel]) -> Iterator[list[Panel]]:
    """Wide panels alone, the others in pairs; the last of an odd number has a row to itself."""
    yield from ([panel] for panel in found if panel.wide)
    narrow = [panel for panel in found if not panel.wide]
    yield from (narrow[i : i + 2] for i in range(0, len(narrow), 2))


def _draw_panel(axis: Axes, panel: Panel, window: int) -> None:
    if panel.band:
        _draw_band(axis, *panel.band, window)
    for curve in panel.curves:
        _draw_curve(axis, curve, window, alone=len(panel.curves) == 1)
    if panel.points:
        _draw_line(axis, panel.points.steps, panel.points.values, HELD_OUT, 1, label="held out")
    axis.set_title(panel.title, loc="left", fontsize=9, fontweight="bold")
    axis.set_xlabel("step", fontsize=8, labelpad=1)
    axis.set_ylabel(panel.unit, fontsize=8)
    axis.set_ylim(*panel.limits)
    _tidy(axis)
    if panel.limits == PERCENT:
        axis.set_yticks((0, 25, 50, 75, 100))
    if panel.wide:
        _legend_above(axis)


def _draw_band(axis: Axes, low: Curve, high: Curve, meaning: str, window: int) -> None:
    steps, bottom, top = low.steps, running_mean(low.values, window), running_mean(high.values, window)
    axis.fill_between(steps, bottom, top, color=BAND, linewidth=0, label=meaning)
    if lone := isolated(bottom):
        places = ([edge[i] for i in lone] for edge in (steps, bottom, top))
        axis.vlines(*places, color=BAND, linewidth=3, zorder=1)


def _draw_curve(axis: Axes, curve: Curve, window: int, alone: bool) -> None:
    """The running mean; alone in its panel, with each step as a light line behind it."""
    style = style_of(curve.reward) if curve.reward else PLAIN
    label = shortened(curve.label)
    if alone and window > 1:
        _draw_line(axis, curve.steps, curve.values, EACH_STEP, 0, label="each step", linewidth=0.8)
        label = f"mean of {window}"
    means, every = running_mean(curve.values, window), max(1, len(curve.steps) // 10)
    # A wide solid line shows under a dashed one.
    wide = {"linewidth": 2.6, "zorder": 1.9} if style.dash == "-" and not alone else {"linewidth": 1.5}
    _draw_line(axis, curve.steps, means, style, every, label=label, **wide)


def _draw_line(
    axis: Axes, steps: Sequence[int], values: Sequence[float], style: Style, every: int, **how: Any
) -> None:
    """A curve with its mark at ``every`` so many figures, and at each that has no neighbour to be joined with."""
    marked = {*isolated(values), *(range(0, len(values), every) if style.marked else ())}
    (line,) = axis.plot(steps, values, linestyle=style.dash, color=style.colour, **how)
    if marked:  # also at the frame, where the last step is
        line.set(marker=style.mark, markerfacecolor="white", markevery=sorted(marked), clip_on=False)
        line.set_markersize(6 if style is HELD_OUT else 4)


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
    label_width = max(len(shortened(curve.label)) for _, curve in rows) + 1
    unit_width = max(len(panel.unit) for panel, _ in rows)
    room = (width or shutil.get_terminal_size().columns) - label_width - 2 * 9 - unit_width - 3
    lines = []
    for panel, curve in rows:
        finite = [value for value in curve.values if not math.isnan(value)]
        first, last = (f"{value:.{panel.decimals}f}" for value in (finite[0], finite[-1]))
        bars = sparkline(curve.values, max(8, min(60, room)))
        lines.append(f"{shortened(curve.label):<{label_width}}{first:>9} {bars} {last:<9} {panel.unit}")
    return "\n".join(lines)


def _text_curves(panel: Panel) -> tuple[Curve, ...]:
    """A panel's curves; for the reward also half the height of its band, the standard deviation."""
    if not panel.band or panel.title != "Reward":
        return panel.curves
    low, high, _ = panel.band
    half = tuple((b - a) / 2 for a, b in zip(low.values, high.values, strict=True))
    return (*panel.curves, Curve("  spread", low.steps, half))
