"""``Policy``: a model and its tokenizer; it samples completions and saves the trained weights."""

from __future__ import annotations

import contextlib
import functools
import os
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rloo_kit import argument_types
from rloo_kit.argument_types import Count, Natural, PositiveShare, Seed, Share, Temperature
from rloo_kit.errors import ConfigError
from rloo_kit.memory import hardware
from rloo_kit.models import CATALOGUE, END_OF_TEXT, END_OF_TURN, KEPT_NAME, PADS, Checkpoint, lasting_name
from rloo_kit.policy import dequantize_for_sampling, onednn_linear, resolve, save
from rloo_kit.policy.generate import SlicedGenerate, decode_graphs, head_in_one_product
from rloo_kit.policy.thinking import budget_of, check_thinking, setting_of
from rloo_kit.session import output

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Prompt = str | Sequence[Mapping[str, object]]
"""A text, or a conversation of {"role", "content"} messages."""


@dataclass(frozen=True)
class Completion:
    """One sampled continuation.

    Attributes:
        prompt: the prompt that was given.
        text: the decoded completion; <think> and </think> are kept, special tokens are not.
        ids: token ids, the end-of-turn token included.
        finished: whether it ended with an eos token, not at ``max_new_tokens``.
    """

    prompt: Prompt
    text: str
    ids: tuple[int, ...]
    finished: bool


