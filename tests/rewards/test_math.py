"""Algebra in processes of its own: hard expressions end, a dead server is replaced, nothing is asked twice."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rewards
from rewards import answer_reward, answers, math

EXPLOSIVE = ["9^{9^{9^{9}}}", "9^9^9^9", "99999!", "(9!)!", "2^{99999999}", "x+" * 5000 + "x", "10**10**10"]
HARD = r"\int_0^{%d} \sin(x^{x^x}) e^{x^2} \cos(x)\,dx"


@pytest.mark.parametrize("expression", EXPLOSIVE, ids=lambda text: text[:20])
def test_an_expression_that_is_sure_to_be_killed_gets_no_process(expression, monkeypatch):
    monkeypatch.setattr(answers, "equals", lambda pairs, timeout: pytest.fail("asked") if list(pairs) else {})
    assert answer_reward("math")(completions=[rf"\boxed{{{expression}}}"], answer=["x^2+1"]) == [0.0]


def test_a_hard_expression_is_not_equal_and_an_easy_one_beside_it_is_judged():
    start = time.monotonic()
    pairs = [("x^2+1", HARD % n) for n in range(1, 4)] + [("x^2+1", "1+x^2")]
    assert list(math.equals(pairs, timeout=2).values()) == [False] * 3 + [True]
    assert [pair in math._verdicts for pair in pairs] == [False] * 3 + [True]
    assert time.monotonic() - start < 120, "one such expression runs for minutes"


def test_a_server_that_dies_is_replaced_and_verdicts_are_remembered(monkeypatch):
    assert math.equal("a+b", "b+a")
    math._server.process.kill()
    math._server.process.wait()
    assert math.equal("a+b+c", "c+b+a")
    monkeypatch.setattr(math._server, "grade", lambda pairs, timeout: pytest.fail("asked again"))
    assert math.equal("a+b", "b+a")


@pytest.fixture
def restarted():
    """The server starts anew in the test, and after it."""
    math._server.stop()
    yield math._server
    math._server.stop()


def test_a_server_that_cannot_answer_is_an_error_and_no_verdict(restarted, monkeypatch):
    monkeypatch.setattr(math, "_SERVE", "raise SystemExit('no more memory')")
    reward = rewards.guarded(answer_reward("math"))
    with pytest.raises(rewards.RewardCallError, match=r"ended without an answer: no more memory\.") as caught:
        reward(completions=[r"\boxed{d+c}"], answer=["c+d"])
    assert (caught.value.reward_name, len(str(caught.value).splitlines())) == ("answer_reward", 3)
    monkeypatch.undo()
    assert reward(completions=[r"\boxed{d+c}"], answer=["c+d"]) == [1.0], "nothing wrong was remembered"


def test_an_answer_that_an_interruption_left_behind_is_not_the_next_ones(restarted):
    class Interrupted:
        def __init__(self, pipe):
            self.pipe, self.times = pipe, 0

        def __getattr__(self, name):
            return getattr(self.pipe, name)

        def readline(self):
            self.times += 1
            if self.times == 1:
                raise KeyboardInterrupt
            return self.pipe.readline()

    restarted._start()
    restarted.process.stdout = Interrupted(restarted.process.stdout)
    with pytest.raises(KeyboardInterrupt):
        math.equal("e+f", "f+e")
    assert not math.equal("g+h", "h-g")


# For math-verify: every two expressions are equal, and p ends the process that reads it, as the system may.
STAND_IN = """
import os
LatexExtractionConfig = lambda **_: None
parse = lambda text, *_, **__: os.kill(os.getpid(), 9) if "p" in text else [1]
verify = lambda *_, **__: True
"""


def test_the_server_finds_what_its_parent_finds_and_a_killed_child_is_no_verdict(
    restarted, monkeypatch, tmp_path
):
    pytest.importorskip("math_verify")
    (tmp_path / "math_verify.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(math, "_verdicts", {})
    assert math.equals([("m", "m+n"), ("m", "p")]) == {("m", "m+n"): True, ("m", "p"): False}
    assert math._verdicts == {("m", "m+n"): True}


def test_a_math_verify_that_finds_nothing_equal_is_not_believed(monkeypatch):
    monkeypatch.setattr(math, "_verified", lambda *_: False)
    monkeypatch.setattr(math.logging, "disable", lambda level: None)
    with pytest.raises(SystemExit, match="math-verify does not see"):
        math.serve()


def test_it_works_off_the_main_thread_and_after_a_fork():
    call = {"completions": [r"\boxed{\sqrt{50}}"], "answer": [r"5\sqrt{2}"]}
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(answer_reward("math"), **call) for _ in range(4)]
        assert [future.result() for future in futures] == [[1.0]] * 4


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path):
    script = tmp_path / "train.py"
    lines = (
        "import rewards",
        "print('once')",
        r"print(rewards.answer_reward('math')([r'\boxed{b+a}'], answer=['a+b']))",
    )
    script.write_text("\n".join(lines))
    environment = os.environ | {"PYTHONPATH": str(Path(rewards.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.stdout.split("\n")[:2] == ["once", "[1.0]"], done.stderr
