"""Load a Qwen3 policy: 4-bit base, LoRA on the seven projections, a tokenizer that is complete.

For every notebook: ``policy = load_policy()``, by a catalogue name, a hub id, or a folder (of a checkpoint
or of an adapter that ``Policy.save`` wrote).  Always through unsloth's ``FastLanguageModel``, which alone
works on both kinds of machine.  It does not train, and :mod:`rloo_kit.memory` plans for it.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit import devices, environment, sampling, tiny
from rloo_kit.catalogue import CATALOGUE, Card, card_from_config, find, nearest
from rloo_kit.errors import ConfigError, OutOfMemoryError, PolicyNotFoundError
from rloo_kit.out_of_memory import is_out_of_memory, let_go

if TYPE_CHECKING:
    import torch

__all__ = ["CATALOGUE", "Card", "Completion", "Policy", "load_policy"]

Prompt = str | Sequence[dict[str, Any]]

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
END_OF_TURN, END_OF_TEXT = "<|im_end|>", "<|endoftext|>"
PADS = ("<|vision_pad|>", "<|endoftext|>")  # unsloth's choice first; either differs from <|im_end|>
ADAPTER_CONFIG = "adapter_config.json"
# unsloth and transformers say so where a device map would move 4-bit weights to the CPU.
SPILLED = ("does not fit in GPU memory", "dispatched on the CPU or the disk")
HUB_SECONDS = 9.0
BESIDE = 8
"""Folders that an error names at most, the most similar first."""


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
    """A model with LoRA, its tokenizer, and its card."""

    model: Any
    tokenizer: Any
    card: Card

    def __repr__(self) -> str:
        return f"Policy({self.card})"

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a completion."""
        ids = self.model.generation_config.eos_token_id
        return tuple(ids) if isinstance(ids, list | tuple) else (ids,)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return devices.where_computed(self.model)

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
        free = devices.cuda_bytes_within_reach()
        return max(1, min(64, free // 2 // (self.card.kv_bytes_per_token * tokens)))

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


def load_policy(
    name: str | os.PathLike[str] | None = None,
    *,
    max_seq_length: int = 4096,
    load_in_4bit: bool = True,
    lora_rank: int = 16,
    lora_alpha: int | None = None,
    gradient_checkpointing: bool | str = "unsloth",
    seed: int = 0,
    **kwargs: Any,
) -> Policy:
    """Load a policy to train: a base in 4 bit with a fresh LoRA, or a saved adapter on its base.

    Args:
        name: a catalogue name ("qwen3-4b-thinking"), a hub id, or a folder.  None takes the bundled tiny
            Qwen3 on a CPU, and on a GPU the largest catalogue entry that fits.
        max_seq_length: longest prompt + completion, in tokens; cut to what the checkpoint was trained for.
        load_in_4bit: NF4 weights; False keeps 16 bit.
        lora_rank, lora_alpha: of the LoRA on the seven projections; alpha defaults to the rank, dropout is 0
            (dropout would make the on-policy ratio differ from 1).  A saved adapter keeps its own.
        gradient_checkpointing: "unsloth", True or False; passed on to unsloth.
        seed: for the LoRA's initial values.
        kwargs: further arguments of ``FastLanguageModel.from_pretrained`` (token, revision, dtype, ...).

    Raises:
        PolicyNotFoundError: no such name, folder or repository, or the hub cannot be reached.
        OutOfMemoryError: the weights do not fit; the message has the bytes and the smaller choices.
        ConfigError: a rank or length out of range, or a tokenizer without what training needs.
    """
    if lora_rank < 1 or max_seq_length < 1:
        raise ConfigError(
            "lora_rank and max_seq_length must be positive",
            where=f"load_policy(lora_rank={lora_rank}, max_seq_length={max_seq_length})",
            todo="give both at least 1; 16 and 4096 are the defaults",
        )
    environment.import_unsloth()
    source = _resolve(name, load_in_4bit, kwargs.get("token"))
    with (
        _portable(source.path) as path,
        _weights_explained(source.card, source.path, load_in_4bit),
        _hushed(),
    ):
        longest = min(max_seq_length, _trained_length(path, source.is_adapter, kwargs) or max_seq_length)
        model, tokenizer = _load(path, longest, load_in_4bit, gradient_checkpointing, seed, kwargs)
        card = source.card or card_from_config(str(name), model.config, tokenizer.chat_template)
        _complete_tokens(model, tokenizer)
        if not source.is_adapter:
            model = _with_lora(model, lora_rank, lora_alpha or lora_rank, gradient_checkpointing, seed)
    return Policy(model, tokenizer, card)


# --- where a policy is ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    path: str
    card: Card | None
    is_adapter: bool = False


def _resolve(name: str | os.PathLike[str] | None, four_bit: bool, token: str | None) -> _Source:
    """What to hand to unsloth for a name, checked before anything is loaded."""
    if name is None:
        name = _default_name(four_bit)
    folder = Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser raises for a user it does not know
    if folder.is_dir():
        return _resolve_folder(folder)
    is_path, name = isinstance(name, os.PathLike), os.fspath(name)
    if name == "tiny":
        return _Source(str(tiny.checkpoint()), CATALOGUE["tiny"])
    card = find(name)
    if card is not None:
        path = card.four_bit_repository if four_bit else card.repository
        _check_hub(str(path), token)
        return _Source(str(path), card)
    if is_path or folder.exists() or not _could_be_hub_id(name):
        raise _no_folder(name, folder)
    if "/" not in name:
        raise PolicyNotFoundError(
            f"there is no policy called {name!r}",
            where="load_policy, which knows " + ", ".join(CATALOGUE),
            todo=f"did you mean {' or '.join(nearest(name))}? Otherwise give a hub id (owner/name) or a folder",
        )
    return _Source(name, None, is_adapter=_check_hub(name, token))


def _default_name(four_bit: bool) -> str:
    import torch

    if not torch.cuda.is_available():
        return "tiny"
    from rloo_kit import memory

    return memory.fit(load_in_4bit=four_bit).model.card.name


def _could_be_hub_id(name: str) -> bool:
    """Whether the hub could have it: a path has more slashes, or begins with one, with "." or with "~"."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _no_folder(name: str, folder: Path) -> PolicyNotFoundError:
    parent = next(parent for parent in folder.absolute().parents if parent.is_dir())
    names = [path.name for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")]
    missing = folder.absolute().relative_to(parent).parts[0]
    closest = difflib.get_close_matches(missing, names, n=BESIDE, cutoff=0.0)
    return PolicyNotFoundError(
        f"there is no folder {name!r}",
        where=f"load_policy; {parent} holds {', '.join(closest) or 'no folder'}",
        todo="give the folder that Policy.save or save_pretrained wrote, a hub id (owner/name) or one of "
        + ", ".join(CATALOGUE),
    )


def _resolve_folder(folder: Path) -> _Source:
    if (folder / ADAPTER_CONFIG).is_file():
        base = json.loads((folder / ADAPTER_CONFIG).read_text())["base_model_name_or_path"]
        card = CATALOGUE["tiny"] if _is_tiny(base) else find(base)
        return _Source(str(folder), card, is_adapter=True)
    if not (folder / "config.json").is_file():
        raise PolicyNotFoundError(
            "the folder holds neither a checkpoint nor an adapter",
            where=f"load_policy({str(folder)!r}): no config.json and no {ADAPTER_CONFIG}",
            todo="give the folder that Policy.save or save_pretrained wrote, or a run's checkpoint-N inside it",
        )
    return _Source(str(folder), None)


def _is_tiny(base: str) -> bool:
    """Whether a base is an expansion of the bundled tiny Qwen3, on this machine or another."""
    return Path(base).name.startswith("tiny-qwen3-")


def _check_hub(repository: str, token: str | None) -> bool:
    """See that the hub has a repository, or the cache does; return whether it is an adapter.

    Raises:
        PolicyNotFoundError: neither has it, or nobody can be asked.  Within 10 s: the hub library itself
            retries for longer.
    """
    from huggingface_hub import constants, model_info, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError

    for file in (ADAPTER_CONFIG, "config.json"):
        if isinstance(try_to_load_from_cache(repository, file), str):
            return file == ADAPTER_CONFIG
    local = "or download it where there is a network (hf download) and give load_policy the folder"
    unreachable = PolicyNotFoundError(
        f"{repository} is not in the hub's cache, nor is there a folder of that name, and the Hugging Face hub "
        "cannot be reached",
        where=f"load_policy; offline mode is {'on' if constants.HF_HUB_OFFLINE else 'off'}",
        todo=f"connect and call prepare(offline=False) in a fresh kernel, {local}; load_policy('tiny') needs neither",
    )
    if constants.HF_HUB_OFFLINE:
        raise unreachable
    try:
        found = _within(HUB_SECONDS, lambda: model_info(repository, timeout=HUB_SECONDS, token=token))
    except GatedRepoError as error:
        raise PolicyNotFoundError(
            f"{repository} is gated",
            where="load_policy",
            todo="accept its terms on the hub and set HF_TOKEN in .env",
        ) from error
    except RepositoryNotFoundError as error:
        raise PolicyNotFoundError(
            f"the hub has no repository {repository!r} that you may read, nor is there a folder of that name",
            where="load_policy, which knows " + ", ".join(CATALOGUE),
            todo=f"did you mean {' or '.join(nearest(repository))}? A private one needs HF_TOKEN in .env",
        ) from error
    except (OSError, TimeoutError, OfflineModeIsEnabled) as error:
        raise unreachable from error
    except Exception as error:  # httpx's own errors are not OSErrors
        if type(error).__module__.split(".")[0] in ("httpx", "httpcore", "requests"):
            raise unreachable from error
        raise
    return any(file.rfilename == ADAPTER_CONFIG for file in found.siblings or ())


def _within(seconds: float, ask: Callable[[], Any]) -> Any:
    """What ``ask`` returns or raises; TimeoutError after that long.

    A time-out given to the hub library holds per phase of a request, and not for the name server.
    """
    answer: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()

    def run() -> None:
        try:
            answer.put((ask(), None))
        except BaseException as error:
            answer.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        result, error = answer.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds} s") from None
    if error is not None:
        raise error
    return result


@contextlib.contextmanager
def _portable(path: str) -> Iterator[str]:
    """The folder to load; for a tiny adapter from another machine, a copy that names this machine's base."""
    file = Path(path) / ADAPTER_CONFIG
    config = json.loads(file.read_text()) if file.is_file() else {}
    base = config.get("base_model_name_or_path") or ""
    if not _is_tiny(base) or Path(base) == tiny.checkpoint():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="rloo-kit-") as scratch:
        copy = Path(scratch) / "adapter"
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("optimizer.pt"))
        (copy / ADAPTER_CONFIG).write_text(
            json.dumps({**config, "base_model_name_or_path": str(tiny.checkpoint())})
        )
        yield str(copy)


