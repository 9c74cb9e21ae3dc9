"""What a policy's name stands for: an entry of the catalogue, a folder, or a repository of the hub.

It loads no weights.  Of an adapter it checks that it is whole, since PEFT loads with a warning or none what does not
match.
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

from rloo_kit.errors import NonFiniteError, PolicyNotFoundError, RLOOKitError
from rloo_kit.memory import fit
from rloo_kit.models import CATALOGUE, Checkpoint, checkpoint_from_config, find, nearest
from rloo_kit.policy.bundled import BUNDLED, made_here
from rloo_kit.session.prepare import within

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ADAPTER_CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PICKLED = "adapter_model.bin"  # of an older PEFT
TEMPLATE = "chat_template.jinja"
ANEW = "copy the folder anew, or take a run's checkpoint-N"
HUB_SECONDS = 9.0

OF_NETWORKS = ("httpx", "httpcore", "requests", "huggingface_hub", "hf_xet")
"""Libraries whose errors are the hub's; httpx's own are not OSErrors."""

OF_FILES = ("config.json", "*.json", "adapter_model*", "*.jinja", "*.txt", "*.model")
"""What an adapter's repository is read for: not its optimizer, nor a run's other checkpoints."""

CONNECT = (
    "connect and call prepare(offline=False) in a fresh kernel, or download it where there is a network (hf download) "
    "and give load_policy the folder; load_policy('tiny') needs neither"
)


@dataclass(frozen=True)
class Source:
    """What a name stands for."""

    path: str  # a folder or a hub id, for unsloth
    checkpoint: Checkpoint | None
    base: str  # folder or hub id of the weights: those below an adapter, else the path
    is_adapter: bool = False


def resolve(
    name: str | os.PathLike[str] | None, four_bit: bool | None, token: str | None, **place: Any
) -> Source:
    """The source of a name as ``load_policy`` takes it; an adapter's files are fetched, the base's are not.

    Args:
        name: of the catalogue, of the hub, or a folder's; None leaves it to the device.
        four_bit: take a catalogue entry's 4-bit repository; None does where the entry is of use in 4 bit.
        token: for the hub.
        place: revision and cache_dir of what is on the hub.

    Raises:
        PolicyNotFoundError: no such name, folder or repository, or the hub cannot be reached.
    """
    if name is None:
        import torch

        on_gpu = torch.cuda.is_available()
        name = fit.fit(load_in_4bit=four_bit is not False).model.checkpoint.name if on_gpu else "tiny"
    folder = Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser raises for an unknown user
    if folder.is_dir():
        return _of_folder(folder)
    is_path, name = isinstance(name, os.PathLike), os.fspath(name)
    if name in BUNDLED:
        path = str(BUNDLED[name].checkpoint())
        return Source(path, CATALOGUE[name], path)
    if (checkpoint := find(name)) is not None:
        in_four = checkpoint.four_bit_repository if four_bit is not False else None
        path = in_four or checkpoint.repository
        check_hub(path, token, **place)
        return Source(path, checkpoint, path)
    if is_path or folder.exists() or not _could_be_hub_id(name):
        known = "give the folder that Policy.save or save_pretrained wrote, a hub id (owner/name) or one of "
        where, todo = f"load_policy; {_beside(folder)}", known + ", ".join(CATALOGUE)
        raise PolicyNotFoundError(f"there is no folder {name!r}", where=where, todo=todo)
    if "/" not in name:
        raise PolicyNotFoundError(
            f"there is no policy called {name!r}",
            where=f"load_policy, which knows {', '.join(CATALOGUE)}; {_beside(folder)}",
            todo=f"did you mean {' or '.join(nearest(name))}? Otherwise give a hub id (owner/name) or a folder",
        )
    try:
        is_adapter = check_hub(name, token, **place)
    except PolicyNotFoundError as error:
        if not folder.parent.is_dir():
            raise
        where = f"{error.where}; {_beside(folder)}"
        raise PolicyNotFoundError(error.what, where=where, todo=error.todo) from error
    if not is_adapter:
        return Source(name, None, name)
    from huggingface_hub import snapshot_download

    with explained(name, f"load_policy({name!r})"):
        files: dict[str, Any] = {"allow_patterns": list(OF_FILES), "ignore_patterns": "*/*"}
        return _of_folder(Path(snapshot_download(name, token=token, **place, **files)))


def _could_be_hub_id(name: str) -> bool:
    """A path has more slashes, or begins with one, with "." or with "~"."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    with contextlib.suppress(HFValidationError):
        validate_repo_id(name)
        return True
    return False


