"""Find a policy by its name: a catalogue entry, a folder, or a hub repository.

It loads no model.  All checks of a saved adapter are here too.
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

from rloo_kit import models
from rloo_kit.errors import ConfigError, NonFiniteError, PolicyNotFoundError, RLOOKitError
from rloo_kit.models import CATALOGUE, Checkpoint, find, is_folder, lasting_name, of_base
from rloo_kit.policy.bundled import BUNDLED
from rloo_kit.session import output
from rloo_kit.session.prepare import HUB_SECONDS, within

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ADAPTER_CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE = "base_model_name_or_path"
ANEW = "copy the folder again, or take a run's checkpoint-N"

OF_FILES = ["*.json", "adapter_model*", "*.jinja", "*.txt", "*.model"]
"""Files to download from an adapter's repository: not its optimizer, nor a run's other checkpoints."""

Place = str | os.PathLike[str]


@dataclass(frozen=True)
class Source:
    path: str  # a folder or a hub id, for unsloth
    checkpoint: Checkpoint | None
    base: str  # folder or hub id of the base weights: below an adapter its base, else the path
    is_adapter: bool = False


def resolve(name: Place, four_bit: bool | None, token: str | None = None, **place: Any) -> Source:
    """Return the source for a name as ``load_policy`` takes it, and download an adapter's files.

    ``place``: revision and cache_dir.  Raises PolicyNotFoundError if the name leads to no policy.
    """
    text = os.fspath(name)
    if is_folder(text, expanded(name)):
        return _of_folder(str(expanded(name)))
    if (own := text.lower()) in BUNDLED:  # not its hub id, which names other weights
        path = str(BUNDLED[own].checkpoint())
        return Source(path, CATALOGUE[own], path)
    if (checkpoint := find(text)) is not None:
        path = (checkpoint.four_bit_repository if four_bit is not False else None) or checkpoint.repository
        check_hub(path, token, **place)
        return Source(path, checkpoint, path)
    if isinstance(name, os.PathLike) or not _may_be_on_hub(text):
        what, todo = f"there is no policy and no folder {text!r}", "give a folder, or a hub id (owner/name)"
        where = f"load_policy, with {', '.join(CATALOGUE)}"
        near = _nearest_folder(text) or f"did you mean {models.nearest(text)[0]}? Else {todo}"
        raise PolicyNotFoundError(what, where=where, todo=near)
    if not check_hub(text, token, **place):
        return Source(text, None, text)
    from huggingface_hub import snapshot_download

    with hub_explained(text):
        files: dict[str, Any] = {"allow_patterns": OF_FILES, "ignore_patterns": "*/*"}
        return _of_folder(snapshot_download(text, token=token, **place, **files))


def _nearest_folder(name: str) -> str:
    folder = Path(name)
    beside = [one.name for one in folder.parent.glob("*/")] if os.sep in name else []
    near = difflib.get_close_matches(folder.name, beside, n=1)
    return f"did you mean {folder.with_name(near[0])}?" if near else ""


def expanded(name: Place) -> Path:
    """Expand "~" in a path that a user wrote."""
    return Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser raises for an unknown user


def _may_be_on_hub(name: str) -> bool:
    return re.fullmatch(r"\w[\w.-]*/[\w.-]+", name) is not None


def bundled_at(checkpoint: Checkpoint, base: str) -> str:
    """Return the folder of the bundled weights that a base stands for; "" if none, or if the base is a hub id."""
    own = None if _may_be_on_hub(base) else BUNDLED.get(checkpoint.name)
    return str(own.checkpoint()) if own else ""


def _of_folder(folder: str) -> Source:
    base, is_adapter = base_named(folder), Path(folder, ADAPTER_CONFIG).is_file()
    known = of_base(base)
    if is_adapter and known and (own := bundled_at(known, base)):
        return Source(folder, known, own, True)
    what = todo = ""
    if not is_adapter and not Path(folder, "config.json").is_file():
        what = f"the folder holds neither a checkpoint nor an adapter: no config.json and no {ADAPTER_CONFIG}"
        todo = "give the folder that Policy.save or save_pretrained wrote, or a run's checkpoint-N inside it"
    elif not (base and Path(base).is_dir()) and not _may_be_on_hub(base):
        what = f"the base of the adapter is not on this machine: there is no folder {base!r}"
        todo = f"put the base there, or write its folder or hub id into {ADAPTER_CONFIG}, {BASE}"
    if what:
        raise PolicyNotFoundError(what, where=f"load_policy({folder!r})", todo=todo)
    return Source(folder, known, base, is_adapter)


def read(file: Path) -> dict[str, Any]:
    """Read a configuration's JSON; raise PolicyNotFoundError if it is no JSON object."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        what = f"{file.name} is not a JSON object in UTF-8: {error}"
        raise PolicyNotFoundError(what, where=f"load_policy, {file}", todo=ANEW) from error


