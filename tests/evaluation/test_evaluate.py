"""evaluate: numbers with intervals, from completions graded as TRL would grade them."""

import inspect
import itertools
import math
import re
import statistics
from dataclasses import replace

import pytest
import torch
from datasets import Dataset, DatasetDict

import rewards
from rewards import QWEN3, RewardValueError
from rloo_kit.errors import ConfigError, DatasetError, RewardError
from rloo_kit.evaluation.compare import compare
from rloo_kit.evaluation.evaluate import SAMPLING, Evaluation, evaluate
from rloo_kit.evaluation.intervals import bootstrap, wilson
from rloo_kit.models import CATALOGUE
from rloo_kit.policy.policy import Completion, Policy
from tests.conftest import right_after_thought

MARKERS = {"<think>": QWEN3.open_id, "</think>": QWEN3.close_id}


def scripted(*texts, finished=True, rows=64):
    """Return a policy that gives these completions, in batches of ``rows``."""

    class Scripted(Policy):
        def __post_init__(self):
            """Skip the completion of model and tokenizer, which are None here."""

        def generate(self, prompts, *, n=1, progress=None, **options):
            assert len(prompts) * n == len(texts), options
            for done in range(rows, len(texts) + rows, rows) if progress else ():
                progress(min(done, len(texts)))
            repeated = [prompt for prompt in prompts for _ in range(n)]
            return [Completion(p, text, ids(text), finished) for p, text in zip(repeated, texts, strict=True)]

    def ids(text):
        return (1, *(i for marker, i in MARKERS.items() if marker in text), 2)

    return Scripted(model=None, tokenizer=None, checkpoint=CATALOGUE["tiny"])


def returns(*scores):
    def reward(completions, **kwargs):
        return list(scores)

    return reward


QUESTIONS = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": f"What is {i} + 1?"}], "answer": str(i + 1)} for i in range(4)]
)


def test_a_long_evaluation_says_how_far_it_is_whatever_the_batch(capsys):
    for rows in (1, 3, 10):
        evaluate(scripted(*"1111111111", rows=rows), [{"prompt": "?"}] * 10, max_new_tokens=4000)
        assert capsys.readouterr().out == "".join(f"evaluate: {n} of 10 completions\n" for n in (3, 5, 8))
    evaluate(scripted(*"1111111111", rows=1), [{"prompt": "?"}] * 10, max_new_tokens=2000)
    assert capsys.readouterr().out == "", "a short one"


def test_accuracy_is_the_share_of_answers_asserted_after_the_thought():
    # the second does not close its thought, the fourth is wrong
    texts = ("<think>\n</think>\n\n1", "<think>2", "3", "The answer is 5.")
    result = evaluate(scripted(*texts), QUESTIONS.to_iterable_dataset())
    assert (result.accuracy, result.reward) == (wilson(2, 4), None)
    assert result.correct == (True, False, True, False)
    cut = evaluate(scripted(*"1234", finished=False), QUESTIONS)
    assert (cut.accuracy, cut.truncated) == (wilson(0, 4), 1.0)
    assert evaluate(scripted(*"1234"), QUESTIONS.remove_columns("answer")).accuracy is None


def test_completions_of_one_prompt_count_as_one_value_and_the_method_is_named():
    texts = "111999399444"  # right: 3, 0, 1 and 3 of 3
    reward = returns(*map(float, texts))
    result = evaluate(scripted(*texts), QUESTIONS, reward, samples=3, greedy=False)
    assert result.accuracy == bootstrap([1.0, 0.0, 1 / 3, 1.0])
    assert result.reward == bootstrap([1.0, 9.0, 7.0, 4.0])
    assert result.correct[6:9] == (True, False, False)
    assert "12, sampled, 3 per prompt" in str(result)
    assert str(result).count("(95 %, bootstrap over prompts)") == 2
    reward = returns(1.0, 1.0, 0.0, None, None, None, 0.0, 1.0)  # a prompt is one value, however many are scored
    result = evaluate(scripted(*"11223344"), QUESTIONS, reward, samples=2, greedy=False)
    assert result.reward == bootstrap([1.0, 0.0, 0.5])
    assert "accuracy     1.000 (no interval: no spread)\n" in str(result)
    one_each = str(evaluate(scripted(*"1294"), QUESTIONS, returns(1.0, 2.0, 9.0, 4.0)))
    assert ("(95 %, Wilson)" in one_each, "(95 %, bootstrap)" in one_each) == (True, True)


