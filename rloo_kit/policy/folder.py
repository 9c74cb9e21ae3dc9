"""The folder of a saved adapter: what a save may replace, and whether what is read is whole.

For ``Policy.save`` and :mod:`.load`.  PEFT itself replaces any file, loads weights that do not match their
configuration with a warning or none, and gives a damaged file's error as its parser words it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.errors import ConfigError, NonFiniteError, PolicyNotFoundError, RunFolderError

if TYPE_CHECKING:
    from peft import PeftModel

ADAPTER_CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PICKLED = "adapter_model.bin"  # of an older PEFT
TEMPLATE = "chat_template.jinja"
ANEW = "copy the folder anew, or take a run's checkpoint-N"

REPLACED = {ADAPTER_CONFIG, WEIGHTS, PICKLED, "README.md", TEMPLATE, "tokenizer.json"}
REPLACED |= {
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
}
REPLACED |= {"ref", ".DS_Store"}
"""What an earlier save may have left.  Anything else is the user's, and so is a README.md without an adapter."""


CARD, TAG = "README.md", "rloo-kit"
"""The model card of a save, and the tag in it by which a checkpoint's folder is known as one of the kit's."""

CHECKPOINT = re.compile(
    r"config\.json|generation_config\.json|model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json"
)
"""What a save of all weights writes beside the tokenizer."""


def _is_ours(target: Path) -> bool:
    """Whether a checkpoint's folder is one that the kit wrote, by its card; a user's base is never replaced."""
    card = target / CARD
    return card.is_file() and f"- {TAG}\n" in card.read_text(encoding="utf-8", errors="replace")


def check_target(target: Path, where: str) -> None:
    """Refuse a place where a save would delete what is neither an adapter nor a checkpoint that the kit wrote.

    Raises:
        ConfigError: a file, the working directory, or a folder that holds more than an adapter.
    """
    todo = "name a folder of its own, such as out/adapter"
    if target.is_file():
        raise ConfigError("it is a file, and would be replaced by a folder", where=where, todo=todo)
    if target == Path.cwd():
        raise ConfigError("it is the folder in which this process works", where=where, todo=todo)
    names = {path.name for path in target.iterdir()} if target.is_dir() else set()
    whole = {name for name in names if CHECKPOINT.fullmatch(name)} if _is_ours(target) else set()
    more = names - (REPLACED | whole if whole or ADAPTER_CONFIG in names else {".DS_Store"})
    more |= {name for name in names if (target / name).is_dir() and name != "ref"}
    if more:
        named = sorted(more, key=lambda name: (name.startswith("."), name))
        raise ConfigError(
            f"the folder holds more than an adapter, and would be replaced: {', '.join(named[:3])}",
            where=where,
            todo=todo,
        )


@contextlib.contextmanager
def replacing(target: Path, where: str) -> Iterator[Path]:
    """A folder to write into, which then takes the target's place; what was there stays until all is written.

    Raises:
        RunFolderError: it cannot be written: a full disk, or one that is read-only.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
            fresh, old = Path(scratch) / "adapter", Path(scratch) / "old"
            yield fresh
            try:
                if target.exists():
                    target.replace(old)
                fresh.replace(target)
            finally:
                if old.exists() and not target.exists():
                    old.replace(target)
    except Exception as error:
        # safetensors and tokenizers write in Rust, and have errors of their own for a full disk.
        if not isinstance(error, OSError) and "os error" not in str(error):
            raise
        kept = "; what was there before is as it was" if target.exists() else ""
        raise RunFolderError(
            f"the adapter cannot be written: {getattr(error, 'strerror', None) or error}{kept}",
            where=where,
            todo="make room, or name a folder that this user can write to; the policy is still in memory",
        ) from error


def check_whole(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse an adapter whose weights or chat template are damaged, before anything is loaded.

    Raises:
        PolicyNotFoundError: no weights, a file cut short, or weights of another rank than the configuration's.
        NonFiniteError: a weight is NaN or infinite.
    """
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
    for name, weight in _weights(folder):
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


def _weights(folder: Path) -> Iterator[tuple[str, Any]]:
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


@contextlib.contextmanager
def matching(folder: str, is_adapter: bool) -> Iterator[None]:
    """Weights that do not fit the base, or that would run code, are an error that names the adapter."""
    try:
        yield
    except pickle.UnpicklingError as error:
        if not is_adapter:
            raise
        raise PolicyNotFoundError(
            f"{PICKLED} is damaged, or holds more than weights, which could run code when it is loaded",
            where=f"load_policy({folder!r})",
            todo=f"take one with {WEIGHTS}, or {ANEW}",
        ) from error
    except RuntimeError as error:
        if not is_adapter or "size mismatch" not in str(error):
            raise
        raise PolicyNotFoundError(
            "the adapter's weights are not of its base: their shapes differ",
            where=f"load_policy({folder!r}), base_model_name_or_path in {ADAPTER_CONFIG}",
            todo="write the base that it was trained on into that file",
        ) from error


def check_loaded(model: PeftModel, folder: str) -> None:
    """Refuse a policy that got only some of the adapter's weights: PEFT warns of the missing, and drops the others.

    Raises:
        PolicyNotFoundError: with how many, and the first of them.
    """
    if not os.path.isfile(os.path.join(folder, WEIGHTS)):  # noqa: PTH113, PTH118 - a hub id is no path
        return
    from peft import get_peft_model_state_dict
    from safetensors import safe_open

    wanted = {
        name for name in get_peft_model_state_dict(model, save_embedding_layers=False) if "lora_" in name
    }
    with safe_open(str(Path(folder) / WEIGHTS), framework="pt") as file:
        saved = set(file.keys())
    missing, unused = sorted(wanted - saved), sorted(saved - wanted)
    unused = [name for name in unused if "lora_" in name]
    if missing or unused or not wanted:
        first = [*missing, *unused, "its type is not LoRA"][0]
        raise PolicyNotFoundError(
            f"the adapter's weights are not those of its configuration: {len(missing)} are missing, and "
            f"{len(unused)} would be dropped",
            where=f"load_policy({folder!r}), first {first}",
            todo=f"{ANEW}: the two files are of different adapters, or one was edited",
        )
