"""The folder, adapter or hub repository behind a policy's name, checked before anything is loaded.

For :mod:`.load`.  A name is one of the catalogue, a hub id or a folder.  It loads no weights.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.catalogue import CATALOGUE, Checkpoint, checkpoint_from_config, find, nearest
from rloo_kit.errors import PolicyNotFoundError
from rloo_kit.memory import planning
from rloo_kit.policy import hub
from rloo_kit.policy.expanded import Expanded
from rloo_kit.policy.folder import ADAPTER_CONFIG, check_whole
from rloo_kit.policy.options import DEFAULTS, Lora
from rloo_kit.policy.smollm2 import SMOLLM2
from rloo_kit.policy.tiny import TINY

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MOST_NAMED = 8  # folders in an error's message, the most similar first

MADE_HERE: dict[str, Expanded] = {"tiny": TINY, "smollm2-135m": SMOLLM2}
"""Catalogue entries that need no hub: name -> where they are made."""


@dataclass(frozen=True)
class Source:
    """What a name stands for."""

    path: str  # a folder or a hub id, for unsloth
    checkpoint: Checkpoint | None
    is_adapter: bool = False  # a LoRA that names its own base
    of_hub: str | None = None  # what is fetched from the hub: the weights of the base, or of all


def resolve(
    name: str | os.PathLike[str] | None, four_bit: bool | None, token: str | None, **place: Any
) -> Source:
    """The source of a name as ``load_policy`` takes it; an adapter's files are fetched, the base's are not.

    Args:
        name: of the catalogue, of the hub, or a folder's.
        four_bit: take a catalogue entry's 4-bit repository; None does where the entry is of use in 4 bit.
        token: for the hub.
        place: revision and cache_dir of what is on the hub.

    Raises:
        PolicyNotFoundError: no such name, folder or repository, or the hub cannot be reached.
    """
    if name is None:
        import torch

        on_gpu = torch.cuda.is_available()
        name = planning.fit(load_in_4bit=four_bit is not False).model.checkpoint.name if on_gpu else "tiny"
    folder = Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser raises for an unknown user
    if folder.is_dir():
        return _resolve_folder(folder)
    is_path, name = isinstance(name, os.PathLike), os.fspath(name)
    if name in MADE_HERE:
        return Source(str(MADE_HERE[name].checkpoint()), CATALOGUE[name])
    if (checkpoint := find(name)) is not None:
        in_four = checkpoint.four_bit_repository if four_bit is not False else None
        path = in_four or checkpoint.repository
        hub.check(path, token, **place)
        return Source(path, checkpoint, of_hub=path)
    if is_path or folder.exists() or not _could_be_hub_id(name):
        raise _no_folder(name, folder)
    if "/" not in name:
        raise PolicyNotFoundError(
            f"there is no policy called {name!r}",
            where="load_policy, which knows " + ", ".join(CATALOGUE),
            todo=f"did you mean {' or '.join(nearest(name))}? Otherwise give a hub id (owner/name) or a folder",
        )
    if hub.check(name, token, **place):
        return _resolve_folder(Path(hub.adapter(name, {"token": token, **place})))
    return Source(name, None, of_hub=name)


def _could_be_hub_id(name: str) -> bool:
    """Whether it is a valid hub id; a path has more slashes, or begins with one, with "." or with "~"."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    with contextlib.suppress(HFValidationError):
        validate_repo_id(name)
        return True
    return False


