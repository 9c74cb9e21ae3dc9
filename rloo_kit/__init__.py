"""Train Qwen3 with RLOO from a notebook, on one consumer GPU or on a CPU.

Make ``import rloo_kit`` the first line: from then on unsloth is imported before the libraries it patches.
The import itself is light: each public name is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from rloo_kit.session import import_order as _import_order

if TYPE_CHECKING:
    from rloo_kit import tasks
    from rloo_kit.evaluation.compare import Comparison, compare
    from rloo_kit.evaluation.evaluate import Evaluation, evaluate
    from rloo_kit.memory.model_choice import fit
    from rloo_kit.memory.plan import Plan, plan
    from rloo_kit.models import CATALOGUE, Checkpoint
    from rloo_kit.policy.load import load_policy
    from rloo_kit.policy.policy import Completion, Policy
    from rloo_kit.session.prepare import Environment, prepare
    from rloo_kit.session.release import release
    from rloo_kit.session.shutdown_kernel import shutdown_kernel
    from rloo_kit.train.config import RLOOConfig
    from rloo_kit.train.trainer import RLOOTrainer
    from rloo_kit.watch.callbacks import HealthCallback
    from rloo_kit.watch.diagnose import Diagnosis, diagnose
    from rloo_kit.watch.plots import plot
    from rloo_kit.watch.symptoms import Finding

__version__ = "0.1.0"

# Where __getattr__ finds each public name; the imports above tell type checkers and editors the same.
_NAMES_IN = {
    "models": ("CATALOGUE", "Checkpoint"),
    "evaluation.compare": ("Comparison", "compare"),
    "evaluation.evaluate": ("Evaluation", "evaluate"),
    "memory.model_choice": ("fit",),
    "memory.plan": ("Plan", "plan"),
    "policy.load": ("load_policy",),
    "policy.policy": ("Completion", "Policy"),
    "session.prepare": ("Environment", "prepare"),
    "session.shutdown_kernel": ("shutdown_kernel",),
    "session.release": ("release",),
    "train.config": ("RLOOConfig",),
    "train.trainer": ("RLOOTrainer",),
    "watch.callbacks": ("HealthCallback",),
    "watch.diagnose": ("Diagnosis", "diagnose"),
    "watch.plots": ("plot",),
    "watch.symptoms": ("Finding",),
}

__all__ = ["CATALOGUE", "Checkpoint", "Comparison", "Completion", "Diagnosis", "Environment"]
__all__ += ["Evaluation", "Finding", "HealthCallback", "Plan", "Policy", "RLOOConfig", "RLOOTrainer"]
__all__ += ["compare", "diagnose", "evaluate", "fit", "load_policy", "plan", "plot", "prepare", "release"]
__all__ += ["shutdown_kernel", "tasks"]


def __getattr__(name: str) -> Any:
    modules = {"tasks": ("tasks",), **_NAMES_IN}
    home = next((module for module, names in modules.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'rloo_kit' has no attribute {name!r}")
    if home.startswith("train."):  # whose modules import torch, which reads its variables then
        _import_order.import_unsloth()
    module = importlib.import_module(f"rloo_kit.{home}")
    return module if name == home else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_import_order.put_in_force()
