"""Algebra in processes of its own: hard expressions end, a dead server is replaced, nothing is asked twice."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rewards
from rewards import algebra, answer_reward

EXPLOSIVE = ["9^{9^{9^{9}}}", "9^9^9^9", "99999!", "(9!)!", "2^{99999999}", "x+" * 5000 + "x", "10**10**10"]
HARD = r"\int_0^{%d} \sin(x^{x^x}) e^{x^2} \cos(x)\,dx"


@pytest.mark.parametrize("expression", EXPLOSIVE, ids=lambda text: text[:20])
def test_an_expression_that_is_sure_to_be_killed_gets_no_process(expression, monkeypatch):
    monkeypatch.setattr(algebra, "equals", lambda pairs, timeout: pytest.fail("asked") if list(pairs) else {})
    assert answer_reward("math")(completions=[rf"\boxed{{{expression}}}"], answer=["x^2+1"]) == [0.0]


def test_a_hard_expression_is_not_equal_and_an_easy_one_beside_it_is_judged():
    start = time.monotonic()
    pairs = [("x^2+1", HARD % n) for n in range(1, 4)] + [("x^2+1", "1+x^2")]
    assert list(algebra.equals(pairs, timeout=2).values()) == [False] * 3 + [True]
    assert time.monotonic() - start < 120, "one such expression runs for minutes"


def test_a_server_that_dies_is_replaced_and_verdicts_are_remembered(monkeypatch):
    assert algebra.equal("a+b", "b+a")
    algebra._server.process.kill()
    algebra._server.process.wait()
    assert algebra.equal("a+b+c", "c+b+a")
    monkeypatch.setattr(algebra._server, "grade", lambda pairs, timeout: pytest.fail("asked again"))
    assert algebra.equal("a+b", "b+a")


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
