"""Pictures of a run: one figure that reads in grey and on a small screen, and the same as lines of text.

For the end of a notebook and for ``out/``; :mod:`rloo_kit.watch.live` redraws it while the policy trains.  It
reads the log of a trainer, ours, TRL's or unsloth's, or a ``trainer_state.json``, and draws what is there: a
panel whose metric is missing is left out.  It changes nothing, and does not judge what it shows.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, cycle, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.errors import ConfigError
from rloo_kit.session.show import shown_figure
from rloo_kit.watch.run_folder import read_history, training_steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BARS = "▁▂▃▄▅▆▇█"
PICTURE = "training.png"
CAPTION = "<picture of a run>"
"""What a figure is as plain text.  It never changes, so that a stored notebook compares equal."""

WIDTH_INCHES, TALL_INCHES, ROW_INCHES = 7.0, 2.2, 1.75
APART = 10
"""How many times as large a reward term has to be for a panel of its own."""

PERCENT = (-4, 104)  # a line at 0 or 100 stays clear of the frame
STYLES = (("-", ""), ("--", ""), (":", ""), ("-.", ""), ("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))
"""Dash and marker of the first, second, ... line of a panel: they differ without colour."""


# --- what is drawn ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """One metric by step.

    Attributes:
        label: its name in legends and text.
        steps: optimizer steps.
        values: as many, in the panel's unit; NaN where the log has no finite figure.
    """

    label: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: what it shows.
        unit: of all its curves.
        curves: drawn as lines.
        band: lower and upper edge of a grey area, and what it means.
        points: drawn as marks; the held-out rewards of a run that evaluates.
        limits: of the vertical axis; None takes what the figures need.
        wide: whether it has the figure's full width and a legend.
        decimals: of its figures as text.
    """

    title: str
    unit: str
    curves: tuple[Curve, ...]
    band: tuple[Curve, Curve, str] | None = None
    points: Curve | None = None
    limits: tuple[float | None, float | None] = (None, None)
    wide: bool = False
    decimals: int = 3


def panels(history: Sequence[dict[str, Any]]) -> list[Panel]:
    """What a log has to show, in reading order.

    Args:
        history: ``trainer.state.log_history``: training steps, evaluations and summaries mixed.

    Raises:
        ConfigError: it has nothing that could be drawn.
    """
    log = training_steps(history)
    found = [
        _reward_panel(log, history),
        *_terms_panels(log),
        _dead_panel(log),
        _panel(log, "kl", "KL", "KL to the reference", "nats per token"),
        _panel(log, "entropy", "entropy", "Entropy of the policy", "nats per token", limits=(0, None)),
        _length_panel(log),
        _share_panel(log, "completions/clipped_ratio", "cut", "Cut at the length limit", "% of completions"),
    ]
    shown = [panel for panel in found if panel]
    if not shown:
        raise ConfigError(
            "there is no training step with a finite figure",
            where=f"plot, a log of {len(history)} entries",
            todo="call trainer.train() first, and look at the rewards if they are not finite",
        )
    return shown


def _reward_panel(log: Sequence[dict[str, Any]], history: Sequence[dict[str, Any]]) -> Panel | None:
    reward, spread = _curve(log, "reward", "mean reward"), _curve(log, "reward_std", "spread")
    if reward is None:
        return None
    band = None
    if spread:
        pairs = list(zip(reward.values, spread.values, strict=True))
        low, high = ([mean + sign * s for mean, s in pairs] for sign in (-1, 1))
        band = (
            Curve("low", reward.steps, tuple(low)),
            Curve("high", reward.steps, tuple(high)),
            "± 1 standard deviation",
        )
    held_out = _curve([entry for entry in history if "eval_reward" in entry], "eval_reward", "held out")
    return Panel("Reward", "reward", (reward,), band, held_out, wide=True)


def _terms_panels(log: Sequence[dict[str, Any]]) -> list[Panel]:
    """Each reward function's mean, apart where their sizes are; none for a single one that is the reward."""
    names = dict.fromkeys(key for entry in log for key in entry if _is_term(key))
    curves = [_curve(log, key, key.removeprefix("rewards/").removesuffix("/mean")) for key in names]
    terms = [curve for curve in curves if curve]
    total = _curve(log, "reward", "mean reward")
    if len(terms) == 1 and total and _same(terms[0].values, total.values):
        return []
    titles = chain(["Reward terms"], repeat("Reward terms, larger ones"))
    return [
        Panel(title, "mean, unweighted", tuple(group), wide=True)
        for title, group in zip(titles, _by_size(terms), strict=False)
    ]


def _by_size(terms: Sequence[Curve]) -> list[list[Curve]]:
    """Groups within which no term is more than ten times another, so that each can be read."""
    groups: list[list[Curve]] = []
    smallest = math.inf
    for term in sorted(terms, key=_size):
        if not groups or _size(term) > APART * smallest:
            groups.append([])
            smallest = math.inf
        groups[-1].append(term)
        smallest = min(smallest, _size(term) or math.inf)
    return groups


def _size(curve: Curve) -> float:
    return max(abs(value) for value in curve.values if not math.isnan(value))


def _is_term(key: str) -> bool:
    return key.startswith("rewards/") and key.endswith("/mean")


def _dead_panel(log: Sequence[dict[str, Any]]) -> Panel | None:
    """The kit's count, taken before the KL term; TRL's where a log has no other."""
    for metric, title in (
        ("dead_groups", "Dead groups: all K rewards equal"),
        ("frac_reward_zero_std", "Dead groups, as TRL counts them"),
    ):
        panel = _share_panel(log, metric, "dead groups", title, "% of groups")
        if panel:
            return panel
    return None


