"""What a policy's name stands for, checked before anything is loaded: of the catalogue, a folder, or a hub repository.

For :mod:`.load`.  It loads no weights.  Of an adapter it checks that it is whole: PEFT loads weights that do not match
their configuration with a warning or none, and gives a damaged file's error as its parser words it.
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

from rloo_kit.catalogue import CATALOGUE, Checkpoint, checkpoint_from_config, find, nearest
from rloo_kit.errors import NonFiniteError, PolicyNotFoundError, RLOOKitError
from rloo_kit.memory import cards
from rloo_kit.policy.bundled import BUNDLED, made_here
from rloo_kit.session.prepare import within

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ADAPTER_CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PICKLED = "adapter_model.bin"  # of an older PEFT
TEMPLATE = "chat_template.jinja"
ANEW = "copy the folder anew, or take a run's checkpoint-N"
MOST_NAMED = 8  # folders in an error's message, the most similar first
HUB_SECONDS = 9.0

OF_NETWORKS = ("httpx", "httpcore", "requests", "huggingface_hub", "hf_xet")
"""Libraries whose errors are the hub's; httpx's own are not OSErrors."""

OF_FILES = ("config.json", "*.json", "adapter_model*", "*.jinja", "*.txt", "*.model")
"""What an adapter's repository is read for: not its optimizer, nor a run's other checkpoints."""

_CONNECT = (
    "connect and call prepare(offline=False) in a fresh kernel, or download it where there is a network (hf download) "
    "and give load_policy the folder; load_policy('tiny') needs neither"
)


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
        name = cards.fit(load_in_4bit=four_bit is not False).model.checkpoint.name if on_gpu else "tiny"
    folder = Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser raises for an unknown user
    if folder.is_dir():
        return _of_folder(folder)
    is_path, name = isinstance(name, os.PathLike), os.fspath(name)
    if name in BUNDLED:
        return Source(str(BUNDLED[name].checkpoint()), CATALOGUE[name])
    if (checkpoint := find(name)) is not None:
        in_four = checkpoint.four_bit_repository if four_bit is not False else None
        path = in_four or checkpoint.repository
        check_hub(path, token, **place)
        return Source(path, checkpoint, of_hub=path)
    if is_path or folder.exists() or not _could_be_hub_id(name):
        raise _no_folder(name, folder)
    if "/" not in name:
        near = [*difflib.get_close_matches(name, _beside(folder)[2], n=1), *nearest(name)]
        raise PolicyNotFoundError(
            f"there is no policy called {name!r}",
            where="load_policy, which knows " + ", ".join(CATALOGUE),
            todo=f"did you mean {' or '.join(near)}? Otherwise give a hub id (owner/name) or a folder",
        )
    if not place and _cached(name) is None and _is_mistyped(folder):
        raise _no_folder(name, folder, ", or with revision='main' that repository of the hub")
    try:
        if not check_hub(name, token, **place):
            return Source(name, None, of_hub=name)
    except PolicyNotFoundError as error:
        if not folder.parent.is_dir():
            raise
        there = f"{folder.parent} holds {', '.join(_beside(folder)[2]) or 'no folder'}"
        raise PolicyNotFoundError(error.what, where=f"{error.where}; {there}", todo=error.todo) from error
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


def _beside(folder: Path) -> tuple[Path, str, list[str]]:
    """The nearest folder above that exists, what is missing in it, and the folders that are there, the likest first."""
    parent = next(parent for parent in folder.absolute().parents if parent.is_dir())
    names = [path.name for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")]
    missing = folder.absolute().relative_to(parent).parts[0]
    return parent, missing, difflib.get_close_matches(missing, names, n=MOST_NAMED, cutoff=0.0)


def _is_mistyped(folder: Path) -> bool:
    """Whether a name is rather that of a folder beside it than of the hub.

    Names that differ in their digits are two models, or two checkpoints: Qwen3-4B is no slip for Qwen3-8B.
    """
    _, missing, names = _beside(folder)
    alike = difflib.get_close_matches(missing, names[:1], cutoff=0.8)
    return bool(alike) and re.findall(r"\d+", missing) == re.findall(r"\d+", alike[0])


def _no_folder(name: str, folder: Path, otherwise: str = "") -> PolicyNotFoundError:
    parent, missing, names = _beside(folder)
    near = difflib.get_close_matches(missing, names[:1])
    place = folder.parent if parent == folder.absolute().parent else parent
    known = "give the folder that Policy.save or save_pretrained wrote, a hub id (owner/name) or one of "
    todo = f"did you mean {place / near[0]}{otherwise}?" if near else known + ", ".join(CATALOGUE)
    there = f"load_policy; {parent} holds {', '.join(names) or 'no folder'}"
    return PolicyNotFoundError(f"there is no folder {name!r}", where=there, todo=todo)


# --- folders ----------------------------------------------------------------------------------------------


def _of_folder(folder: Path) -> Source:
    if not (folder / ADAPTER_CONFIG).is_file():
        if (folder / "config.json").is_file():
            return Source(str(folder), None)
        raise PolicyNotFoundError(
            "the folder holds neither a checkpoint nor an adapter",
            where=f"load_policy({str(folder)!r}): no config.json and no {ADAPTER_CONFIG}",
            todo="give the folder that Policy.save or save_pretrained wrote, or a run's checkpoint-N inside it",
        )
    config = read(folder / ADAPTER_CONFIG)
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        fault = "the adapter does not name its base"
    elif Path(base).is_dir() and folder.samefile(base) and not (folder / "config.json").is_file():
        fault = "the adapter names itself as its base"
    else:
        _check_whole(folder, config)
        made = made_here(base)
        elsewhere = made is None and not Path(base).is_dir()
        return Source(str(folder), CATALOGUE[made] if made else find(base), True, base if elsewhere else None)
    todo = "write the base's folder or hub id into base_model_name_or_path"
    raise PolicyNotFoundError(fault, where=f"load_policy, {folder / ADAPTER_CONFIG}", todo=todo)


def read(file: Path) -> dict[str, Any]:
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


def _check_whole(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse an adapter whose weights, tokenizer or chat template are damaged.

    Raises:
        PolicyNotFoundError: no weights, a file cut short, or weights of another rank than the configuration's.
        NonFiniteError: a weight is NaN or infinite.
    """
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
    ):  # transformers takes the base's for a damaged one
        if (folder / name).is_file():
            read(folder / name)
    where = f"load_policy, {folder / WEIGHTS}"
    template = folder / TEMPLATE
    if template.is_file() and not template.read_bytes().strip():
        raise PolicyNotFoundError(
            "the adapter's chat template is empty, so every conversation would be an empty prompt",
            where=f"load_policy, {template}",
            todo=f"{ANEW}; without the file the tokenizer has no template",
        )
    if not (folder / WEIGHTS).is_file():
        if not (folder / PICKLED).is_file():
            raise PolicyNotFoundError("the adapter has no weights", where=f"{where}: no such file", todo=ANEW)
        return
    rank = None if config.get("rank_pattern") else config.get("r")
    for name, weight in weights_of(folder):
        if name.endswith("lora_A.weight") and rank is not None and weight.shape[0] != rank:
            raise PolicyNotFoundError(
                f"the adapter's weights have rank {weight.shape[0]}, and its configuration says {rank}",
                where=f"{where}, {name}",
                todo=f"{ANEW}: the two files are of different adapters",
            )
        if weight.is_floating_point() and not weight.isfinite().all():
            raise NonFiniteError(
                "the adapter has weights that are not finite", where=f"{where}, {name}", todo=ANEW
            )


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
        with (folder / WEIGHTS).open("rb") as start:
            pointer = start.read(19) == b"version https://git"
        raise PolicyNotFoundError(
            f"the adapter's weights cannot be read: {error}",
            where=f"load_policy, {folder / WEIGHTS}, {(folder / WEIGHTS).stat().st_size} bytes",
            todo="fetch it with git lfs pull: it is a pointer" if pointer else f"{ANEW}: the file is damaged",
        ) from error


