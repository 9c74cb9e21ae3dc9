"""Memory: the plan beside what a step took, phase by phase, on real shapes.

The plan must never be under what was measured (a limit), and at most a tenth above it (a goal).  Measured is what the
driver would count at the peak: the most that torch's allocator held, and the context beside it.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from dataclasses import dataclass
from typing import Any

from . import device, shapes
from .checks import Check, Figure, Found, Place, add, at_least, at_most, holds, seen
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
    return dataset(32 if place.is_rehearsal else PROMPT_TOKENS, count)


def train(
    policy: Any, config: Any, data: Any, card: Any = None, reward: Any = every_other
) -> tuple[Any, Any]:
    """Two steps, the second at full length: the plan, and the trainer that took them.

    Args:
        card: what to plan for; None is this machine.
    """
    import rloo_kit
    from rloo_kit.memory.meter import Meter

    lengths = full_length(config.max_completion_length)
    trainer = rloo_kit.RLOOTrainer(
        model=policy, reward_funcs=reward, args=config, train_dataset=data, callbacks=[lengths]
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
    from rloo_kit.memory.measured import planned_tensors

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
            at_least(
                "longest completion, of its limit", _longest(trainer) / config.max_completion_length, 1.0
            ),
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
    from rloo_kit.memory.measured import planned_tensors

    if place.is_rehearsal:
        largest = max(peak.allocated_bytes for peak in peaks.values())
        return [seen("peak of tensors, measured / planned", largest / max(planned_tensors(plan).values()))]
    held = max(peak.reserved_bytes for peak in peaks.values()) + device.context_bytes()
    never_under = at_most("peak of the process, measured / planned", held / plan.peak_bytes, 1.0)
    return [never_under, dataclasses.replace(never_under, low=0.9, high=None, is_goal=True)]


def _longest(trainer: Any) -> float:
    """Tokens of the longest completion: the plan is for full ones, and shorter ones would flatter it."""
    return max(entry.get("completions/max_length", 0.0) for entry in trainer.state.log_history)


def _is_trained(policy: Any) -> bool:
    from rloo_kit.memory.reading import reference_is_base

    return not reference_is_base(policy.model)


for _number, _case_ in enumerate(CASES):
    add(
        Check(
            _case_.name,
            functools.partial(measure, _case_),
            seconds=90 + 3 * _case_.takes,
            takes=_case_.takes,
            rank=30 if _number < 3 else 50 + _number,
            home="memory",
            needs=(f"shape/{_case_.shape}",),
        )
    )
