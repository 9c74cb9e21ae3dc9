"""Pictures of a run: reward with its spread, length and truncation; as text where there is no screen.

For the end of a notebook and for ``out/``.  ``plot`` reads the trainer's log, or a ``trainer_state.json``,
and changes nothing.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BARS = "▁▂▃▄▅▆▇█"


def plot(trainer: Any, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw a run: on the left the reward with its spread, on the right length and truncation.

    Args:
        trainer: an ``RLOOTrainer``, its log history, a ``trainer_state.json`` or the run's folder.
        path: where to save the PNG; None saves it as ``training.png`` in the run's folder, where there is one.

    Returns:
        The matplotlib figure, which a notebook shows when it is a cell's last value.

    Raises:
        ConfigError: there is no step to draw.
    """
    log, folder = read_log(trainer)
    steps = [entry["step"] for entry in log]
    figure = _shown_figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_reward(left, steps, log)
    _draw_length(right, steps, log)
    target = Path(path) if path else folder / "training.png" if folder else None
    if target:
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, dpi=120)
    return figure


def _shown_figure(**options: Any) -> Figure:
    """A figure that a notebook shows: pyplot, which would see to that, keeps every figure alive."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=100)
            return buffer.getvalue()

    return Shown(**options)


def _draw_reward(axis: Any, steps: list[int], log: list[dict[str, Any]]) -> None:
    reward = [entry["reward"] for entry in log]
    spread = [entry.get("reward_std") or 0.0 for entry in log]
    low = [r - s for r, s in zip(reward, spread, strict=True)]
    high = [r + s for r, s in zip(reward, spread, strict=True)]
    axis.fill_between(steps, low, high, color="0.85", label="± standard deviation")
    axis.plot(steps, reward, color="black", label="mean reward")
    axis.set(xlabel="step", ylabel="reward", title="Reward of the sampled completions")
    axis.legend(loc="lower right", frameon=False)


def _draw_length(axis: Any, steps: list[int], log: list[dict[str, Any]]) -> None:
    axis.plot(steps, [entry["completions/mean_length"] for entry in log], color="black", label="mean length")
    axis.set(xlabel="step", ylabel="tokens", title="Length of the completions")
    axis.set_ylim(bottom=0)
    share = axis.twinx()
    cut = [100 * entry["completions/clipped_ratio"] for entry in log]
    share.plot(steps, cut, color="0.5", linestyle="--", label="cut at the limit")
    share.set(ylabel="% of completions", ylim=(0, 100))
    lines = [*axis.get_lines(), *share.get_lines()]
    axis.legend(lines, [line.get_label() for line in lines], loc="center right", frameon=False)


def read_log(source: Any) -> tuple[list[dict[str, Any]], Path | None]:
    """The log entries of training steps, and the run's folder where it is known.

    Raises:
        ConfigError: there is none.
    """
    folder: Path | None = None
    if hasattr(source, "state"):
        history, folder = source.state.log_history, Path(source.args.output_dir)
    elif isinstance(source, str | os.PathLike):
        file = Path(source)
        file = file / "trainer_state.json" if file.is_dir() else file
        history, folder = json.loads(file.read_text())["log_history"], file.parent
    else:
        history = source
    log = [entry for entry in history if entry.get("reward") is not None]
    if not log:
        raise ConfigError(
            "there is no training step to draw",
            where="plot",
            todo="call trainer.train() first, or name its folder",
        )
    return log, folder


def sparkline(values: list[float], width: int = 40) -> str:
    """The course of a figure in one line of text, averaged into at most ``width`` bars.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7])
    '▁▂▃▄▅▆▇█'
    """
    size = max(1, -(-len(values) // width))
    means = [sum(values[i : i + size]) / len(values[i : i + size]) for i in range(0, len(values), size)]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(BARS[round((mean - low) / span * (len(BARS) - 1))] for mean in means)


def as_text(source: Any) -> str:
    """Reward, length and truncation of a run as sparklines, for a terminal."""
    log, _ = read_log(source)
    rows = []
    for label, key in (
        ("reward", "reward"),
        ("length", "completions/mean_length"),
        ("cut", "completions/clipped_ratio"),
    ):
        values = [entry[key] for entry in log]
        rows.append(f"{label:<8}{values[0]:>8.3f}  {sparkline(values)}  {values[-1]:.3f}")
    return "\n".join(rows)