# --- bases ------------------------------------------------------------------------------------------------


def base_of(model: PeftModel | PreTrainedModel) -> str:
    """The folder or hub id of the weights below a LoRA, or of those that training began with."""
    config = getattr(model, "peft_config", {}).get("default")
    named = config and config.base_model_name_or_path
    return str(named or getattr(getattr(model, "config", None), "_name_or_path", ""))


def base_named(name: str) -> str:
    """The base of what ``load_policy(name)`` would load, as far as a folder on this machine says."""
    folder = Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser raises for an unknown user
    config = folder / ADAPTER_CONFIG
    return str(read(config).get("base_model_name_or_path") or "") if config.is_file() else str(folder)


def checkpoint_of_model(model: PeftModel | PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Checkpoint:
    """The checkpoint that a loaded model is of: of the catalogue by its name, or by its config."""
    name = str(model.config._name_or_path)
    made = made_here(name)
    known = CATALOGUE[made] if made else find(name)
    return known or checkpoint_from_config(name, model.config, tokenizer.chat_template)


@contextlib.contextmanager
def portable(path: str) -> Iterator[str]:
    """The path to load; for an adapter whose base another machine made, a copy that names this machine's."""
    file = Path(path) / ADAPTER_CONFIG
    config = read(file) if file.is_file() else {}
    base = config.get("base_model_name_or_path") or ""
    made = made_here(base)
    if made is None or Path(base) == (ours := BUNDLED[made].checkpoint()):
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
            check_hub(path, kwargs.get("token"), cache_dir=kwargs.get("cache_dir"))
    if (file := Path(path) / "config.json").is_file():
        read(file)
    trusted = kwargs.get("trust_remote_code", False)
    config = AutoConfig.from_pretrained(path, trust_remote_code=trusted, **asked)
    return getattr(config.get_text_config(), "max_position_embeddings", None)


# --- the hub ----------------------------------------------------------------------------------------------


def _cached(
    repository: str, cache_dir: str | os.PathLike[str] | None = None, revision: str | None = None
) -> bool | None:
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
        PolicyNotFoundError: neither has it, it holds no model, or the hub cannot be reached or refuses.  Within
            10 s: the hub library itself retries for longer.
    """
    from huggingface_hub import constants, model_info
    from huggingface_hub.errors import OfflineModeIsEnabled

    if (in_cache := _cached(repository, cache_dir, revision)) is not None:
        return in_cache
    try:
        if constants.HF_HUB_OFFLINE:
            raise OfflineModeIsEnabled
        how: dict[str, Any] = {"revision": revision, "timeout": HUB_SECONDS, "token": token}
        found = within(HUB_SECONDS, lambda: model_info(repository, **how))
    except Exception as error:
        if not of_hub(error) and not isinstance(error, OSError):
            raise
        raise _told(error if of_hub(error) else TimeoutError(), repository, "load_policy") from error
    names = {file.rfilename for file in found.siblings or ()}
    if names and not names & {ADAPTER_CONFIG, "config.json"}:
        raise PolicyNotFoundError(
            "the repository holds neither a checkpoint nor an adapter",
            where=f"load_policy({repository!r}): no config.json and no {ADAPTER_CONFIG}",
            todo="name one that has the weights in Hugging Face's format; a GGUF alone cannot be trained",
        )
    return ADAPTER_CONFIG in names


@contextlib.contextmanager
def explained(repository: str | None, where: str) -> Iterator[None]:
    """While inside, what goes wrong between here and the hub is the kit's error; None is a folder.

    Offline mode and time-outs are said in the kit's words, and the rest in those of the hub's library.
    """
    try:
        yield
    except RLOOKitError:
        raise
    except Exception as error:
        if repository is None or not (of_hub(error) or isinstance(error, OSError)):
            raise
        raise _told(error, repository, where) from error


def _told(error: Exception, repository: str, where: str) -> PolicyNotFoundError:
    import httpx
    from huggingface_hub import constants, errors

    cause, page = of_hub(error), f"{constants.ENDPOINT}/{repository}"
    silent = (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError)
    silent += (httpx.ConnectError, httpx.TimeoutException)  # type: ignore[assignment]
    if isinstance(cause, silent) or isinstance(error, TimeoutError | ConnectionError):
        what = (
            f"{repository} is not in the hub's cache, or not whole, nor is there a folder of that name, and the "
            "Hugging Face hub cannot be reached"
        )
        where = f"{where}; offline mode is {'on' if constants.HF_HUB_OFFLINE else 'off'}"
        return PolicyNotFoundError(what, where=where, todo=_CONNECT)
    what = f"{repository} cannot be loaded: {' '.join(str(cause or error).split())}"
    todo = f"look at {page}; a private or gated one needs HF_TOKEN in .env, and what is whole stays in the hub's cache"
    if type(cause) is errors.RepositoryNotFoundError:  # and not a gated one, which is of a class below
        todo = f"did you mean {' or '.join(nearest(repository))}? Or {todo}"
    return PolicyNotFoundError(what, where=where, todo=_CONNECT if constants.HF_HUB_OFFLINE else todo)


def of_hub(error: BaseException | None) -> BaseException | None:
    """The error of the hub's library, or of one that it sends with, below another: what was answered, or the first."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    found = [one for one in chain if type(one).__module__.split(".")[0] in OF_NETWORKS]
    return next((one for one in found if getattr(one, "response", None) is not None), next(iter(found), None))
