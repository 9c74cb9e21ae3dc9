"""A run's folder on the disk: one run's at a time, its checkpoints moved into place and kept within a limit.

For :mod:`.checkpointing` and :mod:`.resume`.  Only what a run of the kit's wrote is ever moved
(:func:`rloo_kit.watch.checkpoint.is_ours`), and nothing is deleted but by ``save_total_limit``: a user's folder may be
called ``checkpoint-notes``, or ``checkpoint-400`` and be a copy of another run's.  The lock is filelock's: the system
gives it back when the process ends, however that ends and whatever its clock says.  What is in a checkpoint is
transformers' affair, whether it is whole :mod:`rloo_kit.watch.checkpoint`'s.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from rloo_kit.errors import ConfigError, RLOOKitError, RunFolderError
from rloo_kit.session.output import scale_of
from rloo_kit.watch import checkpoint
from rloo_kit.watch.run_folder import checkpoints, last_whole_checkpoint

WRITING = "_rloo_kit_writing"
"""Where a checkpoint is while it is written; moving it into place is one step of the file system.

What the kit keeps in a run's folder for itself begins with "_": transformers pushes nothing of that name to the hub."""

LOCK = "_rloo_kit.lock"
"""Says which process has it, for the message alone: on Windows a locked file takes no text."""

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
    """Move the checkpoints of an earlier run to ``_earlier-1``, or the next number that is free.

    Args:
        output_dir: of the run.
        after: leave those up to this step, for a run that goes on from there.

    Returns:
        The folder where they are now, or None where there were none.
    """
    folders = [folder for folder in ours(output_dir) if checkpoint.step_of(folder) > after]
    return put_away(folders, _free(output_dir / "_earlier", numbered=True))


def broken(output_dir: Path) -> Path:
    """Where damaged checkpoints of the kit's go."""
    place = output_dir / "_broken"
    return place if place.is_dir() else _free(place)


def clear_up(output_dir: Path) -> Path | None:
    """After a run that was killed: what it was deleting is deleted, what it was writing is moved to ``_broken``."""
    writing, moved = output_dir / WRITING, None
    for left in writing.glob("checkpoint-*") if writing.is_dir() else ():
        if left.is_dir() and any(left.iterdir()):
            moved = broken(output_dir)
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
        kept = last_whole_checkpoint(output_dir)
        room = f" for {room_bytes / 1e6:.1f} MB" if room_bytes else ""
        way_on = f"; {kept} is whole, and train(resume_from_checkpoint=True) goes on from it" if kept else ""
        raise RunFolderError(
            f"{what} could not be written: {_reason(error)}",
            where=str(getattr(error, "filename", None) or output_dir),
            todo=f"make room{room}, or see who may write there{way_on}",
        ) from error


@contextmanager
def loadable(place: Path) -> Iterator[None]:
    """Say of which file or folder something cannot be loaded.

    Raises:
        ConfigError: it cannot.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, RLOOKitError | MemoryError) or type(error).__name__ == "OutOfMemoryError":
            raise
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        told = told.partition(" In PyTorch 2.6")[0]  # torch goes on to advise loading it unsafely
        raise ConfigError(
            f"the checkpoint cannot be loaded: {told[:200]}",
            where=str(place),
            todo="resume from another one, or load_policy(that folder) and train() a new run from its weights",
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


# --- one run a folder -------------------------------------------------------------------------------------


def make(output_dir: str | os.PathLike[str]) -> None:
    """Make a run's folder, as transformers does, which would say less.

    Raises:
        RunFolderError: it cannot be made.
    """
    folder = Path(output_dir).absolute()
    if folder.is_symlink() and not folder.exists():
        raise RunFolderError(
            "the run's folder is a link to one that does not exist",
            where=f"output_dir {folder} -> {folder.readlink()}",
            todo="make that folder, mount its disk, or choose another output_dir",
        )
    with explained(folder, "the run's folder"):
        folder.mkdir(parents=True, exist_ok=True)


class RunLock:
    """Hold a run's folder while inside; it is made where it does not exist.

    Args:
        output_dir: of the run.
        checkpoint_bytes: of one checkpoint, where the run is to write any.

    Raises:
        RunFolderError: another run has it, it cannot be written to, or a checkpoint does not fit.
    """

    def __init__(self, output_dir: Path, checkpoint_bytes: int = 0) -> None:
        self._folder, self._bytes = output_dir, checkpoint_bytes
        self._lock = FileLock(output_dir / LOCK, timeout=0)

    def __enter__(self) -> None:
        make(self._folder)
        with explained(self._folder, "the run's folder"):
            try:
                self._lock.acquire()
            except Timeout:
                raise self._taken() from None
        with suppress(OSError):
            (self._folder / LOCK).write_text(f"process {os.getpid()} on {socket.gethostname()}")
        try:
            self._check_room()
        except RunFolderError:
            self._lock.release()
            raise

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def _taken(self) -> RunFolderError:
        holder = ""
        with suppress(OSError):
            holder = (self._folder / LOCK).read_text(errors="replace")
        return RunFolderError(
            f"another run has this folder: {holder or 'its process is not known'}",
            where=f"output_dir {self._folder}",
            todo="wait for it, end it, or choose another output_dir",
        )

    def _check_room(self) -> None:
        free = shutil.disk_usage(self._folder).free
        if self._bytes > free:
            (scale, unit), (some, small) = scale_of(self._bytes), scale_of(free)
            raise RunFolderError(
                f"there is no room for a checkpoint of {self._bytes / scale:.1f} {unit}: "
                f"{free / some:.1f} {small} are free",
                where=f"output_dir {self._folder}",
                todo="make room, choose another output_dir, or save_strategy='no'",
            )