def test_rewards_are_called_with_trls_keywords_and_weighed_as_in_training():
    seen = {}

    def first(completions, answer, **kwargs):
        seen.update(kwargs, completions=completions, answer=answer)
        return [1.0, None, 1.0, None]

    async def second(completions, **kwargs):
        return [0.5, 0.5, None, None]

    questions = QUESTIONS.add_column("completion", list("abcd"))  # TRL does not pass such a column to rewards
    result = evaluate(scripted(*"1234"), questions, [first, second])
    assert {"prompts", "completion_ids", "trainer_state", "log_extra", "log_metric"} <= set(seen)
    assert "completion" not in seen
    assert seen["completions"][0] == [{"role": "assistant", "content": "1"}]
    assert result.rewards == (1.5, 0.5, 1.0, None)
    assert result.reward_means == {"first": 1.0, "second": 0.5}
    assert result.reward == bootstrap([1.5, 0.5, 1.0])
    exact = [lambda completions, **kwargs: [float(completions == ["2"])]]
    plain = evaluate(scripted("2"), [{"prompt": "1 + 1 =", "answer": "2"}], exact)
    assert plain.rewards == (1.0,), "a plain prompt gets a plain completion"
    twice = [returns(*[1.0] * 4), returns(*[2.0] * 4)]
    result = evaluate(scripted(*"1234"), QUESTIONS, twice, reward_weights=[1.0, 0.0])
    assert (result.reward_means, result.rewards) == ({"reward": 1.0, "reward_2": 2.0}, (1.0,) * 4)
    with pytest.raises(RewardError, match=r"1 reward_weights for 2[\s\S]*evaluate\(reward_weights=\[1.0\]\)"):
        evaluate(scripted(*"1234"), QUESTIONS, twice, reward_weights=[1.0])
    with pytest.raises(RewardValueError, match="inf"):
        evaluate(scripted(*"1234"), QUESTIONS, returns(*[math.inf] * 4))


def test_the_tiny_policy_is_measured_on_its_held_out_problems(task, policy):
    greedy = evaluate(policy, task, right_after_thought, max_new_tokens=32)
    assert greedy.accuracy is not None
    assert 0.25 < greedy.accuracy.value < 0.8
    assert len(greedy.completions) == len(task.held_out)
    sampled = evaluate(policy, task, task.correct, n=4, samples=3, greedy=False, max_new_tokens=32)
    assert sampled.accuracy == sampled.reward, "the task's own reward is the judge"
    unknown = [{"prompt": [{"role": "human", "content": "1 + 1?"}], "answer": "2"}]
    with pytest.raises(DatasetError, match=r"leaves out the prompt's last message, of role 'human'"):
        evaluate(policy, unknown)
    begun = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "<think>Two.</think>It is"}]
    assert evaluate(policy, [{"prompt": begun, "answer": "2"}], max_new_tokens=2).truncated == 1.0


def test_answers_are_graded_by_answer_reward_and_rows_that_it_cannot_judge_are_not_counted():
    solutions = ("1 + 2 = 3.\n#### 3", r"So $\boxed{2}$", "Paris")  # right, wrong, a word
    rows = [*({"prompt": "?", "answer": answer} for answer in solutions), {"prompt": "no answer?"}]
    result = evaluate(scripted("3", "5", "Paris", "7"), rows)
    assert result.correct == (True, False, None, None)
    assert "(95 %, Wilson), of 2 completions" in str(result)


def test_words_are_graded_by_the_reward_that_was_given_without_a_warning(recwarn):
    def mine(completions, **kwargs):
        return [float(text == "Rome") for text in completions]

    mine.judges = "answer"
    rows = [{"prompt": "The capital of France?", "answer": "Paris"}] * 2
    words, pays_two = rewards.answer_reward("exact"), rewards.answer_reward("exact", right=2.0, wrong=-1.0)
    for reward, correct in ((words, (True, False)), (pays_two, (True, False)), (mine, (False, True))):
        assert evaluate(scripted("Paris", "Rome"), rows, reward).correct == correct
    assert evaluate(scripted("Paris", "Rome"), rows, correct=words).accuracy == wilson(1, 2)
    assert evaluate(scripted("Paris", "Rome"), rows).accuracy is None, "no number, and no reward was given"
    assert not recwarn.list


BEFORE = {
    "no policy": ({"policy": "tiny"}, "load_policy"),
    "no rows": ({"dataset": QUESTIONS.select([])}, "nothing to evaluate"),
    "no prompts": ({"dataset": QUESTIONS.remove_columns("prompt")}, "no column 'prompt'"),
    "a row without a prompt": ({"dataset": [*QUESTIONS, {"answer": "1"}]}, "a row with the columns answer"),
    "all splits": ({"dataset": DatasetDict(test=QUESTIONS)}, r"dataset\['test'\]"),
    "a list of strings": ({"dataset": ["1 + 1"]}, "from_list"),
    "a switch as text": ({"greedy": "no"}, "greedy"),
    "an empty prompt": ({"dataset": [{"prompt": ""}]}, r"prompt is empty[\s\S]*dataset\[0\]"),
    "no **kwargs": ({"reward_funcs": lambda completions: []}, r"add \*\*kwargs"),
    "no column": ({"reward_funcs": lambda completions, hint, **kwargs: []}, r"requires 'hint'[\s\S]*it has answer"),
    "a reward model's name": ({"reward_funcs": "owner/judge"}, r"rewards.reward_model\('owner/judge'\)"),
    "a reward model": ({"reward_funcs": torch.nn.Linear(1, 1)}, r"rewards.reward_model\(model, tokenizer="),
    "weights of nothing": ({"reward_weights": [1.0]}, "1 reward_weights for 0"),
    "room for nothing": ({"dataset": QUESTIONS.remove_columns("answer"), "room": 4}, "tells right from wrong"),
    "several greedy samples": ({"samples": 8}, r"evaluate\(samples=8, greedy=True\)[\s\S]*greedy=False"),
}
"""Case -> the arguments of evaluate, and its message before it samples."""


