"""Score a reward on attacks and honest answers: what it wrongly accepts, and what it wrongly refuses.

An audit finds only the exploits among its cases (``rewards.audit_cases``): also read what your policy writes.
"""

from __future__ import annotations

import html
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import SimpleNamespace
from typing import Any, Literal, get_args

from rewards.answers import FORMS
from rewards.audit_cases import CASES, CONTESTED, NOTHING, PAYS, Band, Case, Sample, Writer, task_rows
from rewards.errors import check_choice, invalid
from rewards.trl_interface import Aim, Reward, Scores, call_reward, check_signature, reward_name, said_by, trl_keywords

Outcome = Literal["exploit", "refusal", "error", "ok", "contested", "none"]
Rows = list[tuple[str, ...]]
TABLES: dict[str, Outcome] = {
    "Exploits: wrong, but rewarded": "exploit",
    "Refusals: right, but not rewarded": "refusal",
}
SHOWN = 10  # cases shown in a table
WIDTH = 32  # characters shown of an example, from its end


class AuditFailed(AssertionError):
    """An audit found more than ``raise_for`` allows."""


@dataclass(frozen=True)
class Finding:
    """One completion, as the decoded text that the reward saw, and the reward's score, or what it raised (``error``).

    The credit, (score - floor) / (full - floor), should lie in the band: an honest right completion earns 1, an empty
    one 0.  A score of None means "does not apply".
    """

    case: Case
    prompt: str
    gold: str
    completion: str
    band: Band
    score: float | None
    credit: float | None
    error: str = ""

    @property
    def outcome(self) -> Outcome:
        """An exploit was wrongly paid, a refusal wrongly not paid; "none" means that the reward does not apply."""
        if self.error or self.credit is None:
            return "error" if self.error else "none"
        if self.band == CONTESTED or self.band.low <= self.credit < self.band.high:
            return "contested" if self.band == CONTESTED else "ok"
        return "refusal" if self.credit < self.band.low else "exploit"


