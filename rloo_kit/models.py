"""The catalogue of models: shapes, special tokens, chat templates, and how to sample and ask them.

Shapes are those of the checkpoints' config.json.  Token ids are defined in :mod:`rewards`.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rewards.thinking import OPEN, QWEN3, ThinkTokens

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from rewards.answers import Form

Thinks = Literal["always", "by choice", "never"]

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a block, all of which get a LoRA."""

START_OF_TURN, END_OF_TURN, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
# A completion ends with either of two tokens; the tokenizer names only the first.
EOS_TEXTS = dict(zip(QWEN3.eos_ids, (END_OF_TURN, END_OF_TEXT), strict=True))
PADS = ("<|vision_pad|>", END_OF_TEXT)  # padding that does not look like the end of a turn; unsloth's choice first

HEAD_NORMS = ("qwen3", "qwen3_moe")  # families that normalise queries and keys per head


def nf4_bytes(weights: int) -> int:
    """Bytes of one matrix in NF4 with double quantisation, as bitsandbytes' ``quantize_4bit`` stores it: a byte per two
    weights, a byte of scale per 64 weights, a float32 per 256 scales, the scales' mean, and two float32 tables, with 16
    values for NF4 and 256 for the scales (Dettmers et al. 2023)."""
    scales = -(-weights // 64)
    return -(-weights // 2) + scales + 4 * -(-scales // 256) + 4 + 4 * (16 + 256)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's repository, its shape, and how it thinks."""

    name: str  # as load_policy takes it; outside the catalogue a hub id or a folder's name
    repository: str  # hub id without the quantisation suffix, or a local folder
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_size: int
    tied: bool  # whether lm_head and the embedding are one matrix
    thinks: Thinks  # "always": the prompt ends with <think>; "by choice": enable_thinking
    vocabulary: int = 151936
    four_bit_repository: str | None = None  # hub id of unsloth's 4-bit form
    positions: int = 40960  # tokens that the position embedding knows (max_position_embeddings)
    family: str = "qwen3"  # transformers' model_type
    four_bit: bool = True  # whether 4 bit is of use; a checkpoint too small for it is loaded in 16 bit
    temperature: float = 1.0  # sampling temperature in training
    form: Form = "boxed"  # of its answers, one of rewards.FORMS; a task given the policy asks for it
    license: str | None = None  # of the weights, as the hub writes it; None means unknown to the kit
    uncounted: str = ""  # the part of its layers for which the memory plan has no formula

    @property
    def tokens(self) -> ThinkTokens:
        """The markers of its thoughts, with ids that never occur if its vocabulary is not Qwen3's."""
        of_qwen = self.family.startswith("qwen")
        return replace(QWEN3, prompt_opens=self.thinks == "always") if of_qwen else ThinkTokens(-1, -2)

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """The seven projections of a layer: name -> (outputs, inputs)."""
        attention, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        query, key, up = ((rows, self.hidden_size) for rows in (attention, keys, self.ffn_size))
        shapes = (query, key, key, query[::-1], up, up, up[::-1])
        return dict(zip(PROJECTIONS, shapes, strict=True))

    @property
    def linear_parameters(self) -> int:
        """Weights of the seven projections of all layers, which 4-bit loading quantises."""
        return self.layers * sum(rows * columns for rows, columns in self.projections.values())

    @property
    def parameters(self) -> int:
        """All weights; lm_head counts unless it is tied to the embedding."""
        embeddings = self.vocabulary * self.hidden_size * (1 if self.tied else 2)
        of_heads = 2 * self.head_dim if self.family in HEAD_NORMS else 0
        norms = self.layers * (2 * self.hidden_size + of_heads) + self.hidden_size
        return self.linear_parameters + embeddings + norms

    @property
    def rest_parameters(self) -> int:
        """Weights that are never quantised: embedding, lm_head and norms."""
        return self.parameters - self.linear_parameters

    def linear_bytes(self, four_bit: bool = True, dtype_bytes: int = 2) -> int:
        """Bytes of the projections as loaded: in NF4 with its quantisation state, or unquantised."""
        sizes = [rows * columns for rows, columns in self.projections.values()]
        return self.layers * sum(nf4_bytes(size) if four_bit else size * dtype_bytes for size in sizes)

    def weight_bytes(self, four_bit: bool = True) -> int:
        """Bytes of the loaded weights: projections in NF4 or 16 bit, the rest in 16 bit."""
        return self.linear_bytes(four_bit) + 2 * self.rest_parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the key-value cache per token of one row, in 16 bit."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim

    def __str__(self) -> str:
        size = f"{self.parameters / 1e9:.2f} B parameters, {self.layers} layers, {self.kv_heads} KV heads"
        return f"{self.name}: {size}, thinking: {'optional' if self.thinks == 'by choice' else self.thinks}"


APACHE = "apache-2.0"


def _qwen3(name: str, size: str, thinks: Thinks, shape: tuple[int, int, int, int, bool]) -> Checkpoint:
    hidden_size, layers, heads, ffn_size, tied = shape
    repository = f"unsloth/Qwen3-{size}"
    return Checkpoint(
        *(name, repository, hidden_size, layers, heads, 8, 128, ffn_size, tied, thinks),
        four_bit_repository=f"{repository}-unsloth-bnb-4bit",
        positions=262144 if size.endswith("2507") else Checkpoint.positions,
        license=APACHE,
    )


_SMOLLM2 = Checkpoint(
    "smollm2-135m",
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    *(576, 30, 9, 3, 64, 1536, True, "never", 49152),
    positions=8192,
    family="llama",
    four_bit=False,
    temperature=0.6,  # at 1, most text of so small a model is noise
    form="auto",
    license=APACHE,
)

_SHAPE_4B = (2560, 36, 32, 9728, True)

CATALOGUE: dict[str, Checkpoint] = {
    checkpoint.name: checkpoint
    for checkpoint in (
        Checkpoint("tiny", "tiny", 64, 3, 2, 1, 32, 192, True, "by choice", form="whole", license=APACHE),
        _SMOLLM2,
        _qwen3("qwen3-0.6b", "0.6B", "by choice", (1024, 28, 16, 3072, True)),
        _qwen3("qwen3-1.7b", "1.7B", "by choice", (2048, 28, 16, 6144, True)),
        _qwen3("qwen3-4b-thinking", "4B-Thinking-2507", "always", _SHAPE_4B),
        _qwen3("qwen3-4b-instruct", "4B-Instruct-2507", "never", _SHAPE_4B),
        _qwen3("qwen3-4b", "4B", "by choice", _SHAPE_4B),
        _qwen3("qwen3-8b", "8B", "by choice", (4096, 36, 32, 12288, False)),
        _qwen3("qwen3-14b", "14B", "by choice", (5120, 40, 40, 17408, False)),
    )
}
"""name -> checkpoint, small to large."""

FOR_CPU = ("tiny", "smollm2-135m")
"""Checkpoints that are made on this machine, without the hub; on a GPU they are loaded only if asked for."""


def find(name: str) -> Checkpoint | None:
    """Return the checkpoint with this name or hub id; None if there is none."""
    for checkpoint in CATALOGUE.values():
        repository = checkpoint.repository.lower()
        ids = {checkpoint.name, repository, repository.replace("unsloth/", "qwen/"), f"{repository}-bnb-4bit"}
        if name.lower() in ids | {(checkpoint.four_bit_repository or repository).lower()}:
            return checkpoint
    return None


def is_folder(name: str, folder: Path) -> bool:
    """Whether a name means this folder; a catalogue name does only if the folder holds a policy."""
    holds = any((folder / file).is_file() for file in ("config.json", "adapter_config.json"))
    return name != "" and folder.is_dir() and (holds or find(name) is None)


MADE_HERE = {"tiny-qwen3": "tiny", "smollm2-135m": "smollm2-135m"}
"""Folder in the user's cache, without its hash -> catalogue name, of checkpoints made on this machine."""


KEPT_NAME = "rloo_kit_checkpoint"
"""Key in the config.json of trained or merged weights: the catalogue name of their origin, for how to prompt them."""


def of_base(base: str) -> Checkpoint | None:
    """Return the checkpoint that an adapter, of any machine, names as its base; None outside the catalogue."""
    made, config = re.fullmatch(r"(.+)-[0-9a-f]{12}", Path(base).name), {}
    with contextlib.suppress(OSError, ValueError, TypeError):  # no folder, or damaged: loading it reports this
        config = dict(json.loads(Path(base, "config.json").read_text(encoding="utf-8")))
    own = find(MADE_HERE.get(made[1], "") if made else "") or find(lasting_name(base))
    return own or trained_from(config, base)


def trained_from(config: Mapping[str, Any], place: str) -> Checkpoint | None:
    """Return the checkpoint at a place if, by its config, its weights come from the catalogue; None if they do not, or
    if their shape has changed."""
    known, place = CATALOGUE.get(config.get(KEPT_NAME) or ""), lasting_name(place)
    if known is None or (known.layers, known.vocabulary) != (config.get("num_hidden_layers"), config.get("vocab_size")):
        return None
    return replace(known, name=place, repository=place, four_bit_repository=None)


def lasting_name(base: str) -> str:
    """Name a base as an adapter records it: a folder in the hub's cache by hub id, any other folder by full path."""
    if not is_folder(base, Path(base)):
        return base
    whole = os.path.realpath(base)
    of_hub = re.search(r"models--([^/\\]+)--([^/\\]+)[/\\]snapshots[/\\]", whole)
    return "/".join(of_hub.groups()) if of_hub else whole


def nearest(name: str) -> list[str]:
    """Return the catalogue's names most similar to ``name``; all names if none is similar."""
    last = name.lower().split("/")[-1]
    return difflib.get_close_matches(last, CATALOGUE, cutoff=0.3) or list(CATALOGUE)


def checkpoint_from_config(name: str, config: PreTrainedConfig, chat_template: str | None) -> Checkpoint:
    """Describe a checkpoint outside the catalogue from its transformers config and chat template."""
    text = config.get_text_config()
    heads = text.num_attention_heads  # other families may lack fields of Qwen3's config
    return Checkpoint(
        name=name,
        repository=name,
        hidden_size=text.hidden_size,
        layers=text.num_hidden_layers,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", heads),
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        ffn_size=text.intermediate_size,
        tied=bool(config.tie_word_embeddings),
        thinks=thinks_by_template(chat_template or ""),
        vocabulary=text.vocab_size,
        positions=getattr(text, "max_position_embeddings", Checkpoint.positions),
        family=text.model_type,
        uncounted=_uncounted(text),
    )


def _uncounted(text: PreTrainedConfig) -> str:
    """Name what has no formula, by transformers' config fields: Qwen3-MoE has num_experts, Mixtral num_local_experts,
    and Qwen3-Next has linear_attention among its layer types."""
    if getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None):
        return "a mixture of experts"
    kinds = getattr(text, "layer_types", None) or ()
    others = {kind for kind in kinds if not kind.endswith("full_attention")}
    return f"layers of {' and '.join(sorted(others))}" if others - {"sliding_attention"} else ""


def thinks_by_template(chat_template: str) -> Thinks:
    """Classify a template: Qwen3's hybrid one reads enable_thinking, the Thinking one ends prompts with <think>."""
    if "enable_thinking" in chat_template:
        return "by choice"
    return "always" if f"{OPEN}\\n'" in chat_template else "never"
