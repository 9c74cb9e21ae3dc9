"""A run's checkpoints: which one is whole, what is left of one that was cut off, and those of an earlier run.

For the trainer, when it starts or resumes.  Files only; what is in a checkpoint is transformers' business.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from rloo_kit.errors import ConfigError


def last_whole_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest ``checkpoint-N`` that was written to its end, or None.

    transformers writes ``trainer_state.json`` last, so a checkpoint without a readable one for its own step
    was cut off.
    """
    whole = [folder for folder in _checkpoints(output_dir) if _is_whole(folder)]
    return whole[-1] if whole else None


def check(folder: Path, output_dir: str | Path | None = None) -> None:
    """Refuse what cannot be resumed from.

    Args:
        folder: what is to be resumed from.
        output_dir: the run's own folder, where it is known.

    Raises:
        ConfigError: there is no such folder, it holds no checkpoint, or one that was cut off; names those that are
            whole, inside it, beside it or in ``output_dir``.
    """
    if _is_whole(folder):
        return
    missing = "is not a checkpoint that was written to its end" if folder.exists() else "does not exist"
    places = [("inside it", folder), ("beside it", folder.parent)]
    places += [(f"in {output_dir}", Path(output_dir))] if output_dir else []
    raise ConfigError(
        f"{folder} {missing}",
        where="train(resume_from_checkpoint=...)",
        todo=next(
            (f"take one of those {place}: {names}" for place, there in places if (names := _whole_in(there))),
            "call train() without it to start at step 0",
        ),
    )


def _whole_in(folder: Path) -> str:
    return ", ".join(checkpoint.name for checkpoint in _checkpoints(folder) if _is_whole(checkpoint))


def _checkpoints(output_dir: str | Path) -> list[Path]:
    folders = [f for f in Path(output_dir).glob("checkpoint-*") if f.name.split("-")[-1].isdigit()]
    return sorted(folders, key=step_of)


def step_of(folder: Path) -> int:
    """The step in a checkpoint's name, or, in a folder of another name, that of its state; 0 without one."""
    digits = folder.name.split("-")[-1]
    return int(digits) if digits.isdigit() else _saved_step(folder) or 0


def _saved_step(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / "trainer_state.json").read_text())["global_step"])
    except (OSError, ValueError, TypeError, KeyError):  # not there, cut off, or no state at all
        return None


def _is_whole(folder: Path) -> bool:
    saved = _saved_step(folder)
    return saved is not None and saved == step_of(folder)


def remove_broken(output_dir: str | Path) -> None:
    """Delete the checkpoints that were cut off while they were written."""
    for folder in _checkpoints(output_dir):
        if not _is_whole(folder):
            shutil.rmtree(folder)


def set_aside(output_dir: str | Path) -> None:
    """Move what an earlier run left to ``earlier``, in place of what was there."""
    folders = _checkpoints(output_dir)
    if not folders:
        return
    earlier = Path(output_dir) / "earlier"
    shutil.rmtree(earlier, ignore_errors=True)
    earlier.mkdir()
    for folder in folders:
        folder.rename(earlier / folder.name)
    print(f"checkpoints of an earlier run are now in {earlier}")
