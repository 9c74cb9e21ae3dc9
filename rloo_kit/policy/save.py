"""Write a policy's weights, tokenizer and card into a folder: whole or not at all, and over nothing that is needed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.errors import ConfigError, NonFiniteError, RLOOKitError, RunFolderError
from rloo_kit.policy import model_card
from rloo_kit.policy.model_card import CARD
from rloo_kit.policy.resolve import ADAPTER_CONFIG, expanded
from rloo_kit.session import processes
from rloo_kit.session.output import without_bars

if TYPE_CHECKING:
    import torch

    from rloo_kit.policy.model_card import Facts
    from rloo_kit.policy.policy import Policy

ADAPTER = (
    r"adapter_config\.json|adapter_model\.(safetensors|bin)|README\.md|chat_template\.jinja|\.DS_Store"
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json|merges\.txt"
)
WHOLE = ADAPTER + r"|(generation_)?config\.json|model(-\d+-of-\d+)?\.safetensors(\.index\.json)?"
"""What an earlier save may have left, the second beside a card of the kit's; anything else is the user's."""

Weights = Callable[[Path], "Facts"]


def check_target(target: Path, where: str, base: str = "", adapter: bool | None = None) -> None:
    """Refuse a place where a save would delete what the kit did not write, or what the policy still needs.

    Args:
        target: with every link followed.
        where: of the error.
        base: folder or hub id of the policy's base.  A folder that has a hub id's name would be read in its place.
        adapter: whether an adapter is saved, or a whole checkpoint; each replaces its like alone.  None where that is
            not known yet.

    Raises:
        ConfigError: no folder, the working directory, the base, or a folder that holds anything else.
    """
    names = {path.name for path in target.iterdir()} - {".DS_Store"} if target.is_dir() else set()
    is_adapter = ADAPTER_CONFIG in names and adapter is not False
    is_whole = model_card.is_ours(target) and ADAPTER_CONFIG not in names and not adapter
    known = WHOLE if is_whole else ADAPTER if is_adapter else ""
    more = sorted(name for name in names if not re.fullmatch(known, name) or (target / name).is_dir())
    if target.exists() and not target.is_dir():  # /dev/null is no file, and would be replaced
        fault = "it is a file or a device, and would be replaced by a folder"
    elif target == Path.cwd():
        fault = "it is the folder in which this process works"
    elif base and target == Path(os.path.realpath(base)):
        fault = "the policy's own base is there, and would be replaced"
    elif more:
        beside = adapter is not False or ADAPTER_CONFIG not in names
        fault = "the folder holds more than an adapter" if beside else "an adapter is there"
        fault += f", and would be replaced: {', '.join(more[:3])}"
    else:
        return
    raise ConfigError(fault, where=where, todo="name a folder of its own, such as out/adapter")


@contextlib.contextmanager
def replacing(target: Path, where: str) -> Iterator[Path]:
    """A place to write into, which then takes the target's place; what was there stays until all is written.

    Raises:
        RunFolderError: it cannot be written: a full disk, or one that is read-only.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
            fresh, old = Path(scratch) / "adapter", Path(scratch) / "old"
            yield fresh
            try:
                if target.exists():
                    target.replace(old)
                fresh.replace(target)
            finally:
                if old.exists() and not target.exists():
                    old.replace(target)
    except Exception as error:
        # safetensors and tokenizers write in Rust, and have errors of their own for a full disk.
        of_disk = isinstance(error, OSError) or "os error" in str(error)
        if isinstance(error, RLOOKitError) or not of_disk:
            raise
        kept = "; what was there before is as it was" if target.exists() else ""
        what = f"the adapter cannot be written: {error}{kept}"
        todo = "make room, or name a folder that this user can write to; the policy is still in memory"
        raise RunFolderError(what, where=where, todo=todo) from error


def check_finite(model: torch.nn.Module, where: str, todo: Callable[[], str]) -> None:
    """Refuse a model with a trained weight, or one of its LoRA, that is NaN or infinite.

    Args:
        model: looked at as far as this process holds it.
        where, todo: of the error; the second is called where there is one.

    Raises:
        NonFiniteError: with how many tensors, and the first of them.
    """
    import torch

    # Of a parameter that ZeRO-3 has cut, this process's part.
    held = {name: getattr(p, "ds_tensor", p).detach() for name, p in _trained(model)}
    held = {name: p for name, p in held.items() if p.is_floating_point() and p.numel()}
    # One number for all, and the second look where that overflows.
    if not held or torch.nn.utils.get_total_norm(list(held.values())).isfinite():
        return
    if bad := [name for name, weight in held.items() if not weight.isfinite().all()]:
        what = f"{len(bad)} of {len(held)} trained tensors are not finite, and they are not saved"
        raise NonFiniteError(what, where=f"{where}, first {bad[0]}", todo=todo())


def _trained(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad or "lora_" in name]


@contextlib.contextmanager
def gathered(model: torch.nn.Module) -> Iterator[None]:
    """What ZeRO-3 has cut is whole while inside; all processes enter it, and wait for each other at the end.  FSDP's
    policies are saved by the trainer."""
    import torch

    with contextlib.ExitStack() as stack:
        if shards := [p for _, p in _trained(model) if hasattr(p, "ds_id")]:
            import deepspeed

            stack.enter_context(deepspeed.zero.GatheredParameters(shards))
        yield
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()


def write(
    policy: Policy, folder: str | os.PathLike[str], where: str, form: str, weights: Weights, **said: Any
) -> Path:
    """Weights, tokenizer and card into a folder that takes the named one's place when all is written.

    ``weights`` writes them into a folder and gives what the card is to say of that; ``said`` are results and audits.

    Raises:
        ConfigError, NonFiniteError, RunFolderError: as :meth:`rloo_kit.Policy.save`.
    """
    named = expanded(folder)
    target, where = Path(os.path.realpath(named)), f"{where}({os.fspath(folder)!r})"
    check_finite(policy.model, where, lambda: "save from before, or load it anew")
    with gathered(policy.model):
        if processes.is_main():
            check_target(target, where, policy.base, adapter="adapter" in form)
            with replacing(target, where) as fresh, without_bars():
                facts = {**model_card.remembered(policy.model), **weights(fresh)}
                policy.tokenizer.save_pretrained(str(fresh))
                if model_card.may_be_written(target):
                    text = model_card.written(policy.checkpoint, form, run=facts, **said)
                    (fresh / CARD).write_text(text, encoding="utf-8")
                else:  # the user's own
                    shutil.copy2(target / CARD, fresh / CARD)
    return named


def write_own(policy: Policy, place: Path) -> Facts:
    """The adapter, without the trainer's "ref", which PEFT would write too; or all weights where all were trained."""
    chosen = {"selected_adapters": ["default"]} if policy.has_lora else {}
    policy.model.save_pretrained(str(place), **chosen)
    return {}
