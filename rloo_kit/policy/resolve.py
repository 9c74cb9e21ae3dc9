"""What a policy's name stands for: an entry of the catalogue, a folder, or a repository of the hub.

It loads no weights.  Here is also all that is checked of a saved adapter.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.errors import ConfigError, NonFiniteError, PolicyNotFoundError, RLOOKitError
from rloo_kit.memory import cards
from rloo_kit.models import CATALOGUE, Checkpoint, checkpoint_from_config, find
from rloo_kit.policy.bundled import BUNDLED, made_here
from rloo_kit.session import output
from rloo_kit.session.prepare import within

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from rloo_kit.policy.load import Lora

ADAPTER_CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE = "base_model_name_or_path"
ANEW = "copy the folder anew, or take a run's checkpoint-N"
HUB_SECONDS = 9.0  # the hub's library itself retries for longer

OF_FILES = ["*.json", "adapter_model*", "*.jinja", "*.txt", "*.model"]
"""What an adapter's repository is read for: not its optimizer, nor a run's other checkpoints."""


@dataclass(frozen=True)
class Source:
    """What a name stands for."""

    path: str  # a folder or a hub id, for unsloth
    checkpoint: Checkpoint | None
    base: str  # folder or hub id of the weights: those below an adapter, else the path
    is_adapter: bool = False


def resolve(name: str | os.PathLike[str], four_bit: bool | None, token: str | None, **place: Any) -> Source:
    """The source of a name as ``load_policy`` takes it, else a PolicyNotFoundError; an adapter's files are fetched.

    ``place``: revision and cache_dir.
    """
    if name == "largest":
        name = cards.fit(load_in_4bit=four_bit is not False).model.checkpoint.name if _on_gpu() else "tiny"
    if expanded(name).is_dir():
        return _of_folder(str(expanded(name)))
    text = os.fspath(name)
    if text in BUNDLED:
        path = str(BUNDLED[text].checkpoint())
        return Source(path, CATALOGUE[text], path)
    if (checkpoint := find(text)) is not None:
        path = (checkpoint.four_bit_repository if four_bit is not False else None) or checkpoint.repository
        check_hub(path, token, **place)
        return Source(path, checkpoint, path)
    if isinstance(name, os.PathLike) or not _may_be_on_hub(text):
        what, where = (
            f"there is no policy and no folder {text!r}",
            f"load_policy, with {', '.join(CATALOGUE)}",
        )
        todo = f"{_did_you_mean(text)}give one of these names, a folder, or a hub id (owner/name)"
        raise PolicyNotFoundError(what, where=where, todo=todo)
    if not check_hub(text, token, **place):
        return Source(text, None, text)
    from huggingface_hub import snapshot_download

    with explained(text):
        files: dict[str, Any] = {"allow_patterns": OF_FILES, "ignore_patterns": "*/*"}
        return _of_folder(snapshot_download(text, token=token, **place, **files))


def first_run(four_bit: bool | None) -> tuple[str, bool | None]:
    """What ``load_policy()`` takes without a name, and whether it is to think."""
    return cards.first_run(load_in_4bit=four_bit is not False) if _on_gpu() else ("tiny", None)


def _on_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def expanded(name: str | os.PathLike[str]) -> Path:
    """A path as a user writes it, with "~"."""
    return Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser raises for an unknown user


def _may_be_on_hub(name: str) -> bool:
    return re.fullmatch(r"\w[\w.-]*/[\w.-]+", name) is not None


def _did_you_mean(name: str) -> str:
    beside = [path.name for path in expanded(name).absolute().parent.glob("*/")]
    wanted = name.lower().split("/")[-1]
    near = difflib.get_close_matches(wanted, [*CATALOGUE, *beside], cutoff=0.4)
    return f"did you mean {' or '.join(near)}? Else " if near and wanted not in near else ""


# --- folders and bases ------------------------------------------------------------------------------------


def _of_folder(folder: str) -> Source:
    base, is_adapter = base_named(folder), Path(folder, ADAPTER_CONFIG).is_file()
    if is_adapter and (made := made_here(base)):
        return Source(folder, CATALOGUE[made], str(BUNDLED[made].checkpoint()), True)
    what = todo = ""
    if not is_adapter and not Path(folder, "config.json").is_file():
        what = f"the folder holds neither a checkpoint nor an adapter: no config.json and no {ADAPTER_CONFIG}"
        todo = "give the folder that Policy.save or save_pretrained wrote, or a run's checkpoint-N inside it"
    elif not (base and Path(base).is_dir()) and not _may_be_on_hub(base):
        what = f"the base of the adapter is not on this machine: there is no folder {base!r}"
        todo = f"put the base there, or write its folder or hub id into {ADAPTER_CONFIG}, {BASE}"
    if what:
        raise PolicyNotFoundError(what, where=f"load_policy({folder!r})", todo=todo)
    return Source(folder, find(lasting_name(base)), base, is_adapter)


def read(file: Path) -> dict[str, Any]:
    """A configuration's JSON; a PolicyNotFoundError where it is none."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        what = f"{file.name} is not a JSON object in UTF-8: {error}"
        raise PolicyNotFoundError(what, where=f"load_policy, {file}", todo=ANEW) from error


