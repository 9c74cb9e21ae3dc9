"""Correct on this GPU: the kit computes what it is meant to compute, on the bundled tiny policy.

:func:`update` records what the trainer makes of a batch on the GPU; plain.py computes the same without Unsloth, in
float32 on the CPU.  What does not depend on the device is left to tests/.
"""

from __future__ import annotations

import math
import random
from typing import Any

import rloo_kit  # isort: skip - Unsloth first
import torch
from datasets import Dataset

from . import work
from .runner import Figure, Place

K, LIMIT = 4, 12  # completions of a prompt, and tokens of a completion at most
Weights = dict[str, torch.Tensor]
IN_LOSS = {"beta": 0.1, "kl_placement": "loss", "kl_estimator": "k2"}
SETTINGS: dict[str, dict[str, Any]] = {
    "rloo": {"beta": 0.1},
    "rloo, two passes": {"beta": 0.1, "single_pass": False},
    "rloo, beta 0": {"beta": 0.0, "skip_dead_groups": True},
    "rloo, beta 0, dead rows too": {"beta": 0.0, "skip_dead_groups": False, "single_pass": False},
    "rloo, dead groups left out": {"beta": 0.1, "skip_dead_groups": True},
    "rloo, whitened": {"beta": 0.0, "normalize_advantages": True},
    "grpo, k3": {**IN_LOSS, "advantage_estimator": "grpo", "kl_estimator": "k3"},
    "dr_grpo": {"advantage_estimator": "dr_grpo", "beta": 0.1, "loss_aggregation": "seq-mean-token-mean"},
    "reinforce, k2": {**IN_LOSS, "advantage_estimator": "reinforce", "loss_aggregation": "token-mean"},
}
"""Updates that plain.py computes too: every estimator, both placements of the KL term, and the kit's short cuts."""


def sums() -> Dataset:
    """Sums after system prompts of 1 to 37 words: prompts so unlike in length that every batch is padded."""
    asked = rloo_kit.tasks.addition(n_train=64, n_held_out=8, seed=0).train["prompt"]
    spoken = [{"role": "system", "content": "Add. " * (12 * (i % 4) + 1)} for i in range(64)]
    return Dataset.from_dict({"prompt": [[first, *rest] for first, rest in zip(spoken, asked, strict=True)]})


def varied(prompts: Any, completion_ids: Any, **kwargs: Any) -> list[float | None]:
    """The length, so that gradients do not cancel; the longest prompts pay all the same, and some are not scored."""
    return [
        0.5 if len(prompt[0]["content"]) > 150 else None if sum(ids) % 7 == 0 else len(ids) / LIMIT
        for ids, prompt in zip(completion_ids, prompts, strict=True)
    ]


def trainer_of(policy: Any, place: Place, reward: Any = varied, **settings: Any) -> rloo_kit.RLOOTrainer:
    """The kit's trainer for steps of 16 completions on :func:`sums`."""
    # 1e9 clips nothing; 0 would leave the loss scaler's factor in float16's gradients.
    small = {"max_steps": 1, "lr_scheduler_type": "constant", "max_grad_norm": 1e9, **settings}
    config = rloo_kit.RLOOConfig(**work.settings(str(place.scratch / "run"), K, 4, 8, LIMIT, **small))
    return rloo_kit.RLOOTrainer(policy, reward, config, sums())


def lora_of(model: torch.nn.Module, gradient: bool = False) -> Weights:
    """The trained weights by name, or their gradients, copied to the CPU in float32."""
    named = {n: p.grad if gradient else p.detach() for n, p in model.named_parameters() if p.requires_grad}
    return {name: tensor.float().cpu().clone() for name, tensor in named.items() if tensor is not None}


def draw_lora(model: torch.nn.Module, scale: float = 0.02) -> None:
    """Draw the LoRA's B, which starts as zeros; a scale of 0 makes it zeros again, and the base the reference."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()  # on a CPU TRL casts a quantised policy's LoRA
            if "lora_B" in name:  # in place: Unsloth keeps copies until a weight's version changes
                with torch.no_grad():
                    parameter.normal_(std=scale)


def off_by(found: Weights, expected: Weights) -> float:
    """The distance, all weights in one vector, as a share of the expected vector's length."""
    names = sorted(expected)
    a, b = (torch.cat([weights[name].flatten() for name in names]) for weights in (found, expected))
    return float((a - b).norm() / b.norm())


