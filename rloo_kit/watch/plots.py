"""Pictures of a run: three panels, legible at a glance, in grey and on a small screen, and the same as lines of text.

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
from rloo_kit.watch.read_run import Source, read_run
from rloo_kit.watch.statistics import CUT_SHARE, ZERO_VARIANCE, Entry, Figures, Known, Log, column, rounds, term
from rloo_kit.watch.symptoms import Episodes, Finding

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE = "training.png"
CAPTION = "<picture of a run>"
"""A figure's plain-text form.  It never changes, so that a stored notebook compares equal."""
WIDTH_INCHES, HEIGHT_INCHES = 7.0, 2.1  # of the figure, and of a panel

BLUE, RED, SKY, GREEN, PINK, ORANGE = "#0072B2", "#D55E00", "#56B4E9", "#009E73", "#CC79A7", "#E69F00"
"""Okabe and Ito's colours (2002, Color Universal Design): distinct under all common kinds of colour blindness."""

POINTS = "none"  # marks without a line, for the held-out rewards of a run that evaluates

CURVES = (
    # metric, panel, unit, label, colour, dash; the reward's terms are drawn right after it
    ("reward", "Reward", "reward", "mean reward", BLUE, "-"),
    ("eval_reward", "Reward", "reward", "held out", "black", POINTS),
    (ZERO_VARIANCE, "0-variance, cut", "%", "zero-variance groups", "black", "-"),
    (CUT_SHARE, "0-variance, cut", "%", "truncated completions", RED, "--"),
    ("entropy", "Policy", "nats per token", "entropy", GREEN, "-"),
    ("kl", "Policy", "nats per token", "KL to the reference", PINK, "--"),
)
AS_TEXT = (*CURVES, ("completions/mean_length", "Length", "tokens", "length", "", ""))
TERMS = ((RED, "--"), (ORANGE, ":"), (SKY, "-."), (GREEN, "--"), (PINK, ":"))


