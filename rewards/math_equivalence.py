r"""Compare formulas by math-verify after normalizing some notation, in processes that end when their time is up.

math-verify's own time limit is an alarm, which only the main thread may set and which does not stop sympy's C code;
here the kernel ends a process whose time is up.  One server, started on first use, imports sympy and forks a
child per expression.  A pool of ``multiprocessing`` would import the caller's script again and so start a second
training run, or fork a process that may hold CUDA.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, cast

from rewards.errors import RewardCallError
from rewards.numbers import to_number

Pair = tuple[str, str]

LONGEST = 400  # characters of an expression
SECONDS = 1.0  # of CPU time for an expression
AT_ONCE = 4  # children that run in parallel
SLOW = 8  # timeouts in a batch before the remaining expressions get a quarter of the time, enough for most
MEMORY = 2 * 2**30  # bytes a child may use
KEPT = 20_000  # pairs in the cache

# Expressions that are certain to be killed: not worth a process.
_EXPLODES = re.compile(r"\d\s*\}*\s*\^\s*\{?\s*(?:\d+\s*\^|\d{4})|\d{3}\s*\)?\s*!|!\s*\)?\s*!|\*\*")
_DOLLARS = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_NAME = re.compile(r"^(?!\\pi\b)(?:\\?[A-Za-z]{2,}|[A-Za-z])\s*(?:\([^()=]*\))?\s*=\s*(?=[^=]*$)")
_MEMBER = re.compile(r"^[a-z]\s*\\in(?![a-z])\s*")
_DOTS = re.compile(r"\\emptyset|\\[lc]?dots|…|\.\.\.")
_INEQUALITY = re.compile(r"[<>]|\\[lg]eq?(?![a-z])")
_TEXT_AFTER = re.compile(r"(?<=[\w})])\s*\\(?:text|mathrm)\s*\{(?!\s*(?:or|and)\b)[^{}]*\}(?:\s*\^\s*\{?\d\}?)?$")
_WITHOUT_NAMES = re.compile(r"^\([a-z, \\]+\)\s*=\s*(?=[^=]*$)")  # (x, y) =
_INTEGER = re.compile(r"(?:[,\s(]|\\text\s*\{\s*(?:for|where|with)\s*\})*([a-z]) ?\\in ?\\mathbb ?\{?Z\}?\s*\)?$")
_FOR_ALL = re.compile(r"[,\s]*(?:\\text\s*\{\s*(?:for|where) (?:all|any|every)(?: real)?\s*\}|\\forall)\s*[a-z]$")
_MINUTES = re.compile(r"(?<!\d)(\d+)\s*\^\s*\{?\s*\\circ\s*\}?\s*(\d+)\s*(?:'(?!')|\^\s*\{?\s*\\prime\s*\}?)")
_UNEVALUATED = re.compile(r"\\(?:i*int|oint|sum|prod|lim)(?![a-z])|\\frac\s*\{\s*d[^{}]{0,9}\}\s*\{\s*d[^{}]{0,9}\}")
_JOINED = re.compile(r"\b(?:or|and)\b")
_APART = re.compile(r"(?<!frac )(?<!binom )(?<![_^\d])\d+\s+\d")  # a cycle, which math-verify would multiply
_BASE = re.compile(r"(?<=[0-9A-F])_\s*\{?(\d+)")


def pair(value: str, gold: str) -> Pair | None:
    """Return the gold answer and the answer as math-verify should get them; None refuses the answer without asking it.

    math-verify takes a set for an interval and the letters at the end for a unit, so this compares brackets and dots.
    """
    if len(value) > 2 * LONGEST:
        return None
    formulas = list(_DOLLARS.finditer(value))
    if len(formulas) == 1 and not re.search(r"[\d\\]", value.replace(formulas[0][0], "")):
        value = next(filter(None, formulas[0].groups()))
    gold, value = _bare(gold), _bare(value)
    first, *others = gold.split("=")
    several = re.search(r"[,;]", gold) or _JOINED.search(gold)
    if len(others) > 1 and _NAME.match(first + "=") and not (several or _letters(others[-1])):
        gold = others[-1].strip()  # A = \pi r^2 = 25\pi
    if not _same_text_after(value, gold):
        return None
    gold = _MEMBER.sub("", _TEXT_AFTER.sub("", gold))
    value = _in_the_golds_shape(_TEXT_AFTER.sub("", value), gold)
    if (parameter := _INTEGER.search(gold)) and (its := _INTEGER.search(value)) and parameter[1] == its[1]:
        gold, value = gold[: parameter.start()], value[: its.start()]
    if gold and re.sub(r"\s", "", value) == re.sub(r"\s", "", gold):
        return gold, gold
    if _conflicting(value, gold):
        return None
    gold, value = (_ratio(_ascending(_plus_and_minus(text))) for text in (gold, value))
    bases = set(_BASE.findall(value))
    listed = "," in gold and not (_ends(gold) or _INEQUALITY.search(gold) or r"\cup" in gold)
    ends = {_ends(value), _ends(gold)}
    no_ends = "" in ends and ("," not in value or _INEQUALITY.search(gold) or r"\mathbb" in gold)
    same_ends = len(ends) == 1 or ends == {"set", ""} or no_ends
    if (
        not same_ends
        or (_DOTS.search(value) and not _DOTS.search(gold))
        or (bases and bases != set(_BASE.findall(gold)))
        or (listed and _INEQUALITY.search(value))  # -4 < x < 4 for -4, 4
    ):
        return None
    return (gold, value) if _tractable(gold) and _tractable(value) else None


def _conflicting(value: str, gold: str) -> bool:
    """Whether the answer has what math-verify would compute, multiply or read as a comma, and the gold answer has not:
    an integral, digits apart, another number of colons, "and" for "or"."""
    listed = "," in gold and r"\cup" not in gold
    mine, its = (set(_JOINED.findall(text)) for text in (value, gold))
    swapped = ("or" in mine and (listed or "and" in its)) or ("and" in mine and "or" in its)
    return (
        bool(_UNEVALUATED.search(value) and not _UNEVALUATED.search(gold))
        or bool(_APART.search(f"{value},{gold}"))
        or (gold.count(":") > 1 and r"\{" not in gold and gold.count(":") != value.count(":"))
        or (swapped and bool(_INEQUALITY.search(value)))
    )


def _plus_and_minus(text: str) -> str:
    alone = text.count(r"\pm") == 1 and not re.search(r"[,=]|\\mp", text)
    return ", ".join(text.replace(r"\pm", sign) for sign in "+-") if alone else text


def _ascending(text: str) -> str:
    # 3 > x > 1 as 1 < x < 3: math-verify compares chains as they stand.
    parts = re.split(r"(>|\\geq?(?![a-z]))", text)
    if len(parts) < 5 or re.search(r"<|\\leq?(?![a-z])", text):
        return text
    return "".join({">": "<"}.get(part, r"\leq " if part.startswith(r"\ge") else part) for part in reversed(parts))


def _ratio(text: str) -> str:
    # a : b : c by its quotients, since math-verify divides a by b and c.
    first, *others = text.rpartition("=")[2].split(":")
    return f"({', '.join(rf'({one})/({first})' for one in others)})" if len(others) > 1 and "{" not in text else text


def _tractable(expression: str) -> bool:
    whole = r"\boxed" not in expression  # math-verify would read the content of the box
    return whole and 0 < len(expression) <= LONGEST and not _EXPLODES.search(expression)


def _bare(text: str) -> str:
    text = re.sub(r"(?<!\\)\\\\\s*\[[\d.]+\s*(?:pt|em|ex|mm|cm)\]", r"\\\\ ", text)  # the space between rows
    text = re.sub(r"(?<=\d)(?:\{,\}|\\,|\\ )(?=\d{3}(?!\d))|(?<=\d),(?=\d{3}\s*\\(?:pi|sqrt))", "", text)
    text = re.sub(r"\\(?:left|right|displaystyle|,|;|:|q?quad)(?![a-z])|(?<!\\)\\ |~|\$", " ", text)
    text = _MINUTES.sub(r"(\1+\2/60)^\\circ", text).replace(r"\colon", ":").strip(" .*\n`।。")
    text = _FOR_ALL.sub("", re.sub(r"\\[dtc]frac(?![a-z])", r"\\frac", text))
    text = re.sub(r"^\\(?:text|boxed|fbox)\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}$", r"\1", text)
    text = re.sub(r"^\\[\[(]|\\[\])]$", "", text).strip(" .*\n`।。")
    text = re.sub(r"\\mathrm\s*\{\s*([ei])\s*\}", r"\1", text)
    text = re.sub(r"\\log_\s*(?:\{e\}|e(?![a-z]))", r"\\ln ", text)
    text = re.sub(r"\\varnothing|\\\{ ?\\\}", r"\\emptyset", text).replace(r"\ge ", r"\geq ")
    return re.sub(r"\s+", " ", text)


def _same_text_after(value: str, gold: str) -> bool:
    """Whether the answer ends in the gold answer's words, in the same unit, or in one that the gold answer leaves out;
    words that are no unit, such as "squared", change a value."""
    tails = [match[0] if (match := _TEXT_AFTER.search(text)) else "" for text in (value, gold)]
    if not tails[0] or tails[0].split() == tails[1].split():
        return True
    one, golds = (to_number(f"1 {tail}".replace(".", " "), alone=True) for tail in tails)  # sq. units
    return bool(one and one.value == 1 and (golds is None or one.same(golds)))


def _in_the_golds_shape(value: str, gold: str) -> str:
    """Drop the names that the gold answer leaves out: "x = 2, y = 3" becomes (2, 3) if the gold answer is a tuple."""
    value = _MEMBER.sub("", value)
    if "=" not in gold:
        value = _WITHOUT_NAMES.sub("", _NAME.sub("", value))
    parts = [re.fullmatch(r"\s*([a-z])\s*=(.*)", part) for part in value.split(",")]
    if "," not in gold or "=" in gold or not all(parts):
        return value
    names, values = zip(*((part[1], part[2].strip()) for part in parts if part), strict=True)
    if _ends(gold) == "()" and list(names) == sorted(set(names)):
        return f"({', '.join(values)})"
    return ", ".join(values) if len(set(names)) == 1 else value


_KNOWN = re.compile(r"\\(?:[dt]?frac|sqrt|cdot|times|left|right|pi|pm)(?![A-Za-z])")


def equal_sides(value: str, gold: str) -> list[str]:
    """Return the other sides of an answer's equation that must equal the gold answer: all but names such as f(x)."""
    if "=" in gold or "," in value or _INEQUALITY.search(value):
        return []
    *sides, last = _TEXT_AFTER.sub("", _bare(value)).split("=")
    unknown = _letters(last)
    return [side for side in sides if _letters(side) <= unknown and not _NAME.match(side + "=")]


