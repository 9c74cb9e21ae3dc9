"""Pictures of a run: one figure that reads in grey and on a small screen, and its ends as lines of text.

It draws panels of curves, read off the log of a trainer, ours, TRL's or unsloth's; one whose metric is missing is left
out, and what the curves show is not judged.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rloo_kit.errors import ConfigError
from rloo_kit.session.output import shortened, shown_figure
from rloo_kit.watch.log import Entry, Figures, term, term_names
from rloo_kit.watch.run_folder import Source, read_history, training_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE = "training.png"
CAPTION = "<picture of a run>"
"""What a figure is as plain text.  It never changes, so that a stored notebook compares equal."""

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


def as_text(source: Source) -> str:
    """What :func:`plot` draws, as a line per curve: its first and its last figure, and their unit."""
    history, _ = read_history(source, "plot")
    rows = [(panel, curve) for panel in panels(history) for curve in (*panel.curves, *panel.spread)]
    width = max(len(shortened(curve.label)) for _, curve in rows)
    lines = []
    for panel, curve in rows:
        ends = curve.values[~np.isnan(curve.values)][[0, -1]]
        first, last = (f"{value:.{panel.decimals}f}" for value in ends)
        lines.append(f"{shortened(curve.label):<{width}}{first:>10} -> {last:<10}{panel.unit}")
    return "\n".join(lines)


# --- what is shown -------------------------------------------------------------------------------------------

APART = 10  # how many times as large a reward term has to be for a panel of its own
PERCENT = (-4, 104)  # a line at 0 or 100 stays clear of the frame


@dataclass(frozen=True)
class Curve:
    """One metric by optimizer step, in the panel's unit; NaN where the log has no finite figure."""

    label: str
    steps: Sequence[int]
    values: Figures
    is_reward: bool = False  # one reward function's, which has a style of its own


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        band: lower and upper edge of a grey area, and what it means.
        points: drawn as marks; the held-out rewards of a run that evaluates.
        spread: only as text: the reward's standard deviation, half the height of its band.
        limits: of the vertical axis; None takes what the figures need.
        wide: whether it has the figure's full width and a legend.
        decimals: of its figures as text.
    """

    title: str
    unit: str
    curves: Sequence[Curve] = ()
    band: tuple[Curve, Curve, str] | None = None
    points: Curve | None = None
    spread: Sequence[Curve] = ()
    limits: tuple[float | None, float | None] = (None, None)
    wide: bool = False
    decimals: int = 3


def panels(history: Sequence[Entry]) -> list[Panel]:
    """What a ``trainer.state.log_history`` has to show, in reading order.

    Raises:
        ConfigError: it has nothing that could be drawn.
    """
    log = training_steps(history)
    dead = Panel("Dead groups: all K rewards equal", "% of groups", limits=PERCENT, decimals=0)
    trls = replace(dead, title="Dead groups, as TRL counts them")  # after the KL term
    cut = Panel("Cut at the length limit", "% of completions", limits=PERCENT, decimals=0)
    found = [
        _reward_panel(log, history),
        *_terms_panels(log),
        _panel(log, "dead_groups", "dead groups", dead, scale=100)
        or _panel(log, "frac_reward_zero_std", "dead groups", trls, scale=100),
        _panel(log, "kl", "KL", Panel("KL to the reference", "nats per token")),
        _panel(log, "entropy", "entropy", Panel("Entropy of the policy", "nats per token", limits=(0, None))),
        _length_panel(log),
        _panel(log, "completions/clipped_ratio", "cut", cut, scale=100),
    ]
    shown = [panel for panel in found if panel]
    if not shown:
        raise ConfigError(
            "there is no training step with a finite figure",
            where=f"plot, a log of {len(history)} entries",
            todo="call trainer.train() first, and look at the rewards if they are not finite",
        )
    return shown


def _reward_panel(log: Sequence[Entry], history: Sequence[Entry]) -> Panel | None:
    held_out = _curve([entry for entry in history if "eval_reward" in entry], "eval_reward", "held out")
    panel = _panel(log, "reward", "mean reward", Panel("Reward", "reward", points=held_out, wide=True))
    spread = _curve(log, "reward_std", "  spread")
    if panel is None or spread is None:
        return panel
    mean = panel.curves[0].values
    low, high = (replace(spread, values=mean + sign * spread.values) for sign in (-1, 1))
    return replace(panel, band=(low, high, "± 1 standard deviation"), spread=(spread,))


def _terms_panels(log: Sequence[Entry]) -> list[Panel]:
    """Each reward function's mean, apart where their sizes are; none for a single one that is the reward."""
    curves = [_curve(log, term(name), name) for name in _reward_names(log)]
    terms = [replace(curve, is_reward=True) for curve in curves if curve]
    total = _curve(log, "reward", "mean reward")
    if (
        len(terms) == 1
        and total
        and np.allclose(terms[0].values, total.values, atol=1e-6, rtol=0, equal_nan=True)
    ):
        return []
    titles = chain(["Reward terms"], repeat("Reward terms, larger ones"))
    both = zip(titles, _by_size(terms), strict=False)
    return [Panel(title, "mean, unweighted", group, wide=True) for title, group in both]


