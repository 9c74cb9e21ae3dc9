"""Correct on this card: the kit computes what it computes on a CPU, and every way of loading and resuming works.

All on the bundled tiny policy.  What is compared with the CPU is a gradient: of one update on completions that are
written down, in 16 bit on the card and in float32 on the CPU (a process of its own, which does not see the card).
"""

from __future__ import annotations

import functools
import math
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .checks import CPU, HIDDEN, Check, Figure, Found, Place, add, at_least, at_most, check, holds, seen

K = 4

SETTINGS: dict[str, dict[str, Any]] = {
    "rloo": {"beta": 0.05},
    "rloo, two passes": {"beta": 0.05, "single_pass": False},
    "rloo, beta 0": {"beta": 0.0},
    "rloo, beta 0, dead rows trained on": {"beta": 0.0, "skip_dead_groups": False, "single_pass": False},
    "rloo, dead groups left out": {"beta": 0.05, "skip_dead_groups": True},
    "grpo": {"advantage_estimator": "grpo", "beta": 0.05, "kl_placement": "loss"},
    "dr_grpo": {"advantage_estimator": "dr_grpo", "beta": 0.05, "loss_aggregation": "seq-mean-token-sum-norm"},
    "reinforce, token-mean, k2": {
        "advantage_estimator": "reinforce",
        "beta": 0.05,
        "kl_placement": "loss",
        "loss_aggregation": "token-mean",
    },
    "rloo, whitened": {"beta": 0.0, "normalize_advantages": True},
}
"""What is computed on both devices."""

ALIKE = (("rloo", "rloo, two passes"), ("rloo, beta 0", "rloo, beta 0, dead rows trained on"))
"""Settings whose updates are the same by construction."""

TOLERANCE = 0.05
"""Of a gradient, as a share of the reference's norm.  bfloat16 keeps 8 bits, so each product is off by up to 0.4 %, and
the errors of three layers forward and backward add up: 0.6 to 1.9 % over these settings when the CPU itself computes in
bfloat16 (``python -m benchmarks.gpu --rehearse``)."""

SAME_DEVICE = 0.02
"""Of two gradients that are the same by construction but add up in another order, on one device."""

LOGP_TOLERANCE = 0.15
"""Largest difference of one token's log-probability in bfloat16; see :data:`TOLERANCE`."""

STEPS, GAIN = 30, 0.2
"""The quickstart's steps, and the held-out accuracy that it must gain."""


# --- one update on completions that are written down ------------------------------------------------------


def load(**options: Any) -> Any:
    """The tiny policy."""
    import rloo_kit

    return rloo_kit.load_policy("tiny", seed=0, **options)


def written(prompt_ids: Any) -> list[list[int]]:
    """The same completions on every machine: by prompt, and by place in the group; digits and an end of turn."""
    made = []
    for index, ids in enumerate(prompt_ids):
        draw = random.Random(f"{list(ids)} {index % K}")
        made.append([draw.randrange(15, 25) for _ in range(draw.randrange(1, 10))] + [151645])
    return made


def reward(completion_ids: Any, problem: Any, **kwargs: Any) -> list[float | None]:
    """One prompt in three pays everybody the same; a few completions are not scored."""
    return [
        0.5 if sum(map(ord, text)) % 3 == 0 else None if len(ids) == 3 else sum(ids) % 97 / 97
        for ids, text in zip(completion_ids, problem, strict=True)
    ]


def trainer_of(policy: Any, folder: str, written_down: bool = True, reward_funcs: Any = reward, **settings: Any) -> Any:
    """The kit's trainer on sums under 50; with completions that are written down, or sampled."""
    import rloo_kit

    class Written(rloo_kit.RLOOTrainer):
        def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
            return written(prompt_ids)

    task = rloo_kit.tasks.addition(n_train=64, n_held_out=32, seed=0)
    small = {
        "output_dir": folder,
        "num_generations": K,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "max_steps": 1,
        "max_completion_length": 12,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "live_plot": False,
        "seed": 7,
    }
    kind = Written if written_down else rloo_kit.RLOOTrainer
    config = rloo_kit.RLOOConfig(**{**small, **settings})
    return kind(model=policy, reward_funcs=reward_funcs, args=config, train_dataset=task.train)


