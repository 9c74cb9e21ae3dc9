"""``Policy``: a model with LoRA and its tokenizer, that samples completions and saves its adapter.

For everything that samples.  :mod:`.load` makes one; training is :mod:`rloo_kit.train`'s.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.catalogue import Checkpoint
from rloo_kit.errors import ConfigError
from rloo_kit.memory import hardware
from rloo_kit.policy import sampling

if TYPE_CHECKING:
    import torch

Prompt = str | Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Completion:
    """One sampled continuation.

    Attributes:
        prompt: the prompt as it was given.
        text: the decoded completion; <think> and </think> are kept, special tokens are not.
        ids: token ids, the end-of-turn token included.
        finished: whether it ended by itself, not at ``max_new_tokens``.
    """

    prompt: Prompt
    text: str
    ids: tuple[int, ...]
    finished: bool


@dataclass(frozen=True, repr=False)
class Policy:
    """A model with LoRA, its tokenizer, and what is known of its checkpoint."""

    model: Any
    tokenizer: Any
    checkpoint: Checkpoint

    def __repr__(self) -> str:
        return f"Policy({self.checkpoint})"

    @property
    def card(self) -> Checkpoint:
        """The old name of ``checkpoint``."""
        return self.checkpoint

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a completion."""
        ids = self.model.generation_config.eos_token_id
        return tuple(ids) if isinstance(ids, list | tuple) else (ids,)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return hardware.where_computed(self.model)

    def tokenize(self, prompts: Sequence[Prompt], **template: Any) -> list[list[int]]:
        """Token ids of each prompt, conversations through the chat template with the reply begun.

        Args:
            prompts: strings, or lists of ``{"role", "content"}`` messages.
            template: for the chat template, ``enable_thinking=False`` for instance.
        """
        rows = []
        for prompt in prompts:
            if isinstance(prompt, str):
                rows.append(self.tokenizer(prompt)["input_ids"])
            else:
                rendered = self.tokenizer.apply_chat_template(
                    prompt, add_generation_prompt=True, tokenize=True, return_dict=True, **template
                )
                rows.append(rendered["input_ids"])
        return [list(row) for row in rows]

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        n: int = 1,
        max_new_tokens: int = 256,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float | None = None,
        greedy: bool = False,
        batch_size: int | None = None,
        seed: int | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[Completion]:
        """Sample ``n`` completions of each prompt, those of one prompt side by side.

        Args:
            prompts: strings or conversations.
            n: completions per prompt; ``len(result) == n * len(prompts)``.
            max_new_tokens: where a completion is cut, in tokens.
            temperature, top_p, top_k, min_p: as TRL's config names them; of no effect when greedy.
            greedy: take the most probable token each time.
            batch_size: rows in the model at once; None sizes it to the memory that is free.
            seed: for this call alone: the random state outside is left as it was.
            chat_template_kwargs: for the chat template.

        Raises:
            ConfigError: a string given for the list of prompts, no prompts, a number out of range, or a prompt longer
                than the policy was loaded for.
        """
        _check_generation(prompts, n, max_new_tokens, temperature, greedy, batch_size)
        rows = self.tokenize(prompts, **(chat_template_kwargs or {}))
        _check_prompts(rows, getattr(self.model, "max_seq_length", None))
        jobs = [(prompt, row) for prompt, row in zip(prompts, rows, strict=True) for _ in range(n)]
        how = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
        draw = dict.fromkeys(how) | {"do_sample": False} if greedy else how | {"do_sample": True}
        batch_size = batch_size or self.fitting_batch_size(max(map(len, rows)) + max_new_tokens)
        out: list[Completion] = []
        with _evaluating(self.model), _own_randomness(seed):
            for start in range(0, len(jobs), batch_size):
                out += self._generate_batch(jobs[start : start + batch_size], max_new_tokens, draw)
        return out

    def _generate_batch(
        self, jobs: list[tuple[Prompt, list[int]]], max_new_tokens: int, draw: dict[str, Any]
    ) -> list[Completion]:
        import torch

        width = max(len(row) for _, row in jobs)
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(row)) + row for _, row in jobs], device=self.device)
        mask = torch.tensor(
            [[0] * (width - len(row)) + [1] * len(row) for _, row in jobs], device=self.device
        )
        with torch.no_grad():
            output = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=max_new_tokens,
                pad_token_id=pad,
                eos_token_id=list(self.eos_ids),
                **draw,
                **sampling.options(self.device),
            )
        completions = []
        for (prompt, _), row in zip(jobs, output[:, width:].tolist(), strict=True):
            end = next((i for i, token in enumerate(row) if token in self.eos_ids), None)
            kept = row if end is None else row[: end + 1]
            text = self.tokenizer.decode(kept, skip_special_tokens=True)
            completions.append(Completion(prompt, text, tuple(kept), end is not None))
        return completions

    def fitting_batch_size(self, tokens: int) -> int:
        """Rows of that many tokens whose key-value cache takes half of the free memory; 64 at most, 32 on a CPU.

        Memory that torch holds without using it, after training for instance, counts as free.
        """

        if self.device.type != "cuda":
            return 32  # at vocabulary 151,936 the logits of more rows pass a gigabyte
        free = hardware.cuda_bytes_within_reach()
        return max(1, min(64, free // 2 // (self.checkpoint.kv_bytes_per_token * tokens)))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the adapter and the tokenizer; ``load_policy(folder)`` reads them back.

        The trainer's "ref" adapter is left out (PEFT saves every adapter unless told).  The folder appears
        whole or not at all; an earlier one of the same name is replaced.
        """
        target = Path(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
            fresh = Path(scratch) / "adapter"
            self.model.save_pretrained(str(fresh), selected_adapters=["default"])
            self.tokenizer.save_pretrained(str(fresh))
            if target.exists():
                target.replace(Path(scratch) / "old")
            fresh.replace(target)
        return target


def _check_generation(
    prompts: Any, n: int, max_new_tokens: int, temperature: float, greedy: bool, batch_size: int | None
) -> None:
    if isinstance(prompts, str) or not len(prompts) or isinstance(prompts[0], dict):
        raise ConfigError(
            "generate takes a list of prompts",
            where=f"Policy.generate, got {type(prompts).__name__} of {len(prompts)}",
            todo="wrap a single prompt or conversation: generate([prompt])",
        )
    smallest = min(n, max_new_tokens, 1 if batch_size is None else batch_size)
    if smallest < 1 or (temperature <= 0 and not greedy):
        raise ConfigError(
            "n, max_new_tokens and batch_size must be at least 1, and temperature above 0",
            where=f"Policy.generate(n={n}, max_new_tokens={max_new_tokens}, batch_size={batch_size}, "
            f"temperature={temperature})",
            todo="for the most probable completion use greedy=True",
        )


def _check_prompts(rows: list[list[int]], limit: int | None) -> None:
    """Answers: on a GPU unsloth cuts a prompt's ids at its length, and not their positions."""
    index, longest = max(enumerate(map(len, rows)), key=lambda pair: pair[1])
    if limit is not None and longest >= limit:
        raise ConfigError(
            "a prompt leaves no room for a completion",
            where=f"prompts[{index}] has {longest} tokens, and the policy was loaded for {limit}",
            todo=f"shorten it, or load_policy(max_seq_length={longest + 1}) or more",
        )


@contextlib.contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """unsloth's inference mode (its fast decoding on a GPU), and back to what was before."""
    was_training = model.training
    model.for_inference()
    try:
        yield
    finally:
        if was_training:
            model.for_training()


@contextlib.contextmanager
def _own_randomness(seed: int | None) -> Iterator[None]:
    if seed is None:
        yield
        return
    import torch

    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
