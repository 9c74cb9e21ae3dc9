"""evaluate: figures with intervals, from completions graded as TRL would grade them."""

from __future__ import annotations

import math
import random
import statistics
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset, DatasetDict

import rloo_kit
from rewards import RewardValueError
from rloo_kit.catalogue import CATALOGUE
from rloo_kit.errors import ArgumentError, DatasetError, RewardError
from rloo_kit.evaluation.compare import compare
from rloo_kit.evaluation.evaluate import bootstrap, evaluate, means_by_prompt, score, wilson
from rloo_kit.policy.load import Completion
from tests.conftest import right_after_thought


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Newcombe 1998, Statistics in Medicine 17, table I, method 3 (score, without continuity correction).
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval_is_the_published_one(successes: int, trials: int, low: float, high: float) -> None:
    interval = wilson(successes, trials)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_the_bootstrap_interval_covers_the_mean_about_95_times_in_100() -> None:
    rng = random.Random(0)
    covered = 0
    for trial in range(200):
        values = [rng.gauss(1.0, 2.0) for _ in range(50)]
        interval = bootstrap(values, seed=trial, resamples=400)
        assert interval is not None
        covered += interval.low <= 1.0 <= interval.high
    assert 180 <= covered <= 199


def test_the_bootstrap_interval_is_as_wide_as_the_normal_one_where_values_are_normal() -> None:
    rng = random.Random(0)
    values = [rng.gauss(1.0, 2.0) for _ in range(50)]
    interval = bootstrap(values, resamples=20_000)
    assert interval is not None
    normal = 1.96 * statistics.stdev(values) / math.sqrt(50)
    assert (interval.high - interval.low) / 2 == pytest.approx(
        normal, rel=0.05
    )  # 99 %: 1.31 of it, 90 %: 0.84
    assert (interval.high + interval.low) / 2 == pytest.approx(statistics.fmean(values), abs=0.05 * normal)


@pytest.mark.parametrize("values", [[1.0] * 32, [0.0] * 2, [0.7], [1.0 - 0.2, 0.9 - 0.1]])
def test_without_spread_there_is_no_bootstrap_interval_and_it_says_so(values: list[float]) -> None:
    interval = bootstrap(values)
    assert interval is not None
    assert not interval.is_bounded
    assert str(interval) == f"{values[0]:.3f} (no interval: no spread)"


class Scripted:
    """A policy whose completions are given."""

    card, device = CATALOGUE["tiny"], SimpleNamespace(type="cpu")

    def __init__(self, *texts: str, finished: bool = True) -> None:
        self.texts, self.finished = texts, finished

    def generate(self, prompts: Any, *, n: int, **options: Any) -> list[Completion]:
        assert len(prompts) * n == len(self.texts), options
        repeated = [prompt for prompt in prompts for _ in range(n)]
        return [Completion(p, t, (1, 2, 3), self.finished) for p, t in zip(repeated, self.texts, strict=True)]


def scored(completions: Any, **kwargs: Any) -> list[float]:
    """The number that a completion consists of."""
    return [float(completion[0]["content"]) for completion in completions]


QUESTIONS = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": f"What is {i} + 1?"}], "answer": str(i + 1)} for i in range(4)]
)


def test_accuracy_is_the_share_of_answers_asserted_after_the_thought() -> None:
    policy = Scripted("<think>\n</think>\n\n1", "<think>2", "3", "The answer is 5.")
    result = evaluate(policy, QUESTIONS)
    assert result.accuracy is not None
    assert result.accuracy.value == 0.5  # the second never left its thought, the fourth is wrong
    assert result.reward is None


def test_a_completion_that_was_cut_counts_as_wrong_and_as_truncated() -> None:
    result = evaluate(Scripted("1", "2", "3", "4", finished=False), QUESTIONS)
    assert result.accuracy is not None
    assert (result.accuracy.value, result.truncated) == (0.0, 1.0)


def test_completions_of_one_prompt_count_as_one_value() -> None:
    texts = ["1", "1", "1", "9", "9", "9", "3", "9", "9", "4", "4", "4"]  # right: 3, 0, 1 and 3 of 3
    result = evaluate(Scripted(*texts), QUESTIONS, scored, samples=3, greedy=False)
    assert result.accuracy == bootstrap([1.0, 0.0, 1 / 3, 1.0])
    assert result.reward == bootstrap([1.0, 9.0, 7.0, 4.0])
    assert result.correct[6:9] == (True, False, False)
    assert "12, sampled, 3 per prompt" in str(result)
    assert str(result).count("(95 %, bootstrap over prompts)") == 2


