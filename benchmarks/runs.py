"""A measured training run: its settings, its result, and the process of its own that makes it.

For benchmarks/step.py and benchmarks/time_to_accuracy.py.  ``measure`` starts benchmarks/one_run.py, waits, and keeps
the result in a file, so that an interrupted benchmark continues where it stopped.  The file's name holds a digest of
the run's settings and of the kit's sources: what was changed is measured again.

A new line in ``VARIANTS`` adds an optimisation to the ablation.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phases import CLOCKS, PHASES, Spent, Step
from tables import RESULTS

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "out" / "benchmarks"
MEASURED_BY = ("phases", "one_run", "learned")
"""Modules here that decide what a run does."""


@dataclass(frozen=True)
class Variant:
    """A trainer, and what is switched off in it.

    Attributes:
        config: arguments of ``RLOOConfig`` besides those that all variants share.
        stock: TRL's own trainer under unsloth, in place of the kit's.
        untiled: log-probabilities as unsloth computes them on a CPU, with the kit's chunks.
        algorithm: TRL's name of its trainer and its config; the kit has RLOO's alone.
    """

    config: dict[str, object] = field(default_factory=dict)
    stock: bool = False
    untiled: bool = False
    algorithm: str = "RLOO"


VARIANTS = {
    "stock": Variant(stock=True),
    "stock-grpo": Variant(stock=True, algorithm="GRPO"),
    "kit": Variant(),
    "kit-token": Variant({"importance_sampling_level": "token"}),
    "kit-token-clipped": Variant({"importance_sampling_level": "token", "max_grad_norm": 0.1}),
    "no-single-pass": Variant({"single_pass": False}),
    "no-fast-sampling": Variant({"fast_sampling": False}),
    "no-dead-group-skipping": Variant({"skip_dead_groups": False}),
    "no-tiles": Variant(untiled=True),
}
"""Name -> trainer: stock, stock GRPO, the kit with everything on, with what may take fewer completions, and with one
optimisation off."""

ABLATION = ("stock", "kit", *(name for name in VARIANTS if name.startswith("no-")))


@dataclass(frozen=True)
class Spec:
    """The settings of a run; two runs of equal settings are one.

    Attributes:
        variant, level: keys of :data:`VARIANTS` and of ``rloo_kit.tasks.LEVELS``.
        task: key of ``learned.TASKS``.
        setting: what a benchmark calls this combination of settings.
        seed: of the LoRA, the task's draw and the sampling.
        repeat: distinguishes runs that are otherwise equal.
        steps: minimum number of updates; the run continues to ``max_steps`` or ``most`` generated tokens until
            ``target`` is reached.
        micro_batch: completions in one forward and backward pass.
        evaluate_every: tokens generated between evaluations, at least, with the clock stopped; 0 for none.  The last
            of ``max_steps`` is always followed by one.
        target: held-out greedy accuracy to reach.
    """

    variant: str
    policy: str = "tiny"
    level: int = 1
    task: str = "arithmetic"
    setting: str = ""
    seed: int = 0
    repeat: int = 0
    steps: int = 8
    max_steps: int = 8
    most: int = 1_000_000
    num_generations: int = 8
    prompts_per_step: int = 4
    num_iterations: int = 1
    micro_batch: int = 32
    max_completion_length: int = 32
    learning_rate: float = 1e-3
    beta: float = 0.0
    evaluate_every: int = 0
    problems: int = 200
    target: float = 1.0


@dataclass(frozen=True)
class Evaluated:
    """Held-out greedy accuracy after so many updates, tokens and seconds of training."""

    step: int
    tokens: int
    spent: Spent
    accuracy: float


@dataclass(frozen=True)
class Result:
    """What a run measured.

    Attributes:
        dead: share of groups whose K rewards are all equal, per step.
        rewards: mean reward, per step.
        start_bytes, peak_bytes: held when training began, and at most before the first evaluation.
        load: the machine's load average over the last minute, at the end.
        machine: of the process: device, threads, versions.
    """

    spec: Spec
    steps: tuple[Step, ...]
    evaluated: tuple[Evaluated, ...]
    dead: tuple[float, ...]
    rewards: tuple[float, ...]
    start_bytes: int
    peak_bytes: int
    load: float
    machine: dict[str, str]

    @property
    def tokens(self) -> int:
        """Generated in the whole run."""
        return sum(step.tokens for step in self.steps)

    def seconds(self, clock: str, phase: str | None = None) -> list[float]:
        """Of each step, whole or in one phase."""
        return [getattr(step.spent[phase] if phase else step.total, clock) for step in self.steps]

    def to_json(self) -> str:
        """One line, seconds to the tenth of a millisecond; phases in the order of ``phases.PHASES``."""
        steps = [
            {"tokens": step.tokens}
            | {clock: [round(getattr(step.spent[name], clock), 4) for name in PHASES] for clock in CLOCKS}
            for step in self.steps
        ]
        return json.dumps(dataclasses.asdict(self) | {"steps": steps}, separators=(",", ":"))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        """What :meth:`to_json` wrote, parsed."""
        steps = []
        for step in data["steps"]:
            spent = map(Spent, *(step[clock] for clock in CLOCKS))
            steps.append(Step(dict(zip(PHASES, spent, strict=True)), step["tokens"]))
        evaluated = [Evaluated(**{**item, "spent": Spent(**item["spent"])}) for item in data["evaluated"]]
        lists = {"steps": steps, "evaluated": evaluated, "dead": data["dead"], "rewards": data["rewards"]}
        return cls(**{**data, "spec": Spec(**data["spec"]), **{name: tuple(v) for name, v in lists.items()}})


def measure(spec: Spec, fresh: bool = False) -> Result:
    """The result of a run, from its file if it exists and nothing ``fresh`` is wanted, else from a process of its own.

    Raises:
        RuntimeError: the process failed; with the end of its output.
    """
    file = OUT / f"{spec.variant}-{spec.seed}-{spec.repeat}-{digest(spec)}.json"
    if fresh or not file.exists():
        OUT.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(HERE / "one_run.py"), json.dumps(dataclasses.asdict(spec)), str(file)]
        log = file.with_suffix(".log")
        with log.open("w") as out:
            done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            raise RuntimeError(f"{spec} failed; the end of {log}:\n{log.read_text()[-2000:]}")
    return Result.from_json(json.loads(file.read_text()))


def digest(spec: Spec) -> str:
    """Ten letters for the settings, the variant's switches, and the sources that the run uses."""
    package = HERE.parent / "rloo_kit"
    sources = [*sorted(package.rglob("*.py")), *(HERE / f"{name}.py" for name in MEASURED_BY)]
    text = repr((spec, VARIANTS[spec.variant])) + "".join(path.read_text() for path in sources)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def store(name: str, results: Iterable[Result]) -> None:
    """Write the raw results beside their table, a run a line."""
    lines = ",\n".join(result.to_json() for result in results)
    (RESULTS / f"{name}.json").write_text(f"[\n{lines}\n]\n")


def stored(name: str) -> list[Result]:
    """The raw results that :func:`store` wrote."""
    return [Result.from_json(data) for data in json.loads((RESULTS / f"{name}.json").read_text())]


def described(results: list[Result]) -> str:
    """The machine in two sentences, for the top of a table."""
    first = results[0].machine
    loads = sorted(result.load for result in results)
    threads = f"{first['threads']} thread{'s' if first['threads'] != '1' else ''}"
    return (
        f"Device: {first['device']}, {threads} (the machine: {first['cpu']}; load average of a run's last minute "
        f"{loads[0]:.1f} to {loads[-1]:.1f}, the run itself included). Versions: {first['versions']}."
    )