def _length_panel(log: Sequence[dict[str, Any]]) -> Panel | None:
    low, high = (_curve(log, f"completions/{edge}_length", edge) for edge in ("min", "max"))
    band = (low, high, "shortest to longest") if low and high else None
    title = "Length, grey: shortest to longest" if band else "Length"
    metric = "completions/mean_length"
    return _panel(log, metric, "length", title, "tokens", limits=(0, None), band=band, decimals=0)


def _share_panel(
    log: Sequence[dict[str, Any]], metric: str, label: str, title: str, unit: str
) -> Panel | None:
    return _panel(log, metric, label, title, unit, scale=100, limits=PERCENT, decimals=0)


def _panel(
    log: Sequence[dict[str, Any]],
    metric: str,
    label: str,
    title: str,
    unit: str,
    scale: float = 1,
    **options: Any,
) -> Panel | None:
    curve = _curve(log, metric, label, scale)
    return Panel(title, unit, (curve,), **options) if curve else None


def _curve(log: Sequence[dict[str, Any]], metric: str, label: str, scale: float = 1) -> Curve | None:
    values = tuple(scale * _finite(entry.get(metric)) for entry in log)
    if all(math.isnan(value) for value in values):
        return None
    steps = tuple(entry.get("step", index) for index, entry in enumerate(log, 1))
    return Curve(label, steps, values)


def _finite(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _same(first: Sequence[float], second: Sequence[float]) -> bool:
    return all(
        a == b or abs(a - b) < 1e-6 or (math.isnan(a) and math.isnan(b))
        for a, b in zip(first, second, strict=True)
    )


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of the figures around each one, fewer at the ends; NaN stays NaN and counts for no other.

    >>> running_mean([0, 3, 6, 9], window=3)
    [1.5, 3.0, 6.0, 7.5]
    """
    half = window // 2
    totals = [0.0, *accumulate(0.0 if math.isnan(value) else value for value in values)]
    counts = [0, *accumulate(not math.isnan(value) for value in values)]
    means = []
    for index, value in enumerate(values):
        first, end = max(0, index - half), min(len(values), index + half + 1)
        count = counts[end] - counts[first]
        means.append(math.nan if math.isnan(value) else (totals[end] - totals[first]) / count)
    return means


def window_of(n_logs: int) -> int:
    """How many logs one point of a thick line is the mean of: a tenth of the run, odd; 1 in a short run."""
    return n_logs // 20 * 2 + 1


# --- the figure -------------------------------------------------------------------------------------------


def plot(source: Any, path: str | os.PathLike[str] | None = None) -> Figure:
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


def draw(history: Sequence[dict[str, Any]]) -> Figure:
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


def _draw_panel(axis: Any, panel: Panel, window: int) -> None:
    if panel.band:
        low, high, meaning = panel.band
        edges = [running_mean(edge.values, window) for edge in (low, high)]
        axis.fill_between(low.steps, *edges, color="0.86", linewidth=0, label=meaning)
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


def _draw_curve(axis: Any, curve: Curve, window: int, dash: str, marker: str, alone: bool) -> None:
    """The running mean; alone in its panel, with each step as a light line behind it."""
    label = _shortened(curve.label)
    few = {"markevery": max(1, len(curve.steps) // 10), "markersize": 4} if marker else {}
    if alone and window > 1:
        axis.plot(curve.steps, curve.values, color="0.62", linewidth=0.8, label="each step")
        label = f"mean of {window}"
    elif alone and len(curve.steps) < 3:
        marker = "o"  # a line of one point is invisible
    means = running_mean(curve.values, window)
    # Under a dashed line that runs upon it a solid one shows, being wider and lighter.
    below = not alone and dash == "-"
    look = (
        {"color": "0.6", "linewidth": 2.6, "zorder": 1.9} if below else {"color": "black", "linewidth": 1.5}
    )
    axis.plot(curve.steps, means, dash, marker=marker, mfc="white", label=label, **look, **few)


def _tidy(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axis.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", color="0.92", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _legend_above(axis: Any) -> None:
    """Beside the title, where no curve can run under it."""
    _, labels = axis.get_legend_handles_labels()
    columns = 3 if max(map(len, labels)) <= 18 else 2
    axis.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=min(4, len(labels)) if sum(map(len, labels)) < 50 else columns,
        frameon=False,
        fontsize=8,
        borderpad=0.1,
        borderaxespad=0.2,
        handlelength=2.6,
        columnspacing=1.2,
    )


def _shortened(name: str, width: int = 26) -> str:
    return name if len(name) <= width else name[: width // 2 - 1] + "…" + name[-(width - width // 2) :]


# --- text -------------------------------------------------------------------------------------------------


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The course of a figure in one line of text, averaged into at most ``width`` bars; NaN leaves a gap.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7])
    '▁▂▃▄▅▆▇█'
    """
    size = max(1, -(-len(values) // width))
    parts = [[v for v in values[i : i + size] if not math.isnan(v)] for i in range(0, len(values), size)]
    means = [sum(part) / len(part) if part else math.nan for part in parts]
    finite = [mean for mean in means if not math.isnan(mean)] or [0.0]
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    return "".join(
        " " if math.isnan(mean) else BARS[round((mean - low) / span * (len(BARS) - 1))] for mean in means
    )


def as_text(source: Any, width: int | None = None) -> str:
    """What :func:`plot` draws, as one sparkline per curve between its first and its last figure.

    Args:
        source: as for :func:`plot`.
        width: characters per line; None takes the terminal's.
    """
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
