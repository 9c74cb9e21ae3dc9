"""Pictures of a run: three panels that read in grey and on a small screen, and every curve's ends as lines of text.

The log is that of a trainer, ours, TRL's or unsloth's; a curve whose metric is missing is left out, and what the curves
show is not judged.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rloo_kit.errors import ConfigError
from rloo_kit.session.output import shortened, shown_figure
from rloo_kit.watch.log import Entry, Figures, column, term, term_names
from rloo_kit.watch.run_folder import Source, read_history, training_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE = "training.png"
CAPTION = "<picture of a run>"
"""What a figure is as plain text.  It never changes, so that a stored notebook compares equal."""

WIDTH_INCHES, HEIGHT_INCHES = 7.0, 2.1  # of the figure, and of a panel

COLOURS = ("black", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Black and, by Okabe and Ito (2002), Color Universal Design, what all common kinds of colour blindness tell apart."""

DASHES = ("-", "--", ":", "-.")

PANELS = (
    # title, unit, curves: label, metric, scale
    ("Reward", "reward", [("mean reward", "reward", 1)]),
    (
        "Lost samples",
        "%",
        [
            ("dead groups: all K rewards equal", "dead_groups", 100),
            ("cut at the length limit", "completions/clipped_ratio", 100),
        ],
    ),
    ("Policy", "nats per token", [("entropy", "entropy", 1), ("KL to the reference", "kl", 1)]),
)
AS_TEXT = (("Length", "tokens", [("length", "completions/mean_length", 1)]),)  # besides

_styles: dict[str, int] = {}


