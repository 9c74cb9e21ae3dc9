"""guarded: the values that may reach TRL, and those refused before they do harm."""

import asyncio
import functools
import inspect
import pickle
import re
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import rewards
from rewards import RewardCallError, RewardSignatureError, RewardValueError, clipped, guarded


class Returns:
    """A picklable reward that returns what it was made with."""

    __name__ = "returns"

    def __init__(self, value):
        self.value = value

    def __call__(self, completions, **kwargs):
        return self.value


GOOD = [
    ([None, 1e6], [None, 1e6]),
    ((1, True), [1.0, 1.0]),
    ([np.float32(0.5), np.bool_(True)], [0.5, 1.0]),
    (np.array([1, 2]), [1.0, 2.0]),
]


def test_good_values_pass_as_plain_floats():
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor([1.0, 0.5], requires_grad=True), [torch.tensor(1), torch.tensor(0.5)]]
    for returned, expected in [*GOOD, *((values, [1.0, 0.5]) for values in tensors)]:
        scores = guarded(Returns(returned))(prompts=["p", "p"], completions=["a", "b"])
        assert scores == expected
        assert {type(score) for score in scores} <= {float, type(None)}


BAD = {
    "forgot to return": (None, None, "returned None"),
    "a dict, whose keys TRL takes for the rewards": ({"a": 1.0, "b": 2.0}, None, "(dict), not a list"),
    "a string as long as the batch": ("ab", None, "(str), not a list"),
    "one number for the batch": (1.0, None, "(float), not a list"),
    "too many": ([1.0, 2.0, 3.0], None, "3 values for 2 completions"),
    "strings": ([1.0, "1"], 1, "real number"),
    "NaN, which TRL reads as None": ([float("nan"), 0.0], 0, "NaN"),
    "inf, which turns every weight into NaN": (np.array([0.0, np.inf]), 1, "finite"),
    "1e30, whose gradient is infinite": ([1e30, 0.0], 0, "1e+06"),
}


@pytest.mark.parametrize(("returned", "sample", "says"), BAD.values(), ids=BAD)
def test_bad_values_are_refused_by_name_and_sample(returned, sample, says):
    with pytest.raises(RewardValueError) as caught:
        guarded(Returns(returned))(completions=["a", "b"])
    error = pickle.loads(pickle.dumps(caught.value))
    assert (type(error), str(error)) == (RewardValueError, str(caught.value))
    assert (error.reward_name, error.sample) == ("returns", sample)
    what, where, todo = str(error).splitlines()
    assert says in what
    assert (where[:23], todo[:12]) == ("Where: reward 'returns'", "What to do: ")


def test_an_exception_keeps_the_rewards_own_traceback_and_an_interrupt_passes_through():
    def broken(completions, answer, **kwargs):
        raise answer[0]

    says = r"'broken'(.|\n)*at line \d+ of broken in test_trl_interface.py\.$"
    with pytest.raises(RewardCallError, match=says) as caught:
        guarded(broken)(completions=chats("4"), answer=[ZeroDivisionError()])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert inspect.getinnerframes(caught.value.__cause__.__traceback__)[-1].function == "broken"
    with pytest.raises(KeyboardInterrupt):
        guarded(broken)(completions=["a"], answer=[KeyboardInterrupt()])


def chats(*texts):
    return [[{"role": "assistant", "content": text}] for text in texts]


# what the reward reads of a completion, the completions, and the error's words about them
TOOK_FOR = [
    (lambda c, given: re.search("4", c), chats("4"), "lists of messages"),
    (lambda c, given: c[0]["content"], ["4"], "completions are strings here"),
    (lambda c, given: given["solution"], ["4"], "rewards get the columns ['answer', 'level']"),
]


@pytest.mark.parametrize(("read", "completions", "says"), TOOK_FOR)
def test_a_reward_that_mistakes_what_it_gets_is_told_what_that_is(read, completions, says):
    def reward(completions, **kwargs):
        return [float(bool(read(completion, kwargs))) for completion in completions]

    with pytest.raises(RewardCallError) as caught:
        guarded(reward)(prompts=["p"], completions=completions, level=[1], answer=["4"], trainer_state=None)
    assert says in str(caught.value).splitlines()[2]


def needs_solution(completions, **kwargs):
    return [float(one == "3") for one in kwargs["solution"]]


needs_solution.columns = ("solution",)


def test_a_reward_edits_its_own_lists_and_gets_what_cannot_be_copied():
    def edits(prompts, completions, completion_ids, embedding, tags, locks, **kwargs):
        prompts[0][0]["content"] = completions[0][0]["content"] = ""
        completion_ids[0].clear()
        embedding[0][:] = 0
        tags[0]["of"].append("edited")
        return [float(locks[0].locked())]

    given = {"prompts": chats("2 + 2?"), "completions": chats("4"), "completion_ids": [[1]]}
    given |= {"embedding": [np.ones(2)], "tags": [{"of": ["sums"]}], "locks": [threading.Lock()]}
    before = repr(given)
    assert guarded(edits)(**given) == [0.0]
    assert repr(given) == before