def _letters(text: str) -> set[str]:
    return set(re.findall("[A-Za-z]", _KNOWN.sub("", text)))


def _ends(text: str) -> str:
    # The brackets of a pair, an interval or a tuple, whose kind matters; "set" for braces, "" for none.
    match = re.match(r"([(\[]|\\\{|\\langle).*([)\]]|\\\}|\\rangle)$", text, re.DOTALL)
    if match is None or "," not in text:
        return ""
    depth = 0
    for bracket in re.finditer(r"[(\[]|\\\{|\\langle|([)\]]|\\\}|\\rangle)", text):
        depth += -1 if bracket[1] else 1
        if depth == 0 and bracket.end() < len(text):
            return ""  # of several, as in (1, 2), (2, 1)
    return "set" if match[1] == "\\{" else match[1] + match[2]


def equal(gold: str, answer: str) -> bool:
    """Whether two LaTeX expressions are equal by math-verify; False if that takes longer than a second."""
    return equals([(gold, answer)])[gold, answer]


def equals(pairs: Iterable[Pair]) -> dict[Pair, bool]:
    """Compare many pairs of gold answer and answer as ``equal`` does, in parallel, each within its own CPU time.

    Results are cached, but a pair that took too long is False only this time.  Raises ImportError if math-verify is
    not installed, and RewardCallError if its process ends without an answer and does so again after a restart.
    """
    results = {pair: True if pair[0] == pair[1] else _known.get(pair) for pair in pairs}
    if new := [pair for pair, same in results.items() if same is None]:
        with _lock:
            graded = dict(zip(new, _graded(new), strict=True))
            _known.update({pair: same for pair, same in graded.items() if same is not None})
            while len(_known) > KEPT:  # the oldest first
                del _known[next(iter(_known))]
        results |= graded
    return {pair: same is True for pair, same in results.items()}


