"""Check that the kit computes what it should on this GPU, with the bundled tiny policy.

:func:`update` records what the trainer computes from a batch on the GPU; plain.py computes the same without Unsloth,
in float32 on the CPU.  What does not depend on the device is left to tests/.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import Any, NamedTuple

import rloo_kit  # isort: skip - Unsloth first
import torch
from datasets import Dataset

from rloo_kit.session import prepare

from . import work
from .runner import Figure, Place

K, LIMIT = 4, 12  # completions per prompt, and the most tokens of a completion
Weights = dict[str, torch.Tensor]
IN_LOSS = {"beta": 0.1, "kl_placement": "loss", "kl_estimator": "k2"}
SETTINGS: dict[str, dict[str, Any]] = {
    "rloo": {"beta": 0.1},
    "rloo, beta 0": {"beta": 0.0, "skip_zero_variance_groups": True},
    "rloo, beta 0, dead rows too": {"beta": 0.0, "skip_zero_variance_groups": False, "single_pass": False},
    "rloo, zero-variance groups left out": {"beta": 0.1, "skip_zero_variance_groups": True},
    "rloo, whitened": {"beta": 0.0, "normalize_advantages": True},
    "grpo, k3": {**IN_LOSS, "advantage_estimator": "grpo", "kl_estimator": "k3"},
    "dr_grpo": {"advantage_estimator": "dr_grpo", "beta": 0.1, "loss_aggregation": "seq-mean-token-mean"},
    "reinforce, k2": {**IN_LOSS, "advantage_estimator": "reinforce", "loss_aggregation": "token-mean"},
}
"""Updates that plain.py computes too: every estimator, both placements of the KL term, and the kit's short cuts."""

IN_FLOAT32 = ("reinforce, k2",)
"""The settings above that are compared in float32 only.  Under k2 a token's gradient grows with its distance from the
reference, so rounding one token's log-probability to 16 bits decides the result."""


def sums(place: Place) -> Dataset:
    """Return sums after up to 36 words (3 in a rehearsal): lengths differ so much that every batch is padded."""
    words = 1 if place.is_rehearsal else 12
    prompts = ["Add. " * (words * (i % 4)) + f"{i} + {i * 7 % 50} =" for i in range(64)]
    return Dataset.from_dict({"prompt": prompts})


def varied(prompts: Any, completion_ids: Any, **kwargs: Any) -> list[float | None]:
    """Pay by length so that gradients do not cancel; the longest prompt pays 0.5, others leave one of K unscored."""
    longest = max(prompts, key=len)
    return [
        0.5 if prompt == longest else None if row % K == 1 else len(ids) / LIMIT
        for row, (ids, prompt) in enumerate(zip(completion_ids, prompts, strict=True))
    ]


def trainer_of(policy: Any, place: Place, reward: Any = varied, **settings: Any) -> rloo_kit.RLOOTrainer:
    # 1e9 clips nothing; 0 would leave the loss scaler's factor in float16's gradients.
    small = {"max_steps": 1, "lr_scheduler_type": "constant", "max_grad_norm": 1e9, **settings}
    groups = 2 if place.is_rehearsal else 4
    config = rloo_kit.RLOOConfig(**work.settings(str(place.scratch / "run"), K, groups, 2 * groups, LIMIT, **small))
    return rloo_kit.RLOOTrainer(policy, reward, config, sums(place))


def lora_of(model: torch.nn.Module, gradient: bool = False) -> Weights:
    named = {n: p.grad if gradient else p.detach() for n, p in model.named_parameters() if p.requires_grad}
    return {name: tensor.float().cpu().clone() for name, tensor in named.items() if tensor is not None}


def draw_lora(model: torch.nn.Module, scale: float = 0.02) -> None:
    """Draw the LoRA's B, which starts as zeros; a scale of 0 resets it, so that the base is the reference."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "lora_B" in name:
            with torch.no_grad():  # in place: Unsloth keeps copies until a weight's version changes
                parameter.normal_(std=scale)


def off_by(found: Weights, expected: Weights) -> float:
    """Return the distance between all weights as one vector, as a share of the expected vector's length."""
    names = sorted(expected)
    a, b = (torch.cat([weights[name].flatten() for name in names]) for weights in (found, expected))
    return float((a - b).norm() / b.norm())


