"""Say before a run whether it fits, and after it what it took.

For everybody with one consumer GPU: ``plan(policy, config)`` adds up the terms of :mod:`rloo_kit.footprint` by
phase, sets them against a card, and where they do not fit says what to change, cheapest in quality first.
``fit(card)`` turns the question round.  ``Plan.compare(trainer)`` sets what was measured beside it.  Arithmetic
alone: no weight is loaded, and for a card not even torch.  What a run does with its plan is in
:mod:`rloo_kit.out_of_memory`.
"""

from __future__ import annotations

import dataclasses
import html
import json
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rloo_kit import footprint, tables
from rloo_kit.catalogue import CATALOGUE, Card, card_from_config, find, nearest, nf4_bytes
from rloo_kit.devices import GIB, Device, device_of, where_computed
from rloo_kit.errors import ConfigError, PolicyNotFoundError
from rloo_kit.footprint import (
    CONTEXT,
    FRAGMENTATION,
    MIB,
    PARTS,
    PROCESSORS,
    Model,
    Settings,
    Step,
    lora_sizes,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rloo_kit.changes import Change

Verdict = Literal["fits", "tight", "does not fit"]

DEFAULT_PROMPT_TOKENS = 512
"""Length assumed for the longest prompt where nobody says: a word problem with a chat template has 100 to 300."""

FIT_COMPLETION_TOKENS = 1024
"""Completions that :func:`fit` leaves room for unless told: shorter ones cut a thinking model's thought."""


ESTIMATED = {footprint.KEPT, CONTEXT, FRAGMENTATION}
"""Parts that no formula gives."""

GREYS = ("0.35", "0.6", "0.85", "1.0")
HATCHES = ("", "///", "...", "xxx", "\\\\\\")


# --- the plan ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Plan:
    """Bytes of a run, by phase and part, before it begins.

    Attributes:
        model, settings: what it was computed from.
        device: what it is set against.
        phases: phase -> part -> bytes.
    """

    model: Model
    settings: Settings
    device: Device
    phases: dict[str, dict[str, int]]

    @classmethod
    def of(cls, model: Model, settings: Settings, device: Device) -> Plan:
        """The plan for a model and settings on a device."""
        return cls(model, settings, device, Step(model, settings).phases())

    @property
    def parts(self) -> dict[str, int]:
        """The most that each part takes in any phase, in bytes."""
        most = {part: max(found.get(part, 0) for found in self.phases.values()) for part in PARTS}
        return {part: size for part, size in most.items() if size}

    @property
    def totals(self) -> dict[str, int]:
        """Phase -> bytes."""
        return {name: sum(parts.values()) for name, parts in self.phases.items()}

    @property
    def peak_phase(self) -> str:
        """The phase that takes most."""
        return max(self.totals, key=lambda name: self.totals[name])

    @property
    def peak_bytes(self) -> int:
        """What the largest phase takes."""
        return self.totals[self.peak_phase]

    @property
    def estimated_bytes(self) -> int:
        """Those of the peak's bytes that are :data:`ESTIMATED`, and on a GPU one layer's activations, whose kernels
        were read but not run."""
        peak = self.phases[self.peak_phase]
        unsure = ESTIMATED | ({footprint.LAYER} if self.settings.on_gpu else set())
        return sum(size for part, size in peak.items() if part in unsure)

    @property
    def fits(self) -> Verdict:
        """ "does not fit" above the usable memory; "tight" where it would not if the estimated parts came out half
        as large again."""
        usable = self.device.usable_bytes
        if self.peak_bytes > usable:
            return "does not fit"
        return "tight" if self.peak_bytes + self.estimated_bytes // 2 > usable else "fits"

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """What would make it fit, in the order that costs least quality; empty where it fits.

        The generation batch first, which changes no update at all: it is cut, and gradients are gathered over more
        micro-batches.  Then the length of completions, then K, then the model.  Each value is the largest that
        fits, found by planning again.  While nothing was enough, a change comes with those before it at their
        smallest; after that, only where it is enough alone.
        """
        from rloo_kit import changes

        return () if self.fits == "fits" else tuple(changes.that_fit(self))

    @property
    def offloaded_bytes(self) -> int:
        """What "unsloth" checkpointing puts into the computer's own memory."""
        return Step(self.model, self.settings).offloaded

    def compare(self, trainer: Any) -> Any:
        """Set what a run took beside the plan.

        Args:
            trainer: an ``RLOOTrainer`` that has trained at least one step.  Phases are compared where its meter
                kept them: on a GPU always, on a CPU where ``trainer.memory`` is a ``Meter`` that counts tensors.

        Returns:
            :class:`rloo_kit.measure.Measured`, which prints as a table.
        """
        from rloo_kit import measure

        return measure.compare(self, trainer)

    # --- shown ----------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"Plan({self.model.card.name} on {self.device.name}: {self.summary})"

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        return f"{self.fits}: {self.takes}"

    @property
    def takes(self) -> str:
        """The peak, of what there is, and where it lies."""
        scale, unit = scale_of(self.peak_bytes)
        peak, usable = self.peak_bytes / scale, self.device.usable_bytes / scale
        return f"{peak:.2f} of {usable:.2f} {unit}, at its peak in {self.peak_phase}"

    @property
    def title(self) -> str:
        """What was planned, in two lines."""
        s, model = self.settings, self.model.card.name
        weights = "4 bit" if s.four_bit else f"{8 * s.dtype_bytes} bit"
        rows = f"{s.generation_rows} completions at once, {s.micro_rows} per pass"
        tokens = f"{s.prompt_tokens} + {s.completion_tokens} tokens"
        return (
            f"{model} in {weights}, LoRA rank {s.lora_rank}, on {self.device.name}\n"
            f"{rows}, {tokens}, K {s.group_size}, beta {s.beta:g}, {s.optimizer}"
        )

    def rows(self) -> list[list[str]]:
        """The table: a header, a row per part, and the totals; figures in :func:`scale_of`."""
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
        found = ["* an estimate"]
        if self.settings.on_gpu:
            found[0] += "; no figure has been measured on a GPU"
        if self.offloaded_bytes:
            found.append(
                f"{self.offloaded_bytes / GIB:.2f} GiB of activations go to the computer's own memory"
            )
        if self.changes:
            found.append("to make it fit, cheapest in quality first:")
            found += [f"  {number}. {change}" for number, change in enumerate(self.changes, 1)]
        elif self.fits != "fits":
            found.append("no model, batch or length of the catalogue fits")
        return found

    def __str__(self) -> str:
        table = tables.as_text(self.rows(), total=True)
        return "\n".join([self.title, "", table, "", self.summary, *self.notes])

    def _repr_html_(self) -> str:
        notes = "<br>".join(map(html.escape, [self.summary, *self.notes]))
        title = html.escape(self.title).replace("\n", "<br>")
        return f"<p>{title}</p>{tables.as_html(self.rows(), total=True)}<p>{notes}</p>"

    def picture(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """A stacked bar per phase, with the usable memory as a line; told apart by hatching, so it reads in grey.

        Args:
            path: where to save the PNG; None saves nothing.
        """
        from rloo_kit.plots import shown_figure

        caption = f"<memory plan, {self.summary}>"
        figure = shown_figure(caption, figsize=(8, 4.2), layout="constrained")
        _draw(figure.subplots(), self)
        if path is not None:
            figure.savefig(path, dpi=120)
        return figure


def scale_of(size: int) -> tuple[int, str]:
    """The unit for a size, in bytes and by name: GiB, or MiB below one."""
    return (GIB, "GiB") if size >= GIB else (MIB, "MiB")


def _draw(axis: Any, planned: Plan) -> None:
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


# --- planning ---------------------------------------------------------------------------------------------


def plan(
    policy: Any,
    config: Any = None,
    card: str | float | Device | None = None,
    *,
    prompt_tokens: int | None = None,
    lora_rank: int = 16,
    load_in_4bit: bool = True,
    gradient_checkpointing: bool | str = "unsloth",
) -> Plan:
    """Add up what a run will take, and say whether it fits.

    For training a LoRA, with completions sampled by transformers or unsloth; what a vLLM engine takes is not counted.

    Args:
        policy: a loaded :class:`~rloo_kit.models.Policy` or PEFT model; or, with nothing loaded, a catalogue name,
            a folder of a checkpoint or an adapter, a hub id in the cache, or a ``Card``.
        config: an ``RLOOConfig``, or TRL's, or any object with such attributes; None takes the kit's defaults.
        card: a name ("rtx 3060 12GB", "t4", "8GB"), bytes, or None for this machine: its GPU, else its CPU.
        prompt_tokens: the longest prompt; None takes 512, or what max_seq_length leaves if that is less.
        lora_rank, load_in_4bit, gradient_checkpointing: as for ``load_policy``.  A policy loaded on the kind of
            device that is planned for counts itself instead, byte by byte.

    Raises:
        ConfigError: a card or a model without a known shape, or a length or batch out of range.
        PolicyNotFoundError: a name that is neither in the catalogue nor on this machine.
    """
    device = device_of(card)
    loaded = getattr(policy, "model", policy)
    is_here = hasattr(loaded, "named_parameters") and _is_on(loaded, device)
    if is_here:
        model, own = _loaded_model(loaded, _card_of_loaded(policy))
    else:
        own = {"four_bit": load_in_4bit, "lora_rank": lora_rank, "checkpointing": gradient_checkpointing}
        own |= _adapter_settings(policy)
        own["dtype_bytes"] = 2 if device.on_gpu else _cpu_dtype_bytes()
        model = model_of(_card_of_any(policy), own["lora_rank"], load_in_4bit, own["dtype_bytes"])
    settings = settings_of(config, prompt_tokens, getattr(loaded, "max_seq_length", None))
    settings = dataclasses.replace(settings, **own, **_device_settings(device))
    if not device.on_gpu and getattr(config, "gradient_checkpointing", False):
        # transformers' Trainer switches it on; on a GPU unsloth keeps to what the policy was loaded with.
        settings = dataclasses.replace(settings, checkpointing=settings.checkpointing or True)
    return Plan.of(model, settings, device)


def fit(
    card: str | float | Device | None = None,
    config: Any = None,
    *,
    prompt_tokens: int | None = None,
    lora_rank: int = 16,
    load_in_4bit: bool = True,
) -> Plan:
    """The largest Qwen3 of the catalogue that fits with these settings; where none does, the smallest with the
    largest generation batch that fits.

    Args:
        card: as for :func:`plan`.
        config: as for :func:`plan`; None takes the kit's defaults with completions of
            :data:`FIT_COMPLETION_TOKENS`.
        prompt_tokens, lora_rank, load_in_4bit: as for :func:`plan`.

    Returns:
        Its plan: ``.model.card.name``, ``.settings``.  Where nothing fits at all, that of the smallest model, whose
        ``changes`` say what would.
    """
    from rloo_kit import changes

    device = device_of(card)
    settings = settings_of(config, prompt_tokens, None)
    if config is None:
        settings = dataclasses.replace(settings, completion_tokens=FIT_COMPLETION_TOKENS)
    settings = dataclasses.replace(
        settings, lora_rank=lora_rank, four_bit=load_in_4bit, **_device_settings(device)
    )
    if not device.on_gpu:
        settings = dataclasses.replace(settings, dtype_bytes=_cpu_dtype_bytes())
    plans = [
        Plan.of(model_of(found, lora_rank, load_in_4bit, settings.dtype_bytes), settings, device)
        for name, found in CATALOGUE.items()
        if name != "tiny"
    ]
    fewer = [Plan.of(plans[0].model, smaller, device) for smaller in changes.generation_batches(settings)]
    return changes.first([*reversed(plans), *fewer], "fits") or plans[0]


def longest_completion(planned: Plan) -> int:
    """The most tokens a completion may have for the plan to fit, all else as it is; 0 where none does.

    In steps of 64, up to what Qwen3 was trained for, 32,768 with the prompt.
    """
    low, high = 0, (32768 - planned.settings.prompt_tokens) // 64
    while low < high:
        middle = (low + high + 1) // 2
        longer = dataclasses.replace(planned.settings, completion_tokens=64 * middle)
        fits = Plan.of(planned.model, longer, planned.device).fits == "fits"
        low, high = (middle, high) if fits else (low, middle - 1)
    return 64 * low


def settings_of(config: Any, prompt_tokens: int | None = None, max_seq_length: int | None = None) -> Settings:
    """What of a configuration decides about memory.

    Raises:
        ConfigError: a length or batch below 1.
    """
    default = Settings()

    def read(name: str, otherwise: Any) -> Any:
        value = getattr(config, name, None)
        return otherwise if value is None else value

    completion = int(read("max_completion_length", default.completion_tokens))
    if prompt_tokens is None:
        room = max_seq_length - completion if max_seq_length else DEFAULT_PROMPT_TOKENS
        prompt_tokens = max(1, min(DEFAULT_PROMPT_TOKENS, room))
    micro = int(read("per_device_train_batch_size", default.micro_rows))
    accumulation = int(read("gradient_accumulation_steps", default.accumulation))
    optimizer = read("optim", default.optimizer)
    fast = bool(getattr(config, "fast_sampling", config is None)) and not getattr(
        config, "generation_kwargs", None
    )
    idle = {"repetition_penalty": 1.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    asked = getattr(config, "generation_kwargs", None) or {}
    settings = Settings(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion,
        group_size=int(read("num_generations", default.group_size)),
        micro_rows=micro,
        generation_rows=micro * int(read("steps_per_generation", accumulation)),
        accumulation=accumulation,
        iterations=int(read("num_iterations", default.iterations)),
        beta=float(read("beta", default.beta)),
        fast_sampling=fast,
        processors=tuple(
            name for name in PROCESSORS if asked.get(name, read(name, idle[name])) != idle[name]
        ),
        single_pass=bool(getattr(config, "single_pass", config is None)),
        optimizer=str(getattr(optimizer, "value", optimizer)),
    )
    for name in ("prompt_tokens", "completion_tokens", "group_size", "micro_rows", "generation_rows"):
        if getattr(settings, name) < 1:
            raise ConfigError(
                f"{name} must be at least 1",
                where=f"plan, {name}={getattr(settings, name)}",
                todo="look at the lengths and batches of the configuration",
            )
    return settings


def model_of(card: Card, lora_rank: int, four_bit: bool, dtype_bytes: int = 2) -> Model:
    """A checkpoint's bytes from its shape.

    Unsloth's 4-bit repositories keep some projections in 16 bit.  Which ones stands in their config.json; where that
    is in the hub's cache they are counted, elsewhere :data:`rloo_kit.footprint.KEPT_SHARE` stands for them.
    """
    linear, rest = card.linear_bytes(four_bit, dtype_bytes), card.rest_parameters * dtype_bytes
    kept = 0
    if four_bit and card.four_bit_repository:
        config = _config_file(card.four_bit_repository)
        if config is None:
            kept = int(footprint.KEPT_SHARE * (linear + rest))
        else:
            shapes = [card.projections[name] for name in _kept_in_16_bit(card, config)]
            linear += sum(2 * rows * columns - nf4_bytes(rows * columns) for rows, columns in shapes)
    return Model(card, linear, rest, lora_sizes(card, lora_rank), kept)


def _kept_in_16_bit(card: Card, config: Path) -> list[str]:
    """The projections, an entry per layer, that a 4-bit checkpoint's config.json leaves unquantised."""
    quantization = json.loads(config.read_text()).get("quantization_config") or {}
    skipped = [f"{name}." for name in quantization.get("llm_int8_skip_modules") or [] if "layers." in name]
    mlp = ("gate_proj", "up_proj", "down_proj")
    found = []
    for layer in range(card.layers):
        for name in card.projections:
            full = f"model.layers.{layer}.{'mlp' if name in mlp else 'self_attn'}.{name}."
            found += [name] if any(full.startswith(part) for part in skipped) else []
    return found


def _is_on(model: Any, device: Device) -> bool:
    return (where_computed(model).type != "cpu") == device.on_gpu


def _loaded_model(model: Any, card: Card) -> tuple[Model, dict[str, Any]]:
    """A loaded model's real bytes, and the settings that are its own."""
    from rloo_kit import measure

    trained = [p for name, p in model.named_parameters() if measure.is_lora(name) and ".ref." not in name]
    linear, rest = measure.weight_bytes(model)
    own = {
        "four_bit": measure.is_four_bit(model),
        "lora_rank": getattr(getattr(model, "peft_config", {}).get("default"), "r", 0),
        "checkpointing": measure.checkpointing_of(model),
        "dtype_bytes": model.get_input_embeddings().weight.element_size(),
        # The trainer takes a fresh LoRA's base for the reference, and copies one that was trained before.
        "reference_copy": measure.is_trained(model),
    }
    return Model(card, linear, rest, tuple(p.numel() for p in trained)), own


def _card_of_any(policy: Any) -> Card:
    if isinstance(policy, Card):
        return policy
    return card_of(policy) if isinstance(policy, str | os.PathLike) else _card_of_loaded(policy)


def _card_of_loaded(policy: Any) -> Card:
    """The shape of a policy, or of a bare model."""
    own = getattr(policy, "card", None)
    if own is not None:
        return own
    name = str(getattr(policy, "name_or_path", "model"))
    # Tables are stored with notebooks, and whose folders they were is nobody's business.
    return card_from_config(Path(name).name if Path(name).is_dir() else name, policy.config, None)


def _adapter_settings(policy: Any) -> dict[str, Any]:
    """The settings of a saved adapter: its rank, and that the reference will be a copy of it."""
    config = _adapter_config(policy)
    return {"lora_rank": config["r"], "reference_copy": True} if config else {}


def _adapter_config(policy: Any) -> dict[str, Any]:
    file = Path(policy) / "adapter_config.json" if isinstance(policy, str | os.PathLike) else None
    return json.loads(file.read_text()) if file and file.is_file() else {}


def card_of(name: str | os.PathLike[str]) -> Card:
    """The shape behind a name: the catalogue, a folder, or the hub's cache; nothing is downloaded.

    Raises:
        PolicyNotFoundError: none of them has it.
    """
    adapter = _adapter_config(name)
    if adapter:
        return card_of(adapter["base_model_name_or_path"])
    text = os.fspath(name)
    found = find(text)
    if found is not None:
        return found
    file = _config_file(text)
    if file is None:
        raise PolicyNotFoundError(
            f"no shape is known for {text!r}",
            where="plan, which looks into the catalogue, folders and the hub's cache, and downloads nothing",
            todo=f"did you mean {' or '.join(nearest(text))}? Otherwise load it once and plan with the policy",
        )
    from transformers import AutoConfig

    return card_from_config(text, AutoConfig.from_pretrained(file.parent), None)


def _config_file(name: str) -> Path | None:
    """The config.json of a folder, or of a repository in the hub's cache."""
    folder = Path(name)
    if folder.is_dir():
        return folder / "config.json" if (folder / "config.json").is_file() else None
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(name, "config.json")
    return Path(cached) if isinstance(cached, str) else None


def _device_settings(device: Device) -> dict[str, Any]:
    """The settings that are the device's, whatever the policy.

    rloo_kit.environment sets the tile's size when unsloth is imported; unsloth reads it at every call.
    """
    tile = int(os.environ.get("UNSLOTH_CPU_CE_CHUNK_ELEMENTS", Settings.cpu_tile_logits))
    return {
        "on_gpu": device.on_gpu,
        "small_card": device.usable_bytes <= 24.5 * GIB,
        "cpu_tile_logits": tile,
    }


def _cpu_dtype_bytes() -> int:
    """Unsloth's CPU path computes in bfloat16 where the processor has it, else in float32."""
    from rloo_kit import environment

    return 2 if environment.import_unsloth().is_bfloat16_supported() else 4
