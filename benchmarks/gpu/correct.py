"""Correct on this card: import order and patched names, every precision, guards, the reference, saving and resuming.

All on the bundled tiny policy.
"""

from __future__ import annotations

import functools
import math
import tempfile
from typing import Any

from . import device
from .checks import Check, Found, Place, add, at_least, at_most, check, holds, seen
from .written import leave_the_reference, load, trained, trainer_of


@check("correct/prepared and patched", seconds=60, takes=5, rank=10)
def patched(place: Place) -> Found:
    """Import order, and the class that unsloth generates for GPUs under ours."""
    import rloo_kit

    env = rloo_kit.prepare(dotenv=None, offline=True, seed=0)
    import trl

    generated = trl.RLOOTrainer.__name__.startswith("Unsloth")
    with tempfile.TemporaryDirectory() as folder:
        config = rloo_kit.RLOOConfig(output_dir=folder)
    return Found(
        [
            holds("the device is the GPU", env.device == ("cpu" if place.is_rehearsal else "cuda")),
            holds("TRL's trainer is unsloth's", generated or place.is_rehearsal),
            holds("ours is a subclass of it", trl.RLOOTrainer in rloo_kit.RLOOTrainer.__mro__),
            holds("and our config of its", issubclass(rloo_kit.RLOOConfig, trl.RLOOConfig)),
            holds("learning rate, seed and optimizer are ours", _defaults_are_ours(config)),
            holds("precision follows the device", config.bf16 == device.computes_bf16()),
            holds("the hub is left alone", env.offline),
            seen("warnings of prepare()", len(env.warnings)),
        ],
        {"warnings": list(env.warnings), "mro": [kind.__name__ for kind in rloo_kit.RLOOTrainer.__mro__[:6]]},
    )


def _defaults_are_ours(config: Any) -> bool:
    optimizer = getattr(config.optim, "value", config.optim)
    return (config.learning_rate, config.seed, optimizer) == (1e-5, 42, "adamw_torch_fused")


def precision(options: dict[str, Any], settings: dict[str, Any], four_bit: bool, place: Place) -> Found:
    """Sampled steps: finite gradients, and weights that moved.

    In float16 the loss scaler begins too high and leaves out the first steps, as it is meant to.
    """
    import torch

    from rloo_kit.memory import reading

    asked = settings.get("fp16", False)
    half = asked or (torch.cuda.is_available() and not device.computes_bf16())
    if asked:
        options = {**options, "dtype": torch.float16}
    policy = load(**options)
    steps, needed = (6, 1) if half else (2, 2)
    shared: dict[str, Any] = {"max_steps": steps, "learning_rate": 1e-3, "beta": 0.05, **settings}
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(policy, folder, written_down=False, reward_funcs=varied, **shared)
        before = trained(policy.model)
        trainer.train()
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    moved = (trained(policy.model) - before).abs()
    said = "the base is in 4 bit" if four_bit else "no weight is in 4 bit"
    return Found(
        [
            holds(said, reading.is_four_bit(policy.model) == four_bit),
            at_least("steps with a finite gradient", sum(map(math.isfinite, norms)), needed),
            at_least("largest change of a weight", moved.max(), 1e-5),
            seen("gradient's norm", norms[-1] if norms else math.nan),
        ],
        {"compute_dtype": str(policy.model.config.dtype), "norms": [str(norm) for norm in norms]},
    )


def varied(completion_ids: Any, **kwargs: Any) -> list[float]:
    """Something that differs within a group."""
    return [(sum(ids) % 97) / 97 for ids in completion_ids]


FP16 = {"fp16": True, "bf16": False}
PRECISIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "4 bit, as by default": ({}, {}),
    "16 bit": ({"load_in_4bit": False}, {}),
    "4 bit, fp16": ({}, FP16),
    "16 bit, fp16": ({"load_in_4bit": False}, FP16),
}
"""Name -> arguments of load_policy and of RLOOConfig."""

