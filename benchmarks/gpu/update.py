"""Correct on this card: the kit's update is the one that a CPU finds in float32.

What is compared is a gradient, of one update on completions that are written down (written.py): in 16 bit on the card,
in float32 on the CPU, in a process of its own that does not see the card.
"""

from __future__ import annotations

import math
import random
import tempfile
from typing import Any

from .checks import CPU, HIDDEN, Figure, Found, Place, at_least, at_most, check, holds, seen
from .written import WITH, WITHOUT, gradient_of, leave_the_reference, load, trainer_of

SETTINGS: dict[str, dict[str, Any]] = {
    "rloo": {"beta": 0.05},
    "rloo, two passes": {"beta": 0.05, "single_pass": False},
    "rloo, beta 0": {"beta": 0.0},
    "rloo, beta 0, dead rows trained on": {"beta": 0.0, "skip_dead_groups": False, "single_pass": False},
    "rloo, dead groups left out": {"beta": 0.05, "skip_dead_groups": True},
    "grpo": {"advantage_estimator": "grpo", "beta": 0.05, "kl_placement": "loss"},
    "dr_grpo": {
        "advantage_estimator": "dr_grpo",
        "beta": 0.05,
        "loss_aggregation": "seq-mean-token-sum-norm",
    },
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

TOLERANCE = 0.15
"""Of a gradient, as a share of the reference's norm.  A CPU that computes in bfloat16 is off by 0.03 to 0.08 with these
settings (``python -m benchmarks.gpu --rehearse`` measures it), while the gradients of any two settings that are not the
same by construction differ by 0.27 and more."""

SAME_DEVICE = 0.02
"""Of two gradients that are the same by construction but add up in another order, on one device."""

PADDING_TOLERANCE = 0.15
"""Root mean square difference of log-probabilities, in nats.  In bfloat16 on a CPU 0.045, in float32 0.0000; with the
pads attended to, 5.2."""


SAME_TOKENS, OTHER_TOKENS = 0.6, 0.4
"""Shares of tokens.  In bfloat16 on a CPU all are alike, and with the pads attended to 0.20; where two are nearly as
probable, a GPU's rounding may decide otherwise, and the rest of that completion then differs."""


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


@check("correct/reference on the CPU", seconds=150, takes=30, rank=9, home=CPU, variables=HIDDEN)
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
    "correct/update equals the CPU's", seconds=240, takes=50, rank=11, needs=("correct/reference on the CPU",)
)
def update(place: Place) -> Found:
    """Estimators, KL terms, aggregations, the single pass and dead groups, each against float32 on the CPU."""
    import torch

    expected = torch.load(place.scratch / "reference.pt", weights_only=True)
    figures: list[Figure] = []
    mine: dict[str, Any] = {}
    seen_of: dict[str, dict[str, float]] = {}
    logged: list[float] = []
    for base, options in {"16 bit": {"load_in_4bit": False}, "4 bit": {}}.items():
        policy = load(**sixteen_bit(place), **options)
        for name, settings in SETTINGS.items():
            if f"{base} {name}" not in expected:
                continue
            flat, log = gradient_of(policy, **settings)
            theirs, their_log = expected[f"{base} {name}"]
            mine[name], seen_of[name] = mine.get(name, flat), log
            figures.append(at_most(f"{name}, {base}: gradient off by", off_by(flat, theirs), TOLERANCE))
            compared = ("reward", "dead_groups", WITH, WITHOUT)
            logged += [abs(log[metric] - their_log[metric]) for metric in compared]
    for one, other in ALIKE:
        figures.append(at_most(f"{one} and {other}: off by", off_by(mine[other], mine[one]), SAME_DEVICE))
    figures.append(at_most("rewards, dead groups and rows passed off by", max(logged), 1e-6))
    single, double = (seen_of[name][WITHOUT] for name in ALIKE[0])
    skipped, whole = (seen_of[name][WITH] for name in ALIKE[1])
    figures.append(holds("the single pass leaves a pass out", single < double))
    figures.append(holds("dead groups are left out", 0 < skipped < whole))
    return Found(figures, {"seen": seen_of})


# --- on the card alone ------------------------------------------------------------------------------------


@check("correct/left padding", seconds=180, takes=30, rank=10)
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
        without, attended = _padding_difference(trainer), _padding_difference(trainer, hide_pads=False)
    with_gradient = _padding_difference(trainer)
    trainer._keep_padding_mask(torch.ones(1, 1))
    trainer._backbones = []  # which leaves the flag off
    with torch.no_grad():
        unflagged = _padding_difference(trainer)
    return Found(
        [
            at_most("log-probability off by, without gradient", without, PADDING_TOLERANCE),
            at_most("log-probability off by, with gradient", with_gradient, PADDING_TOLERANCE),
            at_least("control: with the pads attended to", attended, 1.0),
            seen("without the flag that keeps unsloth's mask", unflagged),
        ]
    )