def one_update(
    policy: Any, place: Place, settings: dict[str, Any]
) -> tuple[rloo_kit.RLOOTrainer, dict[str, Any]]:
    """One update at learning rate 0: the trainer, and prompts, completions, rewards and gradient.

    Completions are digits drawn at random: what this peaked policy samples itself gives gradients so small that
    rounding drowns them.
    """
    batch: dict[str, Any] = {"settings": settings}

    def written(prompt_ids: list[list[int]], *args: Any) -> list[list[int]]:
        draw = random.Random(0)
        rows = [[*draw.choices(range(15, 25), k=draw.choice((1, 2, 10))), 151645] for _ in prompt_ids]
        batch.update(prompts=[list(ids) for ids in prompt_ids], completions=rows)
        return rows

    def paid(**given: Any) -> list[float | None]:
        batch["rewards"] = varied(**given)
        return varied(**given)

    draw_lora(policy.model, 0.0)
    trainer = trainer_of(policy, place, paid, **settings)
    work.listen(trainer, on_pre_optimizer_step=lambda: batch.update(gradient=lora_of(trainer.model, True)))
    draw_lora(trainer.model)
    trainer._generate_single_turn = written  # type: ignore[method-assign, assignment]
    trainer.train()
    del trainer._generate_single_turn
    return trainer, batch


def update(place: Place) -> dict[str, Figure]:
    """Record updates, log-probabilities and samples for plain.py."""
    env = rloo_kit.prepare(dotenv=None, offline=True, seed=0)
    record: dict[str, dict[str, Any]] = {}
    for base, names in {"4 bit": ["rloo"], "16 bit": list(SETTINGS)}.items():
        policy = rloo_kit.load_policy("tiny", load_in_4bit=base == "4 bit")
        made = {name: one_update(policy, place, SETTINGS[name]) for name in names}
        trainer, batch = made["rloo"]
        record[base] = {"lora": lora_of(trainer.model), "logps": log_probs(trainer, batch)}
        record[base]["updates"] = {name: update for name, (_, update) in made.items()}
    record["16 bit"]["samples"] = samples(trainer, batch["prompts"][::K], 4 if place.is_rehearsal else 64)
    torch.save(record, place.scratch / "update.pt")
    is_unsloths = type(trainer).__mro__[1].__name__.startswith("Unsloth")
    on_gpu = env.device == policy.device.type == "cuda" and is_unsloths
    return {"on the GPU, with Unsloth's trainer": Figure(on_gpu or place.is_rehearsal)}


def log_probs(trainer: rloo_kit.RLOOTrainer, batch: dict[str, Any]) -> Weights:
    """Log-probabilities (rows, longest completion) of prompts padded on the left, in both modes; and a control."""
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
        return logps.float()

    model.for_training()
    with_gradient = found(hidden)
    with torch.no_grad():
        logps = {"with gradient": with_gradient, "without": found(hidden), "pads seen": found(hidden | 1)}
    return {how: values.detach().cpu() for how, values in logps.items()}


def samples(trainer: rloo_kit.RLOOTrainer, prompts: list[list[int]], times: int) -> dict[str, Any]:
    """What the trainer samples of prompts padded on the left: first tokens, and the most probable completions."""
    draw_lora(trainer.model, 0.3)  # so large that completions vary
    how, count = trainer.generation_config, len(prompts)
    how.max_new_tokens = 1
    drawn = [row[0] for _ in range(8) for row in trainer._generate_single_turn(prompts * times, None, {})]
    how.do_sample, how.max_new_tokens = False, 24
    greedy = trainer._generate_single_turn(prompts, None, {})
    first = [drawn[start::count] for start in range(count)]
    return {"prompts": prompts, "lora": lora_of(trainer.model), "first tokens": first, "greedy": greedy}


def fp16(place: Place) -> dict[str, Figure]:
    """Steps in float16: after the loss scaler's search, which leaves out the first ones, gradients are finite."""
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
    """A saved adapter gives the same completions; four steps in a row are two, a checkpoint, and two more.

    Resumed in 16 bit, where the LoRA is in float32: in bfloat16 a checkpoint's rounding is larger than the limit.
    """
    policy, prompts = rloo_kit.load_policy("tiny"), sums()["prompt"][:8]
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
    """The quickstart's run: held-out greedy accuracy rises by 0.2 in 30 steps."""
    from one_run import run
    from runs import Spec

    steps, problems = (2, 8) if place.is_rehearsal else (30, 200)
    found = run(Spec("kit", "tiny", 1, seed, 0, steps, steps, evaluate_every=steps, problems=problems))
    gain = found.evaluated[-1].accuracy - found.evaluated[0].accuracy
    return {"accuracy's gain": Figure(gain, low=None if place.is_rehearsal else 0.2)}