@dataclass(frozen=True)
class Curve:
    """One metric by optimizer step, in its panel's unit: the entries with a finite figure, joined by a line.

    For example, a step with only zero-variance groups has no entropy.
    """

    panel: str
    unit: str
    label: str
    colour: str
    dash: str
    steps: Figures
    values: Figures

    @property
    def window(self) -> int:
        """Entries in a running mean: a tenth of the run, odd; 1 in a short run."""
        return len(self.values) // 20 * 2 + 1

    @property
    def means(self) -> Figures:
        """The running mean of the figures around each figure, of fewer at the ends."""
        ones, inside = np.ones(self.window), slice(self.window // 2, self.window // 2 + len(self.values))
        counts = np.convolve(np.ones_like(self.values), ones)[inside]
        return np.convolve(self.values, ones)[inside] / counts

    @property
    def ends(self) -> str:
        """The first and the last running mean."""
        ends = self.means[[0, -1]]
        size = abs(ends).max()
        digits = 0 if self.unit == "%" or size >= 10 else 2 if size >= 0.1 else 3
        return " → ".join(f"{mean:.{digits}f}" for mean in ends) + (" %" if self.unit == "%" else "")


def plot(source: Source, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw a run in one figure: reward and its terms, zero-variance groups and truncation, entropy and KL.

    A thick line is the running mean over a tenth of the run, a light line the logged steps; the band shows what chance
    alone does to that mean, two standard errors either way.  The title says what :func:`rloo_kit.diagnose` finds,
    and those steps are shaded.  ``print(plot(...))`` gives the ends of each curve and of the length as text.

    Args:
        source: a trainer (the kit's, TRL's or unsloth's), its log history, a ``trainer_state.json``, or the folder
            of a run or checkpoint.
        path: where to save the PNG; None means ``training.png`` in the run's folder, if there is one.

    Raises:
        ConfigError: there is no training step to plot, or no log where ``source`` points.
    """
    run = read_run(source, "plot")
    figure = draw(run.history, run.log.known, Episodes(run.log).findings)
    if target := Path(path).expanduser() if path else run.folder and run.folder / PICTURE:
        save(figure, target)
    return figure


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def as_text(history: Sequence[Entry]) -> str:
    """Write each curve of a log history, and the length, as a line: where it starts and ends, and its unit."""
    rows = [(shortened(curve.label), curve.ends, curve.unit.strip("%")) for curve in curves(history, AS_TEXT)]
    width = max(len(label) for label, _, _ in rows)
    return "\n".join(f"{label:<{width}}  {ends:<15}  {unit}".rstrip() for label, ends, unit in rows)


def curves(history: Sequence[Entry], table: Sequence[tuple[str, ...]] = CURVES) -> list[Curve]:
    """Return the curves of a ``trainer.state.log_history``, in reading order.

    Raises:
        ConfigError: it has nothing that could be drawn.
    """
    shown = list[Curve]()
    for metric, *look in table:
        entries = history if metric == "eval_reward" else rounds(history)
        shown += _curve(entries, metric, *look)
        if shown and metric == "reward":
            shown += _terms(entries, shown[0])
    if not shown:
        raise ConfigError(
            "there is no training step with a finite figure",
            where=f"plot, a log of {len(history)} entries",
            todo="call trainer.train() first, and look at the rewards if they are not finite",
        )
    return shown


def _curve(
    entries: Sequence[Entry], metric: str, panel: str, unit: str, label: str, colour: str, dash: str
) -> list[Curve]:
    values = column(entries, metric) * (100 if unit == "%" else 1)
    if metric == ZERO_VARIANCE and not any("zero_variance_groups" in entry for entry in entries):
        label += ", by TRL's count"  # which comes after the KL term
    known = np.flatnonzero(~np.isnan(values))
    steps = np.array([entries[i]["step"] for i in known.tolist()])
    return [Curve(panel, unit, label, colour, dash, steps, values[known])] if known.size else []


def _terms(entries: Sequence[Entry], total: Curve) -> list[Curve]:
    """Return each reward function's unweighted mean; none if the only function is the reward itself.

    A mean of another size, such as a length that is only measured, is divided by a power of ten.
    """
    terms: list[Curve] = []
    for name in Log(entries).names:
        look = TERMS[len(terms) % len(TERMS)]
        for curve in _curve(entries, term(name), "Reward", "reward", name, *look):
            size = abs(curve.values).max() / max(1.0, abs(total.values).max())
            power = 10 ** math.ceil(math.log10(size)) if size > 3 else 1
            label = name if power == 1 else f"{shortened(name, 20)} / {power}"
            terms.append(replace(curve, label=label, values=curve.values / power))
    if len(terms) == 1 and terms[0].values.size == total.values.size:
        return [] if np.allclose(terms[0].values, total.values, atol=1e-6) else terms
    return terms


def draw(history: Sequence[Entry], known: Known | None = None, findings: Sequence[Finding] | None = None) -> Figure:
    """Draw the figure of a log history without saving it.  None for ``findings`` leaves out title and shading."""
    shown, log = curves(history), Log(rounds(history), known or Known())
    panels = {curve.panel: [other for other in shown if other.panel == curve.panel] for curve in shown}
    size = (WIDTH_INCHES, HEIGHT_INCHES * len(panels) + 0.3 * (findings is not None))
    figure = shown_figure(CAPTION, lambda: as_text(history), figsize=size, layout="constrained")
    axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels.values(), strict=True):
        _draw_panel(axis, panel, log)
        for finding in findings or ():
            axis.axvspan(finding.first_step, finding.last_step, color=ORANGE, alpha=0.15, linewidth=0)
    axes[-1].set_xlabel("step" + "; thin lines: logged steps" * (shown[0].window > 1), fontsize=8, labelpad=1)
    if findings is not None:
        names = "; ".join(f"{f.symptom} (steps {f.first_step}-{f.last_step})" for f in findings)
        title = shortened(f"Found, shaded: {names}", 100) if names else "No symptom found"
        figure.suptitle(title, x=0.01, ha="left", fontsize=9, color=RED if names else GREEN)
    return figure


def _draw_panel(axis: Axes, panel: Sequence[Curve], log: Log) -> None:
    from matplotlib.ticker import MaxNLocator

    for curve in panel:
        if curve.dash == POINTS:
            axis.plot(curve.steps, curve.values, "D", color=curve.colour, mfc="white", label=curve.label)
            continue
        if curve is panel[0] or len(panel) < 3:
            axis.plot(curve.steps, curve.values, color=curve.colour, linewidth=0.8, alpha=0.35)
        if curve.label == "mean reward":
            error, (low, high) = 2 * log.error("reward", log[-curve.window :]), log.range()
            # The range of a reward model's scores, or of a reward that can be negative, is not known.
            is_known = low == 0.0 and (high == 1.0 or log.is_steady("reward"))
            band = np.clip([curve.means - error, curve.means + error], *((low, high) if is_known else (None, None)))
            band_look: dict[str, Any] = {"color": curve.colour, "alpha": 0.18, "linewidth": 0}
            axis.fill_between(curve.steps, *band, **band_look, label="± 2 standard errors")
        width, marker = 2.0 if curve.dash == "-" else 1.5, "." if len(curve.steps) <= 30 else ""
        look: dict[str, Any] = {"linestyle": curve.dash, "marker": marker, "color": curve.colour, "linewidth": width}
        axis.plot(curve.steps, curve.means, **look, label=f"{shortened(curve.label, 30)}  {curve.ends}")
    unit, smoothed = panel[0].unit, panel[0].window > 1
    title = panel[0].panel + f", {panel[0].window}-step mean" * smoothed
    axis.set_title(title, loc="left", fontsize=9, fontweight="bold")
    axis.set_ylabel(unit, fontsize=8)
    if unit == "%":
        axis.set_ylim(-4, 104)  # a line at 0 or 100 stays clear of the frame
    elif unit != "reward":
        axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))  # so that values near 0 look near 0
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", color="0.92", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    # Beside the title, where no curve can run under it.
    columns = 4 if len(panel) < 3 else 2
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=columns, frameon=False, fontsize=7, handlelength=3)
