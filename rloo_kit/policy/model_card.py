"""The README.md of a saved policy: its base and licence, how the last run trained it, and its measured results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rloo_kit.policy.thinking import setting_of
from rloo_kit.redact import without_hidden
from rloo_kit.session.versions import STACK, version_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rewards import Audit
    from rloo_kit import Evaluation
    from rloo_kit.models import Checkpoint

CARD, TAG = "README.md", "rloo-kit"
OTHERS = ("generated_from_trainer", "[More Information Needed]")  # in TRL's cards; in PEFT's cards

Facts = Mapping[str, Mapping[str, object]]
"""Heading -> name -> value."""


def written(
    checkpoint: Checkpoint,
    form: str,
    results: Mapping[str, Evaluation] | None = None,
    audits: Iterable[Audit] = (),
    run: Facts | None = None,
) -> str:
    """Return the card as Markdown: the base, the saved form ("LoRA adapter"), how it was trained, and its results."""
    from huggingface_hub import ModelCardData

    name = checkpoint.repository
    on_hub = name.count("/") == 1 and not name.startswith(("/", ".", "~")) and not Path(name).exists()
    base = name if on_hub else Path(name).name  # paths are private
    data = ModelCardData(
        base_model=base if on_hub else None,
        license=checkpoint.license,
        library_name="peft" if "adapter" in form else "transformers",
        tags=["rloo", "reinforcement-learning", TAG],
    )
    lines = [f"---\n{data.to_yaml()}\n---\n", f"# {base}, by RLOO", ""]
    lines += [f"{form[0].upper()}{form[1:]} of {base}, trained with rloo-kit.", ""]
    lines += [f"Licence of the base: {checkpoint.license or 'see its own card'}.", ""]
    for heading, facts in (run or {}).items():
        lines += [f"## {heading}", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    for audit in audits:
        counts = f"{len(audit.exploits)} exploits, {len(audit.refusals)} right answers refused"
        lines += [f"Audit of {audit.name}: {counts}, of {len(audit.findings)} completions.", ""]
    if results:
        lines += ["## Results", "", "| | completions | accuracy, 95 % interval | reward, 95 % interval |"]
        lines += ["|---|---|---|---|"]
    for name, result in (results or {}).items():
        how = "greedy" if result.greedy else f"sampled, {result.samples} per prompt"
        numbers = " | ".join(str(number or "-") for number in (result.accuracy, result.reward))
        lines.append(f"| {name} | {len(result.completions)}, {how} | {numbers} |")
    versions = [f"{name} {version_of(name)}" for name in ("rloo-kit", *STACK)]
    return without_hidden("\n".join([*lines, "", f"Versions: {', '.join(versions)}.", ""]))


def remembered(model: object, tokenizer: PreTrainedTokenizerBase) -> Facts:
    """Return what the last trainer stored on the model, and the thinking setting if it is off or a budget."""
    facts, thinking = dict(getattr(model, "trained_by", {})), setting_of(tokenizer)
    if thinking is not True:
        means = f"a thought is closed with </think> after {thinking} tokens" if thinking else "off in every prompt"
        facts["Thinking"] = {"load_policy(thinking=...)": f"{thinking}: {means}"}
    return facts


def has_our_card(folder: Path) -> bool:
    return f"- {TAG}\n" in _text(folder)


def may_be_written(folder: Path) -> bool:
    """Whether a folder has no card, or one that the kit, TRL or PEFT wrote rather than the user."""
    text = _text(folder)
    return text == "" or any(mark in text for mark in (f"- {TAG}\n", *OTHERS))


def _text(folder: Path) -> str:
    card = folder / CARD
    return card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