def leave_the_reference(model: Any) -> None:
    """Give the LoRA values that every machine finds alike, and that are not the zero map."""
    import torch

    generator = torch.Generator().manual_seed(1)
    for name, parameter in sorted(model.named_parameters()):
        if parameter.requires_grad:
            scale = 0.02 if "lora_B" in name else 0.1
            drawn = scale * torch.randn(parameter.shape, generator=generator)
            parameter.data = drawn.to(parameter.device)


def gradient_of(policy: Any, **settings: Any) -> tuple[Any, dict[str, float]]:
    """The gradient of one update, flat and on the CPU, and what was logged."""
    import torch
    from transformers import TrainerCallback

    class Keep(TrainerCallback):
        flat: Any = None

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            named = sorted((n, p.grad) for n, p in model.named_parameters() if p.grad is not None)
            self.flat = torch.cat([grad.float().cpu().flatten() for _, grad in named])

    keep = Keep()
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(policy, folder, learning_rate=0.0, **settings)
        trainer.add_callback(keep)
        leave_the_reference(trainer.model)
        trainer.train()
    log = next(entry for entry in trainer.state.log_history if "reward" in entry)
    _make_fresh(policy.model)
    kept = ("reward", "dead_groups", "kl", "entropy", "completions/mean_length")
    return keep.flat, {name: log[name] for name in kept if name in log}


def _make_fresh(model: Any) -> None:
    """Back to the zero map, so that the next trainer takes the base for its reference."""
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.zero_()


def off_by(found: Any, reference: Any) -> float:
    """The distance of two gradients as a share of the second one's length; NaN where there is none."""
    if found is None or found.shape != reference.shape or not reference.norm():
        return math.nan
    return float((found - reference).norm() / reference.norm())


def sixteen_bit(place: Place) -> dict[str, Any]:
    """How the policy is loaded that is compared with float32: bfloat16, or what the card has."""
    import torch

    if place.is_rehearsal:
        return {"dtype": torch.bfloat16}
    return {}


@check("correct/reference on the CPU", seconds=150, takes=30, rank=10, home=CPU, variables=HIDDEN)
def reference(place: Place) -> Found:
    """Gradients in float32, for the other checks."""
    import torch

    found = {}
    for base, options in {"16 bit": {"load_in_4bit": False}, "4 bit": {}}.items():
        policy = load(dtype=torch.float32, **options)
        for name, settings in (SETTINGS if base == "16 bit" else {"rloo": SETTINGS["rloo"]}).items():
            found[f"{base} {name}"] = gradient_of(policy, **settings)
    torch.save(found, place.scratch / "reference.pt")
    return Found([holds("every gradient is one", all(bool(flat.norm() > 0) for flat, _ in found.values()))])


@check(
    "correct/update equals the CPU's", seconds=120, takes=30, rank=11, needs=("correct/reference on the CPU",)
)
def update(place: Place) -> Found:
    """Estimators, KL terms, aggregations, the single pass and dead groups, each against float32 on the CPU."""
    import torch

    expected = torch.load(place.scratch / "reference.pt", weights_only=True)
    figures, mine, logged = [], {}, []
    for base, options in {"16 bit": {"load_in_4bit": False}, "4 bit": {}}.items():
        policy = load(**sixteen_bit(place), **options)
        for name, settings in SETTINGS.items():
            if f"{base} {name}" not in expected:
                continue
            flat, log = gradient_of(policy, **settings)
            theirs, their_log = expected[f"{base} {name}"]
            mine[name] = mine.get(name, flat)
            figures.append(at_most(f"{name}, {base}: gradient off by", off_by(flat, theirs), TOLERANCE))
            logged += [abs(log[metric] - their_log[metric]) for metric in ("reward", "dead_groups")]
    for one, other in ALIKE:
        figures.append(at_most(f"{one} and {other}: off by", off_by(mine[other], mine[one]), SAME_DEVICE))
    figures.append(at_most("rewards and dead groups off by", max(logged), 1e-6))
    return Found(figures)


# --- on the card alone ------------------------------------------------------------------------------------


