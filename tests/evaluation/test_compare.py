"""compare: completions of the same prompts, before and after, side by side."""

from dataclasses import replace

import pytest

import rloo_kit
from rewards import ThinkTokens
from rloo_kit.errors import ConfigError, DatasetError
from rloo_kit.evaluation.compare import compare, marked
from rloo_kit.evaluation.evaluate import SAMPLING, Evaluation
from rloo_kit.evaluation.intervals import bootstrap
from rloo_kit.policy.policy import Completion

OPEN, CLOSE, END = 151667, 151668, 151645


def completion(prompt, text, ids=(1, END)):
    return Completion(prompt, text, ids, finished=True)


def evaluation(*rows, correct=(), samples=1):
    """Return an evaluation of rows (prompt, text, reward)."""
    completions = tuple(completion(prompt, text) for prompt, text, _ in rows)
    rewards = tuple(reward for _, _, reward in rows)
    return Evaluation(None, None, {}, 2.0, 0.0, completions, rewards, samples=samples, correct=correct)


def test_the_largest_rise_of_the_reward_comes_first_then_the_largest_fall():
    before = evaluation(("a", "x", 0.5), ("b", "x", 1.0), ("c", "x", 0.0), ("another prompt", "x", None))
    after = evaluation(("a", "y", 0.6), ("b", "y", 0.1), ("c", "y", 0.5), ("another prompt", "y", 1.0))
    result = rloo_kit.compare(before, after, n=2)
    assert [pair.prompt for pair in result.pairs] == ["c", "b", "a", "another prompt"]
    assert (result.pairs[1].change, result.pairs[3].change) == (pytest.approx(-0.9), None)
    means = "mean reward -0.100 [-0.900, +0.500] (after - before, 95 % bootstrap over prompts)"
    assert (
        result.headline
        == f"4 pairs, 3 of them scored before and after; {means}; reward rose on 2, fell on 1, stayed on 0; 2 shown"
    )
    assert ("another prompt" in str(result), str(result).count("before: ")) == (False, 2)
    assert "reward rose on 0, fell on 0, stayed on 3; 4 shown" in rloo_kit.compare(before, before).headline
    without = evaluation(("a", "same", None), ("b", "old", None))
    changed = replace(without, completions=(without.completions[0], completion("b", "new", (2, END))))
    result = compare(without, changed)
    assert [pair.prompt for pair in result.pairs] == ["b", "a"], "the one whose tokens changed"
    assert (result.headline, "no reward" in str(result)) == ("2 pairs; 2 shown", True)
    graded = [replace(without, correct=right) for right in ((True, False), (False, True))]
    assert [pair.prompt for pair in compare(*graded).pairs] == ["b", "a"], "what is right now, then what was"


def test_the_change_of_the_means_is_that_of_the_prompts_own_differences():
    before = evaluation(*zip("012", "xxx", (0.1, 0.9, 0.4), strict=True), correct=(False, True, None))
    after = evaluation(*zip("012", "yyy", (0.3, 0.9, 0.9), strict=True), correct=(True, True, True))
    result = compare(before, after)
    changes = [pair.change for pair in result.pairs if pair.change is not None]
    assert changes == pytest.approx([0.5, 0.2, 0.0])
    assert result.reward_change == bootstrap(changes)
    assert result.accuracy_change == bootstrap([1.0, 0.0])  # the third was not graded before
    assert "accuracy +0.500 [+0.000, +1.000] (after - before, 95 % bootstrap" in result.headline
    # several completions of a prompt give one difference
    before = evaluation(*zip("aabb", "xxxx", (0.0,) * 4, strict=True), samples=2)
    after = evaluation(*zip("aabb", "yyyy", (1.0, 0.0, 0.0, 0.0), strict=True), samples=2)
    assert compare(before, after).reward_change == bootstrap([0.5, 0.0])
    before, after = (evaluation(("a", "x", r), ("b", "x", r)) for r in (0.0, 1.0))
    assert "mean reward +1.000 (no interval: no spread) (after - before);" in compare(before, after).headline


def test_the_same_prompts_in_another_order_are_refused():
    before, after = (evaluation(*((prompt, "x", 0.0) for prompt in order)) for order in ("ab", "ba"))
    with pytest.raises(DatasetError, match="the same rows in the same order"):
        compare(before, after)


