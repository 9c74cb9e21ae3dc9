"""Loggers that are closed when a training ends, and are asked for after it.

For the trainer's evaluation.  Which loggers there are is transformers' to know, and :mod:`.guards` refuses the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import trl


@contextmanager
def open_for(trainer: trl.RLOOTrainer) -> Iterator[None]:
    """While inside, trackio has a run: the training's where ``run_name`` names it, else one of its own.

    Works around: transformers closes trackio's run when training ends, and TRL's profiler logs to it in an evaluation
    before transformers would open one (trl/extras/profiling.py), which raises.
    """
    from transformers.integrations.integration_utils import TrackioCallback

    callback = next((c for c in trainer.callback_handler.callbacks if isinstance(c, TrackioCallback)), None)
    if callback is None or not trainer.is_world_process_zero() or _has_run():
        yield
        return
    callback.setup(trainer.args, trainer.state, trainer.model)
    try:
        yield
    finally:
        callback._trackio.finish()
        callback._initialized = False  # a training that follows opens it again


def _has_run() -> bool:
    from trackio import context_vars

    return context_vars.current_run.get() is not None
