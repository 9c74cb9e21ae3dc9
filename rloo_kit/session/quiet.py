"""Drops lines of the stack that are known, harmless and always there, and all but the first of one said at each step.

For code that imports the stack or loads a model.  Every other line gets through unchanged.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from typing import NamedTuple


class Noise(NamedTuple):
    """A line to drop: its pattern, "print" or the name of its logger, and why it tells the user nothing."""

    pattern: str
    source: str
    reason: str


NOISE = (
    Noise(r"^🦥", "print", "unsloth's banner"),
    Noise(r"^Unsloth \S+: no GPU found, training on CPU", "print", "prepare() says which device it is"),
    Noise(r"^Unsloth \(CPU\): \w+ on \d+ CPU threads", "print", "the policy's checkpoint says it"),
    Noise(
        r"^Unsloth \(CPU\): this CPU has no native bfloat16",
        "print",
        "said of every CPU under UNSLOTH_CPU_BF16=0, where the user asked load_policy for dtype=bfloat16",
    ),
    Noise(r"^Unsloth: `?triton`? is not available", "print", "a CPU install does not use it"),
    Noise(r"^On Windows, Triton is published", "print", "the second line of the one above"),
    Noise(
        r"^Unsloth( \(CPU\))?: .* is a LoRA adapter; loading its base", "print", "that is what was asked for"
    ),
    Noise(r"^==\(\(=+\)\)==|^ *\\\\ +/\||^O\^O/|^\\ {6,}/ |^ \"-_+-\"", "print", "unsloth's GPU banner"),
    # Unsloth's GPU path logs by transformers' loggers (its models/llama.py).
    Noise(r"^==\(\(=+\)\)==", "transformers.trainer", "the same, when training begins"),
    Noise(r"^Unsloth \S+ patched \d+ layers", "transformers.trainer", "that is what unsloth is for"),
    Noise(
        r"^Unsloth: Restored added_tokens_decoder metadata",
        "transformers.models.llama.modeling_llama",
        "unsloth's save.py completes a file of the tokenizer, at every save",
    ),
    Noise(
        r"^Passing `generation_config` together with generation-related",
        "transformers.generation.utils",
        "unsloth's call, not the user's",
    ),
    Noise(
        r"^Failed to load CPU gemm_4bit_forward",
        "bitsandbytes.backends.cpu.ops",
        "an optional kernel for CPUs with AVX512-BF16; the built-in one is used",
    ),
    Noise(r"Detected no triton", "torchao.kernel.intmm", "a CPU install does not use it"),
    Noise(r"register_constant\(\) on Enum", "torch.utils._pytree", "torchao's call, not the user's"),
    Noise(r"is an Enum subclass and is now natively supported", "torch.utils._pytree", "the same"),
)


ONCE = {
    # tests/contract pins it; rloo_kit.watch says what it means.
    "trl.trainer.rloo_trainer": "All reward functions returned None for the following kwargs:",
}
"""A logger -> its line that shows one row of a batch, in every step, and is let through once."""

_said: set[str] = set()


def is_noise(line: str, source: str = "print") -> bool:
    """Whether a line is one of :data:`NOISE`; an empty line is not."""
    return any(noise.source == source and re.search(noise.pattern, line) for noise in NOISE)


def _not_noise(record: logging.LogRecord) -> bool:
    line = record.getMessage()
    if record.name in ONCE and ONCE[record.name] in line:
        again = record.name in _said
        _said.add(record.name)
        return not again
    return not is_noise(line, record.name)


def drop_logged_noise() -> None:
    """Filter the loggers of :data:`NOISE` and :data:`ONCE`, for good: some log when they are imported."""
    for name in {*ONCE, *(noise.source for noise in NOISE)} - {"print"}:
        logging.getLogger(name).addFilter(_not_noise)


class _PrintFilter(io.TextIOBase):
    """A stdout that drops known lines and passes the rest on, unchanged."""

    def __init__(self, target: io.TextIOBase) -> None:
        self._target, self._pending = target, ""

    def write(self, text: str) -> int:
        self._pending += text
        *lines, self._pending = self._pending.split("\n")
        for line in lines:
            if not is_noise(line):
                self._target.write(line + "\n")
        return len(text)

    def close_line(self) -> None:
        """Pass on a last line that has no newline."""
        if self._pending and not is_noise(self._pending):
            self._target.write(self._pending)
        self._pending = ""


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Hide the progress bars of weights that are loaded or written inside; a download's progress stays.

    Works around: transformers switches the hub's bars off together with its own.
    """
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from transformers.utils import logging as of_transformers

    shown, of_downloads = of_transformers.is_progress_bar_enabled(), not are_progress_bars_disabled()
    of_transformers.disable_progress_bar()
    if of_downloads:
        enable_progress_bars()
    try:
        yield
    finally:
        if shown:
            of_transformers.enable_progress_bar()
        if not of_downloads:
            disable_progress_bars()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop the lines of :data:`NOISE` that are printed inside."""
    out = _PrintFilter(sys.stdout)  # type: ignore[arg-type]
    try:
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            # From extensions that were built with SWIG; the user cannot act on it.
            warnings.filterwarnings("ignore", message=r"builtin type \w+ has no __module__ attribute")
            yield
    finally:
        out.close_line()