@check("correct/prepared and patched", seconds=60, takes=5, rank=10)
def patched(place: Place) -> Found:
    """Import order, and the class that unsloth generates for GPUs under ours."""
    import rloo_kit

    env = rloo_kit.prepare(dotenv=None, offline=True, seed=0)
    import torch
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
            holds("precision follows the device", config.bf16 == (env.device == "cuda" and torch.cuda.is_bf16_supported())),
            holds("the hub is left alone", env.offline),
            seen("warnings of prepare()", len(env.warnings)),
        ],
        {"warnings": list(env.warnings), "mro": [kind.__name__ for kind in rloo_kit.RLOOTrainer.__mro__[:6]]},
    )


def _defaults_are_ours(config: Any) -> bool:
    optimizer = getattr(config.optim, "value", config.optim)
    return (config.learning_rate, config.seed, optimizer) == (1e-5, 42, "adamw_torch_fused")


@check("correct/left padding", seconds=90, takes=10, rank=10)
def left_padding(place: Place) -> Found:
    """Rows of mixed prompt length, padded on the left, against each row alone: with a gradient and without."""
    import torch

    policy = load(**sixteen_bit(place))
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(policy, folder, beta=0.05)
    model = trainer.model
    leave_the_reference(model)
    model.for_training()
    with torch.no_grad():
        without = _padding_difference(trainer)
    with_gradient = _padding_difference(trainer)
    _keep_mask(model, False)
    with torch.no_grad():
        control = _padding_difference(trainer)
    _keep_mask(model, True)
    return Found(
        [
            at_most("log-probability off by, without gradient", without, LOGP_TOLERANCE),
            at_most("log-probability off by, with gradient", with_gradient, LOGP_TOLERANCE),
            seen("the same without the flag that keeps unsloth's mask", control),
        ]
    )


def _padding_difference(trainer: Any, width: int = 12) -> float:
    """The largest difference over rows and tokens."""
    import torch

    draw = random.Random(0)
    prompts = [[draw.randrange(15, 25) for _ in range(length)] for length in (3, 9, 30, 64)]
    longest = max(map(len, prompts))
    pad = trainer.processing_class.pad_token_id
    rows = [[pad] * (longest - len(ids)) + ids + [draw.randrange(15, 25) for _ in range(width)] for ids in prompts]
    ids = torch.tensor(rows, device=trainer.model.device)
    mask = torch.tensor(
        [[0] * (longest - len(p)) + [1] * (len(p) + width) for p in prompts], device=trainer.model.device
    )
    together, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, width)
    apart = []
    for row, prompt in enumerate(prompts):
        alone = slice(longest - len(prompt), None)
        logps, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids[row : row + 1, alone], mask[row : row + 1, alone], width
        )
        apart.append(logps)
    return float((together - torch.cat(apart)).detach().abs().max())


def _keep_mask(model: Any, keep: bool) -> None:
    for module in model.modules():
        if hasattr(module, "embed_tokens"):
            module._unsloth_keep_padding_mask = keep


