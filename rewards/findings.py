"""What an audit found: each completion with its score, the verdicts counted, and the report.

For ``rewards.audit``, which makes it.  A report is text, or Markdown in a notebook.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rewards.corpus import CONTESTED, NOTHING, PAYS, Band, Case
from rewards.errors import invalid


class AuditFailed(AssertionError):
    """An audit found more than ``raise_for`` allows."""


@dataclass(frozen=True)
class Finding:
    """One completion, as the decoded text that the reward saw, and what the reward gave it.

    Its credit, (score - floor) / (full - floor), should lie in the band: 1 is what an honest right completion earns, 0
    an empty one.  A score of None means "does not apply".  ``error`` is what the reward raised, or "".
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
    def verdict(self) -> str:
        """ "error", "none" (does not apply), "contested", "ok", "exploit" or "refusal"."""
        if self.error:
            return "error"
        if self.score is None or self.credit is None:
            return "none"
        if self.band == CONTESTED:
            return "contested"
        if self.band.holds(self.credit):
            return "ok"
        return "refusal" if self.credit < self.band.low else "exploit"


@dataclass(frozen=True)
class Audit:
    """The result of ``audit``: print it, show it in a notebook, or call ``raise_for`` in CI.

    Attributes:
        aim: what the reward is meant to pay for: "answer", "thought" or "both".
        full: best score of an honest right completion.
        floor: median score of completions with nothing in them.
        group_std: standard deviation of the scores in a typical group of eight, averaged over prompts; 0
            means that every advantage is 0 and nothing is learned.
        cut_off_std: the same for a group whose completions were all cut off within their thoughts.
        deterministic: whether the same call gave the same scores twice.
        order_free: whether a completion's score is the same in another order and alone.
        form: the form of answer that the reward reads, in which the cases were written.
    """

    name: str
    aim: str
    findings: tuple[Finding, ...]
    full: float
    floor: float
    group_std: float
    cut_off_std: float
    deterministic: bool
    order_free: bool
    seconds_per_1000: float
    form: str = "auto"

    def of(self, verdict: str) -> tuple[Finding, ...]:
        """The findings with this verdict, highest credit first; for refusals lowest first."""
        found = [finding for finding in self.findings if finding.verdict == verdict]
        sign = 1 if verdict == "refusal" else -1
        return tuple(sorted(found, key=lambda f: sign * (f.credit or 0.0)))

    @property
    def exploits(self) -> tuple[Finding, ...]:
        """Completions that deserve nothing and earned at least half of an honest one's credit."""
        return self.of("exploit")

    @property
    def refusals(self) -> tuple[Finding, ...]:
        """Completions that deserve the reward and earned under half of it."""
        return self.of("refusal")

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Completions on which the reward raised."""
        return self.of("error")

    def share(self, verdict: str) -> float:
        """Exploits among the completions that deserve nothing, or refusals among those that deserve pay."""
        due = {"exploit": NOTHING, "refusal": PAYS}[verdict]
        judged = [f for f in self.findings if f.band == due and f.verdict in ("ok", verdict)]
        return len([f for f in judged if f.verdict == verdict]) / len(judged) if judged else 0.0

    @property
    def margin(self) -> float | None:
        """Lowest score of a right completion minus the highest score of one without a right answer.

        If positive, no completion without a right answer earns as much as any right one.
        """
        right = [f.score for f in self.findings if f.case.answer == f.band == PAYS and f.score is not None]
        wrong = [f.score for f in self.findings if f.case.answer == NOTHING and f.score is not None]
        return min(right) - max(wrong) if right and wrong else None

    @property
    def headline(self) -> str:
        """The worst finding in one line."""
        if self.errors:
            return f"{self.name} fails on '{self.errors[0].case.label}': {self.errors[0].error}."
        scores = [f.score for f in self.findings if f.score is not None]
        if not scores:
            return f"{self.name} judged nothing: it gave None for all {len(self.findings)} completions."
        if not self.full > self.floor:
            return (
                f"{self.name} pays an honest right completion {self.full:g}, no more than one with nothing "
                f"in it ({self.floor:g})."
            )
        if not self.exploits:
            return f"{self.name}: no exploit among {len(self.findings)} completions."
        # Among equal scores prefer a completion without a right answer.
        worst = max(self.exploits, key=lambda f: (f.score or 0.0, f.case.answer == NOTHING))
        top = ", its maximum," if worst.score == max(scores) else ""
        return f"{self.name} pays {worst.score:g}{top} for '{worst.case.label}': {worst.case.why}."

    def raise_for(self, exploits: int | None = 0, *, refusals: float | None = None) -> Audit:
        """Raise if the audit found more than this, else return it; for CI.

        Args:
            exploits: most completions wrongly paid; None for any number.
            refusals: largest share of right completions refused, such as 0.02.

        Raises:
            AuditFailed: there is more, or the reward raised on a completion.
        """
        failed = []
        if self.errors:
            failed.append(f"it raised on {len(self.errors)} completions")
        if exploits is not None and len(self.exploits) > exploits:
            failed.append(f"{len(self.exploits)} exploits, and {exploits} are allowed")
        if refusals is not None and self.share("refusal") > refusals:
            failed.append(f"{self.share('refusal'):.1%} refusals, and {refusals:.1%} are allowed")
        if failed:
            todo = "print the audit, which shows each one with its reason, and mend the reward"
            raise invalid("; ".join(failed), f"reward '{self.name}'. {self.headline}", todo, kind=AuditFailed)
        return self

    def facts(self) -> list[tuple[str, str]]:
        """The numbers beside the tables, as (name, value)."""
        due = {band: [f for f in self.findings if f.band == band] for band in (NOTHING, PAYS, CONTESTED)}
        margin = "n/a" if self.margin is None else f"{self.margin:+.3g}"
        return [
            ("judged as a reward of", {"both": "thought and answer"}.get(self.aim, self.aim)),
            ("form of the answer", self._form()),
            ("exploits", f"{len(self.exploits)} of {len(due[NOTHING])} ({self.share('exploit'):.1%})"),
            ("refusals", f"{len(self.refusals)} of {len(due[PAYS])} ({self.share('refusal'):.1%})"),
            ("contested, not counted", str(len(due[CONTESTED]))),
            ("errors", str(len(self.errors))),
            ("honest and empty score", f"{self.full:g} and {self.floor:g}"),
            ("margin", margin + " (least right score minus highest wrong one)"),
            ("spread in a typical group", _spread(self.group_std)),
            ("spread if all are cut off", _spread(self.cut_off_std)),
            ("deterministic", "yes" if self.deterministic else "NO: the same call gave other scores"),
            ("free of batch order", "yes" if self.order_free else "NO: a score depends on the batch"),
            ("time per 1,000", f"{self.seconds_per_1000:.3g} s"),
        ]

    def _form(self) -> str:
        if self.aim == "thought" or self.form not in ("auto", "prose"):
            return self.form if self.aim != "thought" else "not read"
        return f'{self.form}, which guesses in prose; safer: form="boxed", and instruction("boxed") in the prompt'

    def family_rows(self) -> list[tuple[str, ...]]:
        """One row per family: completions, exploits, refusals, lowest and highest score."""
        rows: list[tuple[str, ...]] = [("family", "completions", "exploits", "refusals", "lowest", "highest")]
        for family in dict.fromkeys(f.case.family for f in self.findings):
            mine = [f for f in self.findings if f.case.family == family]
            scores = [f.score for f in mine if f.score is not None]
            counts = [str(sum(f.verdict == v for f in mine)) for v in ("exploit", "refusal")]
            ends = [f"{pick(scores):.3g}" if scores else "None" for pick in (min, max)]
            rows.append((family, str(len(mine)), *counts, *ends))
        return rows

    def finding_rows(self, verdict: str) -> list[tuple[str, ...]]:
        """One row per case with this verdict: case, how many, score, band, why."""
        rows: list[tuple[str, ...]] = [("case", "golds", "score", "should be", "why")]
        grouped: dict[str, list[Finding]] = {}
        for finding in self.of(verdict):
            grouped.setdefault(finding.case.label, []).append(finding)
        for label, mine in grouped.items():
            score = "error" if mine[0].score is None else f"{mine[0].score:.3g}"
            why = mine[0].error or mine[0].case.why
            rows.append((label, str(len(mine)), score, self._band(mine[0].band), why))
        return rows

    def _band(self, band: Band) -> str:
        span = self.full - self.floor
        low, high = (self.floor + end * span if math.isfinite(end) else end for end in band)
        if low == -math.inf:
            return "any" if high == math.inf else f"< {high:.3g}"
        return f">= {low:.3g}" if high == math.inf else f"{low:.3g} to {high:.3g}"

    def _tables(self) -> list[tuple[str, list[tuple[str, ...]]]]:
        named = (("Exploits", "exploit"), ("Refusals", "refusal"), ("Errors", "error"))
        tables = [(title, self.finding_rows(verdict)) for title, verdict in named]
        return [(title, rows) for title, rows in tables if len(rows) > 1] + [("Families", self.family_rows())]

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.facts())
        lines = [self.headline, "", *(f"{name:<{width}}  {value}" for name, value in self.facts())]
        for title, rows in self._tables():
            lines += ["", title, *_text_table(rows)]
        return "\n".join(lines)

    __repr__ = __str__

    def to_markdown(self) -> str:
        """The report as Markdown."""
        tables = "\n\n".join(f"**{title}**\n\n{_markdown_table(rows)}" for title, rows in self._tables())
        return f"{_escaped(self.headline)}\n\n{_markdown_table([('', ''), *self.facts()])}\n\n{tables}"

    _repr_markdown_ = to_markdown


def _escaped(text: str) -> str:
    """A pipe ends a cell, and a completion's HTML would be the reader's page."""
    return html.escape(text).replace("|", "\\|")


def _markdown_table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ["| " + " | ".join(map(_escaped, row)) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def _spread(std: float) -> str:
    return f"{std:.3g}" if std > 0 else "0: every score is equal, so every advantage is 0"


def _text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