def test_prompts_with_completions_that_do_not_apply_still_count_alike() -> None:
    def reward(completions: Any, **kwargs: Any) -> list[float | None]:
        return [1.0, 1.0, 0.0, None, None, None, 0.0, 1.0]

    result = evaluate(Scripted(*"12345678"), QUESTIONS, reward, samples=2, greedy=False)
    assert result.reward == bootstrap([1.0, 0.0, 0.5])


def test_with_one_completion_per_prompt_accuracy_has_wilsons_interval() -> None:
    result = evaluate(Scripted("1", "2", "9", "4"), QUESTIONS, scored, greedy=False)
    assert result.accuracy == wilson(3, 4)
    assert "(95 %, Wilson)" in str(result)
    assert "(95 %, bootstrap)" in str(result)


def test_several_completions_all_right_get_no_interval_rather_than_one_of_no_width() -> None:
    result = evaluate(Scripted(*"11223344"), QUESTIONS, samples=2, greedy=False)
    assert "accuracy     1.000 (no interval: no spread)\n" in str(result)


@pytest.mark.parametrize("samples", [4, 8])
def test_with_several_completions_per_prompt_the_interval_still_covers_about_95_times_in_100(
    samples: int,
) -> None:
    # Prompts as a policy finds them: most nearly always right or nearly always wrong.  As independent
    # completions, 64 prompts of 4 would cover 77 times in 100, of 8 67 times.
    rng = random.Random(0)
    covered = 0
    for trial in range(1000):
        chances = [rng.betavariate(0.5, 0.5) for _ in range(64)]
        right = [rng.random() < chance for chance in chances for _ in range(samples)]
        interval = bootstrap(means_by_prompt(right, samples), seed=trial, resamples=400)
        assert interval is not None
        covered += interval.low <= 0.5 <= interval.high
    assert 925 <= covered <= 965


def test_rewards_are_called_with_trls_keywords_and_summed() -> None:
    seen: dict[str, Any] = {}

    def first(completions: Any, answer: Any, **kwargs: Any) -> list[float | None]:
        seen.update(kwargs, completions=completions, answer=answer)
        return [1.0, None, 1.0, None]

    async def second(completions: Any, **kwargs: Any) -> list[float | None]:
        return [0.5, 0.5, None, None]

    result = evaluate(Scripted("1", "2", "3", "4"), QUESTIONS, [first, second])
    assert {"prompts", "completion_ids", "trainer_state", "log_extra", "log_metric"} <= set(seen)
    assert seen["completions"][0] == [{"role": "assistant", "content": "1"}]
    assert result.rewards == (1.5, 0.5, 1.0, None)
    assert result.reward_means == {"first": 1.0, "second": 0.5}
    assert result.reward is not None
    assert result.reward.value == pytest.approx(1.0)


def test_rewards_are_weighed_as_in_training() -> None:
    def one(completions: Any, **kwargs: Any) -> list[float]:
        return [1.0] * len(completions)

    def ten(completions: Any, **kwargs: Any) -> list[float | None]:
        return [10.0, None, 10.0, 10.0]

    result = evaluate(Scripted(*"1234"), QUESTIONS, [one, ten], reward_weights=[1.0, 0.0])
    assert result.rewards == (1.0, 1.0, 1.0, 1.0)
    assert result.reward_means == {"one": 1.0, "ten": 10.0}
    with pytest.raises(RewardError, match=r"1 reward_weights for 2[\s\S]*evaluate\(reward_weights=\[1.0\]\)"):
        evaluate(Scripted(*"1234"), QUESTIONS, [one, ten], reward_weights=[1.0])


def test_a_plain_prompt_gets_a_plain_completion() -> None:
    rows = [{"prompt": "1 + 1 =", "answer": "2"}]
    completion = Completion("1 + 1 =", " 2", (5,), True)
    scores = score(rows, [completion], [lambda completions, **kwargs: [float(completions == [" 2"])]])
    assert list(scores.values()) == [[1.0]]


def test_a_bad_reward_is_named_here_too() -> None:
    with pytest.raises(RewardValueError, match="inf"):
        evaluate(Scripted(*"1234"), QUESTIONS, lambda completions, **kwargs: [math.inf] * 4)


def test_without_answers_there_is_no_accuracy() -> None:
    assert evaluate(Scripted(*"1234"), QUESTIONS.remove_columns("answer")).accuracy is None


