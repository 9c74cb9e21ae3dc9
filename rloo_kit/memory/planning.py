"""Whether a run will fit into memory, what to change where it will not, and how long a step may take.

For users with one consumer GPU.  ``plan(policy, config)`` adds up the terms of :mod:`.footprint` by phase and compares
the peak with a GPU's memory; ``fit(card)`` finds the largest model for a GPU; ``Plan.compare(trainer)`` shows plan and
measurement side by side.  Arithmetic only: no weights are loaded, and a plan for a named GPU does not import torch.
What a run does with its plan is in :mod:`.shortage`.
"""

from __future__ import annotations

import dataclasses
import html
import os
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rloo_kit.catalogue import CATALOGUE, FOR_CPU, PROJECTIONS
from rloo_kit.memory import changes, engine, measured, reading, seconds
from rloo_kit.memory.changes import Change
from rloo_kit.memory.estimate import ESTIMATED, Estimate
from rloo_kit.memory.hardware import Device, device_of, speed_of, where_computed
from rloo_kit.memory.measured import Measured, Trained
from rloo_kit.memory.reading import model_of, settings_of
from rloo_kit.memory.settings import Settings
from rloo_kit.memory.traffic import Traffic
from rloo_kit.session.show import GIB, html_table, scale_of, shown_figure, text_table

if TYPE_CHECKING:
    import trl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rloo_kit.memory.reading import Plannable

FIT_COMPLETION_TOKENS = 1024
"""Completions that :func:`fit` leaves room for by default: shorter ones cut off a thinking model's thought."""

GREYS = ("0.35", "0.6", "0.85", "1.0")
HATCHES = ("", "///", "...", "xxx", "\\\\\\")


