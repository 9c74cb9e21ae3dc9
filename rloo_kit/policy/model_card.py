"""The README.md of what is saved: base, licence, the run's facts, results, audits of the rewards, versions.

What was measured, the user gives; how it was trained, the model remembers.  What is not known is not mentioned.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rloo_kit.redact import without_hidden
from rloo_kit.session.versions import TESTED, version_of

if TYPE_CHECKING:
    from rewards import Audit
    from rloo_kit import Evaluation
    from rloo_kit.models import Checkpoint

CARD, TAG = "README.md", "rloo-kit"
"""The card's file, and the tag in it by which a folder is known as one of the kit's."""

NOT_FILLED_IN = "[More Information Needed]"
"""What PEFT's template is full of."""

Facts = Mapping[str, Mapping[str, object]]
"""What a trainer tells of a run: heading -> name -> value."""

KINDS = {"exploit": "exploits", "refusal": "right answers refused", "error": "errors"}


def written(
    checkpoint: Checkpoint,
    form: str,
    results: Mapping[str, Evaluation] | None = None,
    audits: Iterable[Audit] = (),
    run: Facts | None = None,
) -> str:
    """The card, as Markdown with the hub's front matter: of the base, what is in the folder ("LoRA adapter"),
    evaluations by name, audits of the rewards, and how it was trained."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        base_model=checkpoint.repository if _is_hub_id(checkpoint.repository) else None,
        library_name="peft" if "adapter" in form else "transformers",
        license=checkpoint.license,
        pipeline_tag="text-generation",
        tags=["rloo", "reinforcement-learning", TAG],
    )
    lines = [f"---\n{data.to_yaml()}\n---\n", f"# {shown(checkpoint.name)}, by RLOO", ""]
    lines += [f"{form[0].upper()}{form[1:]} of {shown(checkpoint.repository)}, trained with rloo-kit.", ""]
    lines += [f"Licence of the base: {checkpoint.license or 'see its own card'}.", ""]
    for heading, facts in (run or {}).items():
        lines += [f"## {heading}", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    if verdicts := [_verdict(audit) for audit in audits]:
        lines += ["## Audits of the rewards", "", *verdicts, ""]
    if results:
        lines += ["## Results", "", *_results(results), ""]
    versions = [f"{name} {version_of(name)}" for name in ("rloo-kit", *TESTED)]
    lines += ["## Versions", "", ", ".join(versions), ""]
    return without_hidden("\n".join(lines))


def remembered(model: object) -> Facts:
    """What the trainer told the model of the last run that trained it; empty for one that was not trained here."""
    found: Facts = getattr(model, "trained_by", {})
    return found


def is_ours(folder: Path) -> bool:
    """Whether the kit wrote a folder, by its card."""
    card = folder / CARD
    return card.is_file() and f"- {TAG}\n" in card.read_text(encoding="utf-8", errors="replace")


def may_be_written(folder: Path) -> bool:
    """Whether a folder has no card, or one by the kit, by TRL or by PEFT, and not the user's."""
    card = folder / CARD
    if not card.is_file():
        return not os.path.lexists(card)
    text = card.read_text(encoding="utf-8", errors="replace")
    return is_ours(folder) or "generated_from_trainer" in text or NOT_FILLED_IN in text


def shown(name: str) -> str:
    """A hub id or a name; of a folder its last part, since paths are private."""
    return name if _is_hub_id(name) else Path(name).name


def _is_hub_id(name: str) -> bool:
    return name.count("/") == 1 and name[0] not in "./~" and not Path(name).exists()


def _verdict(audit: Audit) -> str:
    counts = [f"{len(audit.of(kind))} {word}" for kind, word in KINDS.items()]
    return f"- {audit.name}: {', '.join(counts)}, of {len(audit.findings)} completions"


def _results(results: Mapping[str, Evaluation]) -> list[str]:
    rows = ["| | completions | accuracy, 95 % interval | reward, 95 % interval |", "|---|---|---|---|"]
    for name, found in results.items():
        how = "greedy" if found.greedy else f"sampled, {found.samples} per prompt"
        numbers = [str(one) if one else "-" for one in (found.accuracy, found.reward)]
        rows.append(f"| {name} | {len(found.completions)}, {how} | {' | '.join(numbers)} |")
    return rows
