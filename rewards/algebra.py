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
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

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
    """The same for many pairs of gold answer and answer, in parallel, each with its own time; all are remembered.

    Raises:
        ImportError: math-verify is not installed.
    """
    wanted = list(dict.fromkeys(pairs))
    todo = [pair for pair in wanted if pair not in _verdicts]
    if todo:
        with _lock:
            _verdicts.update(zip(todo, _server.grade(todo, timeout), strict=True))
    result = {pair: _verdicts[pair] for pair in wanted}
    while len(_verdicts) > KEPT:  # the oldest first
        del _verdicts[next(iter(_verdicts))]
    return result


class _Server:
    """The process that grades: started on first use, and again after it has died."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.owner = 0

    def grade(self, pairs: Sequence[Pair], timeout: float) -> list[bool]:
        for _ in range(2):
            try:
                return self._ask(pairs, timeout)
            except (OSError, ValueError):
                self.stop()
        return [False] * len(pairs)

    def _ask(self, pairs: Sequence[Pair], timeout: float) -> list[bool]:
        process = self._running()
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps([timeout, pairs]) + "\n")
        process.stdin.flush()
        answers = json.loads(process.stdout.readline())
        if len(answers) != len(pairs):
            raise ValueError("the server answered something else")
        return [answer is True for answer in answers]

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None or self.owner != os.getpid() or self.process.poll() is not None:
            import math_verify  # noqa: F401 - a missing package is named here, not in the server

            self.owner = os.getpid()
            paths = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH")]
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", "from rewards.algebra import serve; serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            )
        return self.process

    def stop(self) -> None:
        if self.process is not None and self.owner == os.getpid():
            self.process.kill()
            self.process.wait()
        self.process = None


_verdicts: dict[Pair, bool] = {}
_server, _lock = _Server(), threading.Lock()
atexit.register(_server.stop)


# --------------------------------------------------------------------------------- in the server


def serve() -> None:
    """Answer requests on standard input, a line each, until it closes."""
    logging.disable(logging.CRITICAL)
    # Imports and parser tables, which no child then pays for.
    _verified(r"\frac{x^2-1}{2}", r"\frac{(x-1)(x+1)}{2}")
    for line in sys.stdin:
        timeout, pairs = json.loads(line)
        print(json.dumps(_graded(pairs, timeout)), flush=True)


def _graded(pairs: Sequence[Sequence[str]], timeout: float) -> list[bool]:
    """A slice for each pair, then the whole time for those that need it: one hard pair keeps none from its slice.

    Time is that on a core, so that a busy machine refuses nothing that a quiet one accepts.
    """
    todo = dict(enumerate(pairs))
    verdicts = _round(todo, SLICE * timeout, (len(pairs) + 10) * timeout)
    slow = {index: pair for index, pair in todo.items() if index not in verdicts}
    verdicts |= _round(slow, timeout, BUDGET * timeout)
    return [verdicts.get(index, False) for index in todo]


def _round(pairs: Mapping[int, Sequence[str]], on_core: float, seconds: float) -> dict[int, bool]:
    """The verdict on each pair whose child was not killed, for its own time or the round's, both on a core."""
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
                    verdicts[index] = os.read(pipe, 1) == b"1"
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
