"""A run's checkpoints on the disk: written aside and moved into place, set aside, kept within ``save_total_limit``.

For :mod:`.saving` and :mod:`.resumable`.  Only what a run of the kit's wrote is ever moved
(:func:`rloo_kit.watch.checkpoint.is_ours`), and nothing is deleted but by ``save_total_limit``: a user's folder may be
called ``checkpoint-notes``, or ``checkpoint-400`` and be a copy of another run's.  What is in a checkpoint is
transformers' affair, whether it is whole :mod:`rloo_kit.watch.checkpoint`'s.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rloo_kit.errors import RunFolderError
from rloo_kit.watch import checkpoint
from rloo_kit.watch.run_folder import checkpoints, last_whole_checkpoint

WRITING = ".rloo_kit_writing"
"""Where a checkpoint is while it is written; moving it into place is one step of the file system."""

GONE = "gone-"
"""The start of the name in :data:`WRITING` of what ``save_total_limit`` deletes."""


def ours(output_dir: Path) -> list[Path]:
    """The checkpoints in a run's folder that runs of the kit's wrote there, by step."""
    return [folder for folder in checkpoints(output_dir) if checkpoint.is_ours(folder)]


def put_away(folders: Iterable[Path], place: Path) -> Path | None:
    """Move checkpoints of the kit's into a folder; those of others stay where they are.

    Returns:
        The folder, or None where there was nothing to move.
    """
    moved = None
    for folder in folders:
        if checkpoint.is_ours(folder):
            place.mkdir(exist_ok=True)
            folder.rename(_free(place / folder.name))
            moved = place
    return moved


def set_aside(output_dir: Path, after: int = -1) -> Path | None:
    """Move the checkpoints of an earlier run to ``earlier-1``, or the next number that is free.

    Args:
        output_dir: of the run.
        after: leave those up to this step, for a run that goes on from there.

    Returns:
        The folder where they are now, or None where there were none.
    """
    folders = [folder for folder in ours(output_dir) if checkpoint.step_of(folder) > after]
    return put_away(folders, _free(output_dir / "earlier", numbered=True))


def put_broken_away(output_dir: Path, damaged: Iterable[Path]) -> Path | None:
    """Move damaged checkpoints of the kit's to ``broken``; None where there were none."""
    return put_away(damaged, _broken(output_dir))


def _broken(output_dir: Path) -> Path:
    place = output_dir / "broken"
    return place if place.is_dir() else _free(place)


def clear_up(output_dir: Path) -> Path | None:
    """After a run that was killed: what it was deleting is deleted, what it was writing is moved to ``broken``."""
    writing, moved = output_dir / WRITING, None
    for left in writing.glob("checkpoint-*") if writing.is_dir() else ():
        if left.is_dir() and any(left.iterdir()):
            moved = _broken(output_dir)
            moved.mkdir(exist_ok=True)
            left.rename(_free(moved / left.name))
    tidy(writing)
    return moved


def tidy(writing: Path) -> None:
    """Delete what is to go from :data:`WRITING`, and the folder itself where nothing else is in it."""
    for left in writing.glob(f"{GONE}*"):
        shutil.rmtree(left, ignore_errors=True)
    with suppress(OSError):
        writing.rmdir()


@contextmanager
def explained(output_dir: Path, what: str, room_bytes: int = 0) -> Iterator[None]:
    """Say which file could not be written, why, and which checkpoint is there to go on from.

    Args:
        output_dir: of the run.
        what: is written.
        room_bytes: that it needs, where that is known.

    Raises:
        RunFolderError: the disk is full, a quota used up, or the folder is read-only.
    """
    try:
        yield
    except Exception as error:
        if not _of_the_disk(error):
            raise
        file = getattr(error, "filename", None) or _file_of(error, output_dir / WRITING) or output_dir
        kept = last_whole_checkpoint(output_dir)
        room = f" for {room_bytes / 1e6:.1f} MB" if room_bytes else ""
        way_on = f"; {kept} is whole, and train(resume_from_checkpoint=True) goes on from it" if kept else ""
        raise RunFolderError(
            f"{what} could not be written: {_reason(error)}",
            where=str(file),
            todo=f"make room{room}, or see who may write there{way_on}",
        ) from error


def _reason(error: BaseException) -> str:
    """In the words of the system, which torch's error may have in its context."""
    told: BaseException | None = error
    while told is not None:
        if isinstance(told, OSError) and told.strerror:
            return told.strerror
        told = told.__context__
    return f"{str(error).splitlines()[0]}, as on a full disk"


def _of_the_disk(error: Exception) -> bool:
    if isinstance(error, RunFolderError):
        return False
    # safetensors' and torch's own errors carry no errno.
    return (
        isinstance(error, OSError)
        or type(error).__name__ == "SafetensorError"
        or (isinstance(error, RuntimeError) and any(word in str(error) for word in TORCH_CANNOT_WRITE))
    )


TORCH_CANNOT_WRITE = ("PytorchStreamWriter", "inline_container", "file write failed", "iostream error")


def _file_of(error: Exception, folder: Path) -> Path | None:
    """The file that was being written: of safetensors' and torch's errors only their frames know it."""
    frame, found = error.__traceback__, None
    while frame is not None:
        for value in frame.tb_frame.f_locals.values():
            if isinstance(value, str) and value.startswith(f"{folder}{os.sep}") and not Path(value).is_dir():
                found = Path(value)
        frame = frame.tb_next
    return found


def place_of(output_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step goes: its own name, or the next one that is free of things of others."""
    same = [folder for folder in ours(output_dir) if checkpoint.step_of(folder) == step]
    return same[-1] if same else _free(output_dir / f"checkpoint-{step}")


def publish(written: Path, place: Path, told: Mapping[str, object]) -> None:
    """Seal a checkpoint in :data:`WRITING` and move it into place, for a whole one of the same step if there is one.

    Args:
        written: the folder, complete.
        place: of :func:`place_of`.
        told: what its manifest is to say.
    """
    checkpoint.seal(written, told)
    if place.exists():
        place.rename(_free(written.parent / f"{GONE}{place.name}"))
    written.rename(place)
    checkpoint.sync(place.parent)
    tidy(written.parent)


def keep_newest(output_dir: Path, limit: int | None, protected: Path | None = None) -> None:
    """Delete the oldest checkpoints of the kit's beyond ``save_total_limit``, as transformers does.

    Args:
        output_dir: of the run.
        limit: how many are kept; None or 0 keeps all.
        protected: the best one so far, which is kept beside the newest.
    """
    if not limit or limit < 1:
        return
    found = ours(output_dir)
    spared = {found[-1], protected} if found else set()
    spare = [folder for folder in found if folder not in spared]
    for folder in spare[: max(0, len(found) - max(limit, len(spared & set(found))))]:
        delete(folder)


def delete(folder: Path) -> None:
    """Delete a checkpoint; a run that is killed meanwhile leaves no half of it under its name."""
    gone = folder.parent / WRITING / f"{GONE}{folder.name}"
    gone.parent.mkdir(exist_ok=True)
    folder.rename(_free(gone))
    tidy(gone.parent)


def _free(path: Path, numbered: bool = False) -> Path:
    """The path, or with the first number that makes it free."""
    if not numbered and not os.path.lexists(path):
        return path
    names = (path.with_name(f"{path.name}-{n}") for n in itertools.count(1 if numbered else 2))
    return next(free for free in names if not os.path.lexists(free))