_SERVE = "from rewards.math_equivalence import serve; serve()"
_known: dict[Pair, bool] = {}
_lock = threading.Lock()
_servers: dict[int, subprocess.Popen[str]] = {}  # by process id: a forked process starts its own


def _graded(pairs: Sequence[Pair]) -> list[bool | None]:
    last_line = "nothing"
    for _ in range(2):  # the server may have died since the last request
        server = _server()
        stdin, stdout = cast(IO[str], server.stdin), cast(IO[str], server.stdout)
        try:
            with contextlib.suppress(OSError):  # the server has ended; its last output is read below
                print(json.dumps(pairs), file=stdin, flush=True)
            for line in stdout:
                if line.startswith("["):
                    return cast(list[bool | None], json.loads(line))
                last_line = line.strip() or last_line
        except BaseException:
            _stop()  # a late answer would be taken for the next request's
            raise
        _stop()
    what = f"The process that runs math-verify ended without an answer: {last_line}"
    todo = "see that memory is free and that a new process can import math_verify, then resume the training"
    raise RewardCallError(what, reward_name="answer_reward", todo=todo)


def _server() -> subprocess.Popen[str]:
    server = _servers.get(os.getpid())
    if server is None or server.poll() is not None:
        import math_verify  # noqa: F401 - a missing package is named here, not in the server

        # Without "", the working directory, whose files may have the names of modules.
        paths = [str(Path(__file__).resolve().parent.parent), *filter(None, map(str, sys.path))]
        command = [sys.executable, "-c", f"import sys; sys.path[:] = {paths!r}; {_SERVE}"]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        server = _servers[os.getpid()] = subprocess.Popen(command, text=True, **pipes)
    return server


