"""``Policy``: a model and its tokenizer; it samples completions and saves what was trained.

:mod:`.load` makes one, or a user of a model made by hand; :mod:`rloo_kit.train` trains it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rloo_kit import values
from rloo_kit.catalogue import Checkpoint
from rloo_kit.errors import ConfigError
from rloo_kit.hidden import hide
from rloo_kit.memory import hardware
from rloo_kit.policy import export, model_card, sampling, shards, source, tokens
from rloo_kit.policy.folder import CARD, check_target, replacing
from rloo_kit.policy.slices import SlicedGenerate
from rloo_kit.policy.weights import check_finite
from rloo_kit.session import processes
from rloo_kit.session.quiet import without_bars
from rloo_kit.values import Count, Natural, PositiveShare, Seed, Share, Temperature

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import PreTrainedTokenizerBase

    from rloo_kit.policy.model_card import Audited, Result

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
    """A model, its tokenizer, and its checkpoint's shape.

    ``Policy(model, tokenizer)`` takes a model that was made by hand, with ``FastLanguageModel`` and ``get_peft_model``:
    its shape (``checkpoint``) is read from its config, the tokenizer gets a pad of its own, the model every eos id, and
    the LoRA's dropout is switched off, with a warning.

    Raises:
        ConfigError: a tokenizer without what training needs.
    """

    model: PeftModel
    tokenizer: PreTrainedTokenizerBase
    checkpoint: Checkpoint = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.checkpoint is None:
            tokens.complete(self.model, self.tokenizer)
            tokens.without_dropout(self.model)
            object.__setattr__(self, "checkpoint", source.checkpoint_of_model(self.model, self.tokenizer))

    def __repr__(self) -> str:
        return f"Policy({self.checkpoint})"

    def __iter__(self) -> Iterator[PeftModel | PreTrainedTokenizerBase]:
        """``model, tokenizer = load_policy(...)``, as with unsloth's ``FastLanguageModel.from_pretrained``."""
        return iter((self.model, self.tokenizer))

    @property
    def card(self) -> Checkpoint:
        """The old name of ``checkpoint``."""
        return self.checkpoint

    @property
    def has_lora(self) -> bool:
        """Whether a LoRA is trained, and not all weights."""
        return hasattr(self.model, "peft_config")

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a completion."""
        ids = self.model.generation_config.eos_token_id
        return tuple(ids) if isinstance(ids, list | tuple) else (ids,)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return hardware.where_computed(self.model)

    def tokenize(self, prompts: Sequence[Prompt], **template: object) -> list[list[int]]:
        """Token ids of each prompt; a conversation goes through the chat template, with the generation prompt.

        ``template`` are arguments of the chat template, such as ``enable_thinking=False``.

        Raises:
            ConfigError: a conversation, and the tokenizer has no chat template; or an argument that is set here.
        """
        return tokens.of_prompts(self.tokenizer, prompts, template)

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
    ) -> list[Completion]:
        """Sample ``n`` completions of each prompt; those of one prompt are adjacent.

        Args:
            n: completions per prompt; ``len(result) == n * len(prompts)``.
            max_new_tokens: where a completion is cut, in tokens.
            temperature, top_p, top_k, min_p: as in TRL's config; not with greedy.
            greedy: take the most probable token each time.
            batch_size: rows in the model at once; None fits it to the free memory.  Halved where memory runs out.
            seed: for this call only; the random state outside is left as it was.
            chat_template_kwargs: arguments of the chat template, as in training: {"enable_thinking": False}.

        Raises:
            ConfigError: a string given for the list of prompts, no prompts, a number out of range, a temperature beside
                greedy, or a prompt longer than the policy was loaded for.
        """
        _check_list(prompts)
        how: dict[str, object] = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
        counts = {"n": n, "max_new_tokens": max_new_tokens, "batch_size": batch_size, "seed": seed}
        check_sampling(greedy, **how, **counts, chat_template_kwargs=chat_template_kwargs)
        rows = self.tokenize(prompts, **(chat_template_kwargs or {}))
        _check_prompts(rows, getattr(self.model, "max_seq_length", None))
        jobs = [(prompt, row) for prompt, row in zip(prompts, rows, strict=True) for _ in range(n)]
        draw = dict.fromkeys(how) | {"do_sample": False} if greedy else how | {"do_sample": True}
        batch_size = batch_size or self.fitting_batch_size(max(map(len, rows)) + max_new_tokens)
        out: list[Completion] = []
        with _evaluating(self.model), _own_randomness(seed):
            generate = SlicedGenerate(self.model, batch_size, self.eos_ids)
            for start in range(0, len(jobs), batch_size):
                out += self._generate_batch(jobs[start : start + batch_size], max_new_tokens, draw, generate)
        if (fewer := generate.at_once) < batch_size:
            warnings.warn(
                f"Memory ran out with {batch_size} completions sampled at once: it went on with {fewer}, and what was "
                f"sampled is kept. What to do: batch_size={fewer} spares the next call the attempt.",
                stacklevel=2,
            )
        return out

    def _generate_batch(
        self,
        jobs: list[tuple[Prompt, list[int]]],
        max_new_tokens: int,
        draw: dict[str, object],
        generate: SlicedGenerate,
    ) -> list[Completion]:
        import torch

        width = max(len(row) for _, row in jobs)
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(row)) + row for _, row in jobs], device=self.device)
        mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for _, r in jobs], device=self.device)
        with (
            torch.no_grad(),
            sampling.without_max_length(self.model),
            sampling.head_in_one_product(self.model),
        ):
            output = generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=max_new_tokens,
                pad_token_id=pad,
                eos_token_id=list(self.eos_ids),
                **draw,
            )
        completions = []
        for (prompt, _), row in zip(jobs, output[:, width:].tolist(), strict=True):
            end = next((i for i, token in enumerate(row) if token in self.eos_ids), None)
            kept = row if end is None else row[: end + 1]
            text = self.tokenizer.decode(kept, skip_special_tokens=True)
            completions.append(Completion(prompt, text, tuple(kept), end is not None))
        return completions

    def fitting_batch_size(self, tokens: int) -> int:
        """Rows of that many tokens whose key-value cache takes half of the free memory; at most 64, on a CPU 32.

        Memory that torch has cached counts as free.
        """
        if self.device.type != "cuda":
            return 32  # at vocabulary 151,936 the logits of more rows pass a gigabyte
        free = hardware.cuda_bytes_within_reach()
        return max(1, min(64, free // 2 // (self.checkpoint.kv_bytes_per_token * tokens)))

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        results: Mapping[str, Result] | None = None,
        audits: Iterable[Audited] = (),
    ) -> Path:
        """Write the adapter and the tokenizer; ``load_policy(folder)`` reads them back.

        Without the trainer's "ref" adapter, which PEFT would save too.  Where all weights were trained, the whole
        checkpoint, in the precision that it was trained in.  The folder is written aside and moved
        into place, so it is never half-written; an earlier adapter of the same name is replaced.  "~" is the
        user's home, and a link goes on pointing to its folder.  Beside it a model card, README.md, says what the
        policy is and how its last run trained it.  In a run of several processes all have to call it: the main one
        writes what they hold together, and the others wait.

        Args:
            folder: a new one, or one of an earlier save.
            results: for the card, evaluations by name: {"before": before, "after": after}.
            audits: for the card, of the rewards.

        Raises:
            ConfigError: the place is a file, or a folder that holds more than an adapter, which would be deleted.
            NonFiniteError: a trained weight is NaN or infinite.
            RunFolderError: the disk is full, or the folder cannot be written to.
        """
        form = "LoRA adapter" if self.has_lora else "checkpoint, all weights trained"
        return self._write(
            folder, f"Policy.save({os.fspath(folder)!r})", form, self._write_own, results, audits
        )

    def _write_own(self, place: Path) -> None:
        chosen = {"selected_adapters": ["default"]} if self.has_lora else {}
        self.model.save_pretrained(str(place), **chosen)

    def _write(
        self,
        folder: str | os.PathLike[str],
        where: str,
        form: str,
        weights: Callable[[Path], None],
        results: Mapping[str, Result] | None,
        audits: Iterable[Audited],
    ) -> Path:
        """Weights, tokenizer and card into a folder that takes the named one's place when all is written."""
        named = Path(os.path.expanduser(folder))  # noqa: PTH111 - Path.expanduser raises for an unknown user
        target = Path(os.path.realpath(named))
        check_finite(self.model, where, lambda: "save from before, or load it anew")
        trained = [p for name, p in self.model.named_parameters() if p.requires_grad or "lora_" in name]
        with shards.gathered(trained):
            if processes.is_main():
                check_target(target, where)
                with replacing(target, where) as fresh, without_bars():
                    weights(fresh)
                    self.tokenizer.save_pretrained(str(fresh))
                    run = model_card.remembered(self.model)
                    text = model_card.written(self.checkpoint, form, results, audits, run)
                    (fresh / CARD).write_text(text, encoding="utf-8")
        shards.wait_for_others()
        return named

    def save_merged(
        self,
        folder: str | os.PathLike[str],
        *,
        base: str | os.PathLike[str] | None = None,
        results: Mapping[str, Result] | None = None,
        audits: Iterable[Audited] = (),
    ) -> Path:
        """Write one checkpoint in bfloat16, base and LoRA in one, for anything that reads Hugging Face's format.

        The base is loaded in 16 bit, in the computer's own memory, so the policy may be in 4 bit.  Over 16-bit weights
        an adapter that was trained over 4-bit ones is a slightly different policy: evaluate the one you will use.

        Args:
            folder: a new one, or one of an earlier save.
            base: folder or hub id of the base's unquantised weights; None takes what the policy was loaded from.
            results, audits: for the card, as for :meth:`save`.

        Raises:
            PolicyNotFoundError: the base's weights in 16 bit are neither on this machine nor on the hub.
            ConfigError: a base, where all weights were trained; or as :meth:`save`.
            NonFiniteError, RunFolderError: as :meth:`save`.
        """

        def weights(place: Path) -> None:
            if not self.has_lora:
                export.write_in_16_bit(self.model, place)
                return
            with tempfile.TemporaryDirectory(prefix="rloo-kit-") as scratch:
                self._write_own(Path(scratch))
                export.write_in_16_bit(export.merged(Path(scratch), found), place)

        if base and not self.has_lora:
            raise ConfigError(
                "all weights were trained, so there is no base to merge them into",
                where=f"Policy.save_merged({os.fspath(folder)!r}, base={os.fspath(base)!r})",
                todo="leave base out",
            )
        found = os.fspath(base) if base else ""
        if self.has_lora and not found:
            config = self.model.peft_config["default"]
            found = export.sixteen_bit_base(self.checkpoint, str(config.base_model_name_or_path))
        where = f"Policy.save_merged({os.fspath(folder)!r})"
        return self._write(folder, where, "merged checkpoint, 16 bit", weights, results, audits)

    def save_gguf(
        self,
        file: str | os.PathLike[str],
        *,
        quantization: str = "q8_0",
        llama_cpp: str | os.PathLike[str] | None = None,
        base: str | os.PathLike[str] | None = None,
    ) -> Path:
        """Write a GGUF file by llama.cpp's converter, for llama.cpp and what is built on it.

        Nothing is installed and nothing asked.  An earlier file is replaced.  For a run of one process.

        Args:
            file: its name.
            quantization: f32, f16, bf16 or q8_0; for q4_k_m and the like llama.cpp's compiled ``llama-quantize``, too.
            llama_cpp: the folder of llama.cpp, or its converter; None looks on the PATH.
            base: as for :meth:`save_merged`.

        Raises:
            ConfigError: an unknown quantization, a folder's name, or llama.cpp cannot convert this model.
            PolicyNotFoundError: no converter, with the commands that bring it; or as :meth:`save_merged`.
        """
        export.check_quantization(quantization)
        export.converter(llama_cpp)
        if quantization not in export.BY_CONVERTER:
            export.quantizer(llama_cpp)
        target = Path(os.path.expanduser(file))  # noqa: PTH111 - Path.expanduser raises for an unknown user
        if target.is_dir():
            raise ConfigError(
                "it is a folder, and a GGUF is one file",
                where=f"Policy.save_gguf({os.fspath(file)!r})",
                todo=f"name a file in it: {target.name}/policy.gguf",
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".rloo-kit-", dir=target.parent) as scratch:
            made = Path(scratch) / target.name
            export.convert(
                self.save_merged(Path(scratch) / "merged", base=base), made, quantization, llama_cpp
            )
            made.replace(target)
        return target

    def push_to_hub(
        self,
        repository: str,
        *,
        merged: bool = False,
        private: bool | None = None,
        token: str | None = None,
        results: Mapping[str, Result] | None = None,
        audits: Iterable[Audited] = (),
    ) -> str:
        """Upload the adapter, or one merged checkpoint, with its card, and return its address.

        For a run of one process.

        Args:
            repository: "owner/name"; it is made if there is none.
            merged: as :meth:`save_merged` writes it.
            private: of a repository that is made; None takes the owner's default.
            token: that may write; None takes HF_TOKEN, or the one of ``hf auth login``.
            results, audits: for the card, as for :meth:`save`.

        Raises:
            PolicyNotFoundError: the hub is not reached, or refuses; or as :meth:`save_merged`.
        """
        if token:
            hide("push_to_hub(token)", token)
        with tempfile.TemporaryDirectory(prefix="rloo-kit-") as scratch:
            save = self.save_merged if merged else self.save
            folder = save(Path(scratch) / "policy", results=results, audits=audits)
            export.without_own_paths(folder, self.checkpoint)
            return export.upload(folder, repository, private, token)


