r"""Equality by algebra, math-verify's, in processes of its own that a hard expression cannot outstay.

For ``rewards.answers`` where a gold answer is not a number.  math-verify's own time limit is an alarm, which only the
main thread may set and which does not stop sympy's C code; here the expression's process is killed.

One server process, started on first use, imports sympy and forks a child per expression.  It is not
``multiprocessing``, whose children import the caller's script again: a training script without a
``__main__`` guard would start a second training.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import selectors
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from rewards.errors import RewardCallError

Pair = tuple[str, str]

LONGEST = 400  # characters of an expression
AT_ONCE = 4  # children
SLICE = 0.1  # of its time on a core that every pair gets first, which is enough for most
BUDGET = 4  # times the limit that the pairs of a batch that need more than a slice have in all
MEMORY = 2 * 2**30  # bytes a child may use
KEPT = 20_000  # verdicts in the cache
# Certain to be killed: not worth a process.
_EXPLODES = re.compile(r"\d\s*\}*\s*\^\s*\{?\s*(?:\d+\s*\^|\d{4})|\d{3}\s*\)?\s*!|!\s*\)?\s*!|\*\*")


def tractable(expression: str) -> bool:
    """Whether an expression is worth a try: short, and without towers of powers or large factorials."""
    whole = r"\boxed" not in expression  # math-verify would take what is in the box
    return whole and 0 < len(expression) <= LONGEST and not _EXPLODES.search(expression)


def equal(gold: str, answer: str, timeout: float = 1.0) -> bool:
    r"""Whether two LaTeX expressions are equal by math-verify; False if that takes longer than ``timeout`` seconds.

    >>> equal("2-2p", "-2(p-1)"), equal("2-2p", "2-3p")
    (True, False)
    """
    return equals([(gold, answer)], timeout)[gold, answer]


def equals(pairs: Iterable[Pair], timeout: float = 1.0) -> dict[Pair, bool]:
    """The same for many pairs of gold answer and answer, in parallel, each with its own time.

    Verdicts are remembered; a pair that took too long has none, and is False this time.

    Raises:
        ImportError: math-verify is not installed.
        RewardCallError: its process ends without an answer, also when started again.
    """
    found = {pair: _verdicts.get(pair) for pair in pairs}
    todo = [pair for pair, verdict in found.items() if verdict is None]
    if todo:
        with _lock:
            given = dict(zip(todo, _server.grade(todo, timeout), strict=True))
            _verdicts.update({pair: verdict for pair, verdict in given.items() if verdict is not None})
            while len(_verdicts) > KEPT:  # the oldest first
                del _verdicts[next(iter(_verdicts))]
        found |= given
    return {pair: verdict is True for pair, verdict in found.items()}


class _Server:
    """The process that grades: started on first use, and again after it has died."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.owner = 0
        self.errors: IO[bytes] | None = None
        self.said = ""

    def grade(self, pairs: Sequence[Pair], timeout: float) -> list[bool | None]:
        """The verdict on each pair, None for one that took too long."""
        try:
            return self._ask(pairs, timeout)
        except (OSError, ValueError):  # it may have died since the last request
            pass
        try:
            return self._ask(pairs, timeout)
        except (OSError, ValueError) as error:
            raise RewardCallError(
                f"The process that runs math-verify ended without an answer: {self.said or error}",
                reward_name="answer_reward",
                todo="see that memory is free and that a new Python process can import math_verify, "
                "then train(resume_from_checkpoint=True)",
            ) from error

    def _ask(self, pairs: Sequence[Pair], timeout: float) -> list[bool | None]:
        try:
            process = self._running()
            assert process.stdin
            assert process.stdout
            process.stdin.write(json.dumps([timeout, pairs]) + "\n")
            process.stdin.flush()
            answers: list[bool | None] = json.loads(process.stdout.readline())
            if len(answers) != len(pairs):
                raise ValueError("it answered something else")
        except BaseException:
            self.stop()  # an answer still to come would be taken for the next request's
            raise
        return answers

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None or self.owner != os.getpid() or self.process.poll() is not None:
            import math_verify  # noqa: F401 - a missing package is named here, not in the server

            self.stop()
            self.owner, self.errors = os.getpid(), tempfile.TemporaryFile()  # noqa: SIM115 - stop closes it
            # Without "", the folder it was started in, whose files may be called as modules are.
            paths = [str(Path(__file__).resolve().parent.parent), *filter(None, map(str, sys.path))]
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"import sys; sys.path[:] = {paths!r}; {_SERVE}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
            )
        return self.process

    def stop(self) -> None:
        """End it, and keep the last line that it wrote to standard error."""
        if self.process is not None and self.owner == os.getpid():
            self.process.kill()
            self.process.wait()
            self.said = _last_line(self.errors)
        if self.errors is not None:
            self.errors.close()
        self.process = self.errors = None