def _no_folder(name: str, folder: Path) -> PolicyNotFoundError:
    parent = next(parent for parent in folder.absolute().parents if parent.is_dir())
    names = [path.name for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")]
    missing = folder.absolute().relative_to(parent).parts[0]
    closest = difflib.get_close_matches(missing, names, n=MOST_NAMED, cutoff=0.0)
    return PolicyNotFoundError(
        f"there is no folder {name!r}",
        where=f"load_policy; {parent} holds {', '.join(closest) or 'no folder'}",
        todo="give the folder that Policy.save or save_pretrained wrote, a hub id (owner/name) or one of "
        + ", ".join(CATALOGUE),
    )


def _resolve_folder(folder: Path) -> Source:
    if (folder / ADAPTER_CONFIG).is_file():
        config = _read(folder / ADAPTER_CONFIG)
        base = config.get("base_model_name_or_path")
        if not isinstance(base, str) or not base:
            raise PolicyNotFoundError(
                "the adapter does not name its base",
                where=f"load_policy, {folder / ADAPTER_CONFIG}",
                todo="write the base's folder or hub id into base_model_name_or_path",
            )
        if Path(base).is_dir() and folder.samefile(base) and not (folder / "config.json").is_file():
            raise PolicyNotFoundError(
                "the adapter names itself as its base",
                where=f"load_policy, {folder / ADAPTER_CONFIG}",
                todo="write the base's folder or hub id into base_model_name_or_path",
            )
        for name in (
            "tokenizer.json",
            "tokenizer_config.json",
        ):  # transformers takes the base's for a damaged one
            if (folder / name).is_file():
                _read(folder / name)
        check_whole(folder, config)
        made = made_here(base)
        checkpoint = CATALOGUE[made] if made else find(base)
        elsewhere = made is None and not Path(base).is_dir()
        return Source(str(folder), checkpoint, is_adapter=True, of_hub=base if elsewhere else None)
    if not (folder / "config.json").is_file():
        raise PolicyNotFoundError(
            "the folder holds neither a checkpoint nor an adapter",
            where=f"load_policy({str(folder)!r}): no config.json and no {ADAPTER_CONFIG}",
            todo="give the folder that Policy.save or save_pretrained wrote, or a run's checkpoint-N inside it",
        )
    return Source(str(folder), None)


def _read(file: Path) -> dict[str, Any]:
    """A configuration's JSON.

    Raises:
        PolicyNotFoundError: it is none, or is not in UTF-8, as an editor may have saved it.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON, or of UTF-8
        found = str(error)
    if not isinstance(found, dict):
        raise PolicyNotFoundError(
            f"{file.name} is not a JSON object in UTF-8" + (f": {found}" if isinstance(found, str) else ""),
            where=f"load_policy, {file}",
            todo="save it again as UTF-8 without a byte-order mark, or copy the folder anew",
        )
    return found


def checkpoint_of_model(model: PeftModel | PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Checkpoint:
    """The checkpoint that a loaded model is of: of the catalogue by its name, or by its config."""
    name = str(model.config._name_or_path)
    made = made_here(name)
    known = CATALOGUE[made] if made else find(name)
    return known or checkpoint_from_config(name, model.config, tokenizer.chat_template)


def made_here(base: str) -> str | None:
    """The catalogue entry that a base is, made on this machine or another; None for any other base."""
    return next((name for name, made in MADE_HERE.items() if made.made(base)), None)


def other_lora(folder: str, asked: Lora) -> dict[str, Any]:
    """What a saved adapter has otherwise than asked for, by ``load_policy``'s names; its defaults ask for nothing."""
    config = _read(Path(folder) / ADAPTER_CONFIG)
    named = {"lora_rank": "r", "lora_alpha": "lora_alpha", "use_rslora": "use_rslora"}
    own = {name: config[of_peft] for name, of_peft in named.items() if of_peft in config}
    wanted = {"lora_rank": asked.rank, "lora_alpha": asked.alpha, "use_rslora": asked.rank_stabilised}
    idle = DEFAULTS | {"lora_alpha": asked.rank}
    return {name: value for name, value in own.items() if wanted[name] not in (value, idle[name])}


@contextlib.contextmanager
def portable(path: str) -> Iterator[str]:
    """The path to load; for an adapter whose base another machine made, a copy that names this machine's."""
    file = Path(path) / ADAPTER_CONFIG
    config = _read(file) if file.is_file() else {}
    base = config.get("base_model_name_or_path") or ""
    made = made_here(base)
    if made is None or Path(base) == (ours := MADE_HERE[made].checkpoint()):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="rloo-kit-") as scratch:
        copy = Path(scratch) / "adapter"
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("optimizer.pt"))
        config["base_model_name_or_path"] = str(ours)
        (copy / ADAPTER_CONFIG).write_text(json.dumps(config), encoding="utf-8")
        yield str(copy)


def trained_length(path: str, is_adapter: bool, kwargs: Mapping[str, Any]) -> int | None:
    """Tokens that the base was trained for; None where its config does not say.

    Works around: for a longer ``max_seq_length`` unsloth rescales the position embedding on a GPU, with only a
    warning, and the policy is a different one.

    Raises:
        PolicyNotFoundError: an adapter's base is neither on this machine nor on the hub.
    """
    from peft import PeftConfig
    from transformers import AutoConfig

    asked = {name: kwargs[name] for name in ("token", "cache_dir", "revision") if name in kwargs}
    if is_adapter:
        adapter, path = path, PeftConfig.from_pretrained(path, **asked).base_model_name_or_path
        asked.pop("revision", None)
        if not Path(path).is_dir():
            if not _could_be_hub_id(path):
                raise PolicyNotFoundError(
                    f"the base of the adapter is not on this machine: there is no folder {path!r}",
                    where=f"load_policy({adapter!r}), base_model_name_or_path in {ADAPTER_CONFIG}",
                    todo="put the base there, or write its place into that file",
                )
            hub.check(path, kwargs.get("token"), cache_dir=kwargs.get("cache_dir"))
    if (file := Path(path) / "config.json").is_file():
        _read(file)
    trusted = kwargs.get("trust_remote_code", False)
    config = AutoConfig.from_pretrained(path, trust_remote_code=trusted, **asked)
    return getattr(config.get_text_config(), "max_position_embeddings", None)
