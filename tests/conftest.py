"""Shared by all tests: the import order, the bundled policy, its task, and short runs on them."""

from __future__ import annotations

import rloo_kit  # isort: skip - the first import, as in every notebook

import functools
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rewards

if TYPE_CHECKING:
    from torch import Tensor

    from rloo_kit.tasks import Task

# unsloth writes into os.environ when it is imported; new processes start without that, as a user's do.
CLEAN_ENVIRONMENT = dict(os.environ)
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]  # for benchmarks and scripts, which are not installed
sys.path.append(str(ROOT / "benchmarks"))  # its scripts import each other by name
LOGGED = tempfile.TemporaryDirectory(prefix="trackio-")
# Read when TRL imports trackio; otherwise a test would write into the home directory.
os.environ["TRACKIO_DIR"] = LOGGED.name
PATIENCE = 550  # seconds for a process on a busy machine; pytest's own limit is 600
Done = subprocess.CompletedProcess[str]
Script = Callable[..., Done]
Completions = Sequence[Sequence[dict[str, str]]]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt: a shell starts background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def small_files() -> Iterator[Callable[[int | None], None]]:
    """``small_files(size)``: no file can grow beyond ``size``, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Reset random numbers, so that no test depends on what ran before it on the same worker."""
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def loaded_once() -> tuple[rloo_kit.Policy, dict[str, Tensor]]:
    """The tiny policy, and its LoRA as it was loaded."""
    policy = rloo_kit.load_policy("tiny", seed=0)
    lora = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
    return policy, {name: p.detach().clone() for name, p in lora.items()}


def as_loaded(loaded: tuple[rloo_kit.Policy, dict[str, Tensor]]) -> rloo_kit.Policy:
    """Return the shared policy with its weights as loaded, since the order of tests on a worker is not fixed."""
    policy, lora = loaded
    if "ref" in policy.model.peft_config:
        policy.model.delete_adapter("ref")
    policy.model.set_adapter("default")
    for name, weight in lora.items():
        parameter = policy.model.get_parameter(name)
        parameter.data, parameter.grad = weight.clone(), None
    return policy


@pytest.fixture
def policy(loaded_once: tuple[rloo_kit.Policy, dict[str, Tensor]]) -> rloo_kit.Policy:
    return as_loaded(loaded_once)


@pytest.fixture
def fresh_policy() -> rloo_kit.Policy:
    """A new policy, for a test that changes more than the LoRA's weights."""
    return rloo_kit.load_policy("tiny", seed=0)


@pytest.fixture(scope="session")
def task() -> Task:
    return rloo_kit.tasks.addition(n_train=64, n_held_out=32, seed=0)


WHOLE = rewards.answer_reward(form="whole")


def right_after_thought(completions: Completions, answer: list[str], **kwargs: object) -> list[float]:
    """Pay 0.2 for a closed thought, and 0.8 more for the right answer after it."""
    scores = []
    for completion, right in zip(completions, WHOLE(completions=completions, answer=answer), strict=True):
        closed = completion[0]["content"].count("</think>") == 1
        scores.append(0.2 * closed + 0.8 * closed * right)
    return scores


def random_rewards(completions: Completions, completion_ids: list[list[int]], **_: object) -> list[float]:
    """Pay by the completion's ids alone, so that rewards differ in any group whose completions differ."""
    return [(sum(ids) % 97) / 97 for ids in completion_ids]


ARGUMENTS = ("model", "train_dataset", "eval_dataset", "processing_class", "callbacks", "args")
"""Keywords of ``make_trainer`` that go to the trainer; every other is a field of its config."""

SMALL: dict[str, Any] = {"max_steps": 1, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
SMALL |= {"num_generations": 2, "max_completion_length": 8, "save_strategy": "no", "beta": 0.0}


@pytest.fixture
def make_trainer(policy: rloo_kit.Policy, task: Task, tmp_path: Path) -> Callable[..., rloo_kit.RLOOTrainer]:
    """``make_trainer(reward_funcs=..., **config)``: a trainer of one small step on the tiny policy."""

    def make(reward_funcs: object = right_after_thought, **settings: Any) -> rloo_kit.RLOOTrainer:
        given = {name: settings.pop(name) for name in ARGUMENTS if name in settings}
        arguments = {"model": policy, "train_dataset": task.train, **given}
        settings = {**SMALL, "output_dir": str(tmp_path / "run"), **settings}
        arguments["args"] = given.get("args") or rloo_kit.RLOOConfig(**settings)
        return rloo_kit.RLOOTrainer(reward_funcs=reward_funcs, **arguments)

    return make


def python(
    *words: str, check: bool = True, cwd: Path | None = None, seconds: int = PATIENCE, **environment: str
) -> Done:
    """Run Python with these arguments in a new process."""
    env = {**CLEAN_ENVIRONMENT, "OMP_NUM_THREADS": "1", **environment}
    how: Any = {"capture_output": True, "text": True, "timeout": seconds, "env": env, "cwd": cwd}
    done = subprocess.run([sys.executable, *words], check=False, **how)
    assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


@pytest.fixture(scope="session")
def script() -> Script:
    """``script(code, *arguments, **environment)``: run Python code in a new process."""
    return functools.partial(python, "-c")