def test_an_async_reward_stays_async_and_is_guarded():
    class Judge:
        async def __call__(self, completions, **kwargs):
            await asyncio.sleep(0)
            return [1, float("inf")] if len(completions) == 2 else [1]

    guard = guarded(Judge())
    assert rewards.trl_interface.is_async(guard)
    assert guard.__name__ == "Judge"
    assert asyncio.run(guard(completions=["a"])) == [1.0]
    with pytest.raises(RewardValueError) as caught:
        asyncio.run(guard(completions=["a", "b"]))
    assert caught.value.sample == 1


# The process has one event loop, which neither an error nor an interruption ends.
ONE_AT_A_TIME = asyncio.Semaphore(1)


async def judge(completions, **kwargs):
    async with ONE_AT_A_TIME:
        await asyncio.sleep(0)
        return [1.0 for _ in completions]


def test_a_judges_limit_holds_from_step_to_step_and_from_thread_to_thread():
    reward = clipped(judge)
    given = {"prompts": ["?"] * 2, "completions": ["a", "b"]}
    with ThreadPoolExecutor(2) as pool:
        for call in (reward, reward, lambda **given: pool.submit(reward, **given).result()):
            assert call(**given) == [1.0, 1.0]

    async def notebook():
        return reward(**given)

    assert asyncio.run(notebook()) == [1.0, 1.0], "inside a running loop"


def test_an_interruption_ends_the_wait_and_what_was_waited_for(interruptible):
    ended = threading.Event()

    async def slow(completions, **kwargs):
        main = threading.main_thread().ident
        try:
            while sys._current_frames()[main].f_code.co_name != "wait":
                await asyncio.sleep(0.01)
            signal.pthread_kill(main, signal.SIGINT)
            await asyncio.sleep(30)
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        clipped(slow)(completions=["a"])
    assert ended.wait(60)


def test_a_guard_keeps_the_name_pickles_is_not_guarded_again_and_has_a_limit():
    assert guarded(Returns([1e7]), limit=1e8)(completions=["a"]) == [1e7]
    with pytest.raises(rewards.RewardValueError, match="must not exceed 10"):
        guarded(guarded(Returns([100.0])), limit=10)(completions=["a"])
    with pytest.raises(ValueError, match="limit must be positive"):
        guarded(Returns([2.0]), limit=0)
    guard = pickle.loads(pickle.dumps(guarded(Returns([1.0]))))
    assert guarded(guard) is guard
    assert (guard.__name__, guard(completions=["a"])) == ("returns", [1.0])
    assert guarded(functools.partial(Returns([1.0]))).__name__ == "returns"
    nan = guarded(Returns([float("nan")]))
    with pytest.raises(RewardValueError, match="'returns'"):  # the inner guard names its own function
        guarded(lambda completions, **kwargs: nan(completions=completions))(completions=["a"])


def names_all_six(prompts, completions, completion_ids, trainer_state, log_extra, log_metric):
    return [0.0 for _ in completions]


def wants_solution(completions, solution, **kwargs):
    return [0.0 for _ in completions]


# the reward, plain or composed; the dataset's columns (None: unknown); the error's message (None: it is accepted)
SIGNATURES = [
    (lambda prompts, completions: [], None, r"unexpected keyword argument 'completion_ids', which TRL passes"),
    ("accuracy_reward", None, "must be callable"),
    (Returns, None, r"(?s)Returns is a class.*an instance, Returns\(\.\.\.\)"),
    (names_all_six, None, None),
    (names_all_six, ["answer"], r"'answer'[\s\S]*add \*\*kwargs"),
    (wants_solution, ["solution"], None),
    (wants_solution, ["answer"], r"requires 'solution'[\s\S]*\(it has answer\)"),
    (needs_solution, None, None),
    (needs_solution, [], "no column besides the prompts"),
    (functools.partial(needs_solution), ["answer"], "requires 'solution'"),
    (rewards.gated(by=needs_solution, reward=len), ["answer"], "requires 'solution'"),
    (rewards.only_for(needs_solution, level=1), ["solution"], "requires 'level'"),
]


@pytest.mark.parametrize(("reward", "columns", "says"), SIGNATURES)
def test_what_trl_cannot_call_with_these_columns_is_refused_before_any_call(reward, columns, says):
    if says is None:
        assert guarded(reward, columns=columns).__name__ == reward.__name__
        return
    with pytest.raises(RewardSignatureError, match=says) as caught:
        guarded(reward, columns=columns)
    assert isinstance(caught.value, TypeError)
