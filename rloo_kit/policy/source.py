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
from rloo_kit.policy.expanded import Expanded
from rloo_kit.policy.folder import ADAPTER_CONFIG, check_whole
from rloo_kit.policy.smollm2 import SMOLLM2
from rloo_kit.policy.tiny import TINY
from rloo_kit.session.environment import within

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

HUB_SECONDS = 9.0
MOST_NAMED = 8  # folders in an error's message, the most similar first

MADE_HERE: dict[str, Expanded] = {"tiny": TINY, "smollm2-135m": SMOLLM2}
"""Catalogue entries that need no hub: name -> where they are made."""


@dataclass(frozen=True)
class Source:
    """What a name stands for."""

    path: str  # a folder or a hub id, for unsloth
    checkpoint: Checkpoint | None
    is_adapter: bool = False  # a LoRA that names its own base


def resolve(name: str | os.PathLike[str] | None, four_bit: bool | None, token: str | None) -> Source:
    """The source of a name as ``load_policy`` takes it; ``four_bit`` takes a catalogue entry's 4-bit repository.

    None takes it where the entry is of use in 4 bit.

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
        check_hub(path, token)
        return Source(path, checkpoint)
    if is_path or folder.exists() or not _could_be_hub_id(name):
        raise _no_folder(name, folder)
    if "/" not in name:
        raise PolicyNotFoundError(
            f"there is no policy called {name!r}",
            where="load_policy, which knows " + ", ".join(CATALOGUE),
            todo=f"did you mean {' or '.join(nearest(name))}? Otherwise give a hub id (owner/name) or a folder",
        )
    return Source(name, None, is_adapter=check_hub(name, token))


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
        made = _made_here(base)
        checkpoint = CATALOGUE[made] if made else find(base)
        return Source(str(folder), checkpoint, is_adapter=True)
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
    made = _made_here(name)
    known = CATALOGUE[made] if made else find(name)
    return known or checkpoint_from_config(name, model.config, tokenizer.chat_template)


def _made_here(base: str) -> str | None:
    """The catalogue entry that a base is, made on this machine or another; None for any other base."""
    return next((name for name, made in MADE_HERE.items() if made.made(base)), None)


def check_hub(repository: str, token: str | None) -> bool:
    """Check that the hub or its cache has a repository; return whether it is an adapter.

    Raises:
        PolicyNotFoundError: neither has it, or the hub cannot be reached.  Within 10 s: the hub library
            itself retries for longer.
    """
    from huggingface_hub import constants, model_info, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError

    for file in (ADAPTER_CONFIG, "config.json"):
        if isinstance(try_to_load_from_cache(repository, file), str):
            return file == ADAPTER_CONFIG
    local = "or download it where there is a network (hf download) and give load_policy the folder"
    unreachable = PolicyNotFoundError(
        f"{repository} is not in the hub's cache, nor is there a folder of that name, and the Hugging Face hub "
        "cannot be reached",
        where=f"load_policy; offline mode is {'on' if constants.HF_HUB_OFFLINE else 'off'}",
        todo=f"connect and call prepare(offline=False) in a fresh kernel, {local}; load_policy('tiny') needs neither",
    )
    if constants.HF_HUB_OFFLINE:
        raise unreachable
    try:
        found = within(HUB_SECONDS, lambda: model_info(repository, timeout=HUB_SECONDS, token=token))
    except GatedRepoError as error:
        todo = "accept its terms on the hub and set HF_TOKEN in .env"
        raise PolicyNotFoundError(f"{repository} is gated", where="load_policy", todo=todo) from error
    except RepositoryNotFoundError as error:
        raise PolicyNotFoundError(
            f"the hub has no repository {repository!r} that you may read, nor is there a folder of that name",
            where="load_policy, which knows " + ", ".join(CATALOGUE),
            todo=f"did you mean {' or '.join(nearest(repository))}? A private one needs HF_TOKEN in .env",
        ) from error
    except Exception as error:
        library = type(error).__module__.split(".")[0]  # httpx's own errors are not OSErrors
        if isinstance(error, (OSError, OfflineModeIsEnabled)) or library in ("httpx", "httpcore", "requests"):
            raise unreachable from error
        raise
    return any(file.rfilename == ADAPTER_CONFIG for file in found.siblings or ())


@contextlib.contextmanager
def portable(path: str) -> Iterator[str]:
    """The path to load; for an adapter whose base another machine made, a copy that names this machine's."""
    file = Path(path) / ADAPTER_CONFIG
    config = _read(file) if file.is_file() else {}
    base = config.get("base_model_name_or_path") or ""
    made = _made_here(base)
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
            check_hub(path, kwargs.get("token"))
    if (file := Path(path) / "config.json").is_file():
        _read(file)
    trusted = kwargs.get("trust_remote_code", False)
    config = AutoConfig.from_pretrained(path, trust_remote_code=trusted, **asked)
    return getattr(config.get_text_config(), "max_position_embeddings", None)