def _padding_difference(trainer: Any, width: int = 12, hide_pads: bool = True) -> float:
    """Root mean square over rows and tokens, of a padded batch against its rows alone."""
    import torch

    draw = random.Random(0)
    prompts = [[draw.randrange(15, 25) for _ in range(length)] for length in (3, 9, 30, 64)]
    longest, device = max(map(len, prompts)), trainer.model.device
    pad = trainer.processing_class.pad_token_id
    rows = [[pad] * (longest - len(p)) + p + [draw.randrange(15, 25) for _ in range(width)] for p in prompts]
    hidden = [[0] * (longest - len(p)) + [1] * (len(p) + width) for p in prompts]
    ids, mask = torch.tensor(rows, device=device), torch.tensor(hidden, device=device)
    given = mask if hide_pads else torch.ones_like(mask)
    together, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, given, width)
    apart = []
    for row, prompt in enumerate(prompts):
        alone = slice(longest - len(prompt), None)
        logps, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids[row : row + 1, alone], mask[row : row + 1, alone], width
        )
        apart.append(logps)
    return float((together - torch.cat(apart)).detach().float().square().mean().sqrt())


@check("correct/left-padded sampling", seconds=120, takes=10, rank=41)
def left_padded_sampling(place: Place) -> Found:
    """The most probable completions of prompts of mixed length, sampled in one batch as the trainer samples, against
    each prompt's alone."""
    policy = load(**sixteen_bit(place))
    prompts = policy.tokenize(_conversations(8))
    longest, pad = max(map(len, prompts)), policy.tokenizer.pad_token_id
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(policy, folder, written_down=False, max_completion_length=24)
    trainer.generation_config.do_sample = False
    trainer.model.for_training()

    def sampled(rows: list[list[int]]) -> list[list[int]]:
        ids: list[list[int]] = trainer._generate_single_turn(rows, None, {})
        return ids

    alone = [sampled([prompt])[0] for prompt in prompts]
    together = sampled(prompts)
    seen_pads = sampled([[pad] * (longest - len(p)) + p for p in prompts])
    return Found(
        [
            at_least("tokens alike", _alike(together, alone), SAME_TOKENS),
            at_most("control: with the pads attended to", _alike(seen_pads, alone), OTHER_TOKENS),
            seen("longest prompt, of the shortest", longest / min(map(len, prompts))),
        ],
        {"together": together, "alone": alone, "pads attended to": seen_pads},
    )


def _conversations(count: int) -> list[list[dict[str, str]]]:
    """A sum to do, after none, one, two ... that are done."""
    import rloo_kit

    task = rloo_kit.tasks.addition(n_train=64, n_held_out=32, seed=0).held_out
    turns = list(zip(task["prompt"][:count], task["answer"][:count], strict=True))
    return [
        [
            message
            for question, answer in turns[:before]
            for message in (*question, {"role": "assistant", "content": str(answer)})
        ]
        + turns[before][0]
        for before in range(count)
    ]


def _alike(found: list[list[int]], expected: list[list[int]]) -> float:
    """Tokens at whose place the same one stands, as a share of all."""
    pairs = list(zip(found, expected, strict=True))
    same = sum(one == other for a, b in pairs for one, other in zip(a, b, strict=False))
    return same / sum(max(len(a), len(b)) for a, b in pairs)


@check("correct/gradient checkpointing", seconds=180, takes=20, rank=13)
def checkpointing(place: Place) -> Found:
    """The same gradient with "unsloth", True and False, each of them in force.

    On a CPU TRL's config switches checkpointing on whatever the policy was loaded with.
    """
    found, is_on = {}, {}
    for mode in (False, True, "unsloth"):
        policy = load(gradient_checkpointing=mode)
        found[mode], log = gradient_of(policy, beta=0.05)
        is_on[mode] = bool(log["checkpointed"])
    return Found(
        [
            *(
                at_most(f"{mode!r}: gradient off by", off_by(found[mode], found[False]), SAME_DEVICE)
                for mode in (True, "unsloth")
            ),
            *(
                holds(f"{mode!r}: in force", is_on[mode] == (bool(mode) or place.is_rehearsal))
                for mode in is_on
            ),
        ]
    )
