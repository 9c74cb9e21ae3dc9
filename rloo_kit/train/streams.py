"""A stream of prompts that ends before the run does.

For the trainer.  transformers starts a stream anew when it ends, and stops without an error where it then gives
nothing, as one made of an iterator does; of ``max_steps`` some, or all, are then not taken.
"""

from __future__ import annotations

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rloo_kit.errors import DatasetError
from rloo_kit.session import processes


class StreamEnds(TrainerCallback):
    """Says when a stream gave no batch any more.

    Raises:
        DatasetError: not one step was taken.
    """

    def __init__(self) -> None:
        self._begun_at = 0

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Remember where the stream was started."""
        self._begun_at = state.global_step

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Speak where it gave nothing."""
        if state.global_step > self._begun_at or state.global_step >= state.max_steps:
            return
        why = "train_dataset is a stream that gave no generation batch when it was started anew"
        todo = (
            "make it of a generator function, which can be started anew: IterableDataset.from_generator(rows)"
        )
        if state.global_step == 0:
            raise DatasetError(why, where=f"before step 1 of {state.max_steps}", todo=todo)
        processes.warn(f"{why}: the run ends at step {state.global_step} of {state.max_steps}. Mend: {todo}")
