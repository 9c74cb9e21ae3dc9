"""The bundled tiny Qwen3: an ordinary Hugging Face checkpoint, expanded from 0.4 MB on first use.

For tests, for continuous integration and for learning how RLOO behaves in minutes on a CPU: the Qwen3 architecture
with 3 layers of width 64, under Qwen3's token ids and chat template, warm-started on demonstrations of additions
a + b with 0 <= a, b < 50 asked as "What is 17 + 25?".  It thinks in two written steps, but often answers without a
thought, stops inside it, or forgets to carry, which RLOO can improve.  It is not a language model: other prompts get
noise, and no figure measured on it says anything about a real Qwen3.  scripts/train_tiny.py makes it;
benchmarks/results/tiny.md has its figures.

The package ships the embedding rows of the few hundred token ids that the tasks use, and one row that all other ids
share.  ``checkpoint`` writes them out to the full 151936 rows, with the same distribution as the trained model.
Nothing heavy is imported before it has to.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

from rloo_kit.errors import ConfigError
from rloo_kit.session.imports import cache_folder

DATA = Path(__file__).parent / "data" / "tiny_qwen3"
MANIFEST = "tiny-qwen3.manifest.json"
EMBEDDING = "model.embed_tokens.weight"


def checkpoint(folder: str | Path | None = None) -> Path:
    """The folder of the tiny Qwen3's checkpoint, expanded if it is missing or damaged.

    The folder loads with ``from_pretrained`` like any other: config.json, generation_config.json,
    model.safetensors (bfloat16, 19.7 MB) and the tokenizer.  Every call compares all files with the hashes
    recorded at expansion (about 20 ms) and expands again where one differs.  Several processes may call at
    once: files are written aside and moved into place one by one.

    Args:
        folder: where to put it; by default ``rloo-kit/tiny-qwen3-<hash>`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        ConfigError: ``folder`` holds something else, or the place cannot be written.
    """
    target = default_folder() if folder is None else Path(folder)
    if is_whole(target):
        return target
    ours = (target / MANIFEST).exists()
    if folder is not None and (target.is_file() or (target.is_dir() and any(target.iterdir()) and not ours)):
        raise ConfigError(
            "the folder for the tiny Qwen3 holds something else",
            where=f"tiny.checkpoint, {target}",
            todo="name a new or empty folder, or none for the user's cache",
        )
    try:
        expand_into(target)
    except OSError as error:
        raise ConfigError(
            f"the tiny Qwen3 cannot be expanded: {error.strerror or error}",
            where=f"tiny.checkpoint, {target}",
            todo="set XDG_CACHE_HOME, or give checkpoint(folder=...) a writable place with 40 MB free",
        ) from error
    return target


def default_folder() -> Path:
    """The folder in the user's cache; its name changes with the shipped files."""
    return cache_folder() / f"tiny-qwen3-{shipped_hash()[:12]}"


def shipped_hash() -> str:
    """One SHA-256 over the names and contents of the shipped files."""
    listing = "".join(f"{path.name}:{file_hash(path)}\n" for path in sorted(DATA.iterdir()))
    return hashlib.sha256(listing.encode()).hexdigest()


def file_hash(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def is_whole(folder: Path) -> bool:
    """Whether the folder was expanded from these shipped files and no file of it has changed since."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        same = all(file_hash(folder / name) == digest for name, digest in manifest["files"].items())
        return same and manifest["shipped"] == shipped_hash()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def expand_into(target: Path) -> None:
    """Write the checkpoint's files aside, then move each to the target.

    The manifest goes first: it marks the folder as ours, and until the other files are there too they do not match it.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".expanding-", dir=target.parent) as aside:
        made = Path(aside)
        write_checkpoint(made)
        names = sorted(path.name for path in made.iterdir())
        manifest = {"shipped": shipped_hash(), "files": {name: file_hash(made / name) for name in names}}
        (made / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        for name in (MANIFEST, *names):
            (made / name).replace(target / name)


def write_checkpoint(folder: Path) -> None:
    """The shipped files as a checkpoint; the rows become the full embedding."""
    from safetensors.torch import load_file, save_file

    for path in DATA.iterdir():
        if path.name != "rows.safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(DATA / "rows.safetensors")
    rows, used_ids = tensors[EMBEDDING], tensors.pop("used_ids").long()
    vocabulary = json.loads((DATA / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    tensors[EMBEDDING] = rows[-1].repeat(vocabulary, 1)
    tensors[EMBEDDING][used_ids] = rows[:-1]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
