"""Completions that are cut: which length would be enough, a warning once, and no harm to the weights."""

import math
import random
from statistics import NormalDist, median
from typing import Any

import pytest
import torch
import trl

from rloo_kit.watch.callbacks import BATCHES, KNOWN, TruncationWatch, length_for
from tests.conftest import random_rewards

MEDIAN = 500


def quantile(sigma: float, share: float) -> float:
    return math.exp(math.log(MEDIAN) + sigma * NormalDist().inv_cdf(share))


@pytest.mark.parametrize(("sigma", "ended", "most"), [(0.3, 0.95, 1.25), (0.7, 0.5, 1.5), (0.7, 0.3, 2.0)])
def test_the_length_that_lets_nine_of_ten_end_is_found(sigma: float, ended: float, most: float) -> None:
    """Of 100 times 128 completions, nine tenths of the answers lie within a factor of ``most``."""
    limit, right, draw = quantile(sigma, ended), quantile(sigma, 0.9), random.Random(0)
    answers = []
    for _ in range(100):
        lengths = [round(math.exp(draw.gauss(math.log(MEDIAN), sigma))) for _ in range(128)]
        known = [length for length in lengths if length <= limit]
        answers.append(length_for(known, len(lengths) - len(known)))
    found = [answer / right for answer in answers if answer]
    assert len(found) >= 95
    assert median(found) == pytest.approx(1, abs=0.08)
    assert sum(1 / most <= ratio <= most for ratio in found) >= 0.9 * len(found)


@pytest.mark.parametrize(
    ("ended", "cut"),
    [
        ([], 64),
        (list(range(100, 100 + KNOWN - 1)), 10),
        ([40] * 30, 30),  # all of one length: a line through one point
        ([1] * 5 + [2, 4, 20, 100, 1000], 10_000),  # one in a thousand ended
    ],
)
def test_where_a_length_cannot_be_known_none_is_given(ended: list[int], cut: int) -> None:
    assert length_for(ended, cut) is None


def feed(watch: TruncationWatch, batches: int, ended: int, cut: int) -> list[str | None]:
    """Batches of completions of which some end after 10, 11, ... tokens and some are cut."""
    lengths = [10 + i for i in range(ended)] + [watch.limit] * cut
    return [watch.see(lengths, [False] * ended + [True] * cut) for _ in range(batches)]


def test_it_warns_once_where_surely_more_than_a_fifth_of_the_last_batches_were_cut() -> None:
    for ended, warned in ((8, False), (6, False), (4, True), (0, True)):
        said = feed(TruncationWatch(limit=32, masked=False), 5 * BATCHES, ended, cut=8 - ended)
        assert [text is not None for text in said] == [warned and i == BATCHES for i in range(1, 16)], ended
    watch = TruncationWatch(limit=32, masked=False)
    assert not any(feed(watch, 20, ended=8, cut=0))
    assert [bool(text) for text in feed(watch, BATCHES, ended=0, cut=8)] == [False, True, False]


@pytest.mark.parametrize(
    ("limit", "ended", "said"),
    [
        (32, 3, f"62% of the completions of the last {BATCHES} batches were cut at 32 tokens. "),
        (32, 0, "Try max_completion_length=64 and look again"),
        (4096, 4, "Try max_completion_length=8192"),  # short answers beside endless ones
    ],
)
def test_where_no_length_is_known_the_double_is_tried_first(limit: int, ended: int, said: str) -> None:
    assert said in str(feed(TruncationWatch(limit, masked=False), BATCHES, ended, cut=5)[-1])


def test_where_few_were_cut_at_first_the_policy_is_to_be_looked_at_and_not_the_limit() -> None:
    """A policy that a learning rate has wrecked no longer ends, at any length."""
    watch = TruncationWatch(limit=32, masked=False)
    feed(watch, 1, ended=19, cut=1)
    said = str(feed(watch, BATCHES, ended=1, cut=19)[-2])
    assert "and 5% of the first batch. The policy has come to write longer" in said
    assert "max_completion_length=" not in said


def test_where_most_are_cut_a_length_is_suggested(make_trainer: Any, monkeypatch: Any, capsys: Any) -> None:
    """Of each 12 completions 5 end, after 5 to 9 tokens."""

    def written(trainer: Any, prompt_ids: Any, *args: Any) -> list[list[int]]:
        ends = [[17] * (length - 1) + trainer.eos_token_ids[:1] for length in range(5, 10)]
        return ends + [[17] * 9] * (len(prompt_ids) - len(ends))

    monkeypatch.setattr(trl.RLOOTrainer, "_generate_single_turn", written)
    small = {"max_completion_length": 9, "per_device_train_batch_size": 12, "max_steps": BATCHES}
    trainer = make_trainer(reward_funcs=random_rewards, **small)
    with pytest.warns(UserWarning, match=r"were cut at 9 tokens. max_completion_length=\d+"):
        trainer.train()
    assert "unhealthy: truncation" not in capsys.readouterr().out, "once, by the one that knows the length"


def test_where_every_completion_is_cut_and_masked_it_is_said_at_once_no_weight_moves_and_every_group_is_dead(
    fresh_policy: Any, make_trainer: Any
) -> None:
    """They have a spread of rewards, and teach nothing all the same."""
    trainer = make_trainer(
        model=fresh_policy,
        reward_funcs=lambda completions, **kwargs: [float(i % 2) for i in range(len(completions))],
        max_completion_length=2,
        mask_truncated_completions=True,
        max_steps=2,
        learning_rate=0.1,
        beta=0.05,
    )
    before = {name: p.clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    with pytest.warns(UserWarning, match="this step changes nothing: every completion was cut and masked"):
        trainer.train()
    assert all(torch.equal(trainer.model.get_parameter(name), value) for name, value in before.items())
    logged = [entry["dead_groups"] for entry in trainer.state.log_history if "dead_groups" in entry]
    assert logged == [1.0, 1.0]
