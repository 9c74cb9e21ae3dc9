"""Whether a checkpoint is whole: its manifest names every file, with its size and a digest.

The manifest is written last, so a checkpoint that was cut off has none.  Those of plain TRL have none either: of them
the files must be there that a resumed run would miss without a word.  Nothing here loads a tensor.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from rloo_kit.errors import ConfigError
from rloo_kit.watch.run_folder import MANIFEST, NAME, STATE, UNREADABLE, checkpoints, saved_step, step_of

CARD = "README.md"  # people write into it, and no resumed run reads it

HASHED_BYTES = 2**20
"""Larger files are hashed at both ends: training changes those too."""

NEEDED = {
    "weights": r"(adapter_|pytorch_)?model\.(safetensors|bin)(\.index\.json)?",
    "optimizer state": r"optimizer\..*",
    "scheduler state": r"scheduler\..*",
    "random state": r"rng_state.*",
}
"""What a resumed run would go on without, in silence and differently."""

SHARDED = ("global_step", "pytorch_model_fsdp")
"""DeepSpeed's and FSDP's own formats, which they check."""


def fault(folder: Path) -> str:
    """What is wrong with a checkpoint, in a few words; empty where it is whole and can be resumed from."""
    if not folder.is_dir():
        return "is not a folder" if os.path.lexists(folder) else "does not exist"
    try:
        if (saved := saved_step(folder)) is None:
            return f"{STATE} is missing or was cut off"
        if saved != step_of(folder):
            return f"its {STATE} is of step {saved}"
        return _fault_by_manifest(folder) or _missing_part(folder)
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"


def is_ours(folder: Path) -> bool:
    """Whether a run of the kit's wrote this folder, here; a link is the user's own."""
    named = NAME.fullmatch(folder.name) and not folder.is_symlink()
    return bool(named) and (folder / MANIFEST).is_file()


def newest_whole(output_dir: str | Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest whole checkpoint or None, and each one that is newer, with what is wrong with it."""
    passed_over: list[tuple[Path, str]] = []
    for folder in reversed(checkpoints(output_dir)):
        if not (wrong := fault(folder)):
            return folder, passed_over
        passed_over.append((folder, wrong))
    return None, passed_over


def last_whole_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest checkpoint that can be resumed from, or None."""
    return newest_whole(output_dir)[0]


def check(folder: Path, output_dir: Path) -> None:
    """Refuse a folder that cannot be resumed from.

    Raises:
        ConfigError: it does not exist, is no checkpoint or a damaged one; names the whole ones inside it, beside it, or
            in the run's ``output_dir``.
    """
    if not (wrong := fault(folder)):
        return
    wrong = f"is not a checkpoint that can be resumed from: {wrong}" if folder.exists() else wrong
    todo = "call train() without it to start at step 0"
    for place in (folder, folder.parent, output_dir):
        if whole := [checkpoint.name for checkpoint in checkpoints(place) if not fault(checkpoint)]:
            todo = f"take one of those in {place}: {', '.join(whole)}"
            break
    raise ConfigError(f"{folder} {wrong}", where="train(resume_from_checkpoint=...)", todo=todo)


def seal(folder: Path, told: Mapping[str, object]) -> None:
    """Bring every file of a complete checkpoint to the disk, then write the manifest: files, and what is ``told``."""
    files = {}
    for path in sorted(folder.rglob("*")):
        sync(path)
        if path.is_file() and path.name not in (MANIFEST, CARD):
            size = path.stat().st_size
            files[path.relative_to(folder).as_posix()] = {"bytes": size, "sha256": _digest(path)}
    replace_text(folder / MANIFEST, json.dumps({**told, "files": files}, indent=1, sort_keys=True) + "\n")


def replace_text(file: Path, text: str) -> None:
    """Write a file at once: a reader, also after a crash, finds the old text or the new one."""
    fresh = file.with_name(f".{file.name}")
    fresh.write_text(text, encoding="utf-8")
    sync(fresh)
    fresh.replace(file)
    sync(file.parent)


def sync(path: Path) -> None:
    """Bring a file or a folder to the disk."""
    if os.name == "nt":
        return  # folders cannot be opened there, nor files that are only read be flushed
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        found = hashlib.sha256(opened.read(HASHED_BYTES // 2))
        opened.seek(max(opened.tell(), file.stat().st_size - HASHED_BYTES // 2))
        found.update(opened.read())
    return found.hexdigest()


def _fault_by_manifest(folder: Path) -> str:
    if not (folder / MANIFEST).is_file():
        return ""
    try:
        named = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"].items()
        for name, expected in named:
            file = folder / name
            if not file.is_file():
                return f"{name} is missing"
            if (size := file.stat().st_size) != expected["bytes"]:
                return f"{name} has {size} bytes of {expected['bytes']}"
            if _digest(file) != expected["sha256"]:
                return f"{name} is not what was saved"
    except (*UNREADABLE, AttributeError):
        return f"{MANIFEST} or a file that it names cannot be read"
    return ""


def _missing_part(folder: Path) -> str:
    names = [path.name for path in folder.iterdir()]
    sharded = any(name.startswith(SHARDED) for name in names)
    for part, pattern in NEEDED.items():
        if not any(re.fullmatch(pattern, name) for name in names) and (part == "weights" or not sharded):
            return f"it has no {part}" + (" (save_only_model?)" if part != "weights" else "")
    return ""
