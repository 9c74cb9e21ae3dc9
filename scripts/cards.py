"""Print what a process on a CPU holds beside tensors, measured here; the table of cards is ``rloo-kit cards``."""

from __future__ import annotations

from rloo_kit.memory.specs import bytes_of
from rloo_kit.session.output import MIB


def libraries_mib() -> float:
    """Resident memory with the tiny policy loaded, less the policy's own tensors."""
    import psutil

    from rloo_kit import load_policy

    own = bytes_of(load_policy("tiny").model.parameters())
    return float(psutil.Process().memory_info().rss - own) / MIB


if __name__ == "__main__":
    print(f"{libraries_mib():.0f} MiB")