@dataclass(frozen=True)
class Audit:
    """The result of ``audit``: print it, show it in a notebook, or call ``raise_for`` in CI.

    Attributes:
        full: best score of an honest right completion.
        floor: median score of completions with nothing in them.
        judges: what the reward says that it pays for; see ``rewards.trl_interface.Judges``.
    """

    name: str
    aim: str
    form: str
    judges: str | None
    findings: tuple[Finding, ...]
    full: float
    floor: float

    def of(self, outcome: Outcome) -> tuple[Finding, ...]:
        """The findings with this outcome, highest credit first; for refusals lowest first."""
        of_outcome = [finding for finding in self.findings if finding.outcome == outcome]
        return tuple(sorted(of_outcome, key=lambda f: f.credit or 0.0, reverse=outcome != "refusal"))

    exploits = property(lambda self: self.of("exploit"), doc="Deserve nothing, and earned half the credit.")
    refusals = property(lambda self: self.of("refusal"), doc="Deserve the reward, and earned under half.")
    errors = property(lambda self: self.of("error"), doc="Completions on which the reward raised.")

    def share(self, outcome: Outcome) -> float:
        """Return the share of exploits where nothing is deserved, or of refusals where pay is deserved."""
        due = {"exploit": NOTHING, "refusal": PAYS}[outcome]
        judged = [f.outcome for f in self.findings if f.band == due and f.outcome in ("ok", outcome)]
        return judged.count(outcome) / len(judged) if judged else 0.0

    @property
    def constant(self) -> bool:
        """Whether all scored completions have the same score, or none has a score."""
        # Not for a length penalty, which is 0 throughout because no case reaches a usual limit.
        scores = {f.score for f in self.findings} - {None}
        equal = len(scores) <= 1 and (not scores or scores == {self.full} == {self.floor})
        return equal and not self.errors and self.judges != "length"

    @property
    def headline(self) -> str:
        """The worst finding in one line."""
        count, scores = len(self.findings), [f.score for f in self.findings if f.score is not None]
        if self.errors:
            first = self.errors[0]
            where = f"on {len(self.errors)} of {count} completions, first on '{first.case.label}'"
            return f"{self.name} raised {first.error.rstrip('.')} ({where})."
        if self.constant:
            score = f"{scores[0]:g}" if scores else "None"
            all_equal = "Every score is equal: nothing to learn from."
            return f"{self.name} gives {score} for all {count} completions. {all_equal}"
        if not self.full > self.floor:
            honest = f"{self.name} pays an honest right completion {self.full:g}"
            return f"{honest}, no more than one with nothing in it ({self.floor:g})."
        if not self.exploits:
            refused = f", but {self._count('refusal')} right ones are refused" if self.refusals else ""
            return f"{self.name}: no exploit among {count} completions{refused}."
        # Among equal scores prefer a completion without a right answer.
        worst = max(self.exploits, key=lambda f: (f.score or 0.0, f.case.answer == NOTHING))
        top = ", its maximum," if worst.score == max(scores) else ""
        return f"{self.name} pays {worst.score:g}{top} for '{worst.case.label}': {worst.case.why}."

    def raise_for(self, exploits: int | None = 0, *, refusals: float | None = None) -> Audit:
        """Return the audit, or raise; for CI.

        Raises:
            AuditFailed: more than ``exploits`` completions are wrongly paid (None allows any number), a larger share
                of the right ones than ``refusals`` is refused, the reward raised, every score is equal, or a right
                completion earns no more than an empty one (less, if it judges form; not checked if it judges length).
        """
        share = self.share("refusal")
        no_more = self.full < self.floor or (self.full == self.floor and self.judges != "form")
        useless = self.errors or self.constant or (no_more and self.judges != "length")
        failed = ["The audit failed"] if useless else []
        if exploits is not None and len(self.exploits) > exploits:
            failed.append(f"{len(self.exploits)} exploits, and {exploits} are allowed")
        if refusals is not None and share > refusals:
            failed.append(f"{share:.1%} refusals, and {refusals:.1%} are allowed")
        if failed:
            todo = "print the audit, which shows each one with its reason, and fix the reward"
            raise invalid("; ".join(failed), f"reward '{self.name}'. {self.headline}", todo, kind=AuditFailed)
        return self

    def facts(self) -> list[tuple[str, str]]:
        """The figures above the tables, as (name, value)."""
        facts = [
            ("exploits", f"{self._count('exploit')} ({self.share('exploit'):.1%})"),
            ("refusals", f"{self._count('refusal')} ({self.share('refusal'):.1%})"),
            ("scores", f"{self.full:g} for an honest right completion, {self.floor:g} for an empty one"),
            ("judged by", {"both": "thought and answer"}.get(self.aim, self.aim)),
            ("form", self._form()),
            ("errors", f"{len(self.errors)} completions" * bool(self.errors)),
        ]
        return [(name, value) for name, value in facts if value]

    def _count(self, outcome: Outcome) -> str:
        due = NOTHING if outcome == "exploit" else PAYS
        return f"{len(self.of(outcome))} of {sum(f.band == due for f in self.findings)}"

    def _form(self) -> str:
        if self.aim == "thought" or self.form not in ("", "auto", "prose"):
            return self.form if self.aim != "thought" else ""
        if not self.form:
            return 'not said; if the reward reads a box or a tag, name it: audit(reward, form="<answer>")'
        return f'{self.form}, which guesses in prose; safer: form="boxed", and instruction("boxed") in the prompt'

    def _cases(self, outcome: Outcome) -> Rows:
        """Return a row per case, with one of its completions; if cases are many, the families take turns."""
        by_case: dict[str, list[Finding]] = defaultdict(list)
        for finding in self.of(outcome):
            by_case[finding.case.label].append(finding)
        rank: dict[str, Iterator[int]] = defaultdict(itertools.count)
        chosen = sorted(by_case, key=lambda label: next(rank[by_case[label][0].case.family]))[:SHOWN]
        rows: Rows = []
        for label, findings in by_case.items():
            first = findings[0]
            row = (label, str(len(findings)), f"{first.score:.3g}", _end_of(first.completion), first.case.why)
            rows += [row] if label in chosen else []
        further = [(f"... of {len(by_case)} cases", "", "", "", "")] if len(by_case) > SHOWN else []
        return rows + further

    def __str__(self) -> str:
        parts = [self.headline, _table([("", ""), *self.facts()])]
        for title, outcome in TABLES.items():
            if rows := self._cases(outcome):
                parts += [title, _table([("case", "times", "score", "a completion's end", "why"), *rows])]
        return "\n\n".join(parts)

    __repr__ = __str__

    def to_markdown(self) -> str:
        """Return the report as Markdown, with the HTML in completions escaped."""
        return html.escape(str(self))

    _repr_markdown_ = to_markdown


