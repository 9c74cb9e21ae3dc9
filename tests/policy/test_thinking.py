"""load_policy(thinking=...): said once, and the same wherever a prompt is rendered."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import rewards
import rloo_kit
from rloo_kit.errors import ConfigError
from rloo_kit.models import CATALOGUE
from rloo_kit.policy.tokenizer import set_thinking
from tests.conftest import SMALL

QUESTION = [{"role": "user", "content": "What is 1 + 1?"}]
CLOSED = [151667, 271, 151668, 271]  # <think>, an empty line, </think>, an empty line


@pytest.fixture(scope="module")
def off() -> rloo_kit.Policy:
    return rloo_kit.load_policy("tiny", thinking=False)


def test_prompts_end_with_a_closed_thought(off: rloo_kit.Policy) -> None:
    assert off.tokenize([QUESTION])[0][-4:] == CLOSED
    assert (off.thinking, rloo_kit.load_policy("tiny").thinking) == (False, True)
    assert not rewards.ThinkTokens.from_tokenizer(off.tokenizer).prompt_opens


def test_every_part_of_the_kit_renders_them_so(
    off: rloo_kit.Policy, tmp_path: Path, monkeypatch: Any
) -> None:
    seen: list[list[int]] = []
    generate = off.model.generate

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        ids = kwargs.get("input_ids", args[0] if args else None)
        seen.extend(row.tolist() for row in ids)
        return generate(*args, **kwargs)

    monkeypatch.setattr(off.model, "generate", watched)
    task = rloo_kit.tasks.arithmetic("auto", off, n_train=8, n_held_out=2, max_new_tokens=2)
    config = rloo_kit.RLOOConfig(str(tmp_path), **{**SMALL, "max_steps": 1, "max_completion_length": 2})
    rloo_kit.RLOOTrainer(off, task.correct, config, task.train).train()
    rloo_kit.evaluate(off, task, max_new_tokens=2)
    assert seen
    assert all(row[-4:] == CLOSED for row in seen)


def test_what_is_saved_keeps_it_for_the_kit_and_for_transformers_alone(
    off: rloo_kit.Policy, tmp_path: Path
) -> None:
    adapter, merged = off.save(tmp_path / "adapter"), off.save_merged(tmp_path / "merged")
    alone = AutoTokenizer.from_pretrained(merged)
    ids = alone.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert ids[-4:] == CLOSED
    assert not rloo_kit.load_policy(adapter).thinking
    assert rloo_kit.load_policy(adapter, thinking=True).thinking


def test_an_answer_with_a_thought_is_rendered_as_before(off: rloo_kit.Policy) -> None:
    said = [*QUESTION, {"role": "assistant", "content": "<think>\n1\n</think>\n\n2"}]
    usual = rloo_kit.load_policy("tiny").tokenizer.apply_chat_template(said, tokenize=False)
    assert off.tokenizer.apply_chat_template(said, tokenize=False) == usual


def test_a_call_that_asks_it_to_think_is_refused(off: rloo_kit.Policy, tmp_path: Path) -> None:
    thinks: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
    with pytest.raises(ConfigError, match="loaded with thinking off"):
        off.generate([QUESTION], **thinks)
    task = rloo_kit.tasks.addition(n_train=8, n_held_out=2)
    config = rloo_kit.RLOOConfig(str(tmp_path), **SMALL, **thinks)
    with pytest.raises(ConfigError, match="loaded with thinking off"):
        rloo_kit.RLOOTrainer(off, task.correct, config, task.train)


@pytest.mark.parametrize(
    ("name", "thinking", "todo"),
    [("qwen3-4b-thinking", False, "qwen3-4b-instruct"), ("qwen3-4b-instruct", True, "qwen3-1.7b")],
)
def test_a_checkpoint_that_always_or_never_thinks_says_so(name: str, thinking: bool, todo: str) -> None:
    with pytest.raises(ConfigError, match=f"{CATALOGUE[name].thinks} thinks") as refused:
        set_thinking(rloo_kit.load_policy("tiny").tokenizer, CATALOGUE[name], thinking)
    assert todo in str(refused.value)


def test_to_switch_off_what_never_thinks_changes_nothing() -> None:
    tokenizer = rloo_kit.load_policy("tiny").tokenizer
    before = tokenizer.chat_template
    set_thinking(tokenizer, CATALOGUE["qwen3-4b-instruct"], False)
    assert tokenizer.chat_template == before
