"""Memory: the plan beside what a step took, phase by phase, on real shapes; and on a card made smaller.

The plan must never be under what was measured (a limit), and at most a tenth above it (a goal).  Measured is what the
driver would count at the peak: the most that torch's allocator held, and the context beside it.  On a capped card what
the plan says fits must run; what it says does not must end in the kit's own error, after which the same process trains
something smaller.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from dataclasses import dataclass
from typing import Any

from . import device, shapes
from .checks import Check, Figure, Found, Place, add, at_most, holds, seen
from .workload import REHEARSAL_TOKENS, dataset, every_other, full_length, settings

PROMPT_TOKENS = 256


@dataclass(frozen=True)
class Case:
    """One configuration: ``groups`` x ``k`` completions at once, ``micro`` of them in one pass."""

    shape: str
    k: int
    tokens: int
    micro: int
    groups: int = 1

    @property
    def name(self) -> str:
        """For the table."""
        rows = f"{self.k * self.groups} rows by {self.micro}"
        return f"memory/{self.shape} K {self.k}, {self.tokens} tokens, {rows}"

    @property
    def takes(self) -> float:
        """Seconds, guessed: a token of decoding is bound by launches on small shapes and by bandwidth on large ones."""
        token = {"qwen3-0.6b": 0.015, "qwen3-1.7b": 0.016, "qwen3-4b": 0.022, "qwen3-8b": 0.028}[self.shape]
        return 8 + self.tokens * token


CASES = (
    Case("qwen3-4b", 8, 256, 8),
    Case("qwen3-4b", 4, 512, 2),
    Case("qwen3-8b", 4, 128, 4),
    Case("qwen3-8b", 8, 512, 2),
    Case("qwen3-1.7b", 8, 256, 8, groups=2),
    Case("qwen3-1.7b", 16, 512, 4),
    Case("qwen3-0.6b", 2, 128, 8, groups=4),
    Case("qwen3-0.6b", 8, 512, 8),
    Case("qwen3-4b", 16, 256, 16),
    Case("qwen3-4b", 8, 1024, 2),
    Case("qwen3-1.7b", 4, 1024, 4),
    Case("qwen3-0.6b", 16, 1024, 16),
    Case("qwen3-8b", 2, 1024, 1, groups=2),
    Case("qwen3-0.6b", 4, 2048, 4),
    Case("qwen3-4b", 2, 2048, 2),
)
"""In the order of their worth: each shape early, the long ones late."""


def config_of(case: Case, place: Place, folder: str) -> Any:
    """The kit's configuration of a case."""
    import rloo_kit

    return rloo_kit.RLOOConfig(
        **settings(folder, case.k, case.groups, case.micro, shortened(case.tokens, place)),
        live_plot=False,
    )


def shortened(tokens: int, place: Place) -> int:
    """A case's completions; a rehearsal's are short."""
    return min(tokens, REHEARSAL_TOKENS) if place.is_rehearsal else tokens


def prompts(place: Place, count: int = 64) -> Any:
    """The dataset of all cases."""
    return dataset(REHEARSAL_TOKENS if place.is_rehearsal else PROMPT_TOKENS, count)


def train(policy: Any, config: Any, data: Any, card: Any = None) -> tuple[Any, Any]:
    """Two steps, the second at full length: the plan, and the trainer that took them.

    Args:
        card: what to plan for; None is this machine.
    """
    import rloo_kit
    from rloo_kit.measure import Meter

    lengths = full_length(config.max_completion_length)
    trainer = rloo_kit.RLOOTrainer(
        model=policy, reward_funcs=every_other, args=config, train_dataset=data, callbacks=[lengths]
    )
    lengths.begin(trainer)
    longest = max(len(ids) for ids in policy.tokenize(data["prompt"]))
    plan = rloo_kit.plan(policy, config, card, prompt_tokens=longest)
    trainer.memory_plan = plan
    trainer.memory = Meter.for_model(trainer.model, count_tensors=True)
    trainer.train()
    return plan, trainer


def measure(case: Case, place: Place) -> Found:
    """One case: the ratio of measured to planned, in all and by phase."""
    import rloo_kit
    from rloo_kit.measure import planned_tensors

    policy = shapes.loaded(case.shape, place)
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(case, place, folder)
        plan = rloo_kit.plan(policy, config, prompt_tokens=PROMPT_TOKENS)
        if plan.fits == "does not fit":
            return Found(
                [seen("by the plan it does not fit this card; peak", plan.peak_bytes / device.GIB, "GiB")]
            )
        plan, trainer = train(policy, config, prompts(place))
    peaks = trainer.memory.peaks
    planned = planned_tensors(plan)
    by_phase = {name: peaks[name].allocated_bytes / size for name, size in planned.items() if name in peaks}
    return Found(
        [
            *_whole(plan, peaks, place),
            *(seen(f"tensors in {name}, measured / planned", ratio) for name, ratio in by_phase.items()),
            holds("every phase was measured", by_phase.keys() == planned.keys()),
            holds("the policy is still fresh", not _is_trained(policy)),
        ],
        {
            "case": dataclasses.asdict(case),
            "plan": {name: dict(parts) for name, parts in plan.phases.items()},
            "settings": dataclasses.asdict(plan.settings),
            "peaks": {name: dataclasses.asdict(peak) for name, peak in peaks.items()},
            "compared": [dataclasses.asdict(row) for row in plan.compare(trainer).all_rows],
        },
    )


