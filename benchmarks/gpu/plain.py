"""Compute what correct.py must get: log-probabilities, gradients and samples by plain transformers and PEFT.

Runs in a process without Unsloth, TRL or a GPU: in float32 on the CPU, each completion alone and without padding.  It
reads what :func:`correct.update` recorded on the GPU.  From the kit it takes only the arithmetic of advantages and
weights, which tests/train/test_update.py checks against the formula token by token.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from rloo_kit import advantages  # isort: skip - after transformers, so that Unsloth stays out
from rloo_kit.policy.bundled import TINY  # isort: skip - after transformers, so that Unsloth stays out
from rloo_kit.train import losses  # isort: skip - after transformers, so that Unsloth stays out

from .correct import LIMIT, K, Weights, off_by
from .runner import Figure, Place

Rows = list[torch.Tensor]
FACTOR = 3.0
"""The kit's error limit, as a multiple of plain PEFT's error when it rounds as the GPU does.  Two roundings of one size
differ by the square root of 2; the rest allows for the order of sums, the kernels and a small sample."""
ERRORS = 4.0
"""Standard errors by which the samples' surprise may be off.  Chance alone exceeds them once in 16,000 runs, and the
seed is fixed."""


def compare(place: Place) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for base, record in torch.load(place.scratch / "update.pt", weights_only=True).items():
        in_float32 = record["dtype"] == "float32"
        # On a GPU Unsloth switches autocast on for a policy in float32 too (models/rl.py).
        autocast = "bfloat16" if record["autocast"] == "bf16" else "float16"
        exact, rounded = (
            policy_of(record["four_bit"], record["lora"], getattr(torch, dtype))
            for dtype in ("float32", autocast if in_float32 else record["dtype"])
        )
        first = next(iter(record["updates"].values()))  # all have the same completions
        of_exact, of_rounded = both(exact, first), both(rounded, first)
        found = {} if in_float32 else padded(record["logps"], of_exact[0], of_rounded[0])
        for name, made in record["updates"].items():
            gradient = gradient_of(exact, *of_exact, made)
            high = FACTOR * off_by(gradient_of(rounded, *of_rounded, made), gradient)
            found[f"{name}: gradient off by"] = Figure(off_by(made["gradient"], gradient), high=high)
            if name == "rloo":  # a control: the gradient if the policy were its own reference
                now = of_exact[0]
                wrong = off_by(made["gradient"], gradient_of(exact, now, [row.detach() for row in now], made))
                found[f"{name}, reference the policy itself: gradient off by"] = Figure(wrong, low=2 * high)
        found |= sampled(record["samples"], exact, None if in_float32 else rounded)
        figures |= {f"{base}, {what}": figure for what, figure in found.items()}
    return figures


def padded(found: Weights, of_exact: Rows, of_rounded: Rows) -> dict[str, Figure]:
    """Compare log-probabilities of left-padded prompts; the controls must be off."""
    figures: dict[str, Figure] = {}
    true = torch.cat(of_exact).detach()
    limit = FACTOR * size(torch.cat(of_rounded).detach() - true)
    for how, given in found.items():
        off = size(torch.cat([given[i, : len(row)] for i, row in enumerate(of_exact)]).detach() - true)
        is_control = how in ("pads seen", "flag unset")
        figure = Figure(off, low=2 * limit) if is_control else Figure(off, high=limit)
        figures[f"left padding, {how}: log-probabilities off by, nats"] = figure
    return figures


def size(values: torch.Tensor) -> float:
    """Return the mean absolute value: a root mean square would follow the few tokens that rounding moves most."""
    return float(values.abs().mean())


def both(model: Any, record: dict[str, Any]) -> tuple[Rows, Rows]:
    now = log_probs(model, record)
    with torch.no_grad(), model.disable_adapter():
        return now, log_probs(model, record)


def gradient_of(model: Any, now: Rows, reference: Rows, made: dict[str, Any]) -> Weights:
    """Return the update's gradient, computed at a scale that float16 holds, as under a loss scaler."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    loss = 2**10 * loss_of(now, reference, made["rewards"], made["settings"])
    found = torch.autograd.grad(loss, list(trained.values()), retain_graph=True)
    return {name: gradient / 2**10 for name, gradient in zip(trained, found, strict=True)}