THOUGHT = completion("p", "<think>\n1+1=2\n</think>\n\n2", (OPEN, 16, 10, CLOSE, 17, END))
MARKED = [
    (THOUGHT, "«<think>»\n1+1=2\n«</think>»\n\n2«<|im_end|>»"),
    (completion("p", "</think> 4", (9, 9, END)), "</think> 4«<|im_end|>»"),  # all typed as letters
    (completion("p", "</think> </think>", (CLOSE, 9, 7)), "</think> </think> [end]"),  # the second typed as letters
    (Completion("p", "7+1=8", (1, 2, 3), finished=False), "7+1=8 [cut at 3 tokens]"),
]


@pytest.mark.parametrize(("case", "shown"), MARKED)
def test_boundaries_that_are_tokens_are_marked_and_so_is_the_end(case, shown):
    assert marked(case) == shown
    other = marked(completion("p", "<think>a</think>b", (7, 1, 8, 2)), ThinkTokens(7, 8))
    assert other == "«<think>»a«</think>»b [end]"


def test_html_and_control_characters_are_shown_and_neither_run_nor_obeyed():
    attack = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    shown = compare(evaluation((attack, attack, 0.0)), evaluation((attack, attack, 1.0)))._repr_html_()
    assert ("<script" in shown, "<img" in shown) == (False, False)
    assert shown.count("&lt;script&gt;alert(1)") == 3
    shown = compare(evaluation(("p", "\x1b[2Jgone", 0.0)), evaluation(("p", "\u202eflipped", 1.0))).text(80)
    assert ("\\x1b[2Jgone" in shown, "\\u202eflipped" in shown, "\x1b" in shown) == (True, True, False)


def test_a_conversation_is_shown_by_what_the_user_asked_last():
    turns = [{"role": "user", "content": "Who wrote it?"}, {"role": "tool", "content": "a page of results"}]
    shown = str(compare(evaluation((turns, "x", 0.0)), evaluation((turns, "y", 1.0))))
    assert ("\nWho wrote it?\n" in shown, "results" in shown) == (True, False)


def test_a_long_thought_loses_its_middle_and_keeps_its_boundary():
    text = "<think>" + "a" * 5000 + "</think>" + "the answer"
    before = Evaluation(None, None, {}, 0, 0, (completion("p", text, (OPEN, 1, CLOSE, 2, END)),), (0.0,))
    result = compare(before, evaluation(("p", "2", 1.0)), chars=100)
    for shown in (result.text(200), result._repr_html_()):
        assert "4900 characters" in shown
        assert "«</think>»the answer" in shown.replace("&lt;", "<").replace("&gt;", ">")
    assert max(map(len, result.text(60).splitlines())) <= 60


def test_evaluations_of_other_prompts_and_what_is_not_one_are_refused():
    a, b = (evaluation((prompt, "x", 0.0)) for prompt in "ab")
    with pytest.raises(DatasetError, match=r"not of the same prompts in the same order[\s\S]*1 after"):
        compare(a, b)
    with pytest.raises(ConfigError, match="n must be greater than or equal to 0"):
        compare(a, a, n=-1)
    with pytest.raises(DatasetError, match="before is not an evaluation"):
        compare("policy", b)


def measured(**changed):
    """Return an evaluation that is sampled and has one reward, unless changed."""
    settings = {"rewards": {"right": 1.0}, "correct": "answer_reward", "max_new_tokens": 64, **SAMPLING}
    settings |= changed.pop("settings", {})
    return replace(evaluation(("a", "x", 0.0)), settings=settings, **{"greedy": False, **changed})


UNLIKE = [
    ({"settings": {"rewards": {"right": 1.0, "form": 1.0}}}, "'form': 1.0} after"),  # it gained the form's reward
    ({"settings": {"rewards": {"right": 2.0}}}, "rewards={'right': 1.0} before"),
    ({"settings": {"max_new_tokens": 128}}, "max_new_tokens=64 before and 128 after"),
    ({"settings": {"temperature": 0.7}}, "temperature=1.0 before and 0.7 after"),
    ({"greedy": True}, "greedy=False before and True after"),
    ({"samples": 4}, "samples=1 before and 4 after"),
    ({"settings": {"correct": "other"}}, "correct='answer_reward' before and 'other' after"),
]


@pytest.mark.parametrize(("changed", "said"), UNLIKE)
def test_the_same_policy_measured_in_two_ways_has_not_gained_anything(changed, said):
    with pytest.raises(ConfigError, match=f"(?s){said}.*What to do: evaluate both with the same") as refused:
        compare(measured(), measured(**changed))
    assert len(str(refused.value).splitlines()) == 3


def test_what_makes_no_difference_is_compared():
    without_rewards = measured(settings={"rewards": {}})  # without rewards none is compared
    assert len(compare(measured(), without_rewards).pairs) == 1
    assert len(compare(measured(), replace(measured(), settings={})).pairs) == 1, "nothing is known of it"