def _last_line(file: IO[bytes] | None) -> str:
    if file is None:
        return ""
    file.seek(0)
    lines = file.read().decode(errors="replace").split("\n")
    return next(filter(str.strip, reversed(lines)), "")


_SERVE = "from rewards.algebra import serve; serve()"
_verdicts: dict[Pair, bool] = {}
_server, _lock = _Server(), threading.Lock()
atexit.register(_server.stop)


# --------------------------------------------------------------------------------- in the server


def serve() -> None:
    """Answer requests on standard input, a line each, until it closes."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    # Imports and parser tables, which no child then pays for.  A parser that fails reads nothing, and raises nothing.
    if not _verified(r"\frac{x^2-1}{2}", r"\frac{(x-1)(x+1)}{2}"):
        sys.exit(
            "math-verify does not see that (x^2-1)/2 is (x-1)(x+1)/2; install math-verify[antlr4_13_2] anew"
        )
    for line in sys.stdin:
        timeout, pairs = json.loads(line)
        print(json.dumps(_graded(pairs, timeout)), flush=True)


def _graded(pairs: Sequence[Sequence[str]], timeout: float) -> list[bool | None]:
    """A slice for each pair, then the whole time for those that need it: one hard pair keeps none from its slice.

    Time is that on a core, so that a busy machine refuses nothing that a quiet one accepts.
    """
    todo = dict(enumerate(pairs))
    verdicts = _round(todo, SLICE * timeout, (len(pairs) + 10) * timeout)
    slow = {index: pair for index, pair in todo.items() if index not in verdicts}
    verdicts |= _round(slow, timeout, BUDGET * timeout)
    return [verdicts.get(index) for index in todo]


def _round(pairs: Mapping[int, Sequence[str]], on_core: float, seconds: float) -> dict[int, bool]:
    """The verdict on each pair whose child reached one in its own time and the round's, both on a core."""
    verdicts: dict[int, bool] = {}
    waiting = list(pairs.items())[::-1]
    running: dict[int, tuple[int, int, float]] = {}  # pipe -> index, pid, start
    end, used = time.monotonic() + seconds, 0.0
    with selectors.DefaultSelector() as pipes:
        while waiting or running:
            over = time.monotonic() >= end and used >= seconds
            while waiting and len(running) < AT_ONCE and not over:
                index, pair = waiting.pop()
                pipe, pid = _forked(pair, on_core)
                pipes.register(pipe, selectors.EVENT_READ)
                running[pipe] = index, pid, time.monotonic()
            ready = {key.fd for key, _ in pipes.select(on_core / 4)}
            for pipe, (index, pid, start) in list(running.items()):
                spent = _on_core(pid, start)
                if pipe in ready:
                    if said := os.read(pipe, 1):  # else it failed, or the system killed it
                        verdicts[index] = said == b"1"
                elif not over and spent < on_core:
                    continue
                used += spent
                del running[pipe]
                pipes.unregister(pipe)
                os.close(pipe)
                os.kill(pid, 9)
                os.waitpid(pid, 0)
            if over:
                break
    return verdicts


def _on_core(pid: int, start: float) -> float:
    """Seconds that a process has had on a core; since its start, where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return time.monotonic() - start
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _forked(pair: Sequence[str], timeout: float) -> tuple[int, int]:
    """A child that grades one pair: the pipe it answers on, and its process id."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return reading, pid
    try:
        import resource

        # A child whose server was killed ends by itself.
        resource.setrlimit(resource.RLIMIT_CPU, (int(timeout) + 2, int(timeout) + 2))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.write(writing, b"1" if _verified(*pair) else b"0")
    finally:
        os._exit(0)


def _verified(gold: str, answer: str) -> bool:
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    # By default the letters after the last space are a unit: "a^2 + 2ab" would be a^2 + 2.
    kept = NormalizationConfig(
        True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
    )
    reading = [LatexExtractionConfig(normalization_config=kept)]
    target, found = (
        parse(r"\boxed{" + text.strip().strip("$") + "}", reading, parsing_timeout=None)
        for text in (gold, answer)
    )
    return bool(target and found and verify(target, found, timeout_seconds=None))