def one_update(
    policy: Any, place: Place, settings: dict[str, Any], **precision: bool
) -> tuple[rloo_kit.RLOOTrainer, dict[str, Any]]:
    """Make one update at learning rate 0; return the trainer, and the prompts, completions, rewards and gradient.

    Completions are random digits: those that this peaked policy samples give gradients so small that rounding drowns
    them.
    """
    batch: dict[str, Any] = {"settings": settings}

    def written(prompt_ids: list[list[int]], *args: Any) -> list[list[int]]:
        draw, lengths = random.Random(0), itertools.cycle((2, 7, 11, 9))
        rows = [[*draw.choices(range(15, 25), k=next(lengths)), 151645] for _ in prompt_ids]
        batch.update(prompts=[list(ids) for ids in prompt_ids], completions=rows)
        return rows

    def paid(**given: Any) -> list[float | None]:
        batch["rewards"] = varied(**given)
        return varied(**given)

    draw_lora(policy.model, 0.0)
    trainer = trainer_of(policy, place, paid, **settings, **precision)
    work.listen(trainer, on_pre_optimizer_step=lambda: batch.update(gradient=lora_of(trainer.model, True)))
    draw_lora(trainer.model)
    if trainer.accelerator.scaler:  # float16: a scale that overflows nothing, so that the first step counts
        trainer.accelerator.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    trainer._generate_single_turn = written  # type: ignore[method-assign, assignment]
    trainer.train()
    del trainer._generate_single_turn
    return trainer, batch


class Base(NamedTuple):
    """A policy to load, and which of :data:`SETTINGS` to train it with."""

    dtype: str
    options: dict[str, Any]
    names: tuple[str, ...] = ("rloo, beta 0",)


def bases(own: str, is_rehearsal: bool) -> dict[str, Base]:
    """Return the policies to load, by name.  float16 shows a wrong formula best: bfloat16 rounds eight times as
    coarsely, which drowns a difference of two log-probabilities such as the KL term.  A rehearsal takes its card's
    ``own`` type, and 32 bit only together with float16."""
    found: dict[str, Base] = {}
    if own == "float16" or not is_rehearsal:
        without = {"load_in_4bit": True, "gradient_checkpointing": False}
        found["4 bit, float16"] = Base("float16", without, ("rloo",))
        rest = tuple(name for name in SETTINGS if name not in IN_FLOAT32)
        found["16 bit, float16"] = Base("float16", {"load_in_4bit": False}, rest)
    if own == "bfloat16":
        found["4 bit, bfloat16"] = Base("bfloat16", {"load_in_4bit": True})
        found["16 bit, bfloat16"] = Base("bfloat16", {"load_in_4bit": False})
    if own == "float16" or not is_rehearsal:
        found["32 bit"] = Base("float32", {"load_in_4bit": False}, ("rloo, beta 0", *IN_FLOAT32))
    return found


def update(place: Place) -> dict[str, Figure]:
    env = rloo_kit.prepare(dotenv=None, offline=True, seed=0)
    record: dict[str, dict[str, Any]] = {}
    for name, base in bases(prepare.compute_dtype(), place.is_rehearsal).items():
        policy = rloo_kit.load_policy("tiny", dtype=getattr(torch, base.dtype), **base.options)
        precision = {"fp16": base.dtype == "float16", "bf16": base.dtype == "bfloat16"}
        made = {one: one_update(policy, place, SETTINGS[one], **precision) for one in base.names}
        trainer, batch = made[base.names[0]]
        record[name] = {
            "dtype": base.dtype,
            "autocast": trainer.accelerator.mixed_precision,
            "four_bit": base.options["load_in_4bit"],
            "lora": lora_of(trainer.model),
            "logps": log_probs(trainer, batch),
            "updates": {one: update for one, (_, update) in made.items()},
        }
        record[name]["samples"] = samples(trainer, place)
    torch.save(record, place.scratch / "update.pt")
    is_unsloths = any(one.__name__.startswith("Unsloth") for one in type(trainer).__mro__)
    on_gpu = env.device == policy.device.type == "cuda"
    return {"on the GPU, with Unsloth's trainer": Figure(on_gpu and is_unsloths)}


