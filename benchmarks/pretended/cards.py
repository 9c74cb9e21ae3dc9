"""The cards that can be pretended, as torch.cuda describes them."""

from dataclasses import dataclass
from types import SimpleNamespace

from rloo_kit.memory.hardware import CARDS as KNOWN
from rloo_kit.session.output import MIB


@dataclass(frozen=True)
class Card:
    """A GPU as ``torch.cuda.get_device_properties`` describes it.

    Attributes:
        name: a key of :data:`rloo_kit.memory.hardware.CARDS`.
        capability: the compute capability (CUDA C++ programming guide, appendix "Compute Capabilities").
        processors: streaming multiprocessors.
        shared_bytes: shared memory that a block may ask for.
    """

    name: str
    capability: tuple[int, int]
    processors: int
    shared_bytes: int

    @property
    def total_bytes(self) -> int:
        return KNOWN[self.name][0] * MIB

    @property
    def has_bfloat16(self) -> bool:
        return self.capability >= (8, 0)

    def properties(self) -> SimpleNamespace:
        major, minor = self.capability
        return SimpleNamespace(
            name=f"Pretended {self.name}",
            major=major,
            minor=minor,
            total_memory=self.total_bytes,
            multi_processor_count=self.processors,
            warp_size=32,
            max_threads_per_multi_processor=1024 if self.capability == (7, 5) else 1536,
            regs_per_multiprocessor=65536,
            shared_memory_per_block=48 * 1024,
            shared_memory_per_block_optin=self.shared_bytes,
            shared_memory_per_multiprocessor=self.shared_bytes + 1024,
            L2_cache_size=6 * MIB,
            uuid="0",
            gcnArchName="",
            **dict.fromkeys(("is_integrated", "is_multi_gpu_board"), 0),
            **dict.fromkeys(("pci_bus_id", "pci_device_id", "pci_domain_id"), 0),
        )


CARDS = {
    card.name: card
    for card in (
        Card("rtx 3090", (8, 6), 82, 99 * 1024),
        Card("t4", (7, 5), 40, 64 * 1024),
        Card("rtx 4060", (8, 9), 24, 99 * 1024),
        Card("rtx 4070", (8, 9), 46, 99 * 1024),
    )
}