def _stop() -> None:
    if server := _servers.pop(os.getpid(), None):
        with contextlib.suppress(OSError), server:  # from closing a pipe with unsent data
            server.kill()


atexit.register(_stop)


def serve() -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    # Load imports and parser tables once for all children.  A parser that fails reads nothing and raises nothing.
    if not _verified(r"\frac{x^2-1}{2}", r"\frac{(x-1)(x+1)}{2}"):
        sys.exit("math-verify does not see that (x^2-1)/2 is (x-1)(x+1)/2; install math-verify[antlr4_13_2]")
    for line in sys.stdin:
        pairs = json.loads(line)
        answers: list[bool | None] = [None] * len(pairs)
        running, slow = dict[int, int](), 0
        for index in range(len(pairs) + AT_ONCE):
            if index < len(pairs):
                running[_forked(pairs[index], SECONDS if slow < SLOW else SECONDS / 4)] = index
            if running and (index >= len(pairs) or len(running) == AT_ONCE):
                child, status = os.wait()
                done = running.pop(child)
                answers[done] = {0: True, 1: False}.get(os.waitstatus_to_exitcode(status))
                slow += answers[done] is None
        print(json.dumps(answers), flush=True)


def _forked(pair: Sequence[str], seconds: float) -> int:
    if child := os.fork():
        return child
    status = 2  # 0 for equal, 1 for not
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        # Both signals end a process without a handler, even in C code.  ITIMER_PROF counts CPU time, so that a busy
        # machine refuses nothing that a quiet one accepts; ITIMER_REAL ends a process that only waits.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, 60 * seconds)
        status = 0 if _verified(*pair) else 1
    finally:
        os._exit(status)


def _comparable(gold: Any, answer: Any) -> bool:
    """Whether math-verify may compare what was parsed: it takes for equal to an equation its roots, a contradiction if
    it has none, and of a chain the first and the last side."""
    from latex2sympy2_extended.logic import And
    from sympy import Eq, Set, simplify, solve

    def same(one: Any, other: Any) -> bool:
        ratio: Any = simplify((one.lhs - one.rhs) / (other.lhs - other.rhs)) if other.lhs != other.rhs else 0
        return ratio != 0 and not ratio.free_symbols

    if isinstance(gold, And) and all(isinstance(one, Eq) for one in gold._unsorted_args):
        parts = gold._unsorted_args, getattr(answer, "_unsorted_args", ())
        return len(parts[0]) == len(parts[1]) and all(map(same, *parts))
    if not isinstance(gold, Eq) or gold == answer:
        return True
    if isinstance(answer, Set):
        return bool(gold.lhs.is_Symbol or gold.rhs.is_Symbol)
    with contextlib.suppress(NotImplementedError):
        return not isinstance(answer, Eq) or bool(solve(gold, gold.free_symbols)) or same(gold, answer)
    return True


def _united(parsed: list[Any], text: str) -> list[Any]:
    """Read "x < 2 or x > 3" as a union, where math-verify reads a list."""
    from sympy import And, Eq, FiniteSet, Union
    from sympy.core.relational import Relational

    parts = parsed[0].args if parsed and re.search(r"\bor\b", text) and isinstance(parsed[0], FiniteSet) else ()
    if parts and all(isinstance(one, Relational | And) and not isinstance(one, Eq) for one in parts):
        return [Union(*(one.as_set() for one in parts))]
    return parsed


def _verified(gold: str, answer: str) -> bool:
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    # By default math-verify takes the letters after the last space for a unit: "a^2 + 2ab" would be a^2 + 2.
    kept = {"units": False, "malformed_operators": True, "nits": True, "boxed": "all", "equations": False}
    reading = [LatexExtractionConfig(normalization_config=NormalizationConfig(True, **kept))]
    boxes = (r"\boxed{" + text.strip().strip("$") + "}" for text in (gold, answer))
    target, parsed = (_united(parse(box, reading, parsing_timeout=None), box) for box in boxes)
    if not target or not parsed or not _comparable(target[0], parsed[0]):
        return False
    how: Any = {"allow_set_relation_comp": True, "timeout_seconds": None}
    return bool(verify(target, parsed, **how))