def log_probs(trainer: rloo_kit.RLOOTrainer, batch: dict[str, Any]) -> Weights:
    """Return log-probabilities (rows, longest completion) of left-padded prompts, with and without gradient, and two
    controls: attention to the pads, and the trainer's flag unset, without which Unsloth's forward drops the mask."""
    pad, model = trainer.processing_class.pad_token_id, trainer.model
    widest, width = (max(map(len, batch[name])) for name in ("prompts", "completions"))
    rows, mask = [], []
    for prompt, completion in zip(batch["prompts"], batch["completions"], strict=True):
        left, right = widest - len(prompt), width - len(completion)
        rows.append([pad] * left + prompt + completion + [pad] * right)
        mask.append([0] * left + [1] * (len(prompt) + len(completion)) + [0] * right)
    ids, hidden = torch.tensor(rows, device=model.device), torch.tensor(mask, device=model.device)

    def found(given: torch.Tensor) -> torch.Tensor:
        logps: torch.Tensor = trainer._get_per_token_logps_and_entropies(model, ids, given, width)[0]
        return logps.detach().float().cpu()

    model.for_training()
    logps = {"with gradient": found(hidden)}
    with torch.no_grad():
        logps |= {"without": found(hidden), "pads seen": found(hidden | 1)}
    backbones, trainer._backbones = trainer._backbones, []
    for backbone in backbones:
        backbone._unsloth_keep_padding_mask = False  # type: ignore[assignment]
    logps["flag unset"] = found(hidden)
    trainer._backbones = backbones
    return logps


def samples(trainer: rloo_kit.RLOOTrainer, place: Place) -> dict[str, Any]:
    """Return what the trainer samples for eight left-padded prompts: first tokens, and greedy completions."""
    draw_lora(trainer.model, 0.3)  # large enough that completions vary
    tokenizer = trainer.processing_class
    prompts = [tokenizer(prompt)["input_ids"] for prompt in sums(place)["prompt"][:8]]
    torch.manual_seed(0)
    how, times = trainer.generation_config, 1 if place.is_rehearsal else 64
    how.max_new_tokens = 1
    drawn = [row[0] for _ in range(8) for row in trainer._generate_single_turn(prompts * times, None, {})]
    how.do_sample, how.max_new_tokens = False, 8 if place.is_rehearsal else 24
    greedy = trainer._generate_single_turn(prompts, None, {})
    first = [drawn[start :: len(prompts)] for start in range(len(prompts))]
    return {"prompts": prompts, "lora": lora_of(trainer.model), "first tokens": first, "greedy": greedy}


def fp16(place: Place) -> dict[str, Figure]:
    """Check float16 steps: after the loss scaler's search, which skips the first steps, gradients are finite."""
    figures: dict[str, Figure] = {}
    for bits in (4, 16):
        policy = rloo_kit.load_policy("tiny", load_in_4bit=bits == 4, dtype=torch.float16)
        options: dict[str, Any] = {"max_steps": 6, "learning_rate": 1e-3, "fp16": True, "bf16": False}
        trainer, before = trainer_of(policy, place, **options), lora_of(policy.model)
        trainer.train()
        norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
        figures[f"{bits} bit: steps with a finite gradient"] = Figure(sum(map(math.isfinite, norms)), low=1)
        figures[f"{bits} bit: the weights moved by"] = Figure(off_by(lora_of(policy.model), before), low=1e-4)
    return figures


def saved(place: Place) -> dict[str, Figure]:
    """Check that a saved adapter completes alike, and that four steps equal two, a checkpoint, and two more."""
    policy, prompts = rloo_kit.load_policy("tiny"), sums(place)["prompt"][:8]
    draw_lora(policy.model)
    again = rloo_kit.load_policy(policy.save(place.scratch / "adapter"))
    first, second = (one.generate(prompts, greedy=True, max_new_tokens=16) for one in (policy, again))

    def trained(folder: str, steps: int, resume: bool = False) -> Weights:
        fresh, at = rloo_kit.load_policy("tiny", load_in_4bit=False), str(place.scratch / folder)
        how: dict[str, Any] = {"learning_rate": 1e-3, "save_strategy": "steps", "save_steps": 2}
        trainer_of(fresh, place, output_dir=at, max_steps=steps, **how).train(resume_from_checkpoint=resume)
        return lora_of(fresh.model)

    whole, half = trained("whole", 4), trained("parts", 2)
    apart = off_by(trained("parts", 4, resume=True), whole) / off_by(half, whole)
    same = [one.ids for one in first] == [one.ids for one in second]
    return {"reloaded: same completions": Figure(same), "resumed: off by": Figure(apart, high=2e-3)}


def learns(place: Place, seed: int) -> dict[str, Figure]:
    """Check that held-out greedy accuracy rises by at least 0.2 in the quickstart's 30 steps."""
    from runs import Spec, run

    steps, problems = (2, 8) if place.is_rehearsal else (30, 200)
    spec = Spec("kit", seed=seed, steps=steps, max_steps=steps, evaluate_every=1_000_000, problems=problems)
    found = run(spec)
    gain = found.evaluated[-1].accuracy - found.evaluated[0].accuracy
    return {"accuracy's gain": Figure(gain, low=None if place.is_rehearsal else 0.2)}
