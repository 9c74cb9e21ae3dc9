"""What a picture of a run shows: panels of curves, read off its log.

For :mod:`.plots`, which draws them and writes them as text.  A panel whose metric is missing is left out.  Nothing is
drawn here, and what the curves show is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, repeat

from rloo_kit.errors import ConfigError
from rloo_kit.watch.log import Entry, term, term_names
from rloo_kit.watch.run_folder import training_steps

APART = 10
"""How many times as large a reward term has to be for a panel of its own."""

PERCENT = (-4, 104)  # a line at 0 or 100 stays clear of the frame


@dataclass(frozen=True)
class Curve:
    """One metric by optimizer step, in the panel's unit; NaN where the log has no finite figure.

    Attributes:
        reward: the reward function that it is the mean of; empty where it is of none.
    """

    label: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    reward: str = ""


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        band: lower and upper edge of a grey area, and what it means.
        points: drawn as marks; the held-out rewards of a run that evaluates.
        limits: of the vertical axis; None takes what the figures need.
        wide: whether it has the figure's full width and a legend.
        decimals: of its figures as text.
    """

    title: str
    unit: str
    curves: tuple[Curve, ...] = ()
    band: tuple[Curve, Curve, str] | None = None
    points: Curve | None = None
    limits: tuple[float | None, float | None] = (None, None)
    wide: bool = False
    decimals: int = 3


def panels(history: Sequence[Entry]) -> list[Panel]:
    """What a ``trainer.state.log_history`` has to show, in reading order.

    Raises:
        ConfigError: it has nothing that could be drawn.
    """
    log = training_steps(history)
    found = [
        _reward_panel(log, history),
        *_terms_panels(log),
        # The kit's count is taken before the KL term; TRL's, where a log has no other, after it.
        _share_panel(log, "dead_groups", "Dead groups: all K rewards equal", "% of groups")
        or _share_panel(log, "frac_reward_zero_std", "Dead groups, as TRL counts them", "% of groups"),
        _panel(log, "kl", "KL", Panel("KL to the reference", "nats per token")),
        _panel(log, "entropy", "entropy", Panel("Entropy of the policy", "nats per token", limits=(0, None))),
        _length_panel(log),
        _share_panel(log, "completions/clipped_ratio", "Cut at the length limit", "% of completions", "cut"),
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
    panel = _panel(log, "reward", "mean reward", Panel("Reward", "reward", wide=True))
    if panel is None:
        return None
    held_out = _curve([entry for entry in history if "eval_reward" in entry], "eval_reward", "held out")
    spread = _curve(log, "reward_std", "spread")
    if spread is None:
        return replace(panel, points=held_out)
    pairs = list(zip(panel.curves[0].values, spread.values, strict=True))
    low, high = (Curve("", spread.steps, tuple(mean + sign * s for mean, s in pairs)) for sign in (-1, 1))
    return replace(panel, points=held_out, band=(low, high, "± 1 standard deviation"))


def _terms_panels(log: Sequence[Entry]) -> list[Panel]:
    """Each reward function's mean, apart where their sizes are; none for a single one that is the reward."""
    terms = [
        replace(curve, reward=name) for name in reward_names(log) if (curve := _curve(log, term(name), name))
    ]
    total = _curve(log, "reward", "mean reward")
    if len(terms) == 1 and total and _same(terms[0].values, total.values):
        return []
    titles = chain(["Reward terms"], repeat("Reward terms, larger ones"))
    both = zip(titles, _by_size(terms), strict=False)
    return [Panel(title, "mean, unweighted", tuple(group), wide=True) for title, group in both]


def reward_names(log: Sequence[Entry]) -> list[str]:
    """The reward functions of a log, in their order there."""
    return list(dict.fromkeys(name for entry in log for name in term_names(entry)))


def _by_size(terms: Sequence[Curve]) -> list[list[Curve]]:
    """Groups within which no term is more than ten times another, so that each can be read."""
    groups: list[list[Curve]] = []
    smallest = math.inf
    for one in sorted(terms, key=_size):
        if not groups or _size(one) > APART * smallest:
            groups.append([])
            smallest = math.inf
        groups[-1].append(one)
        smallest = min(smallest, _size(one) or math.inf)
    return groups


def _size(curve: Curve) -> float:
    return max(abs(value) for value in curve.values if not math.isnan(value))


def _length_panel(log: Sequence[Entry]) -> Panel | None:
    low, high = (_curve(log, f"completions/{edge}_length", edge) for edge in ("min", "max"))
    panel = Panel("Length", "tokens", limits=(0, None), decimals=0)
    if low and high:
        meaning = "shortest to longest"
        panel = replace(panel, title=f"Length, grey: {meaning}", band=(low, high, meaning))
    return _panel(log, "completions/mean_length", "length", panel)


def _share_panel(
    log: Sequence[Entry], metric: str, title: str, unit: str, name: str = "dead groups"
) -> Panel | None:
    return _panel(log, metric, name, Panel(title, unit, limits=PERCENT, decimals=0), scale=100)


def _panel(log: Sequence[Entry], metric: str, label: str, panel: Panel, scale: float = 1) -> Panel | None:
    """The panel with a metric's curve, or None where it has no finite figure."""
    curve = _curve(log, metric, label, scale)
    return replace(panel, curves=(curve,)) if curve else None


def _curve(log: Sequence[Entry], metric: str, label: str, scale: float = 1) -> Curve | None:
    values = tuple(scale * _finite(entry.get(metric)) for entry in log)
    if all(math.isnan(value) for value in values):
        return None
    steps = tuple(entry.get("step", index) for index, entry in enumerate(log, 1))
    return Curve(label, steps, values)


def _finite(value: float | None) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _same(first: Sequence[float], second: Sequence[float]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(abs(a - b) < 1e-6 or (math.isnan(a) and math.isnan(b)) for a, b in pairs)


def isolated(values: Sequence[float]) -> list[int]:
    """The places of finite figures between two that are not: a line does not show them."""
    finite = [False, *(not math.isnan(value) for value in values), False]
    return [i for i in range(len(values)) if finite[i + 1] and not (finite[i] or finite[i + 2])]


def span_of(found: Sequence[Panel]) -> tuple[float, float]:
    """The first and the last step of what is shown; half a step around a single one."""
    curves = [curve for panel in found for curve in (*panel.curves, panel.points) if curve]
    first, last = (end(step for curve in curves for step in curve.steps) for end in (min, max))
    return (first, last) if first < last else (first - 0.5, last + 0.5)


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of the figures around each one, fewer at the ends; NaN stays NaN and counts for no other."""
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
