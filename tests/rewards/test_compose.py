"""Weighing, gating, clipping, restricting and caching, nested in each other."""

import pickle

import numpy as np
import pytest

import rewards
from rewards import cached, clipped, compose, gated, only_for, scaled, weighted
from rewards.trl_interface import full_score, judges_of


class Scores:
    """A picklable reward that looks its scores up by completion, and counts its calls."""

    def __init__(self, name, table):
        self.__name__, self.table, self.seen = name, table, []

    def __call__(self, completions, log_extra=None, **kwargs):
        self.seen.append(list(completions))
        if log_extra is not None:
            log_extra(self.__name__, list(completions))
        return [self.table[completion] for completion in completions]


A = Scores("a", {"x": 1.0, "y": 0.0, "z": None})
B = Scores("b", {"x": 2.0, "y": 4.0, "z": None})
C = Scores("c", {"x": None, "y": -3.0, "z": 5.0})
XYZ = ["x", "y", "z"]

TABLE = {
    "a sum": (lambda: weighted([A, B]), [3.0, 4.0, None], "1*a+1*b"),
    "weights": (lambda: weighted([A, B], [0.5, -1.0]), [-1.5, -4.0, None], "0.5*a-1*b"),
    "None drops out of the sum": (lambda: weighted([A, C]), [1.0, -3.0, 5.0], "1*a+1*c"),
    "a closed gate pays otherwise": (lambda: gated(by=A, reward=B, otherwise=-1.0), [2.0, -1.0, None], "b if a"),
    "a gate higher up": (lambda: gated(by=B, reward=A, above=3.0), [0.0, 0.0, None], "a if b"),
    "clipped": (lambda: clipped(B, 0.0, 3.0), [2.0, 3.0, None], "clipped(b)"),
    "scaled": (lambda: scaled(C, 2.0, 1.0), [None, -5.0, 11.0], "2*c+1"),
    "clipped, of any magnitude": (lambda: clipped(Scores("d", {"x": 5e6, "y": -float("inf"), "z": None})),
                                  [1.0, -1.0, None], "clipped(d)"),
    "nested": (lambda: clipped(weighted([A, gated(by=A, reward=B)]), 0, 2), [2.0, 0.0, None],
               "clipped(1*a+1*b if a)"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "scores", "name"), TABLE.values(), ids=TABLE)
def test_compositions_score_name_and_pickle(make, scores, name):
    reward = make()
    assert reward(completions=XYZ) == scores
    assert reward.__name__ == name
    assert pickle.loads(pickle.dumps(reward))(completions=XYZ) == scores
    rewards.check_signature(reward)


FULL = [
    (rewards.guarded, 0.5),
    (cached, 0.5),
    (lambda reward: only_for(reward, kind="word"), 0.5),
    (lambda reward: clipped(reward, high=0.25), 0.25),
    (lambda reward: scaled(reward, 2.0, 1.0), 2.0),
    (lambda reward: scaled(reward, -1.0), None),
    (lambda reward: weighted([reward]), None),
]


@pytest.mark.parametrize(("wrap", "full"), FULL)
def test_a_wrapped_reward_tells_right_from_wrong_as_the_reward_itself_does(wrap, full):
    wrapped = wrap(rewards.answer_reward("exact", form="whole", right=0.5, wrong=0.0))
    assert (full_score(wrapped), judges_of(wrapped)) == (full, "answer")
    assert full in (None, *wrapped(completions=["yes"], answer=["yes"], kind=["word"]))


def test_only_for_and_a_gate_call_the_reward_with_their_rows_alone():
    inner = Scores("inner", {"x": 1.0, "z": 3.0})
    reward = only_for(inner, kind=["math", "logic"])
    logged = {}
    scores = reward(completions=XYZ, kind=["math", "prose", "logic"], log_extra=logged.__setitem__)
    assert scores == [1.0, None, 3.0]
    assert inner.seen == [["x", "z"]]
    assert logged == {"inner": ["x", None, "z"]}
    assert reward.__name__ == "inner[kind=logic|math]"
    assert reward(completions=XYZ, kind=["prose"] * 3) == [None, None, None]
    assert len(inner.seen) == 1, "no rows, no call"
    with pytest.raises(rewards.RewardValueError, match="no column 'kind'"):
        reward(completions=XYZ, answer=["1", "2", "3"])
    inner = Scores("inner", {"x": None})
    assert gated(by=A, reward=inner, otherwise=-1.0)(completions=XYZ) == [None, -1.0, None]
    assert inner.seen == [["x"]]


def test_cached_computes_each_completion_once():
    inner = Scores("inner", {"x": 1.0, "y": 0.0, "z": None})
    reward = cached(inner)
    call = {"completions": ["x", "y", "x"], "completion_ids": [[1], [2], [1]], "answer": ["p", "p", "p"]}
    assert reward(**call) == reward(**call) == [1.0, 0.0, 1.0]
    assert inner.seen == [["x", "y"]] or inner.seen == [["y", "x"]]
    reward(**call | {"answer": ["q", "p", "p"]})
    assert len(inner.seen) == 2, "another gold answer is another row"
    reward(**call | {"completion_ids": [[3], [2], [1]]})
    assert len(inner.seen) == 3, "other ids are another row"
    arrays = [np.eye(1, 3000, at) for at in (0, 1500)]  # which repr shortens to the same text
    reward(completions=["x", "x"], column=arrays)
    assert inner.seen[-1] == ["x", "x"]


def test_cached_keeps_so_many_scores_the_newest(monkeypatch):
    monkeypatch.setattr(compose, "CACHED", 2)
    inner = Scores("inner", {"x": 1.0, "y": 0.0, "z": None})
    reward = cached(inner)
    assert [reward(completions=[one]) for one in "xyzzyx"] == [[1.0], [0.0], [None], [None], [0.0], [1.0]]
    assert inner.seen == [["x"], ["y"], ["z"], ["x"]]


def test_the_parts_of_a_sum_are_logged_and_a_member_that_returns_nan_is_named():
    logged = {}
    weighted([A, C], name="sum")(completions=XYZ, log_metric=logged.__setitem__)
    assert logged == {"sum/a": 0.5, "sum/c": 1.0}
    broken = Scores("broken", {"x": float("nan")})
    with pytest.raises(rewards.RewardValueError, match="'broken'"):
        weighted([A, broken])(completions=["x"])


REFUSED = [
    (lambda: weighted([A, B], [1.0]), "2 rewards need as many"),
    (lambda: weighted([A], [float("nan")]), "finite weights"),
    (lambda: weighted([Scores]), "Scores is a class"),
    (lambda: clipped(A, 1.0, 1.0), "low must be below high"),
    (lambda: scaled(A, float("inf")), "finite"),
    (lambda: only_for(A), "No column"),
]


@pytest.mark.parametrize(("make", "says"), REFUSED)
def test_bad_compositions_are_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()