def plot(source: Source, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw a run in one figure: reward and its terms, dead groups and truncation, entropy and KL.

    Where a run has at least 20 logged steps, a light line gives each of them and a dark one their running
    mean.  A reward function has the same colour and dash in every figure of a notebook.  ``print(plot(...))`` gives
    the ends of each curve as text, and the length's.

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
    """What :func:`plot` draws, and the length, as a line per curve: its first and its last figure, and their unit."""
    history, _ = read_history(source, "plot")
    rows = [(panel.unit, curve) for panel in panels(history, PANELS + AS_TEXT) for curve in panel.curves]
    width = max(len(shortened(curve.label)) for _, curve in rows)
    lines = []
    for unit, curve in rows:
        first, last = (f"{value:.{3 if abs(value) < 10 else 0}f}" for value in curve.ends)
        lines.append(f"{shortened(curve.label):<{width}}{first:>10} -> {last:<10}{unit}")
    return "\n".join(lines)


# --- what is shown -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """One metric by optimizer step, in the panel's unit; NaN where the log has no finite figure."""

    label: str
    steps: Sequence[int]
    values: Figures
    spread: Figures | None = None  # half the height of a grey band
    is_reward: bool = False  # one reward function's, which has a style of its own

    @property
    def ends(self) -> Figures:
        """The first and the last finite figure."""
        return self.values[~np.isnan(self.values)][[0, -1]]


@dataclass(frozen=True)
class Panel:
    """One pair of axes; ``points`` are drawn as marks: the held-out rewards of a run that evaluates."""

    title: str
    unit: str
    curves: Sequence[Curve]
    points: Curve | None = None


def panels(history: Sequence[Entry], table: Sequence[Any] = PANELS) -> list[Panel]:
    """What a ``trainer.state.log_history`` has to show, in reading order.

    Raises:
        ConfigError: it has nothing that could be drawn.
    """
    log, held_out = training_steps(history), [entry for entry in history if "eval_reward" in entry]
    shown = []
    for title, unit, wanted in table:
        curves = [curve for one in wanted if (curve := _curve(log, *one))]
        points = None
        if title == "Reward" and curves:
            curves += _terms(log, curves[0])
            points = _curve(held_out, "held out", "eval_reward")
        if curves:
            shown.append(Panel(title, unit, curves, points))
    if shown:
        return shown
    raise ConfigError(
        "there is no training step with a finite figure",
        where=f"plot, a log of {len(history)} entries",
        todo="call trainer.train() first, and look at the rewards if they are not finite",
    )


def _terms(log: Sequence[Entry], total: Curve) -> list[Curve]:
    """Each reward function's mean, unweighted; none for a single one that is the reward.

    One of another size, such as a length that is only measured, is divided by a power of ten.
    """
    names = dict.fromkeys(name for entry in log for name in term_names(entry))
    terms = {name: curve for name in names if (curve := _curve(log, name, term(name)))}
    found = [*terms.values()]
    if len(found) == 1 and np.allclose(found[0].values, total.values, atol=1e-6, equal_nan=True):
        return []
    scaled, most = [], max(1.0, float(np.nanmax(abs(total.values))))
    for curve in found:
        size = float(np.nanmax(abs(curve.values))) / most
        power = 10 ** math.ceil(math.log10(size)) if size > 3 else 1
        label = curve.label if power == 1 else f"{shortened(curve.label, 20)} / {power}"
        scaled.append(Curve(label, curve.steps, curve.values / power, is_reward=True))
    return scaled


def _curve(log: Sequence[Entry], label: str, metric: str, scale: float = 1) -> Curve | None:
    if metric == "dead_groups" and not any(metric in entry for entry in log):
        label, metric = "dead groups, as TRL counts them", "frac_reward_zero_std"  # after the KL term
    values = scale * column(log, metric)
    if np.isnan(values).all():
        return None
    spread = column(log, "reward_std") if metric == "reward" else None
    return Curve(label, [entry.get("step", i) for i, entry in enumerate(log, 1)], values, spread)


# --- drawing -------------------------------------------------------------------------------------------------


def draw(history: Sequence[Entry]) -> Figure:
    """The figure of a log history, saved nowhere."""
    found = panels(history)
    size = (WIDTH_INCHES, HEIGHT_INCHES * len(found))
    figure = shown_figure(CAPTION, lambda: as_text(history), figsize=size, layout="constrained")
    axes = figure.subplots(len(found), sharex=True, squeeze=False)[:, 0]
    for axis, panel in zip(axes, found, strict=True):
        _draw_panel(axis, panel)
    axes[-1].set_xlabel("step", fontsize=8, labelpad=1)
    return figure


def _draw_panel(axis: Axes, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    for number, curve in enumerate(panel.curves):
        place = 1 + _styles.setdefault(curve.label, len(_styles)) if curve.is_reward else number
        window = window_of(len(curve.values))
        means = running_mean(curve.values, window)
        look: dict[str, Any] = {
            "color": COLOURS[place % len(COLOURS)],
            "linestyle": DASHES[place % len(DASHES)],
        }
        if curve.spread is not None:
            half = running_mean(curve.spread, window)
            label = "± 1 standard deviation"
            axis.fill_between(curve.steps, means - half, means + half, color="0.86", linewidth=0, label=label)
        if window > 1 and len(panel.curves) < 3:
            axis.plot(curve.steps, curve.values, color=look["color"], linewidth=0.8, alpha=0.35)
        # The dots show a figure that no line leads to.
        axis.plot(curve.steps, means, marker=".", markersize=3, label=shortened(curve.label, 34), **look)
    if panel.points:
        axis.plot(panel.points.steps, panel.points.values, "D", color="black", mfc="white", label="held out")
    axis.set_title(panel.title, loc="left", fontsize=9, fontweight="bold")
    axis.set_ylabel(panel.unit, fontsize=8)
    if panel.unit == "%":
        axis.set_ylim(-4, 104)  # a line at 0 or 100 stays clear of the frame
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", color="0.92", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    # Beside the title, where no curve can run under it.
    columns = 4 if len(panel.curves) < 3 else 3
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=columns, frameon=False, fontsize=7)


def running_mean(values: Figures, window: int) -> Figures:
    """The mean of the figures around each one, fewer at the ends; NaN stays NaN and counts for no other."""
    known, ones = ~np.isnan(values), np.ones(window)
    half = slice(window // 2, window // 2 + len(values))
    totals, counts = (np.convolve(part, ones)[half] for part in (np.where(known, values, 0.0), known))
    return np.where(known, totals / np.maximum(counts, 1), math.nan)


def window_of(n_logs: int) -> int:
    """How many logs one point of a thick line is the mean of: a tenth of the run, odd; 1 in a short run."""
    return n_logs // 20 * 2 + 1