def precision(options: dict[str, Any], settings: dict[str, Any], four_bit: bool, place: Place) -> Found:
    """Two steps, sampled: finite gradients, and weights that moved."""
    import torch

    from rloo_kit import measure

    options = {**options, **({"dtype": getattr(torch, options["dtype"])} if "dtype" in options else {})}
    policy = load(**options)
    before = _trained(policy.model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(
            policy, folder, written_down=False, max_steps=2, learning_rate=1e-3, beta=0.05, reward_funcs=varied, **settings
        )
        trainer.train()
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    moved = (_trained(policy.model) - before).abs()
    return Found(
        [
            holds("the base is in 4 bit" if four_bit else "no weight is in 4 bit", measure.is_four_bit(policy.model) == four_bit),
            holds("both gradients are finite", len(norms) == 2 and all(map(math.isfinite, norms))),
            at_least("largest change of a weight", moved.max(), 1e-5),
            seen("gradient's norm", norms[-1] if norms else math.nan),
        ],
        {"compute_dtype": str(policy.model.config.dtype)},
    )


def varied(completion_ids: Any, **kwargs: Any) -> list[float]:
    """Something that differs within a group."""
    return [(sum(ids) % 97) / 97 for ids in completion_ids]


def _trained(model: Any) -> Any:
    import torch

    named = sorted((name, p) for name, p in model.named_parameters() if p.requires_grad)
    return torch.cat([p.detach().float().cpu().flatten() for _, p in named])


PRECISIONS: dict[str, tuple[dict[str, Any], dict[str, Any], bool, bool]] = {
    "4 bit, as by default": ({}, {}, True, True),
    "16 bit": ({"load_in_4bit": False}, {}, False, True),
    "4 bit, fp16": ({"dtype": "float16"}, {"fp16": True, "bf16": False}, True, False),
    "16 bit, fp16": ({"dtype": "float16", "load_in_4bit": False}, {"fp16": True, "bf16": False}, False, False),
}
"""Name -> arguments of load_policy and of RLOOConfig, whether it is 4 bit, whether a CPU can do it."""

for _name, (_options, _settings, _four_bit, _on_cpu) in PRECISIONS.items():
    add(
        Check(
            f"correct/{_name}",
            functools.partial(precision, _options, _settings, _four_bit),
            seconds=60,
            takes=6,
            rank=13,
            is_rehearsed=_on_cpu,
        )
    )


@check("correct/gradient checkpointing", seconds=90, takes=10, rank=13)
def checkpointing(place: Place) -> Found:
    """The same gradient with "unsloth", True and False."""
    found = {}
    for mode in (False, True, "unsloth"):
        policy = load(gradient_checkpointing=mode, **sixteen_bit(place))
        found[mode], _ = gradient_of(policy, beta=0.05)
    return Found(
        [at_most(f"{mode!r}: gradient off by", off_by(found[mode], found[False]), SAME_DEVICE) for mode in (True, "unsloth")]
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
    return Found([holds(f"{name}: {'a copy' if expected[name] else 'no copy'}", expected[name] == kinds[name]) for name in kinds])


def _has_copy(trainer: Any) -> bool:
    return "ref" in trainer.model.peft_config


@check("correct/guards", seconds=60, takes=5, rank=13)
def guarded(place: Place) -> Found:
    """An infinite reward is refused by name, and leaves every weight as it was."""
    import rewards

    def infinite(completions: Any, **kwargs: Any) -> list[float]:
        return [math.inf] * len(completions)

    policy, said = load(), ""
    before = _trained(policy.model)
    with tempfile.TemporaryDirectory() as folder:
        try:
            trainer_of(policy, folder, reward_funcs=infinite).train()
        except rewards.RewardValueError as error:
            said = str(error)
    return Found(
        [
            holds("it is refused", "infinite" in said),
            holds("no weight has changed", bool((_trained(policy.model) == before).all())),
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
    difference = (_trained(again.model) - _trained(policy.model)).abs().max()
    return Found(
        [
            holds("the same completions", [one.ids for one in first] == [one.ids for one in second]),
            at_most("largest difference of a weight", difference, 0.0),
        ]
    )


@check("correct/resume", seconds=90, takes=12, rank=14)
def resumed(place: Place) -> Found:
    """Four steps in a row, against two, a checkpoint, and two more from it."""
    options = {"learning_rate": 1e-3, "beta": 0.05}
    with tempfile.TemporaryDirectory() as folder:
        whole, start = load(), _trained(load().model)
        trainer_of(whole, f"{folder}/whole", max_steps=4, **options).train()
        saving = {"save_strategy": "steps", "save_steps": 2, **options}
        trainer_of(load(), f"{folder}/parts", max_steps=2, **saving).train()
        rest = load()
        second = trainer_of(rest, f"{folder}/parts", max_steps=4, **saving)
        second.train(resume_from_checkpoint=True)
    moved = _trained(whole.model) - start
    apart = (_trained(rest.model) - _trained(whole.model)).norm() / moved.norm()
    return Found(
        [
            holds("it went on to step 4", second.state.global_step == 4),
            at_most("off by, as a share of what the steps changed", float(apart), 1e-3),
        ]
    )


# --- learning ---------------------------------------------------------------------------------------------


def learning(seed: int, place: Place) -> Found:
    """The quickstart's run: held-out greedy accuracy before and after."""
    import time

    import rloo_kit

    steps, problems = (2, 8) if place.is_rehearsal else (STEPS, 200)
    policy = rloo_kit.load_policy("tiny", lora_alpha=32, seed=seed)
    task = rloo_kit.tasks.task_at(1, "arithmetic", None, None, seed)
    with tempfile.TemporaryDirectory() as folder:
        config = rloo_kit.RLOOConfig(
            output_dir=folder,
            num_generations=8,
            per_device_train_batch_size=32,
            gradient_accumulation_steps=1,
            max_steps=steps,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            beta=0.0,
            max_completion_length=32,
            save_strategy="no",
            live_plot=False,
            seed=seed,
        )
        trainer = rloo_kit.RLOOTrainer(
            model=policy, reward_funcs=_thought_then_right(task.answer_of), args=config, train_dataset=task.train
        )
        accuracy = [_accuracy(policy, task, problems)]
        started = time.monotonic()
        trainer.train()
        seconds = time.monotonic() - started
        accuracy.append(_accuracy(policy, task, problems))
    gain = accuracy[1] - accuracy[0]
    return Found(
        [
            seen("accuracy's gain", gain) if place.is_rehearsal else at_least("accuracy's gain", gain, GAIN),
            seen("before", accuracy[0]),
            seen("after", accuracy[1]),
            seen("training", seconds, "s"),
        ]
    )


def _thought_then_right(answer_of: Callable[[Any], str | None]) -> Any:
    """The quickstart's reward: 0.2 for a thought closed once, 0.8 more for the right answer after it."""

    def correct_after_thought(completions: Any, answer: Any, **kwargs: Any) -> list[float]:
        scores = []
        for completion, gold in zip(completions, answer, strict=True):
            closed = completion[0]["content"].count("</think>") == 1
            scores.append(0.2 * closed + 0.8 * (closed and answer_of(completion) == gold))
        return scores

    return correct_after_thought


def _accuracy(policy: Any, task: Any, problems: int) -> float:
    import rloo_kit

    found = rloo_kit.evaluate(policy, task, n=problems, max_new_tokens=32).accuracy
    assert found is not None  # the task has answers
    return found.value


for _seed in range(3):
    add(
        Check(
            f"correct/learns, seed {_seed}",
            functools.partial(learning, _seed),
            seconds=100,
            takes=25,
            rank=20 if _seed == 0 else 42,
        )
    )


# --- the quickstart ---------------------------------------------------------------------------------------

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "01_quickstart.ipynb"
OFFLINE = (
    ('tiny = env.device == "cpu"', "tiny = True"),
    ("rloo_kit.load_policy(lora_alpha", 'rloo_kit.load_policy("tiny", lora_alpha'),
)
"""On a GPU the notebook takes the largest Qwen3 that fits, from the hub; without one the tiny policy stands in."""

SAYS = ("held-out accuracy rose by at least 0.2", "same completions: True")


def offline_notebook(source: str, output_dir: str, changes: tuple[tuple[str, str], ...] = OFFLINE) -> Any:
    """The notebook with the tiny policy and another output folder.

    Raises:
        ValueError: a line that was to be changed does not stand there once.
    """
    import nbformat

    book = nbformat.reads(source, as_version=4)
    for old, new in changes:
        cells = [cell for cell in book.cells if cell.cell_type == "code" and old in cell.source]
        if len(cells) != 1:
            raise ValueError(f"{old!r} stands in {len(cells)} cells of the notebook, not in one")
        cells[0].source = cells[0].source.replace(old, new)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.source = cell.source.replace("../out/quickstart", output_dir)
    return book


@check("correct/quickstart notebook", seconds=240, takes=70, rank=41, home="notebook", is_rehearsed=False)
def notebook(place: Place) -> Found:
    """Executed from top to bottom, in a kernel of its own."""
    from nbclient import NotebookClient

    book = offline_notebook(NOTEBOOK.read_text(), str(place.scratch / "quickstart"))
    client = NotebookClient(
        book, timeout=220, kernel_name="python3", resources={"metadata": {"path": str(place.scratch)}}
    )
    client.execute()
    said = "".join(
        output.get("text", "") for cell in book.cells if cell.cell_type == "code" for output in cell.outputs
    )
    figures: list[Figure] = [holds(f"it says: {text}", text in said) for text in SAYS]
    return Found(figures)