def _beside(folder: Path) -> str:
    """The nearest folder above that exists, and the folders that are in it, the likest first."""
    parent = next(parent for parent in folder.absolute().parents if parent.is_dir())
    names = [path.name for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")]
    missing = folder.absolute().relative_to(parent).parts[0]
    return f"{parent} holds {', '.join(difflib.get_close_matches(missing, names, 8, 0.0)) or 'no folder'}"


# --- folders ----------------------------------------------------------------------------------------------


def _of_folder(folder: Path) -> Source:
    if not (folder / ADAPTER_CONFIG).is_file():
        if (folder / "config.json").is_file():
            return Source(str(folder), find(lasting_name(str(folder))), str(folder))
        raise PolicyNotFoundError(
            "the folder holds neither a checkpoint nor an adapter",
            where=f"load_policy({str(folder)!r}): no config.json and no {ADAPTER_CONFIG}",
            todo="give the folder that Policy.save or save_pretrained wrote, or a run's checkpoint-N inside it",
        )
    base = read(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not base:
        todo = "write the base's folder or hub id into base_model_name_or_path"
        where = f"load_policy, {folder / ADAPTER_CONFIG}"
        raise PolicyNotFoundError("the adapter does not name its base", where=where, todo=todo)
    _check_whole(folder)
    if (made := made_here(base)) is not None:
        return Source(str(folder), CATALOGUE[made], str(BUNDLED[made].checkpoint()), True)
    return Source(str(folder), find(lasting_name(base)), base, True)


def read(file: Path) -> dict[str, Any]:
    """A configuration's JSON.

    Raises:
        PolicyNotFoundError: it is none, or is not in UTF-8, as an editor may have saved it.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON, or of UTF-8
        raise PolicyNotFoundError(
            f"{file.name} is not a JSON object in UTF-8: {error}",
            where=f"load_policy, {file}",
            todo="save it again as UTF-8 without a byte-order mark, or copy the folder anew",
        ) from error
    return dict(found)


def _check_whole(folder: Path) -> None:
    """Refuse an adapter whose tokenizer, chat template or weights are damaged where that would go unnoticed."""
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
    ):  # transformers takes the base's for a damaged one
        if (folder / name).is_file():
            read(folder / name)
    template = folder / TEMPLATE
    if template.is_file() and not template.read_bytes().strip():
        raise PolicyNotFoundError(
            "the adapter's chat template is empty, so every conversation would be an empty prompt",
            where=f"load_policy, {template}",
            todo=f"{ANEW}; without the file the tokenizer has no template",
        )
    where = f"load_policy, {folder / WEIGHTS}"
    if (folder / WEIGHTS).is_file():
        for name, weight in weights_of(folder):
            if weight.is_floating_point() and not weight.isfinite().all():
                what = "the adapter has weights that are not finite"
                raise NonFiniteError(what, where=f"{where}, {name}", todo=ANEW)
    elif not (folder / PICKLED).is_file():
        raise PolicyNotFoundError("the adapter has no weights", where=f"{where}: no such file", todo=ANEW)


def weights_of(folder: Path) -> Iterator[tuple[str, Any]]:
    """An adapter's weights by name.

    Raises:
        PolicyNotFoundError: the file is damaged, or a pointer to it.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(folder / WEIGHTS), framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise PolicyNotFoundError(
            f"the adapter's weights cannot be read: {error}",
            where=f"load_policy, {folder / WEIGHTS}, {(folder / WEIGHTS).stat().st_size} bytes",
            todo=f"{ANEW}: the file is damaged, or a pointer that git lfs pull replaces by it",
        ) from error


# --- bases ------------------------------------------------------------------------------------------------


def base_of(model: PeftModel | PreTrainedModel) -> str:
    """The folder or hub id of the weights below a LoRA, or of those that training began with."""
    config = getattr(model, "peft_config", {}).get("default")
    named = config and config.base_model_name_or_path
    return str(named or getattr(getattr(model, "config", None), "_name_or_path", ""))


def lasting_name(base: str) -> str:
    """A base as an adapter is to name it: a folder in the hub's cache by its hub id, any other by its whole path."""
    if not Path(base).is_dir():
        return base
    whole = os.path.realpath(base)
    of_hub = re.search(r"models--([^/\\]+)--([^/\\]+)[/\\]snapshots[/\\]", whole)
    return "/".join(of_hub.groups()) if of_hub else whole


def base_named(name: str) -> str:
    """The base of what ``load_policy(name)`` would load, as far as a folder on this machine says."""
    folder = Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser raises for an unknown user
    config = folder / ADAPTER_CONFIG
    return str(read(config).get("base_model_name_or_path") or "") if config.is_file() else str(folder)


def checkpoint_of_model(model: PeftModel | PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Checkpoint:
    """The checkpoint that a loaded model is of: of the catalogue by its name, or by its config."""
    name = lasting_name(base_of(model))
    made = made_here(name)
    known = CATALOGUE[made] if made else find(name)
    return known or checkpoint_from_config(name, model.config, tokenizer.chat_template)


@contextlib.contextmanager
def portable(found: Source) -> Iterator[str]:
    """The path to load; for an adapter whose base another machine made, a copy that names this machine's."""
    config = read(Path(found.path) / ADAPTER_CONFIG) if found.is_adapter else {}
    if config.get("base_model_name_or_path", found.base) == found.base:
        yield found.path
        return
    with tempfile.TemporaryDirectory(prefix="rloo-kit-") as scratch:
        copy = Path(scratch) / "adapter"
        shutil.copytree(found.path, copy, ignore=shutil.ignore_patterns("optimizer.pt"))
        config["base_model_name_or_path"] = found.base
        (copy / ADAPTER_CONFIG).write_text(json.dumps(config), encoding="utf-8")
        yield str(copy)


def trained_length(found: Source, further: Mapping[str, Any]) -> int | None:
    """Tokens that the base was trained for; None where its config does not say.

    Works around: for a longer ``max_seq_length`` unsloth rescales the position embedding on a GPU, with only a
    warning, and the policy is a different one.

    Raises:
        PolicyNotFoundError: an adapter's base is neither on this machine nor on the hub.
    """
    from transformers import AutoConfig

    names = ("token", "cache_dir", "trust_remote_code", *(() if found.is_adapter else ("revision",)))
    if found.is_adapter and not Path(found.base).is_dir():
        if not _could_be_hub_id(found.base):
            raise PolicyNotFoundError(
                f"the base of the adapter is not on this machine: there is no folder {found.base!r}",
                where=f"load_policy({found.path!r}), base_model_name_or_path in {ADAPTER_CONFIG}",
                todo="put the base there, or write its place into that file",
            )
        check_hub(found.base, further.get("token"), cache_dir=further.get("cache_dir"))
    if (file := Path(found.base) / "config.json").is_file():
        read(file)
    asked = {name: further[name] for name in names if name in further}
    config = AutoConfig.from_pretrained(found.base, **asked)
    return getattr(config.get_text_config(), "max_position_embeddings", None)


# --- the hub ----------------------------------------------------------------------------------------------


def _cached(repository: str, cache_dir: str | os.PathLike[str] | None, revision: str | None) -> bool | None:
    """Whether a repository in the hub's cache is an adapter; None where it is not there."""
    from huggingface_hub import try_to_load_from_cache

    cache = None if cache_dir is None else os.fspath(cache_dir)
    for file in (ADAPTER_CONFIG, "config.json"):
        if isinstance(try_to_load_from_cache(repository, file, cache, revision), str):
            return file == ADAPTER_CONFIG
    return None


def check_hub(
    repository: str,
    token: str | None,
    *,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> bool:
    """Check that the hub or its cache has a repository, of this revision; return whether it is an adapter.

    Raises:
        PolicyNotFoundError: neither has it, it holds no model, or the hub refuses or is not reached within
            :data:`HUB_SECONDS`: the hub's library itself retries for longer.
    """
    from huggingface_hub import constants, model_info
    from huggingface_hub.errors import OfflineModeIsEnabled

    if (in_cache := _cached(repository, cache_dir, revision)) is not None:
        return in_cache
    with explained(repository, "load_policy"):
        if constants.HF_HUB_OFFLINE:
            raise OfflineModeIsEnabled
        how: dict[str, Any] = {"revision": revision, "timeout": HUB_SECONDS, "token": token}
        found = within(HUB_SECONDS, lambda: model_info(repository, **how))
    names = {file.rfilename for file in found.siblings or ()}
    if names and not names & {ADAPTER_CONFIG, "config.json"}:
        raise PolicyNotFoundError(
            "the repository holds neither a checkpoint nor an adapter",
            where=f"load_policy({repository!r}): no config.json and no {ADAPTER_CONFIG}",
            todo="name one that has the weights in Hugging Face's format; a GGUF alone cannot be trained",
        )
    return ADAPTER_CONFIG in names


@contextlib.contextmanager
def explained(repository: str, where: str) -> Iterator[None]:
    """While inside, what goes wrong between here and the hub is the kit's error; a folder's is not.

    Offline mode and time-outs are said in the kit's words, and the rest in those of the hub's library.
    """
    try:
        yield
    except RLOOKitError:
        raise
    except Exception as error:
        cause = of_hub(error)
        if Path(repository).is_dir() or not (cause or isinstance(error, OSError)):
            raise
        raise _told(error, cause, repository, where) from error


def _told(error: Exception, cause: BaseException | None, repository: str, where: str) -> PolicyNotFoundError:
    import httpx
    from huggingface_hub import constants, errors

    silent = (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, httpx.ConnectError)
    if isinstance(cause, (*silent, httpx.TimeoutException)) or isinstance(
        error, TimeoutError | ConnectionError
    ):
        what = f"{repository} is not in the hub's cache, or not whole, and the Hugging Face hub cannot be reached"
        where = f"{where}; offline mode is {'on' if constants.HF_HUB_OFFLINE else 'off'}"
        return PolicyNotFoundError(what, where=where, todo=CONNECT)
    what = f"{repository} cannot be loaded: {' '.join(str(cause or error).split())}"
    todo = f"look at {constants.ENDPOINT}/{repository}; a private or gated one needs HF_TOKEN in .env"
    if type(cause) is errors.RepositoryNotFoundError:  # and not a gated one, which is of a class below
        todo = f"did you mean {' or '.join(nearest(repository))}? Or {todo}"
    return PolicyNotFoundError(what, where=where, todo=CONNECT if constants.HF_HUB_OFFLINE else todo)


def of_hub(error: BaseException | None) -> BaseException | None:
    """The error of the hub's library, or of one that it sends with, at or below another."""
    while error is not None and type(error).__module__.split(".")[0] not in OF_NETWORKS:
        error = error.__cause__ or error.__context__
    return error
