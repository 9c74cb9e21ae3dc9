"""Every check, in the order of worth: what comes first is run first, and the budget cuts off the end.

Only the list: functions are in the files named after the parts.  Seconds are guesses, start included.
"""

import importlib
from collections.abc import Sequence

from . import four_bit
from .runner import Check
from .work import KIT, PLAIN, UNSLOTH

# By name: mypy knows the file as part of the folder benchmarks, and not as a package.
pretended = importlib.import_module("benchmarks.pretended")

# The smallest GPU that trains each.
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
"""Of memory: shape, K, prompts at once, completion tokens, rows in a pass.  Passes that hold no whole group of K take
one more pass, for the KL term."""


def shape(name: str) -> Check:
    return Check(f"shape/{name}", "memory:make", 35, {"shape": name}, card_gib=CARD_GIB[name])


def case(index: int) -> Check:
    """A row of :data:`CASES`; a rehearsal runs the first two, since the others differ in size alone."""
    size, k, groups, tokens, micro = CASES[index]
    name = f"memory/{size} K {k}, {tokens} tokens, {k * groups} rows by {micro}"
    arguments = {"shape": size, "k": k, "groups": groups, "tokens": tokens, "micro": micro}
    return Check(name, "memory:case", 40 + 0.03 * tokens, arguments, (f"shape/{size}",), rehearsed=index < 2)


def timed(trainer: str, tokens: int) -> Check:
    seconds = {KIT: 30, UNSLOTH: 90, PLAIN: 35}[trainer] + (0.07 if trainer == PLAIN else 0.03) * tokens
    arguments, rehearsed = {"trainer": trainer, "tokens": tokens}, trainer != PLAIN and tokens == 256
    name = f"speed/{tokens} tokens, {trainer}"
    return Check(name, "speed:run", seconds, arguments, ("shape/qwen3-4b",), rehearsed=rehearsed)


NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "UNSLOTH_FORCE_CPU": "1", pretended.VARIABLE: ""}
LEARNS = [
    Check(f"correct/learns, seed {n}", "correct:learns", 45, {"seed": n}, rehearsed=n == 0) for n in range(3)
]
CHECKS = [
    Check("correct/update", "correct:update", 110),
    Check("correct/against plain PEFT", "plain:compare", 25, {}, ("correct/update",), NO_GPU),
    shape("qwen3-4b"),
    case(0),
    timed(UNSLOTH, 256),
    timed(KIT, 256),
    shape("qwen3-0.6b"),
    Check("hygiene/kernel", "hygiene:kernel", 80, needs=("shape/qwen3-0.6b",)),
    *four_bit.timed(),
    timed(PLAIN, 256),
    shape("qwen3-8b"),
    case(1),
    Check("correct/save and resume", "correct:saved", 75),
    LEARNS[0],
    Check("correct/fp16", "correct:fp16", 45),
    *map(case, (2, 3)),
    shape("qwen3-1.7b"),
    *map(case, (4, 5, 6)),
    *LEARNS[1:],
    *(timed(trainer, 1024) for trainer in (UNSLOTH, KIT, PLAIN)),
    *map(case, range(7, len(CASES))),
]


def chosen(only: Sequence[str] = ()) -> list[Check]:
    every = {check.name: check for check in CHECKS}
    wanted = {name for name in every if not only or name.startswith(tuple(only))}
    while missing := {need for name in wanted for need in every[name].needs} - wanted:
        wanted |= missing
    return [check for check in every.values() if check.name in wanted]
