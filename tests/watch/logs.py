"""Logs for the watch tests: invented, drawn by chance alone, or recorded by benchmarks/health_runs.py."""

import random
import statistics
from types import SimpleNamespace
from typing import Any

from benchmarks.health_runs import DATA
from rloo_kit.watch.statistics import ALIKE, Entry, Known, Log, rounds
from rloo_kit.watch.symptoms import Episodes

JUDGES = {"correct": "answer", "answer": "answer", "format": "form"}
KNOWN = Known(completions=32, groups=4, judges=JUDGES)
CALM = sorted([*DATA.glob("*.mended.json"), *DATA.glob("*.healthy.json")])
HEALTHY: dict[str, Any] = {
    "reward": lambda step: min(0.9, 0.3 + 0.02 * step),
    "reward_std": 0.45,
    "zero_variance_groups": 0.1,
    "kl": lambda step: 0.002 * step,
    "entropy": lambda step: max(0.1, 0.3 - 0.005 * step),
    "grad_norm": 1.5,
    "learning_rate": 1e-3,
    "completions/mean_length": lambda step: 15.0 + min(5.0, 0.3 * step),
    "completions/max_length": 32.0,
    "completions/clipped_ratio": 0.03,
}


def history(steps: int = 30, **columns: Any) -> list[Entry]:
    """Return a healthy run's log with metrics replaced by a number or a function of the step; ``x__y`` is ``x/y``."""
    columns = {**HEALTHY, **{name.replace("__", "/"): value for name, value in columns.items()}}
    noise = random.Random(0)
    entries = []
    for step in range(1, steps + 1):
        entry = {name: value(step) if callable(value) else value for name, value in columns.items()}
        if entry["reward_std"]:
            entry["reward"] += noise.gauss(0, 0.05)
        entries.append({"step": step, **{name: value for name, value in entry.items() if value is not None}})
    return [*entries, {"step": steps, "train_runtime": 1.0}]


def terms(**functions: tuple[Any, Any]) -> dict[str, Any]:
    """Return the columns of reward functions: ``terms(right=(mean, spread))``."""
    both = zip(("mean", "std"), zip(*functions.values(), strict=True), strict=True)
    return {f"rewards__{n}__{what}": v for what, vs in both for n, v in zip(functions, vs, strict=True)}


def level(**functions: tuple[Any, Any]) -> dict[str, Any]:
    return {"completions__mean_length": 16.0, **terms(**functions)}


def rising(start: float, slope: float) -> Any:
    return lambda step: start + slope * step


def from_step(first: int, before: float, after: float) -> Any:
    return lambda step: before if step < first else after


def symptoms(entries: list[Entry], known: Known = KNOWN) -> list[str]:
    return [finding.symptom for finding in Episodes(Log(rounds(entries), known)).findings]


def trl_config(**changed: Any) -> Any:
    """Return the config fields with which a log is read: 32 completions of 4 prompts in one pass, unless changed."""
    once = ("world_size", "gradient_accumulation_steps", "steps_per_generation", "num_iterations")
    values: dict[str, Any] = dict.fromkeys(once, 1)
    values |= {"per_device_train_batch_size": 32, "generation_batch_size": 32, "num_generations": 8}
    return SimpleNamespace(**{**values, "reward_weights": None, **changed})


def trainer_of(entries: list[Entry], output_dir: Any = None, **has: Any) -> Any:
    state = SimpleNamespace(log_history=entries)
    return SimpleNamespace(state=state, args=trl_config(output_dir=output_dir), **has)


def play(
    callback: Any, entries: list[Entry], main: bool = True, seen: int = 0, after: Any = int, **config: Any
) -> tuple[int, bool, bool]:
    """Give a log to a callback as a Trainer does; return the last step, and whether the callback stops and saves.

    The first ``seen`` entries are there before it begins.  ``after`` is called after each entry.
    """
    state = SimpleNamespace(log_history=entries[:seen], is_world_process_zero=main)
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    given = trl_config(**config), state, control
    callback.on_train_begin(*given)
    for entry in entries[seen:]:
        state.log_history = [*state.log_history, entry]
        callback.on_log(*given, logs=entry)
        after()
        if control.should_training_stop:
            break
    callback.on_train_end(*given)
    return state.log_history[-1]["step"], control.should_training_stop, control.should_save


def chance_rewards(seed: int, prompts: int, k: int, steps: int = 100, ends: float = 1.0) -> list[Entry]:
    """Return the log of a policy that learns nothing: each prompt has its own chance to be solved, 0.35 on average, and
    nearer to 0 or 1 for a smaller ``ends``."""
    rng = random.Random(seed)
    size = ends * (1 / ALIKE - 1)
    entries = []
    for step in range(1, steps + 1):
        chances = [rng.betavariate(0.35 * size, 0.65 * size) for _ in range(prompts)]
        groups = [[float(rng.random() < chance) for _ in range(k)] for chance in chances]
        scores = [score for group in groups for score in group]
        entry = {"step": step, "reward": statistics.mean(scores), "reward_std": statistics.stdev(scores)}
        entries.append({**entry, "zero_variance_groups": sum(len(set(group)) == 1 for group in groups) / prompts})
    return entries


def averaged(entries: list[Entry], count: int) -> list[Entry]:
    """Return the mean of every ``count`` entries as one entry, with the number of its last step."""
    parts = [entries[i : i + count] for i in range(0, len(entries), count)]
    means = [{name: statistics.mean(entry[name] for entry in part) for name in part[0]} for part in parts]
    return [{**mean, "step": part[-1]["step"]} for mean, part in zip(means, parts, strict=True)]


def step(number: int, **more: Any) -> Entry:
    """Return a step as the kit's trainer logs it with a KL term and two rewards."""
    lengths = {"mean_length": 20.0 + number, "min_length": 3.0, "max_length": 32.0, "clipped_ratio": 0.05}
    return {
        **{"step": number, "reward": number / 10, "reward_std": 0.1},
        **{"rewards/right/mean": number / 20, "rewards/closed/mean": 0.5},
        **{"zero_variance_groups": 0.25, "frac_reward_zero_std": 0.0, "kl": -0.001 * number, "entropy": 1.0 / number},
        **{f"completions/{name}": value for name, value in lengths.items()},
        **more,
    }


LOG = [step(number) for number in range(1, 11)] + [{"step": 10, "train_runtime": 1.0}]
