"""A checkpoint that is made on this machine, on first use, out of something smaller that a package ships.

For the bundled tiny Qwen3 and for the real small model of an optional package.  Both become ordinary Hugging Face
folders in the user's cache.  What they are made of, and how, is theirs: this module keeps the folder whole.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rloo_kit.errors import ConfigError, RLOOKitError
from rloo_kit.session.imports import cache_folder


@dataclass(frozen=True)
class Expanded:
    """A checkpoint in the user's cache.

    Attributes:
        name: what its folder's name begins with; a hash of what it is made of follows.
        called: its name in messages.
        megabytes: what making it takes on disk, at most.
        shipped_hash: the SHA-256 of what it is made of.
        write: writes its files into an empty folder.
    """

    name: str
    called: str
    megabytes: int
    shipped_hash: Callable[[], str]
    write: Callable[[Path], None]

    @property
    def manifest(self) -> str:
        """The file that marks a folder as ours and has the hash of every other file."""
        return f"{self.name}.manifest.json"

    @property
    def default_folder(self) -> Path:
        """The folder in the user's cache; its name changes with what it is made of."""
        return cache_folder() / f"{self.name}-{self.shipped_hash()[:12]}"

    def made(self, base: str) -> bool:
        """Whether a folder's name, on this machine or another, is that of this checkpoint: the name and a hash."""
        return re.fullmatch(rf"{re.escape(self.name)}-[0-9a-f]{{12}}", Path(base).name) is not None

    def checkpoint(self, folder: str | Path | None = None) -> Path:
        """The folder, made if it is missing or damaged; all files are compared with their hashes at every call.

        Several processes may call at once: files are written aside and moved into place one by one.

        Raises:
            ConfigError: ``folder`` holds something else, or the place cannot be written.
        """
        target = self.default_folder if folder is None else Path(folder)
        if self.is_whole(target):
            return target
        ours = (target / self.manifest).exists()
        if folder is not None and (
            target.is_file() or (target.is_dir() and any(target.iterdir()) and not ours)
        ):
            raise ConfigError(
                f"the folder for {self.called} holds something else",
                where=f"checkpoint, {target}",
                todo="name a new or empty folder, or none for the user's cache",
            )
        try:
            self._expand_into(target)
        except RLOOKitError:  # of what it is made of; some are OSErrors too
            raise
        except OSError as error:
            raise ConfigError(
                f"{self.called} cannot be expanded: {error.strerror or error}",
                where=f"checkpoint, {target}",
                todo="set XDG_CACHE_HOME, or give checkpoint(folder=...) a writable place with "
                f"{self.megabytes} MB free",
            ) from error
        return target

    def is_whole(self, folder: Path) -> bool:
        """Whether the folder was made of what is shipped now and no file of it has changed since."""
        try:
            manifest = json.loads((folder / self.manifest).read_text(encoding="utf-8"))
            same = all(file_hash(folder / name) == digest for name, digest in manifest["files"].items())
            return same and manifest["shipped"] == self.shipped_hash()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False

    def _expand_into(self, target: Path) -> None:
        """Write the checkpoint's files aside, then move each to the target.

        The manifest goes first: it marks the folder as ours, and until the other files are there too they do not
        match it.
        """
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".expanding-", dir=target.parent) as aside:
            made = Path(aside)
            self.write(made)
            names = sorted(path.name for path in made.iterdir())
            manifest = {
                "shipped": self.shipped_hash(),
                "files": {name: file_hash(made / name) for name in names},
            }
            (made / self.manifest).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
            for name in (self.manifest, *names):
                (made / name).replace(target / name)


def file_hash(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
