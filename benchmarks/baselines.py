"""What a baseline is worth: the noise of the gradient without one, with a fixed one, and with leave-one-out.

    OMP_NUM_THREADS=1 python benchmarks/baselines.py

On the bundled tiny policy and its sums: 64 completions of each prompt, and the gradient of each completion's
log-probability in the LoRA's weights.  These stand for all completions: groups of K are drawn from them again and
again, and weighed by each estimator.  Five draws of prompts; about two minutes on one core.
"""

from __future__ import annotations

import rloo_kit  # isort: skip - unsloth first

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from tables import RESULTS, command_line, document, student, table

from rloo_kit.advantages import grpo, reinforce, rloo

SEEDS, PROMPTS, SAMPLES, DRAWS, SIZES = 5, 8, 64, 4000, (2, 4, 8)
LENGTH = 32  # tokens of a completion
NAMES = ("no baseline", "no baseline, 0 or -1", "fixed baseline", "GRPO")  # beside leave-one-out

Estimator = Callable[[torch.Tensor], torch.Tensor]
Sampled = tuple[torch.Tensor, torch.Tensor]
"""Rewards (samples,) of one prompt's completions, and the products of their gradients (samples, samples)."""

MEANING = (
    "Variance of a group's gradient over the squared length of its mean, as a multiple of leave-one-out's: how many "
    "times as many completions the estimator needs for the same noise. The tiny policy as it is shipped; sums of "
    f"level 1 as right or wrong, mean reward {{mean:.2f}}; {SAMPLES} completions of each of {PROMPTS} prompts, "
    f"{DRAWS} groups of each K, {SEEDS} draws of prompts with Student's 95 % interval. The fixed baseline is the mean "
    "reward of all prompts. '0 or -1': the same rewards less 1, which changes nothing for the others."
)


def sampled(seed: int) -> list[Sampled]:
    """Prompts' completions at the policy as it is shipped."""
    policy = rloo_kit.load_policy("tiny", load_in_4bit=False, gradient_checkpointing=False, seed=seed)
    task = rloo_kit.tasks.arithmetic(1, policy=policy, n_train=PROMPTS, n_held_out=1, seed=seed)
    found = []
    for row in task.train:
        made = policy.generate([row["prompt"]], n=SAMPLES, max_new_tokens=LENGTH, seed=seed)
        ids = [one.ids for one in made]
        asked = {"prompts": [row["prompt"]] * SAMPLES, "answer": [row["answer"]] * SAMPLES}
        said = [[{"role": "assistant", "content": one.text}] for one in made]
        rewards = task.correct(completions=said, completion_ids=ids, **asked)
        prompt = policy.tokenize([row["prompt"]])[0]
        gradients = torch.stack([gradient(policy, prompt, one) for one in ids]).double()
        gradients -= gradients.mean(0)  # as over all completions, where the mean is 0
        found.append((torch.tensor(rewards, dtype=torch.float64), gradients @ gradients.T))
    return found


def gradient(policy: rloo_kit.Policy, prompt: list[int], completion: tuple[int, ...]) -> torch.Tensor:
    """Of the completion's log-probability, in all trained weights."""
    ids = torch.tensor([[*prompt, *completion]])
    logits = policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
    log_prob = logits.log_softmax(-1)[range(len(completion)), completion].sum()
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    return torch.cat([part.flatten() for part in torch.autograd.grad(log_prob, trained)])


def noise(estimator: Estimator, prompts: list[Sampled], k: int) -> float:
    """Variance of a group's gradient over the squared length of its mean, both summed over the prompts."""
    variance = signal = 0.0
    for rewards, products in prompts:
        groups = torch.randint(SAMPLES, (DRAWS, k), generator=torch.Generator().manual_seed(k))
        weights = estimator(rewards[groups]) / k
        lengths = torch.einsum(
            "gi,gij,gj->g", weights, products[groups[:, :, None], groups[:, None, :]], weights
        )
        mean = torch.zeros(SAMPLES, dtype=torch.float64)
        mean.index_add_(0, groups.flatten(), weights.flatten() / DRAWS)
        squared = float(mean @ products @ mean)
        variance += float(lengths.mean()) - squared
        signal += squared
    return variance / signal


def estimators(prompts: list[Sampled]) -> dict[str, Estimator]:
    """By name; the fixed baseline is the mean reward over all prompts, which a run would have to know."""
    fixed = float(torch.cat([rewards for rewards, _ in prompts]).mean())
    return {
        "leave-one-out": rloo,
        "no baseline": reinforce,
        "no baseline, 0 or -1": lambda rewards: rewards - 1,
        "fixed baseline": lambda rewards: rewards - fixed,
        "GRPO": grpo,
    }


def ratios(prompts: list[Sampled], k: int) -> dict[str, float]:
    """Estimator -> its noise over leave-one-out's."""
    found = {name: noise(each, prompts, k) for name, each in estimators(prompts).items()}
    return {name: value / found["leave-one-out"] for name, value in found.items()}


def report(draws: list[list[Sampled]]) -> str:
    """The table; geometric means, with Student's interval over the draws."""
    rows = []
    for k in SIZES:
        each = [ratios(prompts, k) for prompts in draws]
        row: list[Any] = [str(k)]
        for name in NAMES:
            mean = student([math.log(found[name]) for found in each])
            low, high = math.exp(mean.low), math.exp(mean.high)  # NaN where it is the same in every draw
            row.append(
                f"{math.exp(mean.value):.2f}" + ("" if math.isnan(low) else f" [{low:.2f}, {high:.2f}]")
            )
        rows.append(row)
    paid = torch.stack([rewards for rewards, _ in itertools.chain(*draws)])
    return document(
        "What a baseline is worth",
        command_line(),
        MEANING.format(mean=paid.mean()),
        table(("K", *NAMES), "rrrrr", rows),
    )


if __name__ == "__main__":
    text = report([sampled(seed) for seed in range(SEEDS)])
    (RESULTS / "baselines.md").write_text(text)
    print(text)