@pytest.mark.parametrize("bad", [QUESTIONS.select([]), QUESTIONS.rename_column("prompt", "question")])
def test_a_dataset_that_cannot_be_evaluated_is_refused(bad: Any) -> None:
    with pytest.raises(DatasetError, match="prompt"):
        evaluate(Scripted(), bad)


def test_the_tiny_policy_is_measured_on_its_held_out_problems(task: Any) -> None:
    # Fresh: other tests train the shared policy.
    policy = rloo_kit.load_policy("tiny")
    greedy = evaluate(policy, task, right_after_thought, max_new_tokens=32)
    assert greedy.accuracy is not None
    assert 0.25 < greedy.accuracy.value < 0.8
    assert len(greedy.completions) == len(task.held_out)
    sampled = evaluate(policy, task, right_after_thought, n=4, samples=3, greedy=False, max_new_tokens=32)
    assert len(sampled.completions) == 12
    assert "12, sampled" in str(sampled)


def test_two_rewards_of_one_name_both_count() -> None:
    same = [lambda completions, **kwargs: [1.0] * 4, lambda completions, **kwargs: [2.0] * 4]
    result = evaluate(Scripted(*"1234"), QUESTIONS, same)
    assert result.reward_means == {"<lambda>": 1.0, "<lambda>_2": 2.0}
    assert result.rewards == (3.0,) * 4


def test_a_number_is_right_in_any_notation() -> None:
    dataset = Dataset.from_list([{"prompt": "x", "answer": 2.0}, {"prompt": "x", "answer": 3.0}])
    result = evaluate(Scripted("2", "3.00"), dataset)
    assert result.accuracy is not None
    assert result.accuracy.value == 1.0


def test_a_stream_can_be_evaluated() -> None:
    assert len(evaluate(Scripted("1", "2"), QUESTIONS.to_iterable_dataset(), n=2).completions) == 2


def test_an_answer_may_be_a_whole_solution() -> None:
    """As GSM8K has it: what follows the hashes counts."""
    rows = [
        {"prompt": "What is 1 + 2?", "answer": "1 + 2 = 3.\n#### 3"},
        {"prompt": "2?", "answer": r"$\boxed{2}$"},
    ]
    result = evaluate(Scripted("3", "5"), rows)
    assert result.accuracy is not None
    assert result.accuracy.value == 0.5


def test_where_the_answers_are_no_numbers_there_is_no_accuracy_but_a_word() -> None:
    rows = [{"prompt": "The capital of France?", "answer": "Paris"}]
    with pytest.warns(UserWarning, match="the answers are no numbers"):
        result = evaluate(Scripted("Paris"), rows)
    assert result.accuracy is None
    result = evaluate(Scripted("Paris"), rows, answer_of=lambda text: text)
    assert result.accuracy is not None
    assert result.accuracy.value == 1.0


@pytest.mark.parametrize(
    ("dataset", "todo"),
    [
        (DatasetDict(test=QUESTIONS), r"dataset\['test'\]"),
        (["1 + 1"], "from_list"),
    ],
)
def test_what_is_no_dataset_is_named_with_what_to_give(dataset: Any, todo: str) -> None:
    with pytest.raises(DatasetError, match=todo):
        evaluate(Scripted("1"), dataset)


@pytest.mark.parametrize("given", [SimpleNamespace(config=None, generate=None), SimpleNamespace(train=None)])
def test_a_model_or_a_trainer_is_no_policy(given: Any) -> None:
    with pytest.raises(ArgumentError, match="load_policy"):
        evaluate(given, QUESTIONS)


def test_evaluations_without_rewards_can_be_compared() -> None:
    before, after = (evaluate(Scripted(text, "2", "3", "4"), QUESTIONS) for text in ("9", "1"))
    assert before.rewards == (None,) * 4
    assert "accuracy +0.250" in repr(compare(before, after))


def test_numbers_are_read_as_people_write_them_and_the_others_left_out() -> None:
    golds = ["$1,200", "50%", "-4", "72.", r"\boxed{ 7 }", "1/2", "Paris"]
    rows = [{"prompt": f"{gold}?", "answer": gold} for gold in golds]
    result = evaluate(Scripted("1200", "50", "It is -4.", "72.0", "7", "2", "Paris"), rows)
    assert result.correct == (True,) * 5 + (None, None)
    assert "(95 %, Wilson), of 5 completions" in str(result)
