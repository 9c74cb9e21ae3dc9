"""What a model card says of a run: method, data, rewards and settings, as its trainer knows them.

For :mod:`.saving`, which gives them to the model that was trained; :mod:`rloo_kit.policy.model_card` writes them down.
Plain texts and numbers: no path, since those are private, and nothing that was not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import Dataset

from rloo_kit.policy import model_card
from rloo_kit.policy.source import checkpoint_of_model
from rloo_kit.tasks.task import FILES, origin_of
from rloo_kit.train.launched import fingerprint
from rloo_kit.train.own import Own

if TYPE_CHECKING:
    import trl

    from rloo_kit.policy.model_card import Facts

METHOD = "RLOO (Ahmadian et al. 2024, arXiv 2402.14740)"

SETTINGS = (
    "learning_rate",
    "lr_scheduler_type",
    "optim",
    "beta",
    "epsilon",
    "num_iterations",
    "temperature",
    "max_completion_length",
    "mask_truncated_completions",
    "seed",
)
"""Of a configuration, those that decide what was learned, beside the sizes of groups and batches."""

OWN = ("kl_placement", "kl_estimator", "loss_aggregation", "importance_sampling_level")
"""The kit's own that do, where they are not what plain TRL does."""

DIGITS = 16
"""Of a fingerprint: enough to tell datasets apart."""


def card(trainer: trl.RLOOTrainer) -> str:
    """The card of what a trainer saves."""
    form = "LoRA adapter" if hasattr(trainer.model, "peft_config") else "checkpoint, all weights trained"
    base = checkpoint_of_model(trainer.model, trainer.processing_class)
    return model_card.written(base, form, run=model_card.remembered(trainer.model))


def facts(trainer: trl.RLOOTrainer, of_data: Mapping[str, object]) -> Facts:
    """Heading -> name -> value.

    Args:
        trainer: the kit's, at any step.
        of_data: :func:`data`'s.
    """
    args, own, plain = trainer.args, trainer.own, Own()
    rows = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    weights = zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True)
    changed = {name: getattr(own, name) for name in OWN if getattr(own, name) != getattr(plain, name)}
    return {
        "Method": {
            "method": METHOD,
            "advantage estimator": own.advantage_estimator,
            "updates": f"{trainer.state.global_step} of {trainer.state.max_steps}",
            "completions of a prompt": args.num_generations,
            "completions of an update": rows,
        },
        "Data": of_data,
        "Rewards and their weights": {name: f"{weight:g}" for name, weight in weights},
        "Configuration": {name: _plain(getattr(args, name)) for name in SETTINGS}
        | changed
        | _trained(trainer.model),
    }


def _plain(value: Any) -> object:
    value = getattr(value, "value", value)  # transformers has enums
    return f"{value:g}" if isinstance(value, float) else value


def data(dataset: object) -> dict[str, object]:
    """Name, size and fingerprint of a dataset as it was given, which is what has a name; of a stream its name."""
    if not isinstance(dataset, Dataset):
        return {"name": _name(dataset), "prompts": "a stream"}
    return {
        "name": _name(dataset),
        "prompts": len(dataset),
        "fingerprint": fingerprint(dataset)[:DIGITS],
    }


def _name(dataset: object) -> str:
    """The call that made a task's dataset, or the name under which it was loaded."""
    if (origin := origin_of(dataset)) is None:
        info = getattr(dataset, "info", None)
        named = getattr(info, "dataset_name", None) or getattr(info, "builder_name", None)
        return str(named or "made by hand")
    shown = {
        name: Path(str(value)).name if name in FILES and value is not None else value
        for name, value in origin.call.arguments.items()
    }
    given = ", ".join(f"{name}={value!r}" for name, value in shown.items() if value is not None)
    return f"tasks.{origin.call.function}({given}), {origin.side}"


def _trained(model: Any) -> dict[str, object]:
    config = getattr(model, "peft_config", {}).get("default")
    if config is None:
        return {"trained": "all weights"}
    return {"LoRA rank": config.r, "LoRA alpha": config.lora_alpha}