def _reward_names(log: Sequence[Entry]) -> list[str]:
    """The reward functions of a log, in their order there."""
    return list(dict.fromkeys(name for entry in log for name in term_names(entry)))


def _by_size(terms: Sequence[Curve]) -> list[list[Curve]]:
    """Groups within which no term is more than ten times another, so that each can be read."""
    groups: list[list[Curve]] = []
    smallest = math.inf
    for size, one in sorted(
        ((float(np.nanmax(abs(one.values))), one) for one in terms), key=lambda pair: pair[0]
    ):
        if not groups or size > APART * smallest:
            groups.append([])
            smallest = math.inf
        groups[-1].append(one)
        smallest = min(smallest, size or math.inf)
    return groups


def _length_panel(log: Sequence[Entry]) -> Panel | None:
    low, high = (_curve(log, f"completions/{edge}_length", edge) for edge in ("min", "max"))
    panel = Panel("Length", "tokens", limits=(0, None), decimals=0)
    if low and high:
        meaning = "shortest to longest"
        panel = replace(panel, title=f"Length, grey: {meaning}", band=(low, high, meaning))
    return _panel(log, "completions/mean_length", "length", panel)


def _panel(log: Sequence[Entry], metric: str, label: str, panel: Panel, scale: float = 1) -> Panel | None:
    """The panel with a metric's curve, or None where it has no finite figure."""
    curve = _curve(log, metric, label, scale)
    return replace(panel, curves=(curve,)) if curve else None


def _curve(log: Sequence[Entry], metric: str, label: str, scale: float = 1) -> Curve | None:
    values = scale * np.array([entry.get(metric) for entry in log], dtype=np.float64)
    values[np.isinf(values)] = math.nan
    if np.isnan(values).all():
        return None
    return Curve(label, [entry.get("step", index) for index, entry in enumerate(log, 1)], values)


# --- drawing -------------------------------------------------------------------------------------------------


def draw(history: Sequence[Entry]) -> Figure:
    """The figure of a log history, saved nowhere."""
    found = panels(history)
    log = training_steps(history)
    for name in _reward_names(log):
        style_of(name)  # in the log's order, which does not change as figures do
    narrow = [panel for panel in found if not panel.wide]
    rows = [[panel] for panel in found if panel.wide] + [narrow[i : i + 2] for i in range(0, len(narrow), 2)]
    heights = [TALL_INCHES if row[0].wide else ROW_INCHES for row in rows]
    size = (WIDTH_INCHES, sum(heights))
    figure = shown_figure(CAPTION, lambda: as_text(history), figsize=size, layout="constrained")
    grid = figure.add_gridspec(len(rows), 2, height_ratios=heights)
    window = window_of(len(log))
    for index, row in enumerate(rows):
        for column, panel in enumerate(row):
            place = grid[index, :] if len(row) == 1 else grid[index, column]
            shared = figure.axes[0] if figure.axes else None
            _draw_panel(figure.add_subplot(place, sharex=shared), panel, window)
    curves = [curve for panel in found for curve in (*panel.curves, panel.points) if curve]
    first, last = (end(step for curve in curves for step in curve.steps) for end in (min, max))
    figure.axes[0].set_xlim(*((first, last) if first < last else (first - 0.5, last + 0.5)))
    return figure


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
    if panel.wide:  # a legend beside the title, where no curve can run under it
        _, labels = axis.get_legend_handles_labels()
        columns = 3 if max(map(len, labels)) <= 18 else 2
        ncols = min(4, len(labels)) if sum(map(len, labels)) < 50 else columns
        space = {"borderpad": 0.1, "borderaxespad": 0.2, "handlelength": 2.6, "columnspacing": 1.2}
        axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=ncols, frameon=False, fontsize=8, **space)


