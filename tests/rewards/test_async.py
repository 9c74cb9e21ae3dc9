"""Async rewards within others: one loop for the whole process, which neither an error nor an interruption ends."""

import asyncio
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rewards import clipped, rubric_reward

ONE_AT_A_TIME = asyncio.Semaphore(1)


async def judge(prompt, completion, description):
    async with ONE_AT_A_TIME:
        await asyncio.sleep(0)
        return 1.0


def test_a_judges_limit_holds_from_step_to_step_and_from_thread_to_thread():
    reward = clipped(rubric_reward({"clear": "clear", "brief": "brief"}, judge))
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