@pytest.mark.parametrize("case", BEFORE)
def test_what_cannot_be_measured_is_said_before_anything_is_sampled(case):
    given, says = BEFORE[case]
    with pytest.raises((ValueError, TypeError), match=says):
        evaluate(**{"policy": scripted(), "dataset": QUESTIONS, **given})


def test_an_evaluation_says_what_it_was_measured_with():
    how = {"greedy": False, "max_new_tokens": 64, "temperature": 0.7, "reward_weights": [2.0]}
    result = evaluate(scripted(*"1234"), QUESTIONS, returns(0.0, 0.0, 0.0, 0.0), **how)
    by = {"rewards": {"reward": 2.0}, "correct": "answer_reward", "max_new_tokens": 64, "thinking": True}
    assert result.settings == {**by, **SAMPLING, "temperature": 0.7}
    defaults = {name: one.default for name, one in inspect.signature(Policy.generate).parameters.items()}
    assert defaults.items() >= SAMPLING.items()
    greedy = evaluate(scripted(*"1234"), QUESTIONS)
    assert "temperature" not in greedy.settings, "the most probable token each time"


def test_with_room_what_was_cut_goes_on_from_where_it_stopped(task, policy):
    cut = evaluate(policy, task, max_new_tokens=16, room=2)  # from the beginning again, none would end
    whole = evaluate(policy, task, max_new_tokens=32)
    assert cut.truncated > 0.5, "a thought of the tiny policy is longer"
    assert (cut.correct_with_room, cut.truncated_with_room) == (whole.correct, whole.truncated)
    assert cut.accuracy.value < cut.accuracy_with_room.value == whole.accuracy.value
    assert re.search(r"\n  with room  +0\.\d+ \[.*Wilson\), 2 times the length, \d+% cut\n", str(cut))
    assert whole.accuracy_with_room is None
    assert "room" not in str(whole)
    assert "accuracy with room +0.000" in compare(cut, cut).headline
    assert compare(cut, evaluate(policy, task, max_new_tokens=16)).accuracy_change.value == 0, "room only adds"
    assert compare(replace(cut, settings={}), replace(whole, settings={})).accuracy_with_room_change is None
    with pytest.raises(ConfigError, match="differ in room"):
        compare(cut, replace(cut, settings={**cut.settings, "room": 4}))


def test_a_sampled_completion_keeps_what_it_began_with(task, policy):
    prompts = task.held_out["prompt"][:8]
    first = policy.generate(prompts, n=2, max_new_tokens=10, seed=1)
    cut = [completion for completion in first if not completion.finished]
    more = policy.generate([c.prompt for c in cut], begun=[c.ids for c in cut], max_new_tokens=30, seed=2)
    assert cut
    for begun, longer in zip(cut, more, strict=True):
        assert (longer.ids[:10], longer.text.startswith(begun.text)) == (begun.ids, True)
        assert 10 < len(longer.ids) <= 40
    result = evaluate(policy, task, n=8, samples=2, greedy=False, max_new_tokens=10, room=4, seed=1)
    assert all(r for r, c in zip(result.correct_with_room, result.correct, strict=True) if c)
    assert result.truncated_with_room < result.truncated
    unseeded = evaluate(policy, task, n=1, samples=2, greedy=False, max_new_tokens=2, room=2, seed=None)
    assert [len(completion.ids) for completion in unseeded.completions] == [2, 2], "cut, and continued all the same"
    with pytest.raises(ConfigError, match=r"reach \d+ tokens, and the policy was loaded for 4096[\s\S]*room=2000"):
        evaluate(policy, task, max_new_tokens=8, room=2000)


def sampled(samples, *correct):
    return Evaluation(None, None, {}, 1.0, 0.0, (), (), samples=samples, correct=correct)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_pass_at_k_is_the_share_of_all_draws_of_k_that_hold_a_right_one(k):
    prompts = ((True, False, False, False), (False,) * 4, (True, True, False, True))
    draws = [statistics.fmean(any(some) for some in itertools.combinations(one, k)) for one in prompts]
    assert sampled(4, *sum(prompts, ())).pass_at(k).value == pytest.approx(statistics.fmean(draws))


def test_the_interval_of_pass_at_k_is_over_prompts():
    interval = sampled(2, *(True, False, False, False, True, True) * 20).pass_at(2)
    assert interval.low < 2 / 3 < interval.high
    assert interval.high - interval.low == pytest.approx(4 * (2 / 9 / 60) ** 0.5, rel=0.15)


@pytest.mark.parametrize(("correct", "k"), [((True, True), 3), ((True, True), 0), ((True, None), 1)])
def test_more_completions_than_there_are_or_ungraded_ones_are_refused(correct, k):
    with pytest.raises(ConfigError, match="pass@k needs k graded completions"):
        sampled(2, *correct).pass_at(k)