@dataclass(frozen=True, repr=False)
class Policy:
    """A model, its tokenizer, and its checkpoint's shape; ``base`` is the folder or hub id that training began with.

    ``Policy(model, tokenizer)`` also takes a model made by hand with ``FastLanguageModel`` and ``get_peft_model``.  Its
    shape is read from its config, the tokenizer gets a pad and the model every eos id (else a ConfigError), and the
    LoRA's dropout is switched off.
    """

    model: PeftModel
    tokenizer: PreTrainedTokenizerBase
    checkpoint: Checkpoint = None  # type: ignore[assignment]
    base: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        base = resolve.base_of(self.model)
        # An absolute path stays valid if a later cell changes the working directory.
        object.__setattr__(self, "base", os.path.realpath(base) if Path(base).is_dir() else base)
        for config in getattr(self.model, "peft_config", {}).values():  # so that a run's checkpoints name it too
            config.base_model_name_or_path = lasting_name(base)
        complete(self.model, self.tokenizer)
        self.model._saved_temp_tokenizer = self.tokenizer  # unsloth's name; a trainer may get only the model
        without_dropout(self.model)
        onednn_linear.use(self.model)
        if self.checkpoint is None:
            object.__setattr__(self, "checkpoint", resolve.checkpoint_of_model(self.model, self.tokenizer))
        if self.checkpoint.name in CATALOGUE:
            vars(self.model.config).setdefault(KEPT_NAME, self.checkpoint.name)

    def __repr__(self) -> str:
        return f"Policy({self.checkpoint})"

    def __iter__(self) -> Iterator[PeftModel | PreTrainedTokenizerBase]:
        """``model, tokenizer = load_policy(...)``, as with unsloth's ``FastLanguageModel.from_pretrained``."""
        return iter((self.model, self.tokenizer))

    @property
    def has_lora(self) -> bool:
        """Whether a LoRA is trained, rather than all weights."""
        return hasattr(self.model, "peft_config")

    @property
    def thinking(self) -> bool | int:
        """Whether the policy may think before it answers, or its budget in tokens: ``load_policy(thinking=...)``."""
        return self.checkpoint.thinks != "never" and setting_of(self.tokenizer)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a completion."""
        ids = self.model.generation_config.eos_token_id
        return tuple(ids) if isinstance(ids, list | tuple) else (ids,)

    @property
    def device(self) -> torch.device:
        """The device that computes."""
        return hardware.where_computed(self.model)

    def tokenize(self, prompts: Sequence[Prompt], **template: object) -> list[list[int]]:
        """Return each prompt's token ids; a conversation goes through the chat template, with the generation prompt and
        ``template``'s arguments, such as ``enable_thinking=False``."""
        check_thinking(self.tokenizer, template)
        render = functools.partial(
            self.tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=True, return_dict=True
        )
        rows = (self.tokenizer(p) if isinstance(p, str) else render(p, **template) for p in prompts)
        return [list(row["input_ids"]) for row in rows]

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        n: Count = 1,
        max_new_tokens: Count = 256,
        temperature: Temperature = 1.0,
        top_p: PositiveShare = 1.0,
        top_k: Natural = 0,
        min_p: Share | None = None,
        greedy: bool = False,
        batch_size: Count | None = None,
        seed: Seed | None = None,
        chat_template_kwargs: dict[str, object] | None = None,
        begun: Sequence[Sequence[int]] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """Sample ``n`` completions of each prompt; completions of one prompt are adjacent.

        Args:
            n: completions per prompt; ``len(result) == n * len(prompts)``.
            max_new_tokens: where a completion is cut, in tokens.
            temperature, top_p, top_k, min_p: as in TRL's config; not with greedy.
            greedy: take the most probable token each time.
            batch_size: rows sampled at once; None fits it to the free memory.  Halved if memory runs out.
            seed: for this call only; the random state outside is unchanged.
            chat_template_kwargs: arguments of the chat template, as in training: {"enable_thinking": False}.
            begun: for each prompt, the ids that its completions begin with, such as a truncated completion to continue.
            progress: called after each batch with the number of completions sampled so far.

        Raises:
            ConfigError: no list of prompts, a number out of range, a temperature with greedy, or a prompt too long.
        """
        several = hasattr(prompts, "__len__") and len(prompts) and not isinstance(prompts, str | dict)
        if not several or isinstance(prompts[0], dict):
            where = f"Policy.generate, got a {type(prompts).__name__}"
            todo = "wrap a single prompt or conversation: generate([prompt]); for a dataset, dataset['prompt']"
            raise ConfigError("generate takes a list of one or more prompts", where=where, todo=todo)
        how: dict[str, object] = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
        counts = {"n": n, "max_new_tokens": max_new_tokens, "batch_size": batch_size, "seed": seed}
        check_sampling(greedy, **how, **counts, chat_template_kwargs=chat_template_kwargs)
        prompt_ids = self.tokenize(prompts, **(chat_template_kwargs or {}))
        starts = [list(ids) for ids in begun or [()] * len(prompts)]
        rows = [ids + start for ids, start in zip(prompt_ids, starts, strict=True)]
        _check_prompts(rows, getattr(self.model, "max_seq_length", None))
        jobs = [job for job in zip(prompts, rows, starts, strict=True) for _ in range(n)]
        how = {**(dict.fromkeys(how) if greedy else how), "do_sample": not greedy, "max_new_tokens": max_new_tokens}
        batch_size = batch_size or self.fitting_batch_size(max(map(len, rows)) + max_new_tokens)
        out: list[Completion] = []
        with _sampling(self.model, seed):
            sliced = self._sliced(batch_size)
            for start in range(0, len(jobs), batch_size):
                out += self._generate_batch(jobs[start : start + batch_size], how, sliced)
                if progress is not None:
                    progress(len(out))
        if (fewer := sliced.at_once) < batch_size:
            what = f"Memory ran out with {batch_size} completions sampled at once: it went on with {fewer}"
            output.warn(f"{what}. What to do: batch_size={fewer} avoids the failed attempt next time.")
        return out

    def _sliced(self, at_once: int) -> SlicedGenerate:
        fits = 0 < dequantize_for_sampling.bytes_in_16_bit(self.model) <= hardware.cuda_bytes_within_reach() // 4
        pad_id, budget = self.tokenizer.pad_token_id, budget_of(self.tokenizer)
        return SlicedGenerate(self.model, at_once, pad_id, in_16_bit=fits, budget=budget)

    def _generate_batch(
        self, jobs: list[tuple[Prompt, list[int], list[int]]], how: dict[str, object], sliced: SlicedGenerate
    ) -> list[Completion]:
        width, pad_id = max(len(row) for _, row, _ in jobs), self.tokenizer.pad_token_id
        ids = torch.tensor([[pad_id] * (width - len(row)) + row for _, row, _ in jobs], device=self.device)
        mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for _, r, _ in jobs], device=self.device)
        rows = sliced(ids, mask, pad_token_id=pad_id, eos_token_id=list(self.eos_ids), **how)
        completions = []
        for (prompt, _, start), row in zip(jobs, rows[:, width:].tolist(), strict=True):
            end = next((i for i, token in enumerate(row) if token in self.eos_ids), None)
            kept = start + (row if end is None else row[: end + 1])
            text = self.tokenizer.decode(kept, skip_special_tokens=True)
            completions.append(Completion(prompt, text, tuple(kept), end is not None))
        return completions

    def fitting_batch_size(self, tokens: int) -> int:
        """Return the rows of ``tokens`` tokens whose KV cache fills half the free memory: at most 64; on a CPU 32."""
        if self.device.type != "cuda":
            return 32  # free memory is measured on a GPU only
        return max(1, min(64, hardware.cuda_bytes_within_reach() // 2 // (self.checkpoint.kv_bytes_per_token * tokens)))

    save, save_merged, save_gguf = save.save, save.save_merged, save.save_gguf


NO_EFFECT = {"temperature": (1.0, 0.0), "top_p": (1.0,), "top_k": (0,), "min_p": (None, 0.0)}
"""Sampling arguments, each with the values that change nothing under greedy search."""


def check_sampling(greedy: bool, **given: object) -> None:
    """Check arguments of :meth:`Policy.generate`: numbers in range, and no sampling settings with greedy search."""
    for name, idle in NO_EFFECT.items() if greedy else ():
        if given.pop(name, idle[0]) not in idle:
            what = f"greedy takes the most probable token each time, so {name} would have no effect"
            todo = f"set greedy=False to sample with this {name}, or leave {name} out"
            raise ConfigError(what, where="Policy.generate(greedy=True), which evaluate calls", todo=todo)
    advice = {"temperature": "for the most probable completion use greedy=True"}
    hints = typing.get_type_hints(Policy.generate, include_extras=True)
    argument_types.check(given, hints, "Policy.generate", advice)


def _check_prompts(rows: list[list[int]], limit: int | None) -> None:
    """Works around: on a GPU unsloth truncates a long prompt's ids, but not their positions."""
    if [] in rows:  # its row would be padding only
        where = f"Policy.generate, prompts[{rows.index([])}]"
        raise ConfigError("a prompt is empty", where=where, todo="write something, or leave it out")
    index, longest = max(enumerate(map(len, rows)), key=lambda pair: pair[1])
    if limit is not None and longest >= limit:
        where = f"prompts[{index}] has {longest} tokens, and the policy was loaded for {limit}"
        todo = f"shorten it, or load_policy(max_seq_length={longest + 1}) or more"
        raise ConfigError("a prompt leaves no room for a completion", where=where, todo=todo)


@contextlib.contextmanager
def _sampling(model: PeftModel, seed: int | None) -> Iterator[None]:
    # Use unsloth's inference mode, which decodes fast on a GPU, and a random state of this call's own if it has a seed.
    was_training, by_unsloth = model.training, hasattr(model, "for_inference")
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with (
        torch.random.fork_rng(devices=devices, enabled=seed is not None),
        torch.no_grad(),
        head_in_one_product(model),
        decode_graphs(model),
    ):
        if seed is not None:
            torch.manual_seed(seed)
        model.for_inference() if by_unsloth else model.eval()
        try:
            yield
        finally:
            if was_training:
                model.for_training() if by_unsloth else model.train()


def complete(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give the tokenizer a pad token that is no eos token, and the model every eos id; ConfigError if one is missing.

    With pad = eos, a padded row looks finished, and TRL counts a truncated completion as terminated.
    """
    vocabulary, declared = tokenizer.get_vocab(), model.generation_config.eos_token_id
    eos = [*declared] if isinstance(declared, list) else [declared]
    eos += [tokenizer.eos_token_id, vocabulary.get(END_OF_TURN), vocabulary.get(END_OF_TEXT)]
    eos = list(dict.fromkeys(token for token in eos if token is not None))
    pad = tokenizer.pad_token
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        pad = next((token for token in PADS if token in vocabulary and token != tokenizer.eos_token), None)
    if not eos or pad is None:
        raise ConfigError(
            "the tokenizer has no end-of-sequence token, or no pad token apart from it",
            where=f"load_policy, {type(tokenizer).__name__}",
            todo="set tokenizer.eos_token, add a pad token, and save the checkpoint again",
        )
    tokenizer.pad_token, model.generation_config.eos_token_id = pad, eos
    # Otherwise transformers' Trainer aligns these itself, with a warning, when training begins.
    for config in (model.config, model.generation_config):
        config.pad_token_id, config.bos_token_id = tokenizer.pad_token_id, tokenizer.bos_token_id
    model.config.eos_token_id = tokenizer.eos_token_id
    # Works around: unsloth_zoo sets max_length on a GPU, and every call then warns that max_new_tokens overrides it.
    model.generation_config.max_length = None


def without_dropout(model: torch.nn.Module) -> None:
    """Switch off the LoRA's dropout, with a warning: each forward pass would drop other units."""
    for config in getattr(model, "peft_config", {}).values():
        if rate := getattr(config, "lora_dropout", 0):
            why = "with it the on-policy ratio would differ from 1"
            output.warn(f"the LoRA's dropout of {rate:g} is switched off: {why}.")
            config.lora_dropout = 0.0
    for name, module in model.named_modules():
        if "lora_dropout" in name and hasattr(module, "p"):
            module.p = 0.0
