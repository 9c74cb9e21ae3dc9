"""Where a policy is: the folder, adapter or hub repository behind a name, checked before anything is loaded.

For :mod:`.load`.  Names are those of the catalogue, hub ids and folders.  It loads no weight.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rloo_kit.catalogue import CATALOGUE, Checkpoint, find, nearest
from rloo_kit.errors import PolicyNotFoundError
from rloo_kit.memory import planning
from rloo_kit.policy import tiny

ADAPTER_CONFIG = "adapter_config.json"


HUB_SECONDS = 9.0


BESIDE = 8
"""Folders that an error names at most, the most similar first."""


@dataclass(frozen=True)
class Source:
    """What a name stands for.

    Attributes:
        path: a folder or a hub id, for unsloth.
        checkpoint: its shape where it is known.
        is_adapter: whether it is a LoRA, on a base of its own.
    """

    path: str
    checkpoint: Checkpoint | None
    is_adapter: bool = False


def resolve(name: str | os.PathLike[str] | None, four_bit: bool, token: str | None) -> Source:
    """What to hand to unsloth for a name, checked before anything is loaded."""
    if name is None:
        name = _default_name(four_bit)
    folder = Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser raises for a user it does not know
    if folder.is_dir():
        return _resolve_folder(folder)
    is_path, name = isinstance(name, os.PathLike), os.fspath(name)
    if name == "tiny":
        return Source(str(tiny.checkpoint()), CATALOGUE["tiny"])
    checkpoint = find(name)
    if checkpoint is not None:
        path = checkpoint.four_bit_repository if four_bit else checkpoint.repository
        _check_hub(str(path), token)
        return Source(str(path), checkpoint)
    if is_path or folder.exists() or not _could_be_hub_id(name):
        raise _no_folder(name, folder)
    if "/" not in name:
        raise PolicyNotFoundError(
            f"there is no policy called {name!r}",
            where="load_policy, which knows " + ", ".join(CATALOGUE),
            todo=f"did you mean {' or '.join(nearest(name))}? Otherwise give a hub id (owner/name) or a folder",
        )
    return Source(name, None, is_adapter=_check_hub(name, token))


def _default_name(four_bit: bool) -> str:
    import torch

    if not torch.cuda.is_available():
        return "tiny"
    return planning.fit(load_in_4bit=four_bit).model.checkpoint.name


def _could_be_hub_id(name: str) -> bool:
    """Whether the hub could have it: a path has more slashes, or begins with one, with "." or with "~"."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _no_folder(name: str, folder: Path) -> PolicyNotFoundError:
    parent = next(parent for parent in folder.absolute().parents if parent.is_dir())
    names = [path.name for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")]
    missing = folder.absolute().relative_to(parent).parts[0]
    closest = difflib.get_close_matches(missing, names, n=BESIDE, cutoff=0.0)
    return PolicyNotFoundError(
        f"there is no folder {name!r}",
        where=f"load_policy; {parent} holds {', '.join(closest) or 'no folder'}",
        todo="give the folder that Policy.save or save_pretrained wrote, a hub id (owner/name) or one of "
        + ", ".join(CATALOGUE),
    )


def _resolve_folder(folder: Path) -> Source:
    if (folder / ADAPTER_CONFIG).is_file():
        base = json.loads((folder / ADAPTER_CONFIG).read_text())["base_model_name_or_path"]
        checkpoint = CATALOGUE["tiny"] if _is_tiny(base) else find(base)
        return Source(str(folder), checkpoint, is_adapter=True)
    if not (folder / "config.json").is_file():
        raise PolicyNotFoundError(
            "the folder holds neither a checkpoint nor an adapter",
            where=f"load_policy({str(folder)!r}): no config.json and no {ADAPTER_CONFIG}",
            todo="give the folder that Policy.save or save_pretrained wrote, or a run's checkpoint-N inside it",
        )
    return Source(str(folder), None)


def _is_tiny(base: str) -> bool:
    """Whether a base is an expansion of the bundled tiny Qwen3, on this machine or another."""
    return Path(base).name.startswith("tiny-qwen3-")


def _check_hub(repository: str, token: str | None) -> bool:
    """See that the hub has a repository, or the cache does; return whether it is an adapter.

    Raises:
        PolicyNotFoundError: neither has it, or nobody can be asked.  Within 10 s: the hub library itself
            retries for longer.
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
        found = _within(HUB_SECONDS, lambda: model_info(repository, timeout=HUB_SECONDS, token=token))
    except GatedRepoError as error:
        raise PolicyNotFoundError(
            f"{repository} is gated",
            where="load_policy",
            todo="accept its terms on the hub and set HF_TOKEN in .env",
        ) from error
    except RepositoryNotFoundError as error:
        raise PolicyNotFoundError(
            f"the hub has no repository {repository!r} that you may read, nor is there a folder of that name",
            where="load_policy, which knows " + ", ".join(CATALOGUE),
            todo=f"did you mean {' or '.join(nearest(repository))}? A private one needs HF_TOKEN in .env",
        ) from error
    except (OSError, TimeoutError, OfflineModeIsEnabled) as error:
        raise unreachable from error
    except Exception as error:  # httpx's own errors are not OSErrors
        if type(error).__module__.split(".")[0] in ("httpx", "httpcore", "requests"):
            raise unreachable from error
        raise
    return any(file.rfilename == ADAPTER_CONFIG for file in found.siblings or ())


def _within(seconds: float, ask: Callable[[], Any]) -> Any:
    """What ``ask`` returns or raises; TimeoutError after that long.

    A time-out given to the hub library holds per phase of a request, and not for the name server.
    """
    answer: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()

    def run() -> None:
        try:
            answer.put((ask(), None))
        except BaseException as error:
            answer.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        result, error = answer.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds} s") from None
    if error is not None:
        raise error
    return result


@contextlib.contextmanager
def portable(path: str) -> Iterator[str]:
    """The folder to load; for a tiny adapter from another machine, a copy that names this machine's base."""
    file = Path(path) / ADAPTER_CONFIG
    config = json.loads(file.read_text()) if file.is_file() else {}
    base = config.get("base_model_name_or_path") or ""
    if not _is_tiny(base) or Path(base) == tiny.checkpoint():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="rloo-kit-") as scratch:
        copy = Path(scratch) / "adapter"
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("optimizer.pt"))
        (copy / ADAPTER_CONFIG).write_text(
            json.dumps({**config, "base_model_name_or_path": str(tiny.checkpoint())})
        )
        yield str(copy)