def _whole(plan: Any, peaks: Any, place: Place) -> list[Figure]:
    """The peak of the process as the driver would count it; in a rehearsal that of tensors alone, unbounded."""
    from rloo_kit.measure import planned_tensors

    if place.is_rehearsal:
        largest = max(peak.allocated_bytes for peak in peaks.values())
        return [seen("peak of tensors, measured / planned", largest / max(planned_tensors(plan).values()))]
    held = max(peak.reserved_bytes for peak in peaks.values()) + device.context_bytes()
    never_under = at_most("peak of the process, measured / planned", held / plan.peak_bytes, 1.0)
    return [never_under, dataclasses.replace(never_under, low=0.9, high=None, is_goal=True)]


def _is_trained(policy: Any) -> bool:
    from rloo_kit.measure import is_trained

    return is_trained(policy.model)


# --- a smaller card ---------------------------------------------------------------------------------------

CAPS = {8: "qwen3-4b", 12: "qwen3-8b", 16: "qwen3-8b", 24: "qwen3-8b"}
"""GiB of the card to imitate -> the shape to put on it."""

CAP_TOKENS = 128


def on_a_smaller_card(gigabytes: int, place: Place) -> Found:
    """The most rows that the plan says fit run; rows that clearly do not end in our error; then a small run goes on."""
    from rloo_kit.devices import device_of
    from rloo_kit.footprint import CUDA_CONTEXT_BYTES

    policy = shapes.loaded(CAPS[gigabytes], place)
    card = device_of(f"{gigabytes}GB")
    with tempfile.TemporaryDirectory() as folder, _cap(card.usable_bytes - CUDA_CONTEXT_BYTES, place):
        fitting, failing = _rows(policy, card, place, folder)
        fits = _attempt(policy, fitting, card, place, folder)
        fails = _attempt(policy, failing, card, place, folder, must_fail=True)
        after = _attempt(policy, 4, card, place, folder)
    return Found(
        [
            holds("what the plan says fits runs", fits == ""),
            holds("what it says does not, does not", fails != ""),
            holds("and ends in rloo_kit's error, with phase and change", _is_explained(fails, place)),
            holds("the same process then trains a smaller run", after == ""),
            seen("completions that fit", fitting),
            seen("completions that do not", failing),
        ],
        {"fits": fits, "fails": fails, "after": after, "usable_bytes": card.usable_bytes},
    )


def _cap(allowed: int, place: Place) -> Any:
    import contextlib

    return contextlib.nullcontext() if place.is_rehearsal else device.capped(allowed)


def _rows(policy: Any, card: Any, place: Place, folder: str) -> tuple[int, int]:
    """Completions at once: the most, by doubling, that the plan says fit, and the fewest that take half as much again
    as the card has, so that the failure is no near miss."""
    import rloo_kit

    if place.is_rehearsal:
        return 4, 8
    plans = {}
    for rows in (4 * 2**power for power in range(12)):
        config = config_of(_case(rows), place, folder)
        plans[rows] = rloo_kit.plan(policy, config, card, prompt_tokens=PROMPT_TOKENS)
    fitting = [rows for rows, plan in plans.items() if plan.fits == "fits"]
    failing = [rows for rows, plan in plans.items() if plan.peak_bytes > 1.5 * card.usable_bytes]
    return max(fitting), min(failing)


def _case(rows: int) -> Case:
    return Case("", 4, CAP_TOKENS, rows, groups=rows // 4)


def _attempt(policy: Any, rows: int, card: Any, place: Place, folder: str, must_fail: bool = False) -> str:
    """Train; the error, or nothing."""
    from rloo_kit.errors import OutOfMemoryError

    try:
        with _too_much(must_fail and place.is_rehearsal):
            train(policy, config_of(_case(rows), place, folder), prompts(place, max(64, rows // 4)), card)
    except OutOfMemoryError as error:
        return str(error)
    return ""


def _too_much(on: bool) -> Any:
    """In a rehearsal the reward asks the CPU's allocator for 64 TiB, which it refuses as a GPU would."""
    from unittest.mock import patch

    import torch

    def greedy(completions: Any, **kwargs: Any) -> list[float]:
        torch.empty(2**46, dtype=torch.uint8)
        return []

    return patch(f"{__name__}.every_other", greedy if on else every_other)


def _is_explained(error: str, place: Place) -> bool:
    """Whether an error names the phase and the first change; in a rehearsal the plan knows none, since it fits."""
    change = "What to do: by the plan it should have fitted" if place.is_rehearsal else "What to do: first "
    return "memory ran out in the phase" in error and change in error


for _number, _case_ in enumerate(CASES):
    add(
        Check(
            _case_.name,
            functools.partial(measure, _case_),
            seconds=30 + 3 * _case_.takes,
            takes=_case_.takes,
            rank=30 if _number < 3 else 50 + _number,
            home="memory",
            needs=(f"shape/{_case_.shape}",),
        )
    )
for _gigabytes, _shape in CAPS.items():
    add(
        Check(
            f"memory/a card of {_gigabytes} GB",
            functools.partial(on_a_smaller_card, _gigabytes),
            seconds=120,
            takes=30,
            rank=40,
            home="capped",
            card_gib=_gigabytes + 0.5,
            needs=(f"shape/{_shape}",),
        )
    )
