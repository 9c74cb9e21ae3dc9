"""The picture of a run while it trains: one figure above the lines of the cell, redrawn in place.

For the trainer; :mod:`rloo_kit.session.cell` shows it.  Outside a notebook it does nothing.  It never ends a run: where
drawing fails, the plot is disabled with a warning.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import TrainerCallback

from rloo_kit.session import cell
from rloo_kit.watch import plots
from rloo_kit.watch.log import Entry

if TYPE_CHECKING:
    from transformers import TrainerState, TrainingArguments


class LivePlot(TrainerCallback):
    """Shows :func:`rloo_kit.plot`'s figure in a notebook while training, and saves it when training ends.

    Args:
        seconds: the least time between two drawings.
        share: the most of the run's time that may go into drawing; a drawing takes 0.2 to 0.8 s, so with the
            default one follows another after 7 to 27 s.
    """

    def __init__(self, seconds: float = 5.0, share: float = 0.03) -> None:
        self.seconds, self.share = seconds, share
        self._draws, self._next = False, 0.0

    def on_train_begin(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:
        """See whether this process shows pictures."""
        self._draws, self._next = state.is_world_process_zero and cell.shows_pictures(), 0.0

    def on_log(
        self, args: object, state: TrainerState, control: object, logs: Entry | None = None, **kwargs: object
    ) -> None:
        """Redraw, unless the last drawing is too recent."""
        if logs and "reward" in logs and time.monotonic() >= self._next:
            started = time.monotonic()
            self._draw(state)
            now = time.monotonic()
            self._next = now + max(self.seconds, (now - started) / self.share)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        """Draw the whole run, and save it beside its checkpoints."""
        self._draw(state, save_to=Path(args.output_dir) / plots.PICTURE)

    def _draw(self, state: TrainerState, save_to: Path | None = None) -> None:
        if not self._draws or all(entry.get("reward") is None for entry in state.log_history):
            return
        try:
            figure = plots.draw(state.log_history)
            cell.show(figure._repr_png_())  # type: ignore[attr-defined]
            if save_to:
                plots.save(figure, save_to)
        except Exception as error:  # hours of training are worth more than their picture
            self._draws = False
            warnings.warn(
                f"Live plot disabled: {type(error).__name__}: {error}. Training goes on; "
                "live_plot=False avoids this warning.",
                stacklevel=2,
            )