def trained_length(path: str, is_adapter: bool, kwargs: dict[str, Any]) -> int | None:
    """Tokens that the base was trained for; None where its config has none.  Answers: on a GPU unsloth stretches the
    position embedding beyond them, with a warning, and the policy is another one.

    Raises:
        PolicyNotFoundError: an adapter's base is neither here nor to be had.
    """
    from peft import PeftConfig
    from transformers import AutoConfig

    asked = {name: kwargs[name] for name in ("token", "cache_dir", "revision") if name in kwargs}
    if is_adapter:
        base = PeftConfig.from_pretrained(path, **asked).base_model_name_or_path
        _check_base(base, path, kwargs.get("token"))
        path = base
        asked.pop("revision", None)
    config = AutoConfig.from_pretrained(
        path, trust_remote_code=kwargs.get("trust_remote_code", False), **asked
    )
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def _check_base(base: str, adapter: str, token: str | None) -> None:
    if Path(base).is_dir():
        return
    if not _could_be_hub_id(base):
        raise PolicyNotFoundError(
            f"the base of the adapter is not on this machine: there is no folder {base!r}",
            where=f"load_policy({adapter!r}), base_model_name_or_path in {ADAPTER_CONFIG}",
            todo="put the base there, or write where it is into that file",
        )
    _check_hub(base, token)