def _draw_band(axis: Axes, low: Curve, high: Curve, meaning: str, window: int) -> None:
    bottom, top = running_mean(low.values, window), running_mean(high.values, window)
    axis.fill_between(low.steps, bottom, top, color="0.86", linewidth=0, label=meaning)
    if lone := _isolated(bottom):
        places = ([edge[i] for i in lone] for edge in (low.steps, bottom, top))
        axis.vlines(*places, color="0.86", linewidth=3, zorder=1)


def _draw_curve(axis: Axes, curve: Curve, window: int, alone: bool) -> None:
    """The running mean; alone in its panel, with each step as a light line behind it."""
    style = style_of(curve.label) if curve.is_reward else PLAIN
    label = shortened(curve.label)
    if alone and window > 1:
        _draw_line(axis, curve.steps, curve.values, EACH_STEP, 0, label="each step", linewidth=0.8)
        label = f"mean of {window}"
    means, every = running_mean(curve.values, window), max(1, len(curve.steps) // 10)
    # A wide solid line shows under a dashed one.
    wide = {"linewidth": 2.6, "zorder": 1.9} if style.dash == "-" and not alone else {"linewidth": 1.5}
    _draw_line(axis, curve.steps, means, style, every, label=label, **wide)


def _draw_line(
    axis: Axes, steps: Sequence[int], values: Figures, style: Style, every: int, **how: Any
) -> None:
    """A curve with its mark at ``every`` so many figures, and at each that has no neighbour to be joined with."""
    marked = {*_isolated(values), *(range(0, len(values), every) if style.marked else ())}
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


def _isolated(values: Figures) -> list[int]:
    """The places of finite figures between two that are not: a line does not show them."""
    finite = [False, *~np.isnan(values), False]
    return [i for i in range(len(values)) if finite[i + 1] and not (finite[i] or finite[i + 2])]


def running_mean(values: Figures, window: int) -> Figures:
    """The mean of the figures around each one, fewer at the ends; NaN stays NaN and counts for no other."""
    known, ones = ~np.isnan(values), np.ones(window)
    half = slice(window // 2, window // 2 + len(values))
    totals, counts = (np.convolve(part, ones)[half] for part in (np.where(known, values, 0.0), known))
    return np.where(known, totals / np.maximum(counts, 1), math.nan)


def window_of(n_logs: int) -> int:
    """How many logs one point of a thick line is the mean of: a tenth of the run, odd; 1 in a short run."""
    return n_logs // 20 * 2 + 1


# --- how a curve looks ---------------------------------------------------------------------------------------

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito (2002), Color Universal Design: told apart in all common kinds of colour blindness.  Without black,
which is the total's, and without yellow, which is hard to see on white."""

DASHES = ("-", "--", ":", "-.")
MARKS = ("o", "s", "^", "D", "v", "<", ">")


@dataclass(frozen=True)
class Style:
    """What matplotlib draws a curve with; dash and mark alone tell two apart, as in grey.

    Attributes:
        mark: of a figure that no line leads to.
        marked: whether the line has its mark all along.
    """

    colour: str = "black"
    dash: str = "-"
    mark: str = "o"
    marked: bool = False


PLAIN, EACH_STEP = Style(), Style("0.62")
HELD_OUT = Style(dash="none", mark="D", marked=True)

_given: dict[str, Style] = {}


def style_of(name: str) -> Style:
    """The style of a reward function's curve; it keeps the one that it was given first."""
    n = len(_given)
    style = Style(COLOURS[n % len(COLOURS)], DASHES[n % len(DASHES)], MARKS[n % len(MARKS)], n >= len(DASHES))
    return _given.setdefault(name, style)