# --- loading ----------------------------------------------------------------------------------------------


def _load(
    path: str,
    max_seq_length: int,
    four_bit: bool,
    checkpointing: bool | str,
    seed: int,
    kwargs: dict[str, Any],
) -> tuple[Any, Any]:
    from unsloth import FastLanguageModel

    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name=path,
        max_seq_length=max_seq_length,
        load_in_4bit=four_bit,
        use_gradient_checkpointing=checkpointing,
        random_state=seed,
        **kwargs,
    )
    if "device_map" not in kwargs:
        _check_on_card(model)
    return model, tokenizer


def _trained_length(path: str, is_adapter: bool, kwargs: dict[str, Any]) -> int | None:
    """Tokens that the base was trained for; None where its config has none.  Answers: on a GPU unsloth stretches the
    position embedding beyond them, with a warning, and the policy is another one.

    Raises:
        PolicyNotFoundError: an adapter's base is neither here nor to be had.
    """
    from peft import PeftConfig
    from transformers import AutoConfig

    asked = {name: kwargs[name] for name in ("token", "cache_dir", "revision") if name in kwargs}
    if is_adapter:
        base = PeftConfig.from_pretrained(path, **asked).base_model_name_or_path
        _check_base(base, path, kwargs.get("token"))
        path = base
        asked.pop("revision", None)
    config = AutoConfig.from_pretrained(
        path, trust_remote_code=kwargs.get("trust_remote_code", False), **asked
    )
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def _check_base(base: str, adapter: str, token: str | None) -> None:
    if Path(base).is_dir():
        return
    if not _could_be_hub_id(base):
        raise PolicyNotFoundError(
            f"the base of the adapter is not on this machine: there is no folder {base!r}",
            where=f"load_policy({adapter!r}), base_model_name_or_path in {ADAPTER_CONFIG}",
            todo="put the base there, or write where it is into that file",
        )
    _check_hub(base, token)


