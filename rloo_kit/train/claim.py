"""A run's folder is one run's, and has room, before its first step.

For :meth:`rloo_kit.RLOOTrainer.train`.  The lock is the file system's own, so that it ends with the process that holds
it, however that ends.  Room and permission are asked for again when a checkpoint is written (:mod:`.checkpoints`).
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from rloo_kit.errors import RunFolderError
from rloo_kit.session.show import scale_of
from rloo_kit.train.checkpoints import explained

LOCK = ".rloo_kit.lock"
CANNOT_RESERVE = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV, errno.ESPIPE}
"""What a file system says that cannot reserve room, whether it has some or not."""


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


@contextmanager
def claimed(output_dir: Path, checkpoint_bytes: int = 0) -> Iterator[None]:
    """Hold a run's folder while inside; it is made where it does not exist.

    Args:
        output_dir: of the run.
        checkpoint_bytes: of one checkpoint, where the run is to write any.

    Raises:
        RunFolderError: another run has it, it cannot be written to, or a checkpoint does not fit.
    """
    make(output_dir)
    with explained(output_dir, "the run's folder"):
        with tempfile.TemporaryFile(dir=output_dir) as probe:
            probe.write(b"room")
            _reserve(probe.fileno(), checkpoint_bytes, output_dir)
        lock = _locked(output_dir / LOCK)
    try:
        yield
    finally:
        lock.release()


def _reserve(file: int, size: int, output_dir: Path) -> None:
    """Ask the file system for the room of a checkpoint, which it gives back when the file is closed."""
    free = shutil.disk_usage(output_dir).free
    if size > free:
        raise _no_room(size, f"{free / scale_of(free)[0]:.1f} {scale_of(free)[1]} are free", output_dir)
    if size and hasattr(os, "posix_fallocate") and size < free:
        try:
            os.posix_fallocate(file, 0, size)  # a quota is known to the file system alone
        except OSError as error:
            if error.errno not in CANNOT_RESERVE:
                raise _no_room(size, str(error.strerror), output_dir) from error


def _no_room(size: int, reason: str, output_dir: Path) -> RunFolderError:
    scale, unit = scale_of(size)
    return RunFolderError(
        f"there is no room for a checkpoint of {size / scale:.1f} {unit}: {reason}",
        where=f"output_dir {output_dir}",
        todo="make room, choose another output_dir, or save_strategy='no'",
    )


def _locked(file: Path) -> FileLock:
    for _ in range(2):
        lock = FileLock(file, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            holder = _holder(file)
            if not _is_dead(holder):
                raise RunFolderError(
                    f"another run has this folder: process {holder.get('pid', 'unknown')} on {holder.get('host', '?')}",
                    where=f"output_dir {file.parent}",
                    todo="wait for it, end it, or choose another output_dir",
                ) from None
            with suppress(OSError):
                file.unlink()  # a dead run's child has inherited the lock
            continue
        me = {**_place(), "pid": os.getpid(), "started": psutil.Process().create_time()}
        with suppress(OSError):  # on Windows a locked file takes no text
            file.write_text(json.dumps(me))
        return lock
    raise RunFolderError(
        "the folder's lock cannot be had",
        where=str(file),
        todo="delete this file, if no run is using the folder",
    )


def _holder(file: Path) -> dict[str, object]:
    try:
        found: dict[str, object] = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _place() -> dict[str, object]:
    """Where a process id means something: containers may share a machine's name and not its processes."""
    namespace = ""
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return {"host": socket.gethostname(), "namespace": namespace}


def _is_dead(holder: dict[str, object]) -> bool:
    """Whether the process that took the lock has ended; only of one in this place can that be known."""
    if not _place().items() <= holder.items():
        return False
    try:
        process = psutil.Process(int(str(holder["pid"])))
        return process.create_time() != holder["started"] or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except (KeyError, ValueError, psutil.Error):
        return False
