"""The memory reports that a user reads, word by word: golden.txt.

PYTHONPATH=. python tests/memory/test_golden.py writes the file again; check the difference before committing it.
"""

import rloo_kit  # isort: skip - unsloth first

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from rloo_kit.errors import RLOOKitError
from tests.memory.conftest import LARGE, ONE_GROUP

GOLDEN = Path(__file__).with_name("golden.txt")
LONG = SimpleNamespace(max_completion_length=1024, max_steps=200, beta=0.0, optim="adamw_8bit")
ALL = SimpleNamespace(max_completion_length=256)
NONE = SimpleNamespace(max_completion_length=0)

SAID: dict[str, Callable[[], object]] = {
    "changes, cheapest first": lambda: rloo_kit.plan("qwen3-4b", LARGE, "rtx 4060"),
    "in slices": lambda: rloo_kit.plan("qwen3-8b", ONE_GROUP, "rtx 3060 12gb"),
    "a run of known length": lambda: rloo_kit.plan("qwen3-14b", LONG, "rtx 3090"),
    "all weights trained": lambda: rloo_kit.plan("qwen3-0.6b", ALL, "24GB", full_finetuning=True),
    "nothing fits": lambda: rloo_kit.plan("qwen3-14b", LARGE, 2**30, gradient_checkpointing=False),
    "the largest for a T4": lambda: repr(rloo_kit.fit("t4")),
    "an unknown policy": lambda: rloo_kit.plan("qwen3-8", card="8GB"),
    "a policy that is nowhere": lambda: rloo_kit.plan("somebody/unknown", card="8GB"),
    "a configuration in the policy's place": lambda: rloo_kit.plan(rloo_kit.RLOOConfig(), "tiny"),
    "no tokens": lambda: rloo_kit.plan("qwen3-4b", NONE, "8GB"),
    "no prompt": lambda: rloo_kit.plan("qwen3-4b", card="8GB", prompt_tokens=0),
    "two cards of a name": lambda: rloo_kit.fit("rtx 3060"),
    "a card that is nearly known": lambda: rloo_kit.fit("rtx 4095"),
    "a card that is not known": lambda: rloo_kit.fit("voodoo 2"),
}


def spoken(say: Callable[[], object]) -> str:
    try:
        return str(say())
    except RLOOKitError as error:
        return f"{type(error).__name__}: {error}"


def stored() -> dict[str, str]:
    sections = GOLDEN.read_text().split("\n=== ")[1:]
    return {name: text.strip("\n") for name, _, text in (one.partition(" ===\n") for one in sections)}


@pytest.mark.parametrize("name", SAID)
def test_a_plan_and_an_error_read_as_before(name):
    assert spoken(SAID[name]) == stored()[name]


if __name__ == "__main__":
    GOLDEN.write_text("".join(f"\n=== {name} ===\n{spoken(say)}\n" for name, say in SAID.items()))
