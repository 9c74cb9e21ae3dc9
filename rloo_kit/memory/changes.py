"""What to change where a plan does not fit, cheapest in quality first.

For :attr:`rloo_kit.Plan.changes`.  Each knob offers smaller plans, largest first; the first that fits is taken.  It
changes nothing itself: a :class:`Change` holds the arguments to pass.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from rloo_kit.catalogue import CATALOGUE, FOR_CPU
from rloo_kit.memory.estimate import Estimate, Verdict
from rloo_kit.memory.reading import model_of
from rloo_kit.memory.settings import Settings
from rloo_kit.session.show import scale_of

Planned = TypeVar("Planned", bound=Estimate)
Arguments = dict[str, int | str | bool | None]


@dataclass(frozen=True)
class Change:
    """One way to make a plan fit.

    Attributes:
        config, policy: arguments of ``RLOOConfig`` and of ``load_policy``, with their new values.
        peak_bytes, fits: of the plan with the change.
    """

    knob: str
    config: Arguments
    policy: Arguments
    peak_bytes: int
    fits: Verdict

    def __str__(self) -> str:
        values = [f"{name}={value!r}" for name, value in self.config.items()]
        loaded = ", ".join(f"{name}={value!r}" for name, value in self.policy.items())
        values += [f"load_policy({loaded})"] if loaded else []
        scale, unit = scale_of(self.peak_bytes)
        return f"{self.knob}: {', '.join(values)} ({self.fits}, peak {self.peak_bytes / scale:.2f} {unit})"


def _as_many_as_fit(settings: Settings) -> Iterator[Settings]:
    """Where it was asked for more at once than fit."""
    if settings.generation_rows is not None:
        yield dataclasses.replace(settings, generation_rows=None)


def generation_batches(settings: Settings) -> Iterator[Settings]:
    """Smaller generation batches and micro-batches with the same completions per update, largest first."""
    effective, k = settings.micro_rows * settings.accumulation, settings.num_generations
    for rows in range(settings.batch_rows, 0, -1):
        if rows % k or effective % rows:
            continue
        for micro in range(min(settings.micro_rows, rows), 0, -1):
            smaller = (rows, micro) != (settings.batch_rows, settings.micro_rows)
            if smaller and rows % micro == 0 and effective % micro == 0:
                steps = effective // micro
                yield dataclasses.replace(settings, batch_rows=rows, micro_rows=micro, accumulation=steps)


def _completion_lengths(settings: Settings) -> Iterator[Settings]:
    """Shorter completions in steps of 64, longest first."""
    for tokens in range((settings.completion_tokens - 1) // 64 * 64, 0, -64):
        yield dataclasses.replace(settings, completion_tokens=tokens)


def _smaller_groups(settings: Settings) -> Iterator[Settings]:
    """Fewer completions per prompt with the same prompts per batch, most first; K 2 is the least that RLOO has."""
    groups = settings.batch_rows // settings.num_generations
    for k in range(settings.num_generations - 1, 1, -1):
        rows = groups * k
        micro = max(m for m in range(1, min(settings.micro_rows, rows) + 1) if rows % m == 0)
        scale = settings.micro_rows * settings.accumulation // settings.batch_rows
        steps = max(1, scale) * rows // micro
        fewer = dataclasses.replace(settings, num_generations=k, batch_rows=rows)
        yield dataclasses.replace(fewer, micro_rows=micro, accumulation=steps)


def _checkpointing(settings: Settings) -> Iterator[Settings]:
    if settings.checkpointing != "unsloth":
        yield dataclasses.replace(settings, checkpointing="unsloth")


Knob = Callable[[Estimate], Iterator[Estimate]]


def _by_settings(variants: Callable[[Settings], Iterator[Settings]]) -> Knob:
    def planned(before: Estimate) -> Iterator[Estimate]:
        return (Estimate.of(before.model, settings, before.device) for settings in variants(before.settings))

    return planned


def _smaller_models(before: Estimate) -> Iterator[Estimate]:
    """Smaller models of the catalogue, largest first."""
    s, size = before.settings, before.model.checkpoint.parameters
    seen = set()
    for checkpoint in reversed(CATALOGUE.values()):
        if checkpoint.name in FOR_CPU or checkpoint.parameters >= size or checkpoint.parameters in seen:
            continue
        seen.add(checkpoint.parameters)
        yield Estimate.of(model_of(checkpoint, s.lora_rank, s.four_bit, s.dtype_bytes), s, before.device)


KNOBS: tuple[tuple[str, Knob], ...] = (
    ("completions at once", _by_settings(_as_many_as_fit)),
    ("gradient checkpointing", _by_settings(_checkpointing)),
    ("generation batch", _by_settings(generation_batches)),
    ("completion length", _by_settings(_completion_lengths)),
    ("K", _by_settings(_smaller_groups)),
    ("model", _smaller_models),
)
"""Cheapest in quality first: sampling fewer at once, recomputing and cutting the batch take time and leave every update
as it is; shorter completions may cut answers; a smaller K makes the baseline noisier; a smaller model knows less."""


def that_fit(before: Estimate) -> Iterator[Change]:
    """The changes that make a plan fit: :attr:`Plan.changes`."""
    goals: tuple[Verdict, ...] = ("fits",) if before.fits == "tight" else ("fits", "tight")
    least, fits_already = before, False
    for knob, smaller in KNOBS:
        tried = [*smaller(before), *(() if fits_already else smaller(least))]
        found = next(filter(None, (first(tried, goal) for goal in goals)), None)
        if found is not None:
            config, policy = _arguments(found)
            old_config, old_policy = _arguments(before)
            changed = _difference(old_config, config)
            if "gradient_accumulation_steps" in changed:  # TRL's default of the other follows it
                changed["steps_per_generation"] = config["steps_per_generation"]
            if "generation_rows" in changed:  # on another device None would be another number
                changed["generation_rows"] = found.sampled_rows
            yield Change(knob, changed, _difference(old_policy, policy), found.peak_bytes, found.fits)
        fits_already = fits_already or found is not None
        # Of equals the changed one: fewer completions at once may matter only together with a smaller batch.
        least = min([*tried, least], key=lambda planned: planned.peak_bytes)


def first(plans: list[Planned], verdict: Verdict) -> Planned | None:
    """The first plan with that verdict."""
    return next((planned for planned in plans if planned.fits == verdict), None)


def _difference(old: Arguments, new: Arguments) -> Arguments:
    return {name: value for name, value in new.items() if old[name] != value}


def _arguments(planned: Estimate) -> tuple[Arguments, Arguments]:
    """Those of ``RLOOConfig`` and of ``load_policy`` that lead to a plan."""
    settings = planned.settings
    return {
        "num_generations": settings.num_generations,
        "max_completion_length": settings.completion_tokens,
        "per_device_train_batch_size": settings.micro_rows,
        "gradient_accumulation_steps": settings.accumulation,
        "steps_per_generation": settings.batch_rows // settings.micro_rows,
        "generation_rows": settings.generation_rows,
    }, {"name": planned.model.checkpoint.name, "gradient_checkpointing": settings.checkpointing}