def _end_of(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else "..." + line[3 - WIDTH :]


def _table(rows: Rows) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    head, *body = (f"| {' | '.join(map(str.ljust, row, widths))} |" for row in cells)
    return "\n".join([head, "|" + "".join("-" * (width + 2) + "|" for width in widths), *body])


def audit(
    reward: Reward,
    tokenizer: Any = None,
    cases: Iterable[Case] | None = None,
    *,
    rows: Iterable[Mapping[str, Any]] | None = None,
    column: str = "answer",
    aim: str | None = None,
    form: str | None = None,
    limit: int = 8,
) -> Audit:
    """Score attacks and honest answers, filled in with the task's own gold answers, before a policy writes them.

    A score becomes a credit, from 0 for an empty completion (the median) to 1 for the best honest right one: a case
    that deserves nothing must stay below 0.5, one that deserves pay must reach it.

    Args:
        reward: any TRL reward callable, also ``async``.
        tokenizer: makes the ids; without it, a word is a token.  <think> and </think> are the reward's own tokens if
            it has any, else encoded by the tokenizer, else Qwen3's.
        cases: ``rewards.CASES`` by default.  To add some: ``[*rewards.CASES, rewards.Case(...)]``.
        rows: the task: dicts, or a dataset, with ``prompt``, the gold answer, and any other column the reward
            needs.  By default built-in questions of the reward's kind.
        column: the column of gold answers, or of solutions that end in them as ``answer_reward`` reads them.
        aim: "answer" for a reward for right answers, "thought" for one for form, "both" for one that pays only
            for both; by default the reward's own.
        form: where the reward reads the answer, one of ``rewards.FORMS``; by default its own, else "auto".
        limit: the most rows used, spread over the task; the first ones of a stream.

    >>> from rewards import answer_reward, thinking_reward
    >>> len(audit(answer_reward()).raise_for(exploits=0, refusals=0.02).exploits)
    0
    >>> audit(thinking_reward()).headline.split(":")[0]
    "thinking_reward pays 1.1, its maximum, for 'filler thought"
    """
    check_signature(reward)
    aim, read = aim or said_by(reward, "aim", "answer"), str(form or said_by(reward, "form", ""))
    check_choice(aim, get_args(Aim), "aim", "audit")
    check_choice(form or "auto", FORMS, "form", "audit")
    if isinstance(tokenizer, str):
        todo = f"pass AutoTokenizer.from_pretrained({tokenizer!r})"
        raise invalid("A tokenizer is needed, not its name", f"audit(tokenizer={tokenizer!r})", todo)
    task = task_rows(str(said_by(reward, "kind")), rows, column, limit)
    writer = Writer(tokenizer, said_by(reward, "tokens"), task, column, read or "auto")
    samples = writer.samples(CASES if cases is None else cases)
    call = _Caller(reward, task, samples[:1], rows is None or not isinstance(task[0]["prompt"], str))

    families = ([case for case in CASES if case.family == family] for family in ("honest", "nothing"))
    honest, nothing = ([s for s in call(writer.samples(f))[0] if s is not None] for f in families)
    full, floor = max(honest, default=0.0), median(nothing) if nothing else 0.0
    scores, errors = call(samples)

    def finding(sample: Sample, score: float | None, error: str) -> Finding:
        # A reward that pays an honest completion no more than an empty one gives no credit at all.
        credit = None if score is None else (score - floor) / (full - floor) if full > floor else 0.0
        of = (sample.case, sample.prompt, sample.gold, sample.text, sample.case.band(aim))
        return Finding(*of, score, credit, error)

    findings = tuple(map(finding, samples, scores, errors))
    return Audit(reward_name(reward), aim, read, said_by(reward, "judges"), findings, full, floor)


class _Caller:
    """Calls a reward as TRL does; a batch that raises is called again one by one, to name the failing completions."""

    def __init__(self, reward: Reward, task: Sequence[Any], first: Sequence[Sample], chat: bool) -> None:
        self.reward, self.task = reward, task
        # Try the rows' own kind of prompt, chat or text, then the other; keep the first if both raise.
        for self.chat in (chat, not chat, chat):
            if not any(self(first)[1]):
                break

    def __call__(self, samples: Sequence[Sample]) -> tuple[Scores, list[str]]:
        try:
            return self._call(samples) if samples else [], [""] * len(samples)
        except Exception as error:
            raised = f"{type(error).__name__}: {error}".splitlines()[0]
        if len(samples) == 1:
            return [None], [raised]
        alone = [self([sample]) for sample in samples]
        errors = [error for _, (error,) in alone]
        # If none fails alone, as with a wrong number of scores, all get the batch's error.
        return [score for (score,), _ in alone], errors if any(errors) else [raised] * len(samples)

    def _call(self, samples: Sequence[Sample]) -> Scores:
        rows = [self.task[sample.row] for sample in samples]
        prompts = [row["prompt"] for row in rows]
        completions: list[Any] = [sample.text for sample in samples]
        if self.chat:
            completions = [[{"role": "assistant", "content": text}] for text in completions]
            prompts = [[{"role": "user", "content": p}] if isinstance(p, str) else p for p in prompts]
        given = {"prompts": prompts, "completions": completions, "completion_ids": [list(one.ids) for one in samples]}
        state = SimpleNamespace(global_step=0, max_steps=1, epoch=0.0)
        return call_reward(self.reward, **trl_keywords(rows, **given, trainer_state=state))
