r"""The audit's cases, read from ``audit_cases.toml``, written as completions of a task.

The cases state what is right for the task, not what a reward of this package does.  A completion is a template:
known names in single braces are filled in from the task's own gold answer; other braces stay, so ``\boxed{{gold}}``
becomes ``\boxed{42}``.  A case is skipped if the gold answer lacks the form (``{commas}`` needs at least 1,000).
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from rewards.answers import accepted, gold_text
from rewards.errors import invalid
from rewards.text import question
from rewards.thinking import CLOSE, OPEN, QWEN3, ThinkTokens, encode, prompt_opens


class Band(NamedTuple):
    """What a case should earn, as a share of what an honest right completion earns above an empty one."""

    low: float
    high: float  # not in it


PAYS = Band(0.5, float("inf"))
NOTHING = Band(float("-inf"), 0.5)
CONTESTED = Band(float("-inf"), float("inf"))  # where careful people could disagree: not counted


@dataclass(frozen=True)
class Case:
    """A completion's template, what it should earn from a reward for right answers and from one for the thought's
    form, and why.  The name is unique within its family."""

    family: str
    name: str
    completion: str
    answer: Band
    thought: Band
    why: str

    @property
    def label(self) -> str:
        return f"{self.family}: {self.name}"

    def band(self, aim: str) -> Band:
        """Return what the case should earn from a reward with this aim: "answer", "thought" or "both"."""
        if aim != "both":
            return self.answer if aim == "answer" else self.thought
        return self.answer if self.answer == NOTHING or self.answer == self.thought == PAYS else CONTESTED


_BANDS = {"pays": PAYS, "nothing": NOTHING, "contested": CONTESTED}
_DATA = tomllib.loads(Path(__file__).with_name("audit_cases.toml").read_text(encoding="utf-8"))
_TEXTS: dict[str, str] = {"think": "{open}{thought}{close}\n", **_DATA["texts"]}


def _template(parts: str | list[Any]) -> str:
    return "".join(part if isinstance(part, str) else part["of"] * part["times"] for part in parts)


#: Every case of the audit.  Add one with a line in audit_cases.toml, or pass your own to ``audit(cases=...)``.
CASES: tuple[Case, ...] = tuple(
    Case(family, name, _template(completion), _BANDS[answer], _BANDS[thought], why)
    for family, cases in _DATA["cases"].items()
    for name, (completion, answer, thought, why) in cases.items()
)
#: The questions of an audit that is given no rows, by the kind of the answers.
QUESTIONS: dict[str, list[dict[str, str]]] = _DATA["questions"]


def gold_forms(gold: str, others: Sequence[str] = ()) -> dict[str, str]:
    """Return right and wrong ways to write a gold answer, by their names in templates; a way that it lacks is left out.

    ``others``, gold answers of the task, serve as plausible wrong answers.
    """
    if re.fullmatch(r"-?\d+(\.\d+)?", gold):
        return {name: text for name, text in _number_forms(gold).items() if text is not None}
    if re.fullmatch(r"[A-H]", gold):
        wrong, wrong2 = [letter for letter in "ABCD" if letter != gold][:2]
        return {"gold": gold, "letter": "", "wrong": wrong, "wrong2": wrong2, "lower": gold.lower()}
    other = [text for text in dict.fromkeys(others) if text != gold]
    wrong, wrong2 = [*other, "something else", "none of these"][:2]
    return {"gold": gold, "text": "", "wrong": wrong, "wrong2": wrong2}


def _number_forms(gold: str) -> dict[str, str | None]:
    value, digits = Fraction(gold), gold.removeprefix("-")
    sign = gold.removesuffix(digits)
    whole, double = digits.isdecimal(), value * 2  # 42.0 is written as the text that it is
    above, below = double.numerator, double.denominator * 2
    mantissa, power = f"{Decimal(gold):e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    grouped = sign + f"{int(digits):,}" if whole and abs(value) >= 1000 else None
    several = whole and len(digits) > 1
    return {
        "gold": gold,
        "number": "",
        "positive": "" if value > 0 else None,
        "minus": "−" + digits if sign else None,
        "wrong": _plain(value + 1),
        "wrong2": _plain(value + 3),
        "below": _plain(value - 2),
        "above": _plain(value + 2),
        "neighbours": ", ".join(_plain(value + step) for step in range(-8, 9)),
        "negated": _plain(-value),
        "tenth": _plain(value / 10),
        "cut": gold[:-1] if len(gold) > 1 and (whole or value.denominator > 1) else None,
        "reciprocal": rf"\frac{{{value.denominator}}}{{{value.numerator}}}",
        "fraction": rf"\frac{{{above}}}{{{below}}}",
        "fraction_tail": rf"frac{{{above}}}{{{below}}}",
        "slash": f"{above}/{below}",
        "sum": f"{_plain(value - 3)} + 3",
        "scientific": rf"{mantissa} \times 10^{{{int(power)}}}",
        "exponent": f"{mantissa}e{int(power)}",
        "decimal": gold + ".0" if whole else None,
        "commas": grouped,
        "latex_commas": grouped and grouped.replace(",", "{,}"),
        "spaces": grouped and grouped.replace(",", "\u202f"),
        "fullwidth": sign + digits.translate(str.maketrans("0123456789", "０１２３４５６７８９")),
        "arabic": sign + digits.translate(str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")),
        "superscript": sign + digits[:-1] + "⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digits[-1])] if several else None,
        "zero_width": f"{sign}{digits[0]}\u200b{digits[1:]}" if several else None,
        "bidi": f"{sign}\u202e{digits[::-1]}\u202c" if several and digits != digits[::-1] else None,
        "letters": sign + digits.translate({48: "O", 49: "l"}) if whole and {*"01"} & {*digits} else None,
        "words": {"42": "forty-two", "-3": "minus three", "108": "one hundred and eight"}.get(gold),
    }


def _plain(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"


_STATED = re.compile(
    r"(?:(?:So|Therefore), )?[Tt]he (?:final )?answer is "
    r"(?:\*\*)?(\{[a-z_]+\}|\(\{gold\}\))(?:\*\*)?(?![\w,%!]| [a-z/(])\.?"
    r"|(?:\*\*)?Answer:(?:\*\*)? (\{[a-z_]+\})(?![\w,%!]| [a-z/(])"
)
_WRITTEN = {"boxed": r"\boxed{%s}", "####": "\n#### %s\n", "<answer>": "<answer>%s</answer>", "whole": "%s"}
_ALONE = re.compile(r"^(?!.*\{typed)(?:.*\{(?:close|think)\})?\s*\{gold\}\s*\{end\}$", re.DOTALL)


def in_form(case: Case, form: str) -> Case:
    r"""Return the case as a policy writes it when asked for a form: "The answer is 42." becomes ``\boxed{42}``.

    A right answer in another form becomes contested, since its credit depends on the prompt.
    """
    if form not in _WRITTEN:
        return case
    text = _STATED.sub(lambda match: _WRITTEN[form] % (match[1] or match[2]), case.completion)
    mark = _WRITTEN[form].split("%s")[0].strip()
    kept = mark in text if mark else _ALONE.search(text)
    # The last of several lines or tags counts, and a box beside them is part of the working.
    beside = form in ("####", "<answer>") and (text.count(mark) > 1 or r"\boxed{" in text)
    contested = beside or (case.answer == PAYS and not kept)
    return replace(case, completion=text, answer=CONTESTED if contested else case.answer)


MARKERS = ("open", "close", "end", "typed_open", "typed_close")
_MARKER = re.compile("({(?:" + "|".join(MARKERS) + ")})")
# Every name that some gold answer fills in; other braces belong to the completion.
_KNOWN = {name for gold in ("1230", "42", "-3", "C", "Mercury") for name in gold_forms(gold)}
_NAME = re.compile("{(" + "|".join((*MARKERS, "prompt", "marked", "unmarked", *_KNOWN)) + ")}")


def fill(case: Case, forms: Mapping[str, str], prompt: str, *, prompt_opens: bool) -> list[str] | None:
    """Return the case for one gold answer, split into text and ``{marker}`` pieces; None if it does not apply."""
    values = {**forms, "prompt": prompt, ("unmarked" if prompt_opens else "marked"): ""}
    values |= {name: "{" + name + "}" for name in MARKERS}
    text = case.completion
    for name, stands_for in _TEXTS.items():
        text = text.replace("{" + name + "}", stands_for)
    if not values.keys() >= set(_NAME.findall(text)):
        return None
    if prompt_opens:
        text = text.removeprefix("{open}")
    text = _NAME.sub(lambda match: values[match[1]], text)
    return [piece for piece in _MARKER.split(text) if piece]


def task_rows(kind: str, rows: Iterable[Mapping[str, Any]] | None, column: str, limit: int) -> list[dict[str, Any]]:
    """Return at most ``limit`` rows, spread over a task, or the questions of a kind if ``rows`` is None."""
    if limit < 1:
        raise invalid("An audit needs a row", f"audit(limit={limit})", "leave limit at 8")
    if rows is None:
        asked = QUESTIONS.get(kind, QUESTIONS["number"])
        return [{"prompt": row["prompt"], column: row["answer"]} for row in asked]
    table: Any = rows
    if hasattr(rows, "__len__"):  # a dataset decodes only the rows that are read
        table = map(table.__getitem__, range(0, len(table), max(1, len(table) // limit)))
    task = [dict(row) for row in itertools.islice(table, limit)]
    bad = [row for row in task if "prompt" not in row or row.get(column) is None]
    if not task or bad:
        what = f"Every row needs a prompt and a gold answer in column '{column}'"
        where = f"audit(rows=...), which has {sorted(bad[0]) if bad else 'no rows'}"
        raise invalid(what, where, "pass rows=task.train, and column= with the name of the gold answers")
    return task


@dataclass(frozen=True)
class Sample:
    """A case for one row of the task: the ids that a policy would have sampled, and their decoded text."""

    case: Case
    row: int
    prompt: str
    gold: str
    text: str
    ids: tuple[int, ...]


# Tokens without a tokenizer: a word, a sign, a run of white space, or a character of a script without spaces.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]| ?[^\W\u3040-\u9fff\uac00-\ud7af]+|\s+| ?[^\w\s]")


def _is_whole(gold: Any) -> bool:
    return isinstance(gold, float) and gold.is_integer()  # a column of whole numbers that pandas read beside a gap


class Writer:
    """Writes cases as completions, with the form of answer and the think tokens that the reward reads.

    ``tokens``: None means that the reward reads the markers as text, whatever tokens they are.
    """

    def __init__(self, tokenizer: Any, tokens: ThinkTokens | None, rows: Sequence[Any], column: str, form: str) -> None:
        self.tokenizer, self.form = getattr(tokenizer, "tokenizer", tokenizer), form
        self.words: dict[str, int] = {}
        self.prompts = [question(row["prompt"]) for row in rows]
        golds = [next(iter(accepted(row[column])), "") for row in rows]
        self.golds = [gold_text(f"{gold:.0f}" if _is_whole(gold) else str(gold)) for gold in golds]
        if tokens is None and tokenizer is None:
            tokens = QWEN3
        self.prompt_opens = tokens.prompt_opens if tokens else prompt_opens(self.tokenizer)
        own = getattr(self.tokenizer, "eos_token_id", None)
        ends = (tokens.eos_ids if tokens else ()) or (QWEN3.eos_ids if own is None else (own,))
        self.markers = {
            "{open}": ([tokens.open_id] if tokens else self._ids(OPEN), OPEN),
            "{close}": ([tokens.close_id] if tokens else self._ids(CLOSE), CLOSE),
            "{end}": ([ends[0]], ""),
        }
        if all(len(ids) == 1 for ids, _ in self.markers.values()):
            # Encoded piece by piece, because a tokenizer would encode the whole marker as its token.
            for name, marker in (("{typed_open}", OPEN), ("{typed_close}", CLOSE)):
                pieces = (marker[:2], marker[2:-1], marker[-1])
                self.markers[name] = ([i for piece in pieces for i in self._ids(piece)], marker)

    def _ids(self, text: str) -> list[int]:
        if self.tokenizer is not None:
            return encode(self.tokenizer, text)
        return [self.words.setdefault(word, len(self.words)) for word in _WORD.findall(text)]

    def samples(self, cases: Iterable[Case]) -> list[Sample]:
        """Return every case for every row that it applies to; typed markers only if real ones are single tokens."""
        written = [in_form(case, self.form) for case in cases]
        made = (self._sample(case, row) for case in written for row in range(len(self.golds)))
        return [sample for sample in made if sample is not None]

    def _sample(self, case: Case, row: int) -> Sample | None:
        prompt, gold = self.prompts[row], self.golds[row]
        pieces = fill(case, gold_forms(gold, self.golds), prompt, prompt_opens=self.prompt_opens)
        if pieces is None or {*pieces} & {"{typed_open}", "{typed_close}"} - self.markers.keys():
            return None
        parts = [self.markers.get(piece) or (self._ids(piece), piece) for piece in pieces]
        ids = tuple(i for part, _ in parts for i in part)
        return Sample(case, row, prompt, gold, "".join(text for _, text in parts), ids)