def _check_list(prompts: Sequence[Prompt]) -> None:
    if isinstance(prompts, str) or not len(prompts) or isinstance(prompts[0], dict):
        raise ConfigError(
            "generate takes a list of prompts",
            where=f"Policy.generate, got {type(prompts).__name__} of {len(prompts)}",
            todo="wrap a single prompt or conversation: generate([prompt])",
        )


def check_sampling(greedy: bool, **given: object) -> None:
    """Check arguments of :meth:`Policy.generate`: numbers in range, and greedy search that is not asked to sample.

    Raises:
        ConfigError: the first that is not.
    """
    if greedy:
        meant = {"temperature": (1.0, 0.0, 0), "top_p": (1.0,), "top_k": (0,), "min_p": (None, 0.0)}
        for name, without_effect in meant.items():
            if given.pop(name, without_effect[0]) not in without_effect:
                raise ConfigError(
                    f"greedy takes the most probable token each time, so {name} would have no effect",
                    where="Policy.generate(greedy=True, ...), which evaluate calls",
                    todo=f"greedy=False samples with this {name}; without it leave greedy=True",
                )
    advice = {"temperature": "for the most probable completion use greedy=True"}
    hints = typing.get_type_hints(Policy.generate, include_extras=True)
    values.check(given, hints, "Policy.generate", advice)


def _check_prompts(rows: list[list[int]], limit: int | None) -> None:
    """Works around: on a GPU unsloth truncates a long prompt's ids, but not their positions."""
    index, longest = max(enumerate(map(len, rows)), key=lambda pair: pair[1])
    if limit is not None and longest >= limit:
        raise ConfigError(
            "a prompt leaves no room for a completion",
            where=f"prompts[{index}] has {longest} tokens, and the policy was loaded for {limit}",
            todo=f"shorten it, or load_policy(max_seq_length={longest + 1}) or more",
        )


@contextlib.contextmanager
def _evaluating(model: PeftModel) -> Iterator[None]:
    """unsloth's inference mode, which is its fast decoding on a GPU; afterwards the mode it was in."""
    was_training, by_unsloth = model.training, hasattr(model, "for_inference")
    model.for_inference() if by_unsloth else model.eval()
    try:
        yield
    finally:
        if was_training:
            model.for_training() if by_unsloth else model.train()


@contextlib.contextmanager
def _own_randomness(seed: int | None) -> Iterator[None]:
    import torch

    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices, enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        yield
