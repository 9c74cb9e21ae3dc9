"""Whether a run of several processes is the one that was launched, and all of them have the same data.

For the trainer, before it samples.  What accelerate is asked for and gives is :mod:`rloo_kit.session.processes`'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset

from rloo_kit.errors import DatasetError
from rloo_kit.session import processes
from rloo_kit.train import fingerprints

if TYPE_CHECKING:
    import trl
    from accelerate import Accelerator


def check(accelerator: Accelerator, args: trl.RLOOConfig, dataset: Dataset | IterableDataset) -> None:
    """Works around: accelerate falls back in silence to fewer processes or to DDP, and each process is sent the same
    row numbers, whatever its rows are.

    Raises:
        ConfigError: the launch asked for something else than there is.
        DatasetError: the processes have different rows.
    """
    state, wanted = accelerator.state, processes.asked(args.deepspeed, args.fsdp)
    kind, on_cpu = str(state.distributed_type.value), accelerator.device.type == "cpu"
    if error := processes.downgrade(wanted, state.num_processes, kind, on_cpu=on_cpu):
        raise error
    if state.num_processes > 1 and isinstance(dataset, Dataset):
        check_same(gather_object([fingerprints.rows(dataset)]))


def check_same(prints: list[str]) -> None:
    """Refuse processes whose datasets differ.

    Args:
        prints: the digest of each process's, by rank.

    Raises:
        DatasetError: with the first process that is not like the main one.
    """
    other = next((rank for rank, one in enumerate(prints) if one != prints[0]), None)
    if other is not None:
        raise DatasetError(
            "the processes have different rows, and would score one prompt's completions as another's",
            where=f"RLOOTrainer(train_dataset=...), processes 0 and {other} of {len(prints)}",
            todo="make it of a fixed seed, and at a fixed level: tasks.arithmetic(level=2, seed=0)",
        )
