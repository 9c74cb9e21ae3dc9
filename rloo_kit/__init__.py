"""Train Qwen3 with RLOO from a notebook, on one consumer GPU or on a CPU.

Make ``import rloo_kit`` the first line: from then on unsloth is imported before the libraries it patches.
The import itself is light; each public name below loads its room when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rloo_kit.session import imports as _imports

if TYPE_CHECKING:
    from rloo_kit import tasks
    from rloo_kit.catalogue import CATALOGUE, Card, Checkpoint
    from rloo_kit.evaluation.compare import Comparison, compare
    from rloo_kit.evaluation.evaluate import Evaluation, evaluate
    from rloo_kit.memory.planning import Plan, fit, plan
    from rloo_kit.policy.load import load_policy
    from rloo_kit.policy.policy import Completion, Policy
    from rloo_kit.session.environment import Environment, prepare
    from rloo_kit.session.kernel import shutdown_kernel
    from rloo_kit.session.release import release
    from rloo_kit.train.config import RLOOConfig
    from rloo_kit.train.trainer import RLOOTrainer
    from rloo_kit.watch.health import Diagnosis, Finding, HealthCallback, diagnose
    from rloo_kit.watch.plots import plot

__version__ = "0.1.0"

_ROOM_OF = {
    "prepare": "session.environment",
    "Environment": "session.environment",
    "load_policy": "policy.load",
    "Policy": "policy.policy",
    "Completion": "policy.policy",
    "Checkpoint": "catalogue",
    "Card": "catalogue",
    "CATALOGUE": "catalogue",
    "RLOOConfig": "train.config",
    "RLOOTrainer": "train.trainer",
    "evaluate": "evaluation.evaluate",
    "Evaluation": "evaluation.evaluate",
    "compare": "evaluation.compare",
    "Comparison": "evaluation.compare",
    "plan": "memory.planning",
    "Plan": "memory.planning",
    "fit": "memory.planning",
    "plot": "watch.plots",
    "diagnose": "watch.health",
    "Diagnosis": "watch.health",
    "Finding": "watch.health",
    "HealthCallback": "watch.health",
    "release": "session.release",
    "shutdown_kernel": "session.kernel",
}

__all__ = [
    "CATALOGUE",
    "Card",
    "Checkpoint",
    "Comparison",
    "Completion",
    "Diagnosis",
    "Environment",
    "Evaluation",
    "Finding",
    "HealthCallback",
    "Plan",
    "Policy",
    "RLOOConfig",
    "RLOOTrainer",
    "compare",
    "diagnose",
    "evaluate",
    "fit",
    "load_policy",
    "plan",
    "plot",
    "prepare",
    "release",
    "shutdown_kernel",
    "tasks",
]


def __getattr__(name: str) -> Any:
    if name == "tasks":
        return importlib.import_module("rloo_kit.tasks")
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'rloo_kit' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rloo_kit.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_imports.put_in_force()