def _check_on_card(model: Any) -> None:
    """Answers: transformers puts layers that do not fit into the computer's memory, and only a quantised model's loader
    refuses that."""
    import torch

    places = {str(place) for place in getattr(model, "hf_device_map", {}).values()}
    if torch.cuda.is_available() and places & {"cpu", "disk"}:
        raise torch.OutOfMemoryError("some of the model's layers do not fit on the card")


def _with_lora(model: Any, rank: int, alpha: int, checkpointing: bool | str, seed: int) -> Any:
    from unsloth import FastLanguageModel

    return FastLanguageModel.get_peft_model(
        model,
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=list(PROJECTIONS),
        use_gradient_checkpointing=checkpointing,
        random_state=seed,
    )


def _complete_tokens(model: Any, tokenizer: Any) -> None:
    """Give the tokenizer a pad token that is no eos token, and the model every eos id.

    With pad = eos a padded row looks finished, and TRL counts a truncated completion as terminated.

    Raises:
        ConfigError: the tokenizer has no eos token, or nothing that could serve as a pad.
    """
    vocabulary = tokenizer.get_vocab()
    declared = model.generation_config.eos_token_id
    eos = declared if isinstance(declared, list) else [declared]
    eos = [*eos, tokenizer.eos_token_id, *(vocabulary.get(token) for token in (END_OF_TURN, END_OF_TEXT))]
    eos = list(dict.fromkeys(token for token in eos if token is not None))
    if not eos:
        raise ConfigError(
            "the tokenizer has no end-of-sequence token, so no completion would ever end",
            where=f"load_policy, {type(tokenizer).__name__}",
            todo="set tokenizer.eos_token and save the checkpoint again",
        )
    model.generation_config.eos_token_id = eos
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        pad = next((token for token in PADS if token in vocabulary and token != tokenizer.eos_token), None)
        if pad is None:
            raise ConfigError(
                "the tokenizer has no pad token apart from its eos token",
                where=f"load_policy, {type(tokenizer).__name__}",
                todo="add one, tokenizer.pad_token = '<|pad|>', and save the checkpoint again",
            )
        tokenizer.pad_token = pad
    # transformers' Trainer otherwise aligns these itself, with a warning, when training begins.
    for config in (model.config, model.generation_config):
        config.pad_token_id, config.bos_token_id = tokenizer.pad_token_id, tokenizer.bos_token_id
    model.config.eos_token_id = tokenizer.eos_token_id


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """No weight-loading bar and no start-up lines; a download's own progress stays."""
    with environment.quiet():
        from transformers.utils import logging

        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            if shown:
                logging.enable_progress_bar()


@contextlib.contextmanager
def _weights_explained(card: Card | None, path: str, four_bit: bool) -> Iterator[None]:
    """Turn the device's out-of-memory error into one with bytes and smaller choices."""
    import torch

    try:
        yield
    except (RuntimeError, MemoryError, ValueError) as error:
        if not is_out_of_memory(error) and not any(text in str(error) for text in SPILLED):
            raise
        let_go(error)
        free, total = environment.device_memory()
        need = card.weight_bytes(four_bit) if card else None
        smaller = [c.name for c in CATALOGUE.values() if need and c.weight_bytes(four_bit) < need]
        raise OutOfMemoryError(
            f"the weights do not fit into the memory of the {'GPU' if torch.cuda.is_available() else 'computer'}",
            where=f"load_policy, {path}: needs {need or 'an unknown number of'} bytes for the weights alone, "
            f"and {free} of {total} are free",
            todo=f"load a smaller one ({', '.join(reversed(smaller)) or 'see rloo_kit.CATALOGUE'}), keep "
            "load_in_4bit=True, or free the card: rloo_kit.release() and other programs that use it",
        ) from error


# --- generating -------------------------------------------------------------------------------------------


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