def base_of(model: PeftModel | PreTrainedModel) -> str:
    """The folder or hub id of the weights below a LoRA, or of those that training began with."""
    config = getattr(model, "peft_config", {}).get("default")
    named = config and config.base_model_name_or_path
    return str(named or getattr(getattr(model, "config", None), "_name_or_path", ""))


def base_named(name: str) -> str:
    """The base of what ``load_policy(name)`` would load, as far as a folder on this machine says."""
    config = expanded(name) / ADAPTER_CONFIG
    return str(read(config).get(BASE) or "") if config.is_file() else str(expanded(name))


def lasting_name(base: str) -> str:
    """A base as an adapter is to name it: a folder in the hub's cache by its hub id, any other by its whole path."""
    if not Path(base).is_dir():
        return base
    whole = os.path.realpath(base)
    of_hub = re.search(r"models--([^/\\]+)--([^/\\]+)[/\\]snapshots[/\\]", whole)
    return "/".join(of_hub.groups()) if of_hub else whole


def checkpoint_of_model(model: PeftModel | PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Checkpoint:
    """The checkpoint that a loaded model is of: of the catalogue by its name, or by its config."""
    name = lasting_name(base_of(model))
    known = find(made_here(name) or name)
    return known or checkpoint_from_config(name, model.config, tokenizer.chat_template)


def trained_length(found: Source, further: Mapping[str, Any]) -> int | None:
    """Tokens that the base was trained for, if its config says so.  Works around: for a longer ``max_seq_length``
    unsloth rescales the position embedding on a GPU with only a warning, and the policy is a different one."""
    from transformers import AutoConfig

    names = ("token", "cache_dir", "trust_remote_code", *(() if found.is_adapter else ("revision",)))
    if found.is_adapter and not Path(found.base).is_dir():
        check_hub(found.base, further.get("token"), cache_dir=further.get("cache_dir"))
    config = AutoConfig.from_pretrained(found.base, **{n: further[n] for n in names if n in further})
    return getattr(config.get_text_config(), "max_position_embeddings", None)


# --- a saved adapter --------------------------------------------------------------------------------------


@contextlib.contextmanager
def portable(found: Source) -> Iterator[str]:
    """The path to load; for an adapter whose base another machine made, a copy that names this machine's."""
    if not found.is_adapter or base_named(found.path) == found.base:
        yield found.path
        return
    with tempfile.TemporaryDirectory(prefix="rloo-kit-") as scratch:
        copy = Path(scratch) / "adapter"
        shutil.copytree(found.path, copy, ignore=shutil.ignore_patterns("optimizer.pt"))
        config = {**read(copy / ADAPTER_CONFIG), BASE: found.base}
        (copy / ADAPTER_CONFIG).write_text(json.dumps(config), encoding="utf-8")
        yield str(copy)


def check_adapter(path: str, lora: Lora | None) -> set[str]:
    """Names of a saved adapter's matrices, which are whole and finite; a warning where it is not the LoRA asked for."""
    from safetensors import SafetensorError, safe_open

    if lora is None:
        what = "an adapter is a LoRA, and full_finetuning trains the weights below it"
        todo = "load_policy(that folder).save_merged('out/merged'), and train out/merged"
        raise ConfigError(what, where=f"load_policy({path!r}, full_finetuning=True)", todo=todo)
    own, names, where = read(Path(path) / ADAPTER_CONFIG), set(), f"load_policy({path!r}), {WEIGHTS}"
    asked: dict[str, tuple[object, object]] = {"r": (lora.rank, 16), "lora_alpha": (lora.alpha, lora.rank)}
    for name, (value, default) in (asked | {"use_rslora": (lora.rank_stabilised, False)}).items():
        if value not in (default, own.get(name, value)):
            output.warn(f"load_policy({path!r}): the saved adapter keeps its own {name}={own[name]}.")
    try:
        with safe_open(str(Path(path) / WEIGHTS), framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - no mapping
                weight = weights.get_tensor(name)
                if weight.is_floating_point() and not weight.isfinite().all():
                    what = f"the adapter has weights that are not finite, in {name}"
                    raise NonFiniteError(what, where=where, todo=ANEW)
                names.add(name)
    except (SafetensorError, OSError) as error:
        what = f"the adapter's weights cannot be read: {error}"
        todo = f"{ANEW}: the file is damaged or gone, or a pointer that git lfs pull replaces by it"
        raise PolicyNotFoundError(what, where=where, todo=todo) from error
    return {name for name in names if "lora_" in name}


def check_attached(model: PeftModel, saved: set[str], path: str) -> None:
    """Refuse a policy that got only some of the adapter's weights: PEFT warns of the missing, and drops the others."""
    from peft import get_peft_model_state_dict

    held = get_peft_model_state_dict(model, save_embedding_layers=False)
    wanted = {name for name in held if "lora_" in name}
    missing, unused = sorted(wanted - saved), sorted(saved - wanted)
    if missing or unused or not wanted:
        what = "the adapter's weights are not those of its configuration"
        what += f": {len(missing)} are missing, and {len(unused)} would be dropped"
        where = f"load_policy({path!r}), first {[*missing, *unused, 'its type is not LoRA'][0]}"
        raise PolicyNotFoundError(what, where=where, todo=ANEW)


# --- the hub ----------------------------------------------------------------------------------------------


def check_hub(
    repository: str, token: str | None, *, revision: str | None = None, cache_dir: str | Path | None = None
) -> bool:
    """Whether a repository of the hub, or of its cache, is an adapter.

    Raises:
        PolicyNotFoundError: neither has it, or the hub refuses or is not reached in 9 seconds.
    """
    from huggingface_hub import constants, model_info, try_to_load_from_cache
    from huggingface_hub.errors import OfflineModeIsEnabled

    for file in (ADAPTER_CONFIG, "config.json"):
        if isinstance(try_to_load_from_cache(repository, file, cache_dir, revision), str):
            return file == ADAPTER_CONFIG
    with explained(repository):
        if constants.HF_HUB_OFFLINE:
            raise OfflineModeIsEnabled
        how: dict[str, Any] = {"revision": revision, "timeout": HUB_SECONDS, "token": token}
        found = within(HUB_SECONDS, lambda: model_info(repository, **how))
    return ADAPTER_CONFIG in {file.rfilename for file in found.siblings or ()}


@contextlib.contextmanager
def explained(repository: str) -> Iterator[None]:
    """While inside, what the hub's library raises is a PolicyNotFoundError, in its words unless it is not reached."""
    import httpx
    from huggingface_hub import constants, errors

    silent = (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, httpx.TransportError, TimeoutError)
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause and not isinstance(cause, (*silent, httpx.HTTPError)):
            cause = cause.__cause__ or cause.__context__
        if cause is None or isinstance(error, RLOOKitError):
            raise
        what = f"{repository} cannot be loaded: {' '.join(str(cause).split())}"
        todo = f"look at {constants.ENDPOINT}/{repository}; a private or gated one needs HF_TOKEN in .env"
        if isinstance(cause, silent):
            what = f"{repository} is not in the hub's cache, or not whole, and the Hugging Face hub cannot be reached"
            todo = "connect and call prepare(offline=False) in a fresh kernel, or give load_policy a folder"
        where = f"load_policy; offline mode is {'on' if constants.HF_HUB_OFFLINE else 'off'}"
        raise PolicyNotFoundError(what, where=where, todo=_did_you_mean(repository) + todo) from error
