"""The memory plan: whether a run fits, what to change if not, how long it may take.  Importing it loads no torch."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from rloo_kit.memory import duration, policy_tensors
from rloo_kit.memory.formulas import ESTIMATED, LAYER, PARTS, Parts, Step
from rloo_kit.memory.hardware import Device, device_of, four_bit_rows, speed_of, where_computed
from rloo_kit.memory.plan_settings import Configured, Settings, settings_of
from rloo_kit.memory.policy_tensors import Model, Plannable, model_of
from rloo_kit.models import CATALOGUE, FOR_CPU, PROJECTIONS
from rloo_kit.session.import_order import import_unsloth
from rloo_kit.session.output import GIB, scale_of, text_table

if TYPE_CHECKING:
    import trl

Verdict = Literal["fits", "tight", "does not fit"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)  # best first


def largest_slice(rows: int, at_most: int) -> int:
    """Return the largest slice when rows are cut as evenly as possible into the fewest slices of up to ``at_most``.

    >>> largest_slice(8, 5)  # 4 and 4, as many rounds as 5 and 3
    4
    """
    return -(-rows // -(-rows // at_most))


@dataclass(frozen=True, repr=False)
class Plan:
    """The memory plan of a run on a device; what would make it fit; and how long it may take.

    Attributes:
        phases: phase -> part -> bytes.
        sampled_rows: completions sampled at once: as ``settings.generation_rows`` asks, or as many as fit.
    """

    model: Model
    settings: Settings
    device: Device
    phases: dict[str, Parts]
    sampled_rows: int

    @classmethod
    def of(cls, model: Model, settings: Settings, device: Device) -> Self:
        """The plan of a model under settings on a device."""
        whole = cls(model, settings, device, {}, settings.batch_rows)
        return whole._sampling(whole.rows_at_once(settings.batch_rows))

    def _sampling(self, rows: int) -> Self:
        phases = Step(self.model, replace(self.settings, generation_rows=rows)).phases()
        return replace(self, phases=phases, sampled_rows=rows)

    def with_settings(self, **changed: Any) -> Self:
        """The plan of the same model and device under changed settings."""
        return self.of(self.model, replace(self.settings, **changed), self.device)

    def rows_at_once(self, wanted: int) -> int:
        """How many of the ``wanted`` completions are sampled at once: ``settings.generation_rows`` at most.  If that is
        None, as many as fit; if not even one does, the largest slice that needs no more memory than one."""
        if (most := self.settings.generation_rows) is not None:
            return largest_slice(wanted, most)
        least = self._sampling(1)._shortage
        sizes = dict.fromkeys(largest_slice(wanted, rows) for rows in range(wanted, 0, -1))
        return next(rows for rows in sizes if self._sampling(rows)._shortage <= least)

    @property
    def _shortage(self) -> tuple[int, int]:
        return VERDICTS.index(self.fits), self.peak_bytes if self.fits == "does not fit" else 0

    @property
    def parts(self) -> Parts:
        """The most that each part takes in any phase, in bytes."""
        names = sorted({part for phase in self.phases.values() for part in phase}, key=PARTS.index)
        most = {part: max(phase.get(part, 0) for phase in self.phases.values()) for part in names}
        return {part: size for part, size in most.items() if size}

    @property
    def totals(self) -> dict[str, int]:
        """Phase -> bytes."""
        return {name: sum(parts.values()) for name, parts in self.phases.items()}

    @property
    def peak_phase(self) -> str:
        return max(self.totals, key=lambda name: self.totals[name])

    @property
    def peak_bytes(self) -> int:
        return self.totals[self.peak_phase]

    @property
    def in_16_bit_bytes(self) -> int:
        """Bytes of the 16-bit copies of 4-bit weights, held while completions are sampled.  0 if none are held: there
        is no room, or so few rows are multiplied with the 4-bit weights.  The peak leaves them out: if memory runs
        out, they go first."""
        s, size = self.settings, 2 * self.model.checkpoint.linear_parameters
        needed = self.totals.get("generate", self.device.usable_bytes) + size + self.estimated_bytes // 2
        is_asked = s.four_bit and s.on_gpu and s.fast_sampling and self.sampled_rows > four_bit_rows(self.device)
        return size if is_asked and needed <= self.device.usable_bytes else 0

    @property
    def estimated_bytes(self) -> int:
        """What of the peak has no formula; on a GPU also a layer's activations, since kernels allocate more."""
        unsure = ESTIMATED | ({LAYER} if self.settings.on_gpu else set())
        return sum(size for part, size in self.phases[self.peak_phase].items() if part in unsure)

    @property
    def fits(self) -> Verdict:
        """ "does not fit" above the usable memory; "tight" if it would not fit with estimated parts 50 % larger."""
        usable = self.device.usable_bytes
        if self.peak_bytes > usable:
            return "does not fit"
        return "tight" if self.peak_bytes + self.estimated_bytes // 2 > usable else "fits"

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """What would make it fit, cheapest in quality first, with the largest value that fits; empty if it fits.

        Until a change suffices, each is tried on top of the previous ones at their minimum; after that, only changes
        that suffice alone are listed.
        """
        if self.fits == "fits":
            return ()
        least, changes = self, list[Change]()
        for knob, smaller in knobs(self).items():
            tried = [*smaller, *(() if changes else knobs(least)[knob])]
            fitting = first(tried, "fits") or (first(tried, "tight") if self.fits != "tight" else None)
            changes += [Change.between(knob, self, fitting)] if fitting else []
            # A tie goes to the changed plan: fewer completions at once may help only together with a smaller batch.
            least = min([*tried, least], key=lambda planned: planned.peak_bytes)
        return tuple(changes)

    @cached_property
    def seconds(self) -> dict[str, duration.Range]:
        """Part of the run -> seconds at best and in the slow case, never timed: "load", "a step", "evaluations", and
        "in all" if the config sets ``max_steps``.  Empty with vLLM, on a CPU, on an unknown GPU."""
        speed = None if self.settings.by_vllm else speed_of(self.device)
        if speed is None:
            return {}
        sampled = replace(self.settings, generation_rows=self.sampled_rows)
        free = self.device.usable_bytes - self.totals["load"]
        decoding = four_bit_rows(self.device), bool(self.in_16_bit_bytes)
        return duration.Seconds(self.model, sampled, *speed, *decoding).of_run(free)

    @property
    def takes(self) -> str:
        """The peak, the usable memory, and the phase."""
        scale, unit = scale_of(self.peak_bytes)
        usable = f"{self.device.usable_bytes / scale:.2f} {unit}"
        return f"{self.peak_bytes / scale:.2f} of {usable}, at its peak in {self.peak_phase}"

    @property
    def sliced(self) -> str:
        """A sentence if fewer completions are sampled at once because all would not fit; else empty."""
        rows, at_once = self.settings.batch_rows, self.sampled_rows
        if self.settings.generation_rows is not None or at_once == rows:
            return ""
        why = "since all at once would not fit: it takes longer and changes nothing else (generation_rows)"
        return f"{rows} completions are sampled {at_once} at once, {why}"

    def _notes(self) -> Iterator[str]:
        s, offloaded = self.settings, Step(self.model, self.settings).offloaded
        yield "* an estimate" + ("; no figure has been measured on a consumer card" if s.on_gpu else "")
        yield from self._times() if s.on_gpu else ["activations are counted as on a GPU"]
        if offloaded:
            yield f"{offloaded / GIB:.2f} GiB of activations are offloaded to the computer's memory"
        if self.sliced:
            yield self.sliced
        if held := self.in_16_bit_bytes:
            yield f"{held / GIB:.2f} GiB more hold the weights in 16 bit while completions are sampled, for speed"
        if s.by_vllm:
            yield "vLLM samples: what it takes of this GPU is not counted (gpu_memory_utilization)"
        if self.changes:
            yield "to make it fit, cheapest in quality first:"
            yield from (f"  {number}. {change}" for number, change in enumerate(self.changes, 1))
        elif self.fits != "fits":
            yield "no model, batch or length of the catalogue fits"

    def _times(self) -> Iterator[str]:
        if not self.seconds:
            unknown = "this GPU's bandwidth is not known"
            yield f"time: not estimated, {'vLLM samples' if self.settings.by_vllm else unknown}"
            return
        launch = [1e6 * seconds for seconds in duration.LAUNCH_SECONDS]
        yield (
            f"time, never measured on a consumer card: from full bandwidth and peak to {duration.BANDWIDTH_SHARE:.0%} "
            f"and {duration.PEAK_SHARE:.0%} of them, or launches of {launch[0]:g} to {launch[1]:g} µs a kernel"
        )
        if any(times and not asked.get("n") for times, asked in self.settings.evaluations):
            yield "  evaluations of unknown size are not counted (evaluate's n, eval_rows, n_prompts)"
        width = max(map(len, self.seconds))
        yield from (f"  {part:<{width}}  {duration.spelled(range_)}" for part, range_ in self.seconds.items())

    def __repr__(self) -> str:
        return f"Plan({self.model.checkpoint.name} on {self.device.name}: {self.fits}: {self.takes})"

    def __str__(self) -> str:
        s, rows, at_once = self.settings, self.settings.batch_rows, self.sampled_rows
        weights = "4 bit" if s.four_bit else f"{8 * s.dtype_bytes} bit"
        trained = "all weights trained" if self.model.full_sizes else f"LoRA rank {s.lora_rank}"
        sampled = f"{rows} completions{'' if rows == at_once else f', {at_once}'} at once"
        scale, unit = scale_of(self.peak_bytes)
        table = [[unit, *self.phases]]
        for part in self.parts:
            sizes = [phase.get(part, 0) / scale for phase in self.phases.values()]
            mark = " *" if part in ESTIMATED else ""
            table.append([part + mark, *(f"{size:.2f}" if size else "" for size in sizes)])
        table.append(["total", *(f"{size / scale:.2f}" for size in self.totals.values())])
        lines = [
            f"{self.model.checkpoint.name} in {weights}, {trained}, on {self.device.name}",
            f"{sampled}, {s.per_device_train_batch_size} per pass, {s.prompt_tokens} + {s.max_completion_length} "
            f"tokens, K {s.num_generations}, beta {s.beta:g}, {s.optim}",
            *("", text_table(table), ""),
            f"{self.fits}: {self.takes}",
            *self._notes(),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(frozen=True)
class Change:
    """One way to make a plan fit.

    Attributes:
        config, policy: arguments of ``RLOOConfig`` and of ``load_policy``, with their new values.
        peak_bytes, fits: as in the plan with the change.
    """

    knob: str
    config: dict[str, Any]
    policy: dict[str, Any]
    peak_bytes: int
    fits: Verdict

    @classmethod
    def between(cls, knob: str, before: Plan, after: Plan) -> Self:
        old, new = asdict(before.settings), asdict(after.settings)
        names = [field.name for field in fields(Configured)]
        changed = {name: new[name] for name in names if new[name] != old[name]}
        if "gradient_accumulation_steps" in changed:  # TRL derives steps_per_generation from it
            changed["steps_per_generation"] = new["steps_per_generation"]
        if "generation_rows" in changed:  # None depends on the device: write the number
            changed["generation_rows"] = after.sampled_rows
        loaded = {"name": after.model.checkpoint.name, "gradient_checkpointing": new["checkpointing"]}
        was = {"name": before.model.checkpoint.name, "gradient_checkpointing": old["checkpointing"]}
        loaded = {name: value for name, value in loaded.items() if value != was[name]}
        return cls(knob, changed, loaded, after.peak_bytes, after.fits)

    def __str__(self) -> str:
        values = [f"{name}={value!r}" for name, value in self.config.items()]
        loaded = ", ".join(f"{name}={value!r}" for name, value in self.policy.items())
        values += [f"load_policy({loaded})"] if loaded else []
        scale, unit = scale_of(self.peak_bytes)
        return f"{self.knob}: {', '.join(values)} ({self.fits}, peak {self.peak_bytes / scale:.2f} {unit})"


def knobs(p: Plan) -> dict[str, Iterable[Plan]]:
    """Smaller plans by knob, largest first; knobs cheapest in quality first.  The first three take time and change no
    update; shorter completions may cut answers; a smaller K makes the baseline noisier; a smaller model knows less."""
    s, size = p.settings, p.model.checkpoint.parameters
    models = {c.parameters: c for c in CATALOGUE.values() if c.name not in FOR_CPU and c.parameters < size}
    shorter = range((s.max_completion_length - 1) // 64 * 64, 0, -64)
    is_least = s.checkpointing == "unsloth"
    return {
        "completions at once": [p.with_settings(generation_rows=None)] if s.generation_rows else [],
        "gradient checkpointing": [] if is_least else [p.with_settings(checkpointing="unsloth")],
        "generation batch": smaller_batches(p),
        "evaluation batch": (
            p.with_settings(per_device_eval_batch_size=rows)
            for rows in range(s.per_device_eval_batch_size - s.num_generations, 0, -s.num_generations)
            if s.evaluates
        ),
        "completion length": (p.with_settings(max_completion_length=tokens) for tokens in shorter),
        "K": _smaller_groups(p),
        "model": (
            Plan.of(model_of(one, s.lora_rank, s.four_bit, s.dtype_bytes), s, p.device)
            for one in reversed(models.values())
        ),
    }


def batch_sizes(micro: int, rows: int, per_update: int) -> dict[str, int]:
    """Return the settings for so many completions per micro-batch, generation batch and update."""
    return {
        "per_device_train_batch_size": micro,
        "steps_per_generation": rows // micro,
        "gradient_accumulation_steps": per_update // micro,
    }


def smaller_batches(planned: Plan) -> Iterator[Plan]:
    """Smaller generation batches and micro-batches with the same completions per update, largest first."""
    s = planned.settings
    for rows in range(s.batch_rows, 0, -1):
        if rows % s.num_generations or s.update_rows % rows:
            continue
        largest = s.per_device_train_batch_size
        for micro in range(min(largest, rows), 0, -1):
            if (rows, micro) != (s.batch_rows, largest) and rows % micro == s.update_rows % micro == 0:
                yield planned.with_settings(**batch_sizes(micro, rows, s.update_rows))


def _smaller_groups(planned: Plan) -> Iterator[Plan]:
    """Fewer completions per prompt with the same prompts per batch, most first; RLOO needs a K of at least 2."""
    s = planned.settings
    batches = max(1, s.update_rows // s.batch_rows)
    for k in range(s.num_generations - 1, 1, -1):
        rows = s.batch_rows // s.num_generations * k
        largest = min(s.per_device_train_batch_size, rows)
        micro = next(micro for micro in range(largest, 0, -1) if rows % micro == 0)
        yield planned.with_settings(num_generations=k, **batch_sizes(micro, rows, batches * rows))


def first(plans: Iterable[Plan], verdict: Verdict) -> Plan | None:
    return next((planned for planned in plans if planned.fits == verdict), None)


def plan(
    policy: Plannable,
    config: trl.RLOOConfig | None = None,
    card: str | float | Device | None = None,
    *,
    prompt_tokens: int | None = None,
    lora_rank: int = Settings.lora_rank,
    load_in_4bit: bool | None = None,
    gradient_checkpointing: bool | str = "auto",
    full_finetuning: bool = False,
    target_modules: Collection[str] | None = None,
    evaluate: Mapping[str, Any] | None = None,
    eval_rows: int = 0,
) -> Plan:
    """Add up the memory of a run, say whether it fits, and estimate its time.  What vLLM takes is not counted.

    Args:
        policy: a loaded policy or PEFT model, counted as loaded if planned for its device; or, with nothing loaded, a
            catalogue name, a folder of a checkpoint or an adapter, a hub id in the cache, or a ``Checkpoint``.
        config: an ``RLOOConfig``, TRL's, or any object with such attributes; None means the kit's defaults.
        card: a GPU's name ("rtx 3060 12GB", "t4"), its memory ("8GB", bytes), or None for this machine's GPU or CPU.
        prompt_tokens: the longest prompt; None means 512, or what max_seq_length leaves if that is less.
        lora_rank, load_in_4bit, gradient_checkpointing, full_finetuning, target_modules: as for ``load_policy``; a
            loaded policy has its own.
        evaluate: arguments of ``evaluate``, including ``n``, if it is called before and after training.
        eval_rows: problems in the trainer's ``eval_dataset``, if the config evaluates during training.

    Raises:
        ConfigError: an unknown GPU, or a length or batch out of range.
        PolicyNotFoundError: a name that is neither in the catalogue nor on this machine.
    """
    device = device_of(card)
    loaded, checkpoint, of_adapter = policy_tensors.taken_apart(policy)
    own: dict[str, Any] = {
        "on_gpu": device.on_gpu,
        "small_card": device.usable_bytes <= 24.5 * GIB,
        # On a CPU, importing unsloth decides the dtype of its computations.
        "dtype_bytes": 2 if device.on_gpu or import_unsloth().is_bfloat16_supported() else 4,
        "four_bit": (checkpoint.four_bit if load_in_4bit is None else load_in_4bit) and not full_finetuning,
        "lora_rank": 0 if full_finetuning else lora_rank,
        "checkpointing": gradient_checkpointing,
        **of_adapter,
    }
    if loaded is not None and (where_computed(loaded).type != "cpu") == device.on_gpu:
        model, of_model = policy_tensors.loaded_model(loaded, checkpoint)
        own |= of_model
    else:
        modules = PROJECTIONS if target_modules in (None, "all-linear") else target_modules
        model = model_of(checkpoint, own["lora_rank"], own["four_bit"], own["dtype_bytes"], modules)
    if device.on_gpu:
        own["by_vllm"] = getattr(config, "use_vllm", False) or getattr(loaded, "vllm_engine", None) is not None
    elif loaded is policy and getattr(config, "gradient_checkpointing", False):
        # transformers' Trainer switches it on, except for a Policy; on a GPU unsloth keeps what was set at loading.
        own["checkpointing"] = own["checkpointing"] or True
    length = getattr(loaded, "max_seq_length", None)
    settings = replace(settings_of(config, prompt_tokens, length, evaluate, eval_rows), **own)
    if settings.checkpointing != "auto":
        return Plan.of(model, settings, device)
    kept = Plan.of(model, replace(settings, checkpointing="unsloth" if device.on_gpu else False), device)
    return kept if device.on_gpu or kept.fits == "fits" else kept.with_settings(checkpointing=True)