def base_of(model: PeftModel | PreTrainedModel) -> str:
    """Return the folder or hub id of the weights below a LoRA, or of the weights that full training began with."""
    config = getattr(model, "peft_config", {}).get("default")
    named = config and config.base_model_name_or_path
    return str(named or getattr(getattr(model, "config", None), "_name_or_path", ""))


def base_named(name: Place) -> str:
    """Return the base that a local adapter folder names; for any other name, the name itself as a path."""
    config = expanded(name) / ADAPTER_CONFIG
    return str(read(config).get(BASE) or "") if config.is_file() else str(expanded(name))


def checkpoint_of_model(model: PeftModel | PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Checkpoint:
    """Return a loaded model's checkpoint: the catalogue's entry for its base, else one made from its config."""
    base = base_of(model)
    known = of_base(base) or models.trained_from(vars(model.config), base)
    return known or models.checkpoint_from_config(lasting_name(base), model.config, tokenizer.chat_template)


def trained_length(source: Source, further: Mapping[str, Any]) -> int | None:
    """Return the base's trained length in tokens, if its config has it.  Works around: for a longer ``max_seq_length``
    unsloth rescales the position embedding on a GPU with only a warning, which changes the policy."""
    from transformers import AutoConfig

    names = ("token", "cache_dir", "trust_remote_code", *(() if source.is_adapter else ("revision",)))
    config = AutoConfig.from_pretrained(source.base, **{n: further[n] for n in names if n in further})
    return getattr(config.get_text_config(), "max_position_embeddings", None)


@contextlib.contextmanager
def portable(source: Source) -> Iterator[str]:
    """Yield the path to load; if an adapter names another machine's base, a copy that names this machine's."""
    if not source.is_adapter or base_named(source.path) == source.base:
        yield source.path
        return
    with tempfile.TemporaryDirectory(prefix="rloo-kit-") as scratch:
        copy = Path(scratch) / "adapter"
        shutil.copytree(source.path, copy, ignore=shutil.ignore_patterns("optimizer.pt"))
        config = {**read(copy / ADAPTER_CONFIG), BASE: source.base}
        (copy / ADAPTER_CONFIG).write_text(json.dumps(config), encoding="utf-8")
        yield str(copy)


def check_adapter(path: str, lora: Mapping[str, Any] | None) -> set[str]:
    """Check that a saved adapter is whole and finite, warn if it is not the LoRA asked for; return its matrix names."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if lora is None:
        what = "an adapter is a LoRA, and full_finetuning trains the weights below it"
        todo = "load_policy(that folder).save_merged('out/merged'), and train out/merged"
        raise ConfigError(what, where=f"load_policy({path!r}, full_finetuning=True)", todo=todo)
    own, where = read(Path(path) / ADAPTER_CONFIG), f"load_policy({path!r}), {WEIGHTS}"
    for name, default in {"r": 16, "lora_alpha": lora["r"], "use_rslora": False}.items():
        if lora[name] not in (default, own.get(name, lora[name])):
            output.warn(f"load_policy({path!r}): the saved adapter keeps its own {name}={own[name]}.")
    try:
        weights = load_file(Path(path) / WEIGHTS)
    except (SafetensorError, OSError) as error:
        what = f"the adapter's weights cannot be read: {error}"
        todo = f"{ANEW}: the file is damaged or missing, or a git-lfs pointer (git lfs pull)"
        if Path(path, old := "adapter_model.bin").is_file():
            todo = f"convert {old}: safetensors.torch.save_file(torch.load({old!r}, weights_only=True), {WEIGHTS!r})"
        raise PolicyNotFoundError(what, where=where, todo=todo) from error
    if bad := [name for name, weight in weights.items() if not weight.isfinite().all()]:
        what = f"the adapter has weights that are not finite, in {bad[0]}"
        raise NonFiniteError(what, where=where, todo=ANEW)
    return {name for name in weights if "lora_" in name}


def check_attached(model: PeftModel, saved: set[str], path: str) -> None:
    """Refuse a policy that got only some of the adapter's weights: PEFT warns of missing ones and drops others."""
    from peft import get_peft_model_state_dict

    attached = {n for n in get_peft_model_state_dict(model, save_embedding_layers=False) if "lora_" in n}
    missing, unused = sorted(attached - saved), sorted(saved - attached)
    if missing or unused or not attached:
        what = "the adapter's weights do not match its configuration"
        what += f": {len(missing)} are missing, and {len(unused)} would be dropped"
        where = f"load_policy({path!r}), first {[*missing, *unused, 'its type is not LoRA'][0]}"
        raise PolicyNotFoundError(what, where=where, todo=ANEW)


def check_hub(
    repository: str, token: str | None, *, revision: str | None = None, cache_dir: str | Path | None = None
) -> bool:
    """Whether a repository on the hub, or in its local cache, is an adapter.

    Raises:
        PolicyNotFoundError: neither has it, or the hub refuses or does not answer within 9 seconds.
    """
    from huggingface_hub import model_info, try_to_load_from_cache

    for file in (ADAPTER_CONFIG, "config.json"):
        if isinstance(try_to_load_from_cache(repository, file, cache_dir, revision), str):
            return file == ADAPTER_CONFIG
    with hub_explained(repository):
        how: dict[str, Any] = {"revision": revision, "timeout": HUB_SECONDS, "token": token}
        info = within(HUB_SECONDS, lambda: model_info(repository, **how))
    return ADAPTER_CONFIG in {file.rfilename for file in info.siblings or ()}


@contextlib.contextmanager
def hub_explained(repository: str) -> Iterator[None]:
    """Turn errors of the hub's library into a PolicyNotFoundError, in the hub's words if the hub was reached."""
    import httpx
    from huggingface_hub import constants, errors

    silent = (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, httpx.TransportError, TimeoutError)
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error  # transformers wraps the hub's error in its own OSError
        while cause and not isinstance(cause, (*silent, httpx.HTTPError)):
            cause = cause.__cause__ or cause.__context__
        if cause is None or isinstance(error, RLOOKitError):
            raise
        what = f"there is no folder {repository}, and the hub says: {' '.join(str(cause).split())}"
        todo = f"look at {constants.ENDPOINT}/{repository}; a private or gated one needs HF_TOKEN in .env"
        if isinstance(cause, silent):
            what = f"{repository} is not a folder, not complete in the hub's cache, and the hub cannot be reached"
            connect = "connect and call prepare(offline=False) in a fresh kernel, or give a folder instead"
            todo = _nearest_folder(repository) or connect
        where = f"offline mode is {'on' if constants.HF_HUB_OFFLINE else 'off'}"
        raise PolicyNotFoundError(what, where=where, todo=todo) from error
