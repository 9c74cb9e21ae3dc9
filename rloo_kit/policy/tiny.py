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
from pathlib import Path

from rloo_kit.policy.expanded import Expanded, file_hash

DATA = Path(__file__).parent / "data" / "tiny_qwen3"
EMBEDDING = "model.embed_tokens.weight"


def checkpoint(folder: str | Path | None = None) -> Path:
    """The folder of the tiny Qwen3's checkpoint, expanded if it is missing or damaged.

    The folder loads with ``from_pretrained`` like any other: config.json, generation_config.json,
    model.safetensors (bfloat16, 19.7 MB) and the tokenizer.  Comparing its files takes about 20 ms.

    Args:
        folder: where to put it; by default ``rloo-kit/tiny-qwen3-<hash>`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        ConfigError: ``folder`` holds something else, or the place cannot be written.
    """
    return TINY.checkpoint(folder)


def shipped_hash() -> str:
    """One SHA-256 over the names and contents of the shipped files."""
    listing = "".join(f"{path.name}:{file_hash(path)}\n" for path in sorted(DATA.iterdir()))
    return hashlib.sha256(listing.encode()).hexdigest()


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


TINY = Expanded("tiny-qwen3", "the tiny Qwen3", 40, shipped_hash, write_checkpoint)
