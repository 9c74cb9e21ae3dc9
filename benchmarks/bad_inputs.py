"""What stock TRL under Unsloth and the kit do with 29 bad inputs.

    OMP_NUM_THREADS=1 python benchmarks/bad_inputs.py
    OMP_NUM_THREADS=1 python benchmarks/bad_inputs.py "a negative beta" "inf"   # these, on the screen alone

Takes the table of tests/train/test_guards.py, gives each input to both trainers on a fresh tiny policy for one step,
and writes benchmarks/results/bad_inputs.md: refused before a completion was sampled, stopped later, or trained on
without a word, and whether every weight is still finite.
"""

import rloo_kit  # isort: skip - unsloth first

import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import trl
from tables import RESULTS, command_line, document, table

from tests.conftest import SMALL, right_after_thought
from tests.train.test_guards import REFUSED, Refused, without_eos

# On this CPU TRL would refuse every case for its default of bf16.
SETTINGS = {**SMALL, "logging_steps": 1, "disable_tqdm": True, "learning_rate": 1e-3, "bf16": False}


def main() -> None:
    """Try every input on both trainers and write the table."""
    task, rows = rloo_kit.tasks.addition(n_train=64, n_held_out=32), []
    for name in sys.argv[1:] or REFUSED:
        rows.append((name, *(outcome(kit, REFUSED[name], task) for kit in (trl, rloo_kit))))
        print(*rows[-1], sep=" | ", flush=True)
    if len(rows) == len(REFUSED):
        (RESULTS / "bad_inputs.md").write_text(report(rows))


def outcome(kit: ModuleType, case: Refused, task: rloo_kit.tasks.Task) -> str:
    """What happened with the trainer of TRL or of the kit, in a few words."""
    policy = rloo_kit.load_policy("tiny")
    sampled: list[bool] = []
    generate = policy.model.generate

    def watched(*args: object, **kwargs: object) -> object:
        sampled.append(True)
        return generate(*args, **kwargs)

    policy.model.generate = watched
    given = {"model": policy.model, "processing_class": policy.tokenizer, "train_dataset": task.train}
    arguments = {"reward_funcs": right_after_thought, **given, **case.trainer}
    if "processing_class" in case.trainer:
        arguments["processing_class"] = without_eos(policy.tokenizer)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            config = kit.RLOOConfig(output_dir=folder, **{**SETTINGS, **case.config})
            trainer = kit.RLOOTrainer(args=config, **arguments)
            trainer.train()
            found = "trained on" if trainer.state.global_step else "ran no step"
        except Exception as error:
            found = f"{'stopped' if sampled else 'refused'}: {type(error).__name__}"
    finite = all(bool(parameter.isfinite().all()) for parameter in policy.model.parameters())
    return found if finite else f"{found}, NaN weights"


def report(rows: list[tuple[str, ...]]) -> str:
    """The table and its sums."""
    sums, trainers = [], ("stock TRL under Unsloth", "rloo-kit")
    for column, trainer in enumerate(trainers, 1):
        kinds = Counter(row[column].split(":")[0].split(",")[0] for row in rows)
        counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        sums.append(f"- {trainer}: {counted}; NaN weights in {sum('NaN' in row[column] for row in rows)}")
    return document(
        "Bad inputs",
        f"{command_line()}, on the tiny policy, on a CPU. refused: an error before the first completion was sampled; "
        "stopped: an error after; trained on, ran no step: no error. Whether an error says what to do is not counted; "
        "the kit's always do (tests/train/test_guards.py).",
        "\n".join(sums),
        table(("input", *trainers), "lll", rows),
    )


if __name__ == "__main__":
    main()