@dataclass(frozen=True, repr=False)
class Plan(Estimate):
    """An estimate, with what would make it fit, as a table and as a picture."""

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """What would make it fit, cheapest in quality first; empty where it fits.

        First a smaller generation batch with more accumulation, which leaves every update as it is; then shorter
        completions, then K, then the model.  Each value is the largest that fits, found by planning again.  Until
        some change suffices, each one is combined with those before it at their smallest; after that, only changes
        that suffice alone are listed.
        """
        return () if self.fits == "fits" else tuple(changes.that_fit(self))

    @cached_property
    def seconds_per_step(self) -> tuple[float, float] | None:
        """Seconds of a step, at best and in a slow case: an estimate from counted bytes, operations and kernels and
        from the GPU's data sheet (:mod:`.seconds`), never timed.  All prompts are taken to be as long as the longest,
        and all completions to run to their limit.

        None with vLLM, whose speed nothing here estimates; on a CPU, where a run's own first steps tell (``step_time``
        in its log); and on a GPU whose bandwidth is not in :data:`~rloo_kit.memory.hardware.CARD_SPEED`.
        """
        speed = None if self.settings.engine else speed_of(self.device)
        sliced = dataclasses.replace(self.settings, generation_rows=self.sampled_rows)
        return None if speed is None else seconds.of_step(Traffic(self.model, sliced), speed)

    @property
    def _time(self) -> list[str]:
        """The range in a line, and of the whole run where its steps are known."""
        if self.seconds_per_step is None:
            unknown = "vLLM samples" if self.settings.engine else "this GPU's bandwidth is not known"
            return [f"seconds: not estimated, {unknown}"] if self.settings.on_gpu else []
        low, high = self.seconds_per_step
        found = f"a step takes {seconds.shown(low)} to {seconds.shown(high)}"
        if self.settings.steps:
            whole = (seconds.shown(self.settings.steps * each) for each in (low, high))
            found += f", {self.settings.steps} steps {' to '.join(whole)}"
        return [
            f"{found}: an estimate, counted and not timed; from full bandwidth and peak to "
            f"{seconds.BANDWIDTH_SHARE:.0%} and {seconds.PEAK_SHARE:.0%} of them, or launches of "
            f"{1e6 * seconds.LAUNCH_SECONDS:.0f} µs a kernel"
        ]

    def compare(self, trainer: Trained) -> Measured:
        """The plan beside what a run took.

        Args:
            trainer: an ``RLOOTrainer`` that has trained at least one step.  Peaks by phase are measured on a GPU
                always, on a CPU where ``trainer.memory`` is a ``Meter`` that counts tensors.
        """
        return measured.compare(self, trainer)

    def __repr__(self) -> str:
        return f"Plan({self.model.checkpoint.name} on {self.device.name}: {self.summary})"

    @property
    def title(self) -> str:
        """What was planned, in two lines."""
        s, model = self.settings, self.model.checkpoint.name
        weights = "4 bit" if s.four_bit else f"{8 * s.dtype_bytes} bit"
        trained = "all weights trained" if s.full_finetuning else f"LoRA rank {s.lora_rank}"
        return (
            f"{model} in {weights}, {trained}, on {self.device.name}\n"
            f"{self._sampled}, {s.micro_rows} per pass, "
            f"{s.prompt_tokens} + {s.completion_tokens} tokens, K {s.num_generations}, beta {s.beta:g}, {s.optimizer}"
        )

    @property
    def _sampled(self) -> str:
        rows, at_once = self.settings.batch_rows, self.sampled_rows
        return f"{rows} completions at once" if rows == at_once else f"{rows} completions, {at_once} at once"

    @property
    def sliced(self) -> str:
        """A sentence, where fewer completions are sampled at once because all would not fit; else empty."""
        if self.settings.generation_rows is not None or self.sampled_rows == self.settings.batch_rows:
            return ""
        return (
            f"{self.settings.batch_rows} completions are sampled {self.sampled_rows} at once, since all would not fit: "
            "it takes longer and changes nothing else (generation_rows)"
        )

    @property
    def _engine(self) -> str:
        """vLLM's share in a sentence."""
        engine, s = self.settings.engine, self.settings
        assert engine is not None
        room = f"weights, and a cache of at most {self.engine_tokens:.0f} tokens"
        if self.engine_starves:
            room += f", where a completion with its prompt has {s.row_tokens}: give it more (gpu_memory_utilization)"
        return (
            f"vLLM takes {engine.share_bytes / GIB:.2f} GiB: {room}"
            + "; asleep while the trainer works (standby), it gives back what is not the trainer's"
            * engine.standby
            + "; read in unsloth and TRL, never measured, and without its CUDA graphs"
        )

    def rows(self) -> list[list[str]]:
        """The table: a header, a row per part, and the totals; in GiB, or MiB where the peak is below one."""
        scale, unit = scale_of(self.peak_bytes)
        table = [[unit, *self.phases]]
        for part in self.parts:
            sizes = [found.get(part, 0) / scale for found in self.phases.values()]
            mark = " *" if part in ESTIMATED else ""
            table.append([part + mark, *(f"{size:.2f}" if size else "" for size in sizes)])
        return [*table, ["total", *(f"{size / scale:.2f}" for size in self.totals.values())]]

    @property
    def notes(self) -> list[str]:
        """What to know about the figures, and what to change."""
        found = ["* an estimate" + "; no figure has been measured on a consumer card" * self.settings.on_gpu]
        found += self._time
        if self.offloaded_bytes:
            size = f"{self.offloaded_bytes / GIB:.2f} GiB"
            found.append(f"{size} of activations go to the computer's own memory")
        found += [self.sliced] if self.sliced else []
        found += [self._engine] if self.settings.engine else []
        if self.changes:
            found.append("to make it fit, cheapest in quality first:")
            found += [f"  {number}. {change}" for number, change in enumerate(self.changes, 1)]
        elif self.fits != "fits":
            found.append("no model, batch or length of the catalogue fits")
        return found

    def __str__(self) -> str:
        return "\n".join([self.title, "", text_table(self.rows(), total=True), "", self.summary, *self.notes])

    def _repr_html_(self) -> str:
        notes = "<br>".join(map(html.escape, [self.summary, *self.notes]))
        title = html.escape(self.title).replace("\n", "<br>")
        return f"<p>{title}</p>{html_table(self.rows(), total=True)}<p>{notes}</p>"

    def picture(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """A stacked bar per phase, with the usable memory as a line; hatched, so that it reads in grey; saved as a PNG
        where ``path`` says."""
        figure = shown_figure(f"<memory plan, {self.summary}>", figsize=(8, 4.2), layout="constrained")
        _draw(figure.subplots(), self)
        if path is not None:
            figure.savefig(path, dpi=120)
        return figure


def _draw(axis: Axes, planned: Plan) -> None:
    scale, unit = scale_of(planned.peak_bytes)
    names = list(planned.phases)
    below = [0.0] * len(names)
    for number, part in enumerate(planned.parts):
        sizes = [found.get(part, 0) / scale for found in planned.phases.values()]
        grey, hatch = GREYS[number % len(GREYS)], HATCHES[number % len(HATCHES)]
        axis.bar(
            names, sizes, bottom=below, color=grey, hatch=hatch, edgecolor="black", linewidth=0.5, label=part
        )
        below = [low + size for low, size in zip(below, sizes, strict=True)]
    usable = planned.device.usable_bytes / scale
    if usable < 2 * max(below):
        axis.axhline(usable, color="black", linestyle="--", linewidth=1)
        axis.annotate(f"usable {usable:.1f} {unit}", (len(names) - 0.5, usable), ha="right", va="bottom")
    axis.set(ylabel=f"{unit}, computed", title=planned.title)
    axis.title.set_fontsize(9)
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(
        handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8, frameon=False
    )


def plan(
    policy: Plannable,
    config: trl.RLOOConfig | None = None,
    card: str | float | Device | None = None,
    *,
    prompt_tokens: int | None = None,
    lora_rank: int = Settings.lora_rank,
    load_in_4bit: bool | None = None,
    gradient_checkpointing: bool | str = Settings.checkpointing,
    full_finetuning: bool = False,
    target_modules: Collection[str] | None = None,
    fast_inference: bool = False,
    gpu_memory_utilization: float | None = None,
) -> Plan:
    """Add up the memory of a run, and say whether it fits.

    For training a LoRA or all weights, with completions sampled by transformers, unsloth, or vLLM on the same GPU: its
    share, and in standby (``config.vllm_enable_sleep_mode``) what it gives back.  A vLLM server's GPU is not counted.

    Args:
        policy: a loaded :class:`~rloo_kit.policy.policy.Policy` or PEFT model; or, with nothing loaded, a catalogue
            name, a folder of a checkpoint or an adapter, a hub id in the cache, or a ``Checkpoint``.
        config: an ``RLOOConfig``, or TRL's, or any object with such attributes; None takes the kit's defaults.
        card: a GPU's name ("rtx 3060 12GB", "t4", "8GB"), bytes, or None for this machine: its GPU, else its CPU.
        prompt_tokens: the longest prompt; None takes 512, or what max_seq_length leaves if that is less.
        lora_rank, load_in_4bit, gradient_checkpointing, full_finetuning, target_modules: as for ``load_policy``.  On a
            GPU the activations of a run that trains all weights are taken to be those of a LoRA.  A policy that is
            loaded on the kind of device that is planned for is counted as it is, byte by byte.
        fast_inference, gpu_memory_utilization: as for ``load_policy``; a loaded policy's engine says both itself, and
            in standby unsloth sets the share.

    Raises:
        ConfigError: an unknown GPU, or a length or batch out of range.
        PolicyNotFoundError: a name that is neither in the catalogue nor on this machine.
    """
    device = device_of(card)
    loaded, checkpoint, own = reading.taken_apart(policy)
    load_in_4bit = checkpoint.four_bit if load_in_4bit is None else load_in_4bit
    if full_finetuning:
        load_in_4bit, lora_rank = False, 0
    modules = PROJECTIONS if target_modules in (None, "all-linear") else target_modules
    asked = {"four_bit": load_in_4bit, "lora_rank": lora_rank, "checkpointing": gradient_checkpointing}
    asked["full_finetuning"] = full_finetuning
    found = reading.device_settings(device) | asked | own
    if loaded is not None and (where_computed(loaded).type != "cpu") == device.on_gpu:
        model, own = reading.loaded_model(loaded, checkpoint)
        found |= own
    else:
        model = model_of(checkpoint, found["lora_rank"], found["four_bit"], found["dtype_bytes"], modules)
    settings = settings_of(config, prompt_tokens, getattr(loaded, "max_seq_length", None))
    settings = dataclasses.replace(settings, **found)
    if not device.on_gpu and getattr(config, "gradient_checkpointing", False):
        # transformers' Trainer switches it on; on a GPU unsloth keeps to what the policy was loaded with.
        settings = dataclasses.replace(settings, checkpointing=settings.checkpointing or True)
    if device.on_gpu:
        found_engine = engine.of(device.usable_bytes, config, loaded, fast_inference, gpu_memory_utilization)
        settings = dataclasses.replace(settings, engine=found_engine)
    return Plan.of(model, settings, device)


def fit(
    card: str | float | Device | None = None,
    config: trl.RLOOConfig | None = None,
    *,
    prompt_tokens: int | None = None,
    lora_rank: int = Settings.lora_rank,
    load_in_4bit: bool = Settings.four_bit,
) -> Plan:
    """The largest Qwen3 of the catalogue that fits with the whole batch sampled at once, the fastest; where none does,
    the smallest with fewer at once, or else with a smaller generation batch.

    Args:
        card: as for :func:`plan`.
        config: as for :func:`plan`; None takes the kit's defaults with completions of :data:`FIT_COMPLETION_TOKENS`.
        prompt_tokens, lora_rank, load_in_4bit: as for :func:`plan`.

    Returns:
        Its plan: ``.model.checkpoint.name``, ``.settings``.  Where nothing fits, that of the smallest model, whose
        ``changes`` list what would.
    """
    device = device_of(card)
    settings = settings_of(config, prompt_tokens)
    if config is None:
        settings = dataclasses.replace(settings, completion_tokens=FIT_COMPLETION_TOKENS)
    loaded = {"lora_rank": lora_rank, "four_bit": load_in_4bit, **reading.device_settings(device)}
    settings = dataclasses.replace(settings, **loaded)
    plans = [
        Plan.of(model_of(found, lora_rank, load_in_4bit, settings.dtype_bytes), settings, device)
        for name, found in CATALOGUE.items()
        if name not in FOR_CPU
    ]
    asked, batch = settings.generation_rows, settings.batch_rows
    at_once = [planned for planned in reversed(plans) if asked or planned.sampled_rows == batch]
    fewer = [Plan.of(plans[0].model, smaller, device) for smaller in changes.generation_batches(settings)]
    return changes.first([*at_once, plans[0], *fewer], "fits") or plans[0]


def longest_completion(planned: Plan) -> int:
    """The most tokens a completion may have for the plan to fit, all else unchanged; 0 where none does.

    In steps of 64, up to 32,768 with the prompt, which Qwen3 was trained for.
    """
    low, high = 0, (32768 - planned.settings.prompt_tokens) // 64
    while low < high:
        middle = (low + high + 1) // 2
        longer = dataclasses.replace(planned.settings, completion_tokens=64 * middle)
        fits = Plan.of(planned.model, longer, planned.device).fits == "fits"
        low, high = (middle, high) if fits else (low, middle - 1)
    return 64 * low
