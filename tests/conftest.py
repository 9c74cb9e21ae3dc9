"""What the tests share: the import order, the bundled policy, its task, and short runs on them."""

from __future__ import annotations

import rloo_kit  # isort: skip - the first import, as in every notebook

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# unsloth writes into os.environ when it is imported; a process of its own starts as a user's does.
CLEAN_ENVIRONMENT = dict(os.environ)
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # for benchmarks, which is not installed
Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Random numbers begin anew, so that no test draws what those before it on the same worker have left."""
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def loaded_once() -> tuple[Any, dict[str, Any]]:
    """The tiny policy, and its LoRA as it was loaded."""
    policy = rloo_kit.load_policy("tiny", seed=0)
    lora = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
    return policy, {name: p.detach().clone() for name, p in lora.items()}


def as_loaded(loaded: tuple[Any, dict[str, Any]]) -> Any:
    """The shared policy with its weights as loaded: workers share out the tests, so no order is to be relied on."""
    policy, lora = loaded
    if "ref" in policy.model.peft_config:
        policy.model.delete_adapter("ref")
    policy.model.set_adapter("default")
    for name, weight in lora.items():
        parameter = policy.model.get_parameter(name)
        parameter.data, parameter.grad = weight.clone(), None
    return policy


@pytest.fixture
def policy(loaded_once: tuple[Any, dict[str, Any]]) -> Any:
    """The tiny policy as loaded."""
    return as_loaded(loaded_once)


@pytest.fixture
def fresh_policy() -> Any:
    """A policy of its own, for a test that changes more of it than the LoRA's weights."""
    return rloo_kit.load_policy("tiny", seed=0)


@pytest.fixture(scope="session")
def task() -> Any:
    return rloo_kit.tasks.addition(n_train=64, n_held_out=32, seed=0)


def right_after_thought(completions: Any, answer: Any, **kwargs: Any) -> list[float]:
    """0.2 for a closed thought, 0.8 more for the right answer after it."""
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        closed = completion[0]["content"].count("</think>") == 1
        scores.append(0.2 * closed + 0.8 * (closed and rloo_kit.tasks.answer_of(completion) == gold))
    return scores


def random_rewards(completions: Any, completion_ids: Any, **kwargs: Any) -> list[float]:
    """Differs within any group whose completions differ, and by nothing but them."""
    return [(sum(ids) % 97) / 97 for ids in completion_ids]


@pytest.fixture
def make_trainer(policy: Any, task: Any, tmp_path: Path) -> Callable[..., Any]:
    """``make_trainer(reward_funcs=..., **config)``: a trainer of one small step on the tiny policy."""

    def make(reward_funcs: Any = right_after_thought, model: Any = None, **settings: Any) -> Any:
        arguments = {
            name: settings.pop(name)
            for name in ("train_dataset", "eval_dataset", "processing_class", "callbacks", "args")
            if name in settings
        }
        small = {
            "output_dir": str(tmp_path / "run"),
            "num_generations": 2,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 1,
            "max_steps": 1,
            "max_completion_length": 8,
            "save_strategy": "no",
            "beta": 0.0,
        }
        return rloo_kit.RLOOTrainer(
            model=policy if model is None else model,
            reward_funcs=reward_funcs,
            args=arguments.pop("args", None) or rloo_kit.RLOOConfig(**{**small, **settings}),
            train_dataset=arguments.pop("train_dataset", task.train),
            **arguments,
        )

    return make


@pytest.fixture(scope="session")
def qwen3_config() -> Callable[[Any], Any]:
    """``qwen3_config(card)``: the transformers configuration of a catalogue entry."""
    from benchmarks.gpu.shapes import config_of

    return config_of


@pytest.fixture(scope="session")
def script() -> Script:
    """``script(code, *arguments, **environment)``: run Python code in a process of its own."""

    def run(code: str, *arguments: str, check: bool = True, **environment: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            env={**CLEAN_ENVIRONMENT, "OMP_NUM_THREADS": "1", **environment},
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr[-3000:]
        return done

    return run
