"""Train Qwen3 with RLOO from a notebook, on one consumer GPU or on a CPU.

Make ``import rloo_kit`` the first line: from then on unsloth is imported before the libraries it patches.
The import itself is light; each public name below loads its room when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rloo_kit import environment as _environment

if TYPE_CHECKING:
    from rloo_kit import tasks
    from rloo_kit.comparison import Comparison, compare
    from rloo_kit.config import RLOOConfig
    from rloo_kit.environment import Environment, prepare
    from rloo_kit.evaluation import Evaluation, evaluate
    from rloo_kit.health import Diagnosis, Finding, HealthCallback, diagnose
    from rloo_kit.kernel import shutdown_kernel
    from rloo_kit.memory import Plan, fit, plan
    from rloo_kit.models import CATALOGUE, Card, Completion, Policy, load_policy
    from rloo_kit.plots import plot
    from rloo_kit.releasing import release
    from rloo_kit.trainer import RLOOTrainer

__version__ = "0.1.0"

_ROOM_OF = {
    "prepare": "environment",
    "Environment": "environment",
    "load_policy": "models",
    "Policy": "models",
    "Completion": "models",
    "Card": "models",
    "CATALOGUE": "models",
    "RLOOConfig": "config",
    "RLOOTrainer": "trainer",
    "evaluate": "evaluation",
    "Evaluation": "evaluation",
    "compare": "comparison",
    "Comparison": "comparison",
    "plan": "memory",
    "Plan": "memory",
    "fit": "memory",
    "plot": "plots",
    "diagnose": "health",
    "Diagnosis": "health",
    "Finding": "health",
    "HealthCallback": "health",
    "release": "releasing",
    "shutdown_kernel": "kernel",
}

__all__ = [
    "CATALOGUE",
    "Card",
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


_environment.put_in_force()
