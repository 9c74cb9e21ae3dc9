"""Whether a checkpoint is whole: by its manifest, or without one by what its files say of themselves.

The manifest is written last, so a checkpoint that was cut off has none, and it names every file with its size and a
digest.  Checkpoints of plain TRL have none: of those the files that a resumed run needs must be there and readable.
Nothing here writes but :func:`seal` and :func:`replace_text`, and nothing loads a tensor.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATE = "trainer_state.json"
MANIFEST = "rloo_kit_manifest.json"
CARD = "README.md"  # people write into it, and no resumed run reads it
UNREADABLE = (OSError, ValueError, TypeError, KeyError)
"""What reading a JSON file raises where it is not there, was cut off, or is something else."""

NAME = re.compile(r"checkpoint-(\d+)(?:-\d+)?")
"""``checkpoint-N``, or ``checkpoint-N-2`` where the first name was taken by something that is not a run's."""

HASHED_BYTES = (
    2**20
)  # files up to this size are hashed whole, larger ones at both ends: training changes those too

WEIGHTS = (
    *("adapter_model.safetensors", "adapter_model.bin", "model.safetensors", "pytorch_model.bin"),
    *("model.safetensors.index.json", "pytorch_model.bin.index.json"),
)


def fault(folder: Path) -> str:
    """What is wrong with a checkpoint, in a few words; empty where it is whole and can be resumed from."""
    if not folder.is_dir():
        return "is not a folder" if os.path.lexists(folder) else "does not exist"
    try:
        if (saved := saved_step(folder)) is None:
            return f"{STATE} is missing or was cut off"
        if saved != step_of(folder):
            return f"its {STATE} is of step {saved}"
        if is_ours(folder) and (found := _fault_by_manifest(folder)):
            return found
        return _missing_part(folder) or ("" if is_ours(folder) else _unreadable_file(folder))
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"


def is_ours(folder: Path) -> bool:
    """Whether a run of the kit's wrote this folder, here: its name is a checkpoint's and the manifest is inside.

    A link is the user's own, wherever it leads.
    """
    named = bool(NAME.fullmatch(folder.name))
    return named and folder.is_dir() and not folder.is_symlink() and (folder / MANIFEST).is_file()


def step_of(folder: Path) -> int:
    """The step in a checkpoint's name, or, in a folder of another name, that of its state; 0 without one."""
    named = NAME.fullmatch(folder.name)
    return int(named[1]) if named else saved_step(folder) or 0


def saved_step(folder: Path) -> int | None:
    """The step of a checkpoint's state, or None where there is no readable one."""
    try:
        text = (folder / STATE).read_text(encoding="utf-8") if (folder / STATE).is_file() else ""
        return int(json.loads(text)["global_step"])
    except UNREADABLE:
        return None


def facts(folder: Path) -> dict[str, Any]:
    """What the manifest says beside the files; empty without a readable one."""
    try:
        found: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return {name: value for name, value in found.items() if name != "files"}
    except UNREADABLE:
        return {}


# --- writing ----------------------------------------------------------------------------------------------


def seal(folder: Path, told: Mapping[str, object]) -> None:
    """Bring every file of a complete checkpoint to the disk, and then write the manifest that names them.

    ``told``: what the manifest is to say beside the files.
    """
    files = {}
    for file in _files(folder):
        sync(file)
        files[file.relative_to(folder).as_posix()] = {"bytes": file.stat().st_size, "sha256": _digest(file)}
    for inner in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        sync(inner)
    replace_text(folder / MANIFEST, json.dumps({**told, "files": files}, indent=1, sort_keys=True) + "\n")


def replace_text(file: Path, text: str) -> None:
    """Write a file at once: a reader, also after a crash, finds the old text or the new one."""
    number, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(number, "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        mask = os.umask(0o077)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)  # mkstemp's files are the owner's alone
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync(file.parent)


def sync(path: Path) -> None:
    """Bring a file or a folder to the disk."""
    if os.name == "nt" and path.is_dir():
        return  # folders cannot be opened there
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


# --- looking ----------------------------------------------------------------------------------------------


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in (MANIFEST, CARD))


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        found = hashlib.sha256(opened.read(HASHED_BYTES // 2))
        opened.seek(max(opened.tell(), file.stat().st_size - HASHED_BYTES // 2))
        found.update(opened.read())
    return found.hexdigest()


def _fault_by_manifest(folder: Path) -> str:
    try:
        named = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"].items()
        for name, expected in named:
            if name == CARD:  # of a checkpoint that an earlier release wrote
                continue
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
    """The first thing that a resumed run needs and would go on without, in silence and differently."""
    names = {path.name for path in folder.iterdir()}
    if not any(name in WEIGHTS for name in names):
        return "it has no weights"
    if any(name.startswith(("global_step", "pytorch_model_fsdp")) for name in names):
        return ""  # DeepSpeed's and FSDP's own formats, which they check
    for part, start in (("optimizer", "optimizer"), ("scheduler", "scheduler"), ("random", "rng_state")):
        if not any(name.startswith(start) for name in names):
            return f"it has no {part} state (save_only_model?)"
    return ""


def _unreadable_file(folder: Path) -> str:
    """The first file of safetensors or torch (zip files with checksums) that was cut off or damaged."""
    from safetensors import SafetensorError, safe_open

    for file in _files(folder):
        try:
            if file.suffix == ".safetensors":
                with safe_open(file, framework="np"):
                    pass
            elif file.suffix in (".pt", ".pth", ".bin") and file.parent == folder:
                with zipfile.ZipFile(file) as opened:
                    if opened.testzip():
                        return f"{file.name} is damaged"
        except (SafetensorError, zipfile.BadZipFile, EOFError, NotImplementedError):
            return f"{file.name} was cut off or cannot be read"
    return ""
