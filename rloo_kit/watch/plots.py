"""Pictures of a run: three panels that read at a glance, in grey and on a small screen, and the same as lines of text.

A curve whose metric is missing is left out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rloo_kit.errors import ConfigError
from rloo_kit.session.output import shortened, shown_figure
from rloo_kit.watch.log import CUT_SHARE, DEAD_SHARE, Entry, Figures, Known, Log, column, rounds, term
from rloo_kit.watch.run_folder import Source, read_run
from rloo_kit.watch.symptoms import Finding, episodes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE = "training.png"
CAPTION = "<picture of a run>"
"""What a figure is as plain text.  It never changes, so that a stored notebook compares equal."""

WIDTH_INCHES, HEIGHT_INCHES = 7.0, 2.1  # of the figure, and of a panel

BLUE, RED, SKY, GREEN, PINK, ORANGE = "#0072B2", "#D55E00", "#56B4E9", "#009E73", "#CC79A7", "#E69F00"
"""By Okabe and Ito (2002), Color Universal Design: all common kinds of colour blindness tell them apart."""

CURVES = (
    # panel, unit, label, metric, colour, dash
    ("Reward", "reward", "mean reward", "reward", BLUE, "-"),
    ("Lost samples", "%", "zero-variance groups", DEAD_SHARE, RED, "-"),
    ("Lost samples", "%", "truncated completions", CUT_SHARE, BLUE, "--"),
    ("Policy", "nats per token", "entropy", "entropy", GREEN, "-"),
    ("Policy", "nats per token", "KL to the reference", "kl", PINK, "--"),
)
AS_TEXT = ("Length", "tokens", "length", "completions/mean_length", "", "")  # besides
TERMS = tuple(zip((RED, GREEN, PINK, ORANGE, SKY), ("--", ":", "-.", "--", ":"), strict=True))
POINTS = "none"


@dataclass(frozen=True)
class Curve:
    """One metric by optimizer step, in its panel's unit; NaN where the log has no finite figure."""

    panel: str
    unit: str
    label: str
    steps: Sequence[int]
    values: Figures
    colour: str
    dash: str  # POINTS: only marks, for the held-out rewards of a run that evaluates

    @property
    def window(self) -> int:
        """How many entries a running mean is of: a tenth of the run, odd; 1 in a short run."""
        return len(self.values) // 20 * 2 + 1

    @property
    def means(self) -> Figures:
        """The running mean of the figures around each one, fewer at the ends; NaN stays NaN and counts for no other."""
        known, ones = ~np.isnan(self.values), np.ones(self.window)
        half = slice(self.window // 2, self.window // 2 + len(self.values))
        parts = np.where(known, self.values, 0.0), known
        totals, counts = (np.convolve(part, ones)[half] for part in parts)
        return np.where(known, totals / np.maximum(counts, 1), math.nan)

    @property
    def ends(self) -> str:
        """The first and the last finite running mean."""
        means = self.means[~np.isnan(self.means)][[0, -1]]
        size = float(abs(means).max())
        digits = 0 if self.unit == "%" or size >= 10 else 2 if size >= 0.1 else 3
        return " → ".join(f"{mean:.{digits}f}" for mean in means) + (" %" if self.unit == "%" else "")


def plot(source: Source, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw a run in one figure: reward and its terms, zero-variance groups and truncation, entropy and KL.

    A thick line is the running mean over a tenth of the run, a light one each logged step; the band is what chance
    alone does to that mean, two standard errors to both sides.  Above stands what :func:`rloo_kit.diagnose` finds, and
    its steps are shaded.  ``print(plot(...))`` gives the ends of each curve as text, and the length's.

    Args:
        source: a trainer (ours, TRL's or unsloth's), its log history, a ``trainer_state.json``, or the folder
            of a run or of a checkpoint.
        path: where to save the PNG, 1050 pixels wide; None saves it as ``training.png`` in the run's folder, where
            there is one.

    Returns:
        The matplotlib figure, which a notebook shows when it is a cell's last value.

    Raises:
        ConfigError: there is no training step to plot, or no log where ``source`` points.
    """
    run = read_run(source, "plot")
    figure = draw(run.history, run.log.known, episodes(run.log).found)
    if target := Path(path) if path else run.folder and run.folder / PICTURE:
        save(figure, target)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def as_text(history: Sequence[Entry]) -> str:
    """What is drawn of a log history, and the length, as a line per curve: where it starts and ends, and its unit."""
    shown = curves(history, (*CURVES, AS_TEXT))
    width = max(len(shortened(curve.label)) for curve in shown)
    lines = (f"{shortened(one.label):<{width}}  {one.ends:<15}  {one.unit.strip('%')}" for one in shown)
    return "\n".join(line.rstrip() for line in lines)


# --- what is shown -------------------------------------------------------------------------------------------


def curves(history: Sequence[Entry], table: Sequence[tuple[str, ...]] = CURVES) -> list[Curve]:
    """What a ``trainer.state.log_history`` has to show, in reading order.

    Raises:
        ConfigError: it has nothing that could be drawn.
    """
    log, found = rounds(history), []
    for row in table:
        found += _curve(log, *row)
        if found and row[3] == "reward":
            found += _terms(log, found[0])
            held_out = [entry for entry in history if "eval_reward" in entry]
            found += _curve(held_out, "Reward", "reward", "held out", "eval_reward", "black", POINTS)
    if found:
        return found
    raise ConfigError(
        "there is no training step with a finite figure",
        where=f"plot, a log of {len(history)} entries",
        todo="call trainer.train() first, and look at the rewards if they are not finite",
    )


def _curve(log: Sequence[Entry], panel: str, unit: str, label: str, metric: str, *look: str) -> list[Curve]:
    values = column(log, metric) * (100 if unit == "%" else 1)
    if np.isnan(values).all():
        return []
    if metric == DEAD_SHARE and not any("dead_groups" in entry for entry in log):
        label += ", by TRL's count"  # after the KL term
    return [Curve(panel, unit, label, [entry["step"] for entry in log], values, *look)]


def _terms(log: Sequence[Entry], total: Curve) -> list[Curve]:
    """Each reward function's mean, unweighted; none for a single one that is the reward.

    One of another size, such as a length that is only measured, is divided by a power of ten.
    """
    found = [
        one for name in Log(log).names for one in _curve(log, "Reward", "reward", name, term(name), "", "")
    ]
    if len(found) == 1 and np.allclose(found[0].values, total.values, atol=1e-6, equal_nan=True):
        return []
    most = max(1.0, float(np.nanmax(abs(total.values))))
    for place, one in enumerate(found):
        size = float(np.nanmax(abs(one.values))) / most
        power = 10 ** math.ceil(math.log10(size)) if size > 3 else 1
        label = one.label if power == 1 else f"{shortened(one.label, 20)} / {power}"
        colour, dash = TERMS[place % len(TERMS)]
        found[place] = replace(one, label=label, values=one.values / power, colour=colour, dash=dash)
    return found


# --- drawing -------------------------------------------------------------------------------------------------


def draw(
    history: Sequence[Entry], known: Known | None = None, findings: Sequence[Finding] | None = None
) -> Figure:
    """The figure of a log history, saved nowhere; without ``findings`` nothing is said of them."""
    found, log = curves(history), Log(rounds(history), known or Known())
    titles = dict.fromkeys(curve.panel for curve in found)
    size = (WIDTH_INCHES, HEIGHT_INCHES * len(titles) + 0.3 * (findings is not None))
    figure = shown_figure(CAPTION, lambda: as_text(history), figsize=size, layout="constrained")
    axes = figure.subplots(len(titles), sharex=True, squeeze=False)[:, 0]
    for axis, title in zip(axes, titles, strict=True):
        _draw_panel(axis, [curve for curve in found if curve.panel == title], log)
        for one in findings or ():
            axis.axvspan(one.first_step, one.last_step, color=ORANGE, alpha=0.15, linewidth=0)
    axes[-1].set_xlabel("step", fontsize=8, labelpad=1)
    if findings is not None:
        names = "; ".join(f"{one.symptom} (steps {one.first_step}-{one.last_step})" for one in findings)
        said = shortened(f"Found: {names}", 100) if names else "No symptom found"
        figure.suptitle(said, x=0.01, ha="left", fontsize=9, color=RED if names else GREEN)
    return figure


def _draw_panel(axis: Axes, shown: Sequence[Curve], log: Log) -> None:
    from matplotlib.ticker import MaxNLocator

    for curve in shown:
        if curve.dash == POINTS:
            axis.plot(curve.steps, curve.values, "D", color=curve.colour, mfc="white", label=curve.label)
            continue
        # A step whose groups are all without variance has no entropy: the line joins those that have one.
        known = ~np.isnan(curve.values)
        steps, means = np.asarray(curve.steps)[known], curve.means[known]
        if curve is shown[0] or len(shown) < 3:
            axis.plot(steps, curve.values[known], color=curve.colour, linewidth=0.8, alpha=0.35)
        if curve.label == "mean reward":
            error, (low, high) = 2 * log.error("reward", log.last(curve.window)), log.range()
            # How far down a reward goes that can be negative is not known.
            band = np.clip([means - error, means + error], low if low == 0.0 else None, high)
            axis.fill_between(steps, *band, color=curve.colour, alpha=0.18, linewidth=0)
        look: dict[str, Any] = {"color": curve.colour, "linestyle": curve.dash}
        look["marker"] = "." if len(means) <= 30 else ""
        look["linewidth"] = 2.0 if curve.dash == "-" else 1.5
        axis.plot(steps, means, label=f"{shortened(curve.label, 30)}  {curve.ends}", **look)
    axis.set_title(shown[0].panel, loc="left", fontsize=9, fontweight="bold")
    axis.set_ylabel(shown[0].unit, fontsize=8)
    if shown[0].unit == "%":
        axis.set_ylim(-4, 104)  # a line at 0 or 100 stays clear of the frame
    elif shown[0].unit != "reward":
        axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))  # so that what is near 0 looks so
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", color="0.92", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    # Beside the title, where no curve can run under it.
    columns = 4 if len(shown) < 3 else 2
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=columns, frameon=False, fontsize=7)