for _name, (_options, _settings) in PRECISIONS.items():
    add(
        Check(
            f"correct/{_name}",
            functools.partial(precision, _options, _settings, "load_in_4bit" not in _options),
            seconds=150,
            takes=10,
            rank=13,
            is_rehearsed=_settings is not FP16,
        )
    )


@check("correct/the reference", seconds=60, takes=8, rank=13)
def reference_copy(place: Place) -> Found:
    """No copy of the LoRA but where a trained policy is its own reference."""
    policy = load()
    kinds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, beta in (("fresh, beta 0", 0.0), ("fresh, beta above 0", 0.05)):
            kinds[name] = _has_copy(trainer_of(policy, folder, beta=beta))
        leave_the_reference(policy.model)
        kinds["trained, beta 0"] = _has_copy(trainer_of(policy, folder, beta=0.0))
        kinds["trained, beta above 0"] = _has_copy(trainer_of(policy, folder, beta=0.05))
    expected = dict.fromkeys(kinds, False) | {"trained, beta above 0": True}
    return Found(
        [
            holds(f"{name}: {'a copy' if expected[name] else 'no copy'}", expected[name] == kinds[name])
            for name in kinds
        ]
    )


def _has_copy(trainer: Any) -> bool:
    return "ref" in trainer.model.peft_config


@check("correct/guards", seconds=60, takes=5, rank=13)
def guarded(place: Place) -> Found:
    """An infinite reward is refused by name, and leaves every weight as it was."""
    import rewards

    def infinite(completions: Any, **kwargs: Any) -> list[float]:
        return [math.inf] * len(completions)

    policy, said = load(), ""
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(policy, folder, reward_funcs=infinite)
        before = trained(policy.model)
        try:
            trainer.train()
        except rewards.RewardValueError as error:
            said = str(error)
    return Found(
        [
            holds("it is refused", "infinite" in said),
            holds("no weight has changed", bool((trained(policy.model) == before).all())),
        ],
        {"said": said},
    )


# --- through files ----------------------------------------------------------------------------------------


@check("correct/save and reload", seconds=60, takes=8, rank=14)
def reload(place: Place) -> Found:
    """A saved adapter gives the completions of the policy that was saved, token for token."""
    import rloo_kit

    policy = load()
    leave_the_reference(policy.model)
    prompts = rloo_kit.tasks.addition(n_train=64, n_held_out=32, seed=0).held_out["prompt"][:8]
    with tempfile.TemporaryDirectory() as folder:
        first = policy.generate(prompts, greedy=True, max_new_tokens=16)
        again = rloo_kit.load_policy(policy.save(f"{folder}/adapter"))
        second = again.generate(prompts, greedy=True, max_new_tokens=16)
    difference = (trained(again.model) - trained(policy.model)).abs().max()
    return Found(
        [
            holds("the same completions", [one.ids for one in first] == [one.ids for one in second]),
            at_most("largest difference of a weight", difference, 0.0),
        ]
    )


@check("correct/resume", seconds=150, takes=15, rank=14)
def resumed(place: Place) -> Found:
    """Four steps in a row, against two, a checkpoint, and two more from it.

    In 16 bit, where the LoRA is in float32 on either device: in bfloat16 a checkpoint's rounding is larger.
    """
    options: dict[str, Any] = {"learning_rate": 1e-3, "beta": 0.05}
    load_one = functools.partial(load, load_in_4bit=False)
    with tempfile.TemporaryDirectory() as folder:
        whole, start = load_one(), trained(load_one().model)
        trainer_of(whole, f"{folder}/whole", max_steps=4, **options).train()
        saving = {"save_strategy": "steps", "save_steps": 2, **options}
        trainer_of(load_one(), f"{folder}/parts", max_steps=2, **saving).train()
        rest = load_one()
        second = trainer_of(rest, f"{folder}/parts", max_steps=4, **saving)
        second.train(resume_from_checkpoint=True)
    moved = trained(whole.model) - start
    apart = (trained(rest.model) - trained(whole.model)).norm() / moved.norm()
    return Found(
        [
            holds("it went on to step 4", second.state.global_step == 4),
            at_most("off by, as a share of what the steps changed", float(apart), 1e-3),
        ]
    )
