"""The trainer's and the server's end of the group that weights travel by."""

from datetime import timedelta

import torch
from torch import distributed

TIMEOUT = timedelta(seconds=60)


class Group:
    """Two processes over gloo, beside torch's own default group."""

    def __init__(self, rank: int, size: int, host: str, port: int) -> None:
        self.store = distributed.TCPStore(host, port, size, rank == 0, timeout=TIMEOUT)
        self.processes = distributed.ProcessGroupGloo(self.store, rank, size, TIMEOUT)
        self.group, self.socket = self, None  # what TRL's client lets go of

    def broadcast(self, tensor: torch.Tensor) -> None:
        """From the trainer, rank 0, to all."""
        options = distributed.BroadcastOptions()
        options.rootRank = 0
        self.processes.broadcast([tensor], options).wait()


def trainer_init(info: dict) -> Group:
    """The trainer's end."""
    return Group(0, info["world_size"], info["master_address"], info["master_port"])
