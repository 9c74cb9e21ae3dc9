"""What stock TRL under Unsloth and the kit do with bad and odd inputs.

    OMP_NUM_THREADS=1 python benchmarks/bad_inputs.py
    OMP_NUM_THREADS=1 python benchmarks/bad_inputs.py "beta=-0.1" "inf"   # these, on the screen alone

Gives each input of tests/train/bad_inputs to both trainers, for a step or a few, on a tiny policy in a process of its
own with a time limit, and writes benchmarks/results/bad_inputs.md.  The two are judged by the same rule:

- clear: an error whose message names the culprit (the setting, the column, the reward's name), or a warning that does
  and a step taken; of the kit also an input that it mends, so that the run is as without it.
- cryptic: an error that does not.
- silent: no error, and no warning that names the culprit.
- NaN: a weight is not finite afterwards.
- hanging: no end within the time limit, or within the memory limit.
"""

import rloo_kit  # isort: skip - unsloth first

import logging
import multiprocessing
import re
import resource
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from queue import Empty
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import trl
from tables import RESULTS, command_line, document, table

from tests.conftest import SMALL, random_rewards
from tests.train.bad_inputs import INPUTS, Bad, arguments

# On this CPU TRL would refuse every case for its default of bf16.
SETTINGS = {**SMALL, "logging_steps": 1, "disable_tqdm": True, "learning_rate": 1e-3, "bf16": False}
SECONDS = 60
"""A step on the tiny policy takes less than one."""
BYTES = 2**30 * 6
"""More than a step takes; a list of an endless iterator's values would take all there are."""
KINDS = ("clear", "cryptic", "silent", "NaN", "hanging")


def main() -> None:
    """Try every input on both trainers and write the table."""
    rows = []
    for name in sys.argv[1:] or INPUTS:
        rows.append((name, *(found for kit in (trl, rloo_kit) for found in apart(kit, INPUTS[name]))))
        print(*rows[-1], sep=" | ", flush=True)
    if len(rows) == len(INPUTS):
        (RESULTS / "bad_inputs.md").write_text(report(rows))


def apart(kit: ModuleType, case: Bad) -> tuple[str, str]:
    """What happened, in a process of its own: its kind, and in a few words."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=answer, args=(kit, case, answers))
    process.start()
    try:
        found: tuple[str, str] = answers.get(timeout=SECONDS)
    except Empty:
        found = ("hanging", f"no end in {SECONDS} s")
    process.kill()
    process.join()
    return found


def answer(kit: ModuleType, case: Bad, answers: Any) -> None:
    """Put the outcome into the queue; the child's own screen is shut."""
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + BYTES, held + BYTES))
    sys.stdout = sys.stderr = Path("/dev/null").open("w")  # noqa: SIM115 - until the process ends
    answers.put(outcome(kit, case))


class Heard(logging.Handler):
    """What the libraries log as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.said.append(record.getMessage())


def outcome(kit: ModuleType, case: Bad) -> tuple[str, str]:
    """The kind, and what happened: an error before or after the first completion, or none."""
    policy, heard = rloo_kit.load_policy("tiny"), Heard()
    task = rloo_kit.tasks.addition(n_train=8, n_held_out=8)  # an epoch is four steps
    for library in ("transformers", "trl", "datasets", "accelerate", "peft"):
        logging.getLogger(library).addHandler(heard)
    sampled: list[bool] = []
    generate = policy.model.generate

    def watched(*args: object, **kwargs: object) -> object:
        sampled.append(True)
        return generate(*args, **kwargs)

    policy.model.generate = watched
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            steps = train(kit, case, policy, task, folder)
        except MemoryError:
            return ("hanging", f"more than {BYTES // 2**30} GiB")
        except (Exception, SystemExit) as error:
            kind = "clear" if names(case, str(error)) else "cryptic"
            found = f"{'stopped' if sampled else 'refused'}: {type(error).__name__}"
        else:
            said = "\n".join([*(str(one.message) for one in warned), *heard.said])
            spoken, mended = names(case, said), kit is rloo_kit and case.when == "mended"
            kind = "clear" if spoken or mended else "silent"
            found = ("mended" if mended else "warned" if spoken else "trained on") if steps else "ran no step"
    finite = all(bool(parameter.isfinite().all()) for parameter in policy.model.parameters())
    return (kind, found) if finite else ("NaN", f"{found}, NaN weights")


def names(case: Bad, said: str) -> bool:
    """Whether a message names the culprit, as a word of its own."""
    return any(re.search(rf"(?<!\w){re.escape(one)}(?!\w)", said) for one in (case.culprit, case.aka) if one)


def train(kit: ModuleType, case: Bad, policy: rloo_kit.Policy, task: rloo_kit.tasks.Task, folder: str) -> int:
    """The number of steps that were taken."""
    given = {"model": policy.model, "processing_class": policy.tokenizer, "train_dataset": task.train}
    given |= {"reward_funcs": random_rewards, **arguments(case, policy)}
    config = given.pop("args", None) or kit.RLOOConfig(**{"output_dir": folder, **SETTINGS, **case.config})
    trainer = kit.RLOOTrainer(args=config, **given)
    trainer.train()
    return int(trainer.state.global_step)


def report(rows: list[tuple[str, ...]]) -> str:
    """The sums, and the table."""
    sums, trainers = [], ("stock TRL under Unsloth", "rloo-kit")
    for trainer, column in zip(trainers, (1, 3), strict=True):
        counts = Counter(row[column] for row in rows)
        sums.append((trainer, *(str(counts[kind]) for kind in KINDS)))
    return document(
        f"{len(rows)} bad inputs",
        f"{command_line()}, on the tiny policy, on a CPU, each in a process of its own. clear: an error whose message "
        "names the culprit, or a warning that does; of the kit also what it mends, so that the run is as without it. "
        "cryptic: an error that does not name it. silent: neither. NaN: a weight is not finite afterwards. hanging: no "
        f"end within {SECONDS} s or {BYTES // 2**30} GiB. refused: before the first completion was sampled; stopped: "
        "after. The inputs are chosen by the kit's authors, many of them because one of the two failed on them.",
        table(("trainer", *KINDS), "lrrrrr", sums),
        table(
            ("input", "", trainers[0], "", trainers[1]),
            "lllll",
            [tuple(cell.replace("|", "\\|") for cell in row) for row in rows],
        ),
    )


if __name__ == "__main__":
    main()
