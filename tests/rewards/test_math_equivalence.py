"""Algebra in its own processes: hard expressions are stopped, a dead server is replaced, nothing is asked twice."""

from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

import rewards
from rewards import answer_reward, answers, math_equivalence
from tests.conftest import ROOT, python

EXPLOSIVE = ["9^{9^{9^{9}}}", "9^9^9^9", "99999!", "(9!)!", "2^{99999999}", "x+" * 5000 + "x", "10**10**10"]


def test_an_expression_that_is_sure_to_be_killed_gets_no_process(monkeypatch):
    monkeypatch.setattr(answers, "equals", lambda pairs: pytest.fail("asked") if list(pairs) else {})
    texts = [rf"\boxed{{{expression}}}" for expression in EXPLOSIVE]
    assert answer_reward("math")(completions=texts, answer=["x^2+1"] * len(texts)) == [0.0] * len(texts)


def test_a_hard_expression_is_not_equal_and_an_easy_one_beside_it_is_judged():
    """Such an expression would compute for minutes, and gets one second of a core."""
    math_equivalence.equals([("x+1", "1+x")])  # starts the server
    server, hard = psutil.Process(math_equivalence._server().pid), r"\int_0^{%d} \sin(x^{x^x}) e^{x^2} \cos(x)\,dx"
    before = server.cpu_times().children_user
    pairs = [("x^2+1", hard % n) for n in range(1, 6)] + [("x^2+1", "1+x^2")]
    assert list(math_equivalence.equals(pairs).values()) == [False] * 5 + [True]
    assert [pair in math_equivalence._known for pair in pairs] == [False] * 5 + [True]
    assert server.cpu_times().children_user - before < 30


def test_a_server_that_dies_is_replaced_and_what_was_found_is_remembered(monkeypatch):
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(math_equivalence.equal, ["a+b"] * 4, ["b+a"] * 4)), "off the main thread"
    server = math_equivalence._server()
    server.kill()
    server.wait()
    assert math_equivalence.equal("a+b+c", "c+b+a")
    monkeypatch.setattr(math_equivalence, "_graded", lambda pairs: pytest.fail("asked again"))
    assert math_equivalence.equal("a+b", "b+a")


@pytest.fixture
def restarted():
    """Restart the server for the test, and after it."""
    math_equivalence._stop()
    yield
    math_equivalence._stop()


def test_a_server_that_cannot_answer_is_an_error_and_nothing_is_remembered(restarted, monkeypatch):
    monkeypatch.setattr(math_equivalence, "_SERVE", "raise SystemExit('no more memory')")
    reward = rewards.guarded(answer_reward("math"))
    with pytest.raises(rewards.RewardCallError, match=r"ended without an answer: no more memory\.") as caught:
        reward(completions=[r"\boxed{d+c}"], answer=["c+d"])
    assert (caught.value.reward_name, len(str(caught.value).splitlines())) == ("answer_reward", 3)
    monkeypatch.undo()
    assert reward(completions=[r"\boxed{d+c}"], answer=["c+d"]) == [1.0]


def test_an_answer_that_an_interruption_left_behind_is_not_the_next_ones(restarted, monkeypatch):
    def interrupted(line):
        raise KeyboardInterrupt

    monkeypatch.setattr(math_equivalence.json, "loads", interrupted)
    with pytest.raises(KeyboardInterrupt):
        math_equivalence.equal("e+f", "f+e")
    monkeypatch.undo()
    assert not math_equivalence.equal("g+h", "h-g")


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path):
    script = tmp_path / "train.py"
    ask = r"print(rewards.answer_reward('math')([r'\boxed{b+a}'], answer=['a+b']))"
    script.write_text(f"import rewards\nprint('once')\n{ask}")
    done = python(str(script), check=False, PYTHONPATH=str(ROOT))
    assert done.stdout.split("\n")[:2] == ["once", "[1.0]"], done.stderr