def policy_of(four_bit: bool, lora: Weights, dtype: torch.dtype = torch.float32) -> Any:
    """Load the tiny policy with these LoRA weights, which stay in float32: 16-bit computation is by autocast."""
    nf4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": dtype}
    how = {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, **nf4)} if four_bit else {}
    base = AutoModelForCausalLM.from_pretrained(TINY.checkpoint(), dtype=dtype, **how)
    model = get_peft_model(base, LoraConfig(r=16, lora_alpha=16, target_modules="all-linear"))
    assert not model.load_state_dict(lora, strict=False).unexpected_keys
    assert all(p.dtype == torch.float32 for p in model.parameters() if p.requires_grad)
    # Not eval(); there is no dropout.  On a CPU with AVX512-BF16 bitsandbytes packs the weights of a layer in eval mode
    # at its first pass without gradient, and then passes no gradient on (nn/modules.py, Linear4bit.forward).
    return model.train()


def log_probs(model: Any, record: dict[str, Any]) -> Rows:
    return [
        after(model, prompt, completion).gather(1, torch.tensor(completion)[:, None]).squeeze(1)
        for prompt, completion in zip(record["prompts"], record["completions"], strict=True)
    ]


def after(model: Any, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """Return the log-probabilities (tokens, vocabulary) at each position of a completion."""
    ids = torch.tensor([prompt + completion])
    with torch.autocast("cpu", model.dtype, enabled=model.dtype != torch.float32):
        logits = model(input_ids=ids, logits_to_keep=len(completion) + 1).logits[0, :-1]
    return logits.float().log_softmax(-1)


def loss_of(now: Rows, reference: Rows, rewards: list[float | None], settings: dict[str, Any]) -> torch.Tensor:
    """Return the loss of an on-policy update, where every ratio is 1: advantage x log-probability, and the KL term.
    ``now`` and ``reference`` are each completion's log-probabilities under the policy and the reference."""
    in_loss = settings.get("kl_placement") == "loss"
    estimate = advantages.KL_ESTIMATORS[settings.get("kl_estimator", "k1")]
    kl = settings["beta"] * torch.stack([estimate(a - b).sum() for a, b in zip(now, reference, strict=True)])
    scores = torch.tensor([math.nan if reward is None else reward for reward in rewards]).view(-1, K)
    paid = scores if in_loss else scores - kl.detach().view(-1, K)
    found = advantages.estimated(paid, settings.get("advantage_estimator", "rloo"))
    if settings.get("normalize_advantages"):
        found = advantages.normalized(found, ~scores.isnan())
    if settings.get("skip_zero_variance_groups"):
        found = found.masked_fill(advantages.zero_variance_groups(scores).unsqueeze(1), 0.0)
    tokens = torch.tensor([len(row) for row in now])
    how = settings.get("loss_aggregation", "seq-mean-token-sum")
    weights = losses.row_weights(how, tokens, len(now), int(tokens.sum()), LIMIT)
    per_row = -found.view(-1) * torch.stack([row.sum() for row in now])
    return ((per_row + kl if in_loss else per_row) * weights).sum()


def sampled(record: dict[str, Any], exact: Any, rounded: Any | None) -> dict[str, Figure]:
    """Compare what the trainer sampled for left-padded prompts with the distributions after each prompt alone: first
    tokens by their surprise, greedy tokens by how far they are below the most probable one."""
    for model in filter(None, (exact, rounded)):
        model.load_state_dict(record["lora"], strict=False)
    surprise = spread = 0.0
    lacking, rounding, entropies = [], [], list[float]()
    for prompt, drawn, greedy in zip(record["prompts"], record["first tokens"], record["greedy"], strict=True):
        with torch.no_grad():
            logp = after(exact, prompt, greedy)
            first = logp[0].double()
            mean = (first.exp() * first).sum()
            surprise += float((first[drawn] - mean).sum())
            entropies.append(-float(mean))
            spread += len(drawn) * float((first.exp() * (first - mean).square()).sum())
            chosen = torch.tensor(greedy)[:, None]
            lacking.append(logp.max(1).values - logp.gather(1, chosen).squeeze(1))
            if rounded is not None:
                rounding.append((after(rounded, prompt, greedy) - logp).gather(1, chosen).squeeze(1))
    lack = torch.cat(lacking)
    high = FACTOR * size(torch.cat(rounding)) if rounding else 0.0
    return {
        "first tokens: entropy, nats": Figure(sum(entropies) / len(entropies), low=1.0),
        "first tokens: surprise off by, standard errors": Figure(abs(surprise) / spread**0.5, high=ERRORS),
        "greedy tokens: less probable than the best by, nats": Figure(size(lack), high=high),
    }
