"""Check that a real model learns: SmolLM2-135M on sums in words at the suggested settings, before and after.

A rehearsal trains the tiny policy instead.
"""

from __future__ import annotations

import time
from typing import Any

import rloo_kit  # isort: skip - Unsloth first
from learned import IN_TIME, LARGEST, right_in_time

from . import work
from .runner import Figure, Place

STEPS, SECONDS, PROBLEMS, ROOM = 100, 120.0, 100, 4  # the seconds limit training, evaluations not counted
GAIN = 0.1  # the smallest that passes
GROUP = ("num_generations", "per_device_train_batch_size", "gradient_accumulation_steps")


def run(place: Place, seed: int) -> dict[str, Figure]:
    """Train, and measure greedy held-out accuracy at the length limit and with room for four times the tokens."""
    rloo_kit.prepare(dotenv=None, offline=True, seed=seed)
    policy = rloo_kit.load_policy("tiny" if place.is_rehearsal else "smollm2-135m", seed=seed)
    learned = rloo_kit.tasks.word_sums(policy, largest=LARGEST, seed=seed)
    limit, problems = (4, 2) if place.is_rehearsal else (IN_TIME, PROBLEMS)
    given: dict[str, Any] = {"max_steps": STEPS}
    if place.is_rehearsal:
        given = dict.fromkeys((*GROUP, "max_steps"), 2)
    given |= {"max_completion_length": limit, "report_to": "none", "live_plot": False, "seed": seed}
    config = rloo_kit.RLOOConfig.suggested(policy, learned, str(place.scratch / "learns"), **given)

    def accuracy(when: str) -> dict[str, Figure]:
        found = rloo_kit.evaluate(policy, learned, n=problems, max_new_tokens=limit, room=ROOM)
        assert found.accuracy is not None  # the task has answers
        assert found.accuracy_with_room is not None
        return {
            f"accuracy {when}": Figure(found.accuracy.value),
            f"accuracy {when} with room": Figure(found.accuracy_with_room.value),
            f"cut {when}": Figure(found.truncated),
        }

    before = accuracy("before")
    trainer = rloo_kit.RLOOTrainer(policy, right_in_time(learned), config, learned.train)
    started = time.monotonic()

    def stop_in_time() -> None:
        if time.monotonic() - started > SECONDS:
            trainer.control.should_training_stop = True

    work.listen(trainer, on_step_end=stop_in_time)
    trainer.train()
    seconds, after = time.monotonic() - started, accuracy("after")
    rewards = [round(entry["reward"], 3) for entry in trainer.state.log_history if "reward" in entry]
    print(f"seed {seed}, rewards by step: {rewards}")
    gain = after["accuracy after with room"].value - before["accuracy before with room"].value
    return {
        "gain with room": Figure(gain, low=None if place.is_rehearsal else GAIN),
        **before,
        **after,
        "steps": Figure(float(trainer.state.global_step)),
        "training, s": Figure(seconds),
        "learning rate": Figure(config.learning_rate),
    }
