"""The reference: log-probabilities, gradients and samples of the tiny policy by plain transformers and PEFT.

For correct.py, in a process without Unsloth, TRL or a GPU: in float32 on the CPU, each completion alone and without
padding.  It reads what :func:`correct.update` recorded on the GPU.  Of the kit only the arithmetic of advantages and
weights is used, which tests/test_update.py holds against the formula token by token.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from rloo_kit import advantages  # isort: skip - after transformers, so that Unsloth stays out
from rloo_kit.policy import tiny  # isort: skip - after transformers, so that Unsloth stays out
from rloo_kit.train import losses  # isort: skip - after transformers, so that Unsloth stays out

from .correct import LIMIT, K, Weights, off_by
from .runner import Figure, Place

Rows = list[torch.Tensor]
GRADIENT = {"16 bit": 0.15, "4 bit": 0.3}
"""Distance of a gradient, as a share of its length.  In bfloat16 on a CPU 0.04 to 0.07 in 16 bit and 0.21 in 4 bit;
without the KL term it is off by 0.3, with another estimator by 0.5 and more."""
NATS, GREEDY, VARIATION = 0.15, 0.6, 0.05
"""Root mean square difference of log-probabilities, 0.04 in bfloat16 on a CPU; greedy tokens alike, since after a near
tie the rest of a completion differs; total variation distance of what was sampled, beyond what chance gives."""


def compare(place: Place) -> dict[str, Figure]:
    """Each figure of the record beside the reference's."""
    figures: dict[str, Figure] = {}
    for base, record in torch.load(place.scratch / "update.pt", weights_only=True).items():
        model = policy_of(base == "4 bit", record["lora"])
        now = log_probs(model, record["updates"]["rloo"])
        with torch.no_grad(), model.disable_adapter():
            reference = log_probs(model, record["updates"]["rloo"])
        for how, given in record["logps"].items():
            apart = torch.cat([given[i, : len(row)] - row.detach() for i, row in enumerate(now)])
            rms, is_control = float(apart.square().mean().sqrt()), how == "pads seen"
            figure = Figure(rms, low=2 * NATS) if is_control else Figure(rms, high=NATS)
            figures[f"{base}, left padding, {how}: log-probabilities off by, nats"] = figure
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        for name, made in record["updates"].items():
            loss = loss_of(now, reference, made["rewards"], made["settings"])
            gradient = torch.autograd.grad(loss, list(trained.values()), retain_graph=True)
            off = off_by(made["gradient"], dict(zip(trained, gradient, strict=True)))
            figures[f"{base}, {name}: gradient off by"] = Figure(off, high=GRADIENT[base])
    return figures | sampled(model, record["samples"])  # of the last base, 16 bit


def policy_of(four_bit: bool, lora: Weights) -> Any:
    """The tiny policy with these LoRA weights, in float32."""
    nf4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    how = {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, **nf4)} if four_bit else {}
    base = AutoModelForCausalLM.from_pretrained(tiny.checkpoint(), dtype=torch.float32, **how)
    model = get_peft_model(base, LoraConfig(r=16, lora_alpha=16, target_modules="all-linear"))
    assert not model.load_state_dict(lora, strict=False).unexpected_keys
    return model.eval()


def log_probs(model: Any, record: dict[str, Any]) -> Rows:
    """Log-probabilities (tokens,) of each completion."""
    found = []
    for prompt, completion in zip(record["prompts"], record["completions"], strict=True):
        ids = torch.tensor([prompt + completion])
        logits = model(input_ids=ids, logits_to_keep=len(completion) + 1).logits[0, :-1]
        found.append(logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None]).squeeze(1))
    return found


def loss_of(
    now: Rows, reference: Rows, rewards: list[float | None], settings: dict[str, Any]
) -> torch.Tensor:
    """The loss of an on-policy update, where every ratio is 1: advantage x log-probability, and the KL term; from the
    log-probabilities of each completion under the policy and the reference."""
    in_loss = settings.get("kl_placement") == "loss"
    estimate = advantages.KL_ESTIMATORS[settings.get("kl_estimator", "k1")]
    kl = settings["beta"] * torch.stack([estimate(a - b).sum() for a, b in zip(now, reference, strict=True)])
    scores = torch.tensor([math.nan if reward is None else reward for reward in rewards]).view(-1, K)
    paid = scores if in_loss else scores - kl.detach().view(-1, K)
    found = advantages.find(settings.get("advantage_estimator", "rloo"))(paid)
    if settings.get("normalize_advantages"):
        found = advantages.normalized(found, ~scores.isnan())
    if settings.get("skip_dead_groups"):
        found = found.masked_fill(advantages.dead_groups(scores).unsqueeze(1), 0.0)
    tokens, how = (
        torch.tensor([len(row) for row in now]),
        settings.get("loss_aggregation", "seq-mean-token-sum"),
    )
    weights = losses.row_weights(how, tokens, len(now), int(tokens.sum()), LIMIT)
    per_row = -found.view(-1) * torch.stack([row.sum() for row in now])
    return ((per_row + kl if in_loss else per_row) * weights).sum()


def sampled(model: Any, record: dict[str, Any]) -> dict[str, Figure]:
    """What the trainer sampled of left-padded prompts, beside the distribution after each prompt alone."""
    distances, alone = [], []
    model.load_state_dict(record["lora"], strict=False)
    for prompt, tokens in zip(record["prompts"], record["first tokens"], strict=True):
        ids = torch.tensor([prompt])
        with torch.no_grad():
            p = model(input_ids=ids, logits_to_keep=1).logits[0, -1].softmax(-1)
        counts = torch.bincount(torch.tensor(tokens), minlength=len(p)) / len(tokens)
        by_chance = torch.minimum((2 / math.pi * p * (1 - p) / len(tokens)).sqrt(), 2 * p)
        distances.append(float(((counts - p).abs() - by_chance).sum() / 2))
        options = {"do_sample": False, "eos_token_id": [151643, 151645], "pad_token_id": 151643}
        mask = torch.ones_like(ids)
        found = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=24, **options)
        alone.append(found[0, len(prompt) :].tolist())
    pairs = list(zip(record["greedy"], alone, strict=True))
    same = sum(one == other for a, b in pairs for one, other in zip(a, b, strict=False))
    return {
        "sampled first tokens: total variation": Figure(sum(distances) / len(distances), high=VARIATION),
        "greedy tokens alike": Figure(same / sum(max(len(a), len(b)) for a, b in pairs), low=GREEDY),
    }
