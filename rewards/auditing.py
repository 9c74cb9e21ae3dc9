"""What a reward wrongly accepts, what it wrongly refuses, and how a policy could exploit it.

A second of CPU time before GPU hours are spent on a reward function.  The cases are in ``rewards.corpus``; this module
turns them into TRL's keywords, scores them, and compares each score with what the case should earn.

An audit finds only the exploits in its corpus: read what your policy writes as well.
"""

from __future__ import annotations

import html
import itertools
import math
import random
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from types import SimpleNamespace
from typing import Any

from rewards.compose import Reward, Scores, call_reward, reward_name
from rewards.corpus import (
    CASES,
    CONTESTED,
    NOTHING,
    PAYS,
    QUESTIONS,
    Band,
    Case,
    families,
    fill,
    gold_forms,
    in_form,
)
from rewards.errors import invalid, three_parts
from rewards.text import completion_text
from rewards.thinking import CLOSE, OPEN, QWEN3, ThinkTokens, encode

AIMS = ("answer", "thought", "both")


class AuditFailed(AssertionError):
    """An audit found more than ``raise_for`` allows."""


@dataclass(frozen=True)
class Finding:
    """One completion and what the reward gave it.

    Attributes:
        case: the case it was made from.
        prompt: its prompt's text.
        gold: its gold answer.
        completion: the decoded text that the reward saw.
        band: the credit it should earn.
        score: what the reward gave; None for "does not apply".
        credit: (score - floor) / (full - floor): 1 is what an honest right completion earns, 0 an empty one.
        error: what the reward raised, or "".
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
        name: the reward's name.
        aim: what the reward is meant to pay for: "answer", "thought" or "both".
        findings: every completion scored.
        full: best score of an honest right completion.
        floor: median score of completions with nothing in them.
        group_std: standard deviation of the scores in a typical group of eight, averaged over prompts; 0
            means that every advantage is 0 and nothing is learned.
        cut_off_std: the same for a group whose completions were all cut off within their thoughts.
        deterministic: whether the same call gave the same scores twice.
        order_free: whether a completion's score is the same in another order and alone.
        seconds_per_1000: time for 1,000 completions.
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
            return f"{self.name} fails on '{_label(self.errors[0].case)}': {self.errors[0].error}."
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
        return f"{self.name} pays {worst.score:g}{top} for '{_label(worst.case)}': {worst.case.why}."

    def raise_for(
        self, exploits: int | None = 0, *, refusals: float | None = None, margin: float | None = None
    ) -> Audit:
        """Raise if the audit found more than this; for CI.

        Args:
            exploits: most completions wrongly paid; None for any number.
            refusals: largest share of right completions refused, such as 0.02.
            margin: least margin.

        Returns:
            The audit itself.

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
        if margin is not None and (self.margin is None or self.margin < margin):
            failed.append(f"a margin of {self.margin}, and {margin} is asked")
        if failed:
            todo = "print the audit, which shows each one with its reason, and mend the reward"
            raise AuditFailed(three_parts("; ".join(failed), f"reward '{self.name}'. {self.headline}", todo))
        return self

    # ------------------------------------------------------------------------------- showing

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
        for family in families(f.case for f in self.findings):
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
            grouped.setdefault(_label(finding.case), []).append(finding)
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
        facts = (f"| {n} | {_esc(v)} |" for n, v in self.facts())
        lines = [_esc(self.headline), "", "| | |", "|---|---|", *facts]
        for title, rows in self._tables():
            # A pipe ends a cell, and a completion's HTML would be the reader's page.
            cells = ([_esc(cell).replace("|", "\\|") for cell in row] for row in rows)
            head, *body = ["| " + " | ".join(row) + " |" for row in cells]
            lines += ["", f"**{title}**", "", head, "|" + "---|" * len(rows[0]), *body]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{_esc(n)}</th><td>{_esc(v)}</td></tr>" for n, v in self.facts()
        )
        parts = [f"<p><b>{_esc(self.headline)}</b></p><table>{cells}</table>"]
        for title, (head, *body) in self._tables():
            rows = "".join(
                "<tr>" + "".join(f"<td style='text-align:left'>{_esc(c)}</td>" for c in row) + "</tr>"
                for row in body
            )
            names = "".join(f"<th style='text-align:left'>{_esc(c)}</th>" for c in head)
            parts.append(
                f"<p><b>{_esc(title)}</b></p><table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>"
            )
        return "".join(parts)


def _label(case: Case) -> str:
    return f"{case.family}: {case.name}"


def _esc(text: str) -> str:
    return html.escape(text)


def _spread(std: float) -> str:
    return f"{std:.3g}" if std > 0 else "0: every score is equal, so every advantage is 0"


def _text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


# ---------------------------------------------------------------------------------- the audit


def audit(
    reward: Reward,
    tokenizer: Any = None,
    cases: Iterable[Case] | None = None,
    *,
    rows: Iterable[Mapping[str, Any]] | None = None,
    column: str = "answer",
    aim: str | None = None,
    tokens: ThinkTokens | None = None,
    conversational: bool | None = None,
    limit: int = 8,
) -> Audit:
    """Score a corpus of attacks and of honest answers with a reward, before a policy does.

    Each case is filled in with the task's own gold answers and passed to the reward by TRL's keywords.  Its score
    becomes a credit: 0 is what an empty completion earns (the median), 1 what the best honest right one earns.  A case
    that deserves nothing must stay below 0.5, one that deserves pay must reach it.

    Args:
        reward: any TRL reward callable, also ``async``.
        tokenizer: makes the ids; without it a word is a token, and the markers are Qwen3's.
        cases: ``rewards.CASES`` by default.  To add some: ``[*rewards.CASES, rewards.Case(...)]``.
        rows: the task: dicts, or a dataset, with ``prompt``, the gold answer, and any other column the reward
            needs.  By default five arithmetic questions, or choices or words for those kinds of
            ``answer_reward``.
        column: the column of gold answers.
        aim: "answer" for a reward of right answers, "thought" for one of form, "both" for one that pays only
            for both.  By default ``reward.aim`` where the reward has one, else "answer".
        tokens: the markers; by default the reward's own, or the tokenizer's.
        conversational: completions as messages or as str; by default messages, and str if that fails.
        limit: most rows used, spread over the task; of a stream the first ones.

    Raises:
        ValueError: an unknown aim, no rows, or rows without prompt or gold answer.

    >>> from rewards import answer_reward, thinking_reward
    >>> len(audit(answer_reward()).raise_for(exploits=0, refusals=0.02).exploits)
    0
    >>> audit(thinking_reward()).headline.split(":")[0]
    "thinking_reward pays 1.1, its maximum, for 'filler thought"
    """
    chosen = aim or getattr(reward, "aim", "answer")
    if chosen not in AIMS:
        raise invalid(f"There is no aim '{chosen}'", "audit(aim=...)", f"choose one of {AIMS}")
    task = _task(reward, rows, column, limit)
    writer = _Writer(tokenizer, tokens or _tokens(reward, tokenizer))
    form = str(getattr(reward, "form", "auto"))
    used = [in_form(case, form) for case in (CASES if cases is None else cases)]
    samples = writer.samples(used, task, column)
    call = _Caller(reward, task, column, _conversational(reward, samples, task, column, conversational))
    group_std, cut_off_std = _spreads(writer, call, task, column, form)
    calibration = writer.calibration(task, column, form)
    return _measured(reward, chosen, samples, call, calibration, group_std, cut_off_std)


def _measured(
    reward: Reward,
    aim: str,
    samples: list[_Sample],
    call: _Caller,
    calibration: tuple[list[_Sample], list[_Sample]],
    group_std: float,
    cut_off_std: float,
) -> Audit:
    honest, nothing = (_known(call(part)[0]) for part in calibration)
    full, floor = max(honest, default=0.0), median(nothing) if nothing else 0.0
    start = time.perf_counter()
    scores, errors = call(samples)
    seconds = time.perf_counter() - start
    order = random.Random(0).sample(range(len(samples)), len(samples))
    shuffled, _ = call([samples[i] for i in order])
    alone = [call([samples[i]])[0][0] for i in order[:16]]
    findings = (
        _finding(sample, score, error, aim, full, floor)
        for sample, score, error in zip(samples, scores, errors, strict=True)
    )
    return Audit(
        name=reward_name(reward),
        aim=aim,
        findings=tuple(findings),
        full=full,
        floor=floor,
        group_std=group_std,
        cut_off_std=cut_off_std,
        deterministic=_same(call(samples)[0], scores),
        order_free=_same(shuffled, [scores[i] for i in order])
        and _same(alone, [scores[i] for i in order[:16]]),
        seconds_per_1000=1000 * seconds / max(1, len(samples)),
        form=str(getattr(reward, "form", "auto")),
    )


def _same(a: Scores, b: Scores) -> bool:
    # Reward models round differently in batches of another size.
    return all(
        x == y or (x is not None and y is not None and math.isclose(x, y, rel_tol=1e-3, abs_tol=1e-4))
        for x, y in zip(a, b, strict=True)
    )


def _known(scores: Scores) -> list[float]:
    return [score for score in scores if score is not None]


def _finding(
    sample: _Sample, score: float | None, error: str, aim: str, full: float, floor: float
) -> Finding:
    # A reward that pays an honest completion no more than an empty one gives no credit at all.
    credit = None if score is None else (score - floor) / (full - floor) if full > floor else 0.0
    return Finding(
        sample.case, sample.prompt, sample.gold, sample.text, band_for(sample.case, aim), score, credit, error
    )


def band_for(case: Case, aim: str) -> Band:
    """What a case should earn from a reward with this aim."""
    if aim != "both":
        return case.answer if aim == "answer" else case.thought
    if case.answer == NOTHING:
        return NOTHING
    return case.thought if case.answer == PAYS and case.thought == PAYS else CONTESTED


@dataclass(frozen=True)
class _Sample:
    case: Case
    row: int
    prompt: str
    gold: str
    text: str
    ids: tuple[int, ...]


def _task(
    reward: Reward, rows: Iterable[Mapping[str, Any]] | None, column: str, limit: int
) -> list[dict[str, Any]]:
    if rows is None:
        built_in = QUESTIONS.get(str(getattr(reward, "kind", "")), QUESTIONS["number"])
        return [{"prompt": row["prompt"], column: row["answer"]} for row in built_in]
    table: Any = rows
    if hasattr(rows, "__len__") and hasattr(rows, "__getitem__"):
        # A dataset decodes a row only where it is asked for.
        task = [dict(table[i]) for i in range(0, len(table), max(1, len(table) // limit))[:limit]]
    else:
        task = [dict(row) for row in itertools.islice(rows, limit)]
    bad = [row for row in task if "prompt" not in row or row.get(column) is None]
    if not task or bad:
        found = sorted(bad[0]) if bad else "no rows"
        raise invalid(
            f"Every row needs a prompt and a gold answer in column '{column}'",
            f"audit(rows=...), which has {found}",
            "pass rows=task.train, and column= with the name of the gold answers",
        )
    return task


def _tokens(reward: Reward, tokenizer: Any) -> ThinkTokens:
    own = getattr(reward, "tokens", None)
    if isinstance(own, ThinkTokens):
        return own
    return QWEN3 if tokenizer is None else ThinkTokens.from_tokenizer(tokenizer)


class _Words:
    """A tokenizer for audits without one: a word, a sign or a run of white space is a token.

    Scripts that write no spaces count by character.
    """

    pattern = re.compile(
        r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]| ?[^\W\u3040-\u9fff\uac00-\ud7af]+|\s+| ?[^\w\s]"
    )

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [self.ids.setdefault(word, len(self.ids)) for word in self.pattern.findall(text)]


class _Writer:
    """Writes cases as completions: the ids a policy would have sampled, and their decoded text."""

    def __init__(self, tokenizer: Any, tokens: ThinkTokens) -> None:
        self.tokenizer, self.tokens = tokenizer or _Words(), tokens
        end = tokens.eos_ids[0] if tokens.eos_ids else QWEN3.eos_ids[0]
        self.markers = {
            "{open}": ([tokens.open_id], OPEN),
            "{close}": ([tokens.close_id], CLOSE),
            "{end}": ([end], ""),
            "{typed_open}": (self._typed(OPEN), OPEN),
            "{typed_close}": (self._typed(CLOSE), CLOSE),
        }

    def _typed(self, marker: str) -> list[int]:
        # Piece by piece, because a tokenizer would encode the whole as the marker token.
        return [i for piece in (marker[:2], marker[2:-1], marker[-1]) for i in encode(self.tokenizer, piece)]

    def sample(self, case: Case, row: int, prompt: str, gold: str, others: Sequence[str]) -> _Sample | None:
        pieces = fill(case, gold_forms(gold, others), prompt, prompt_opens=self.tokens.prompt_opens)
        if pieces is None:
            return None
        parts = [self.markers.get(piece) or (encode(self.tokenizer, piece), piece) for piece in pieces]
        ids = tuple(i for part, _ in parts for i in part)
        return _Sample(case, row, prompt, gold, "".join(text for _, text in parts), ids)

    def samples(self, cases: Sequence[Case], task: Sequence[Mapping[str, Any]], column: str) -> list[_Sample]:
        golds = [str(row[column]) for row in task]
        made = (
            self.sample(case, i, completion_text(row["prompt"]), golds[i], golds)
            for case in cases
            for i, row in enumerate(task)
        )
        return [sample for sample in made if sample is not None]

    def calibration(
        self, task: Sequence[Mapping[str, Any]], column: str, form: str
    ) -> tuple[list[_Sample], list[_Sample]]:
        """Honest completions, and completions with nothing in them."""
        honest, nothing = (
            self.samples([in_form(case, form) for case in CASES if case.family == family], task, column)
            for family in ("honest", "nothing")
        )
        return honest, nothing


class _Caller:
    """Calls a reward as TRL does; a batch that raises is retried one by one, to name the failing completions."""

    def __init__(self, reward: Reward, task: Sequence[Mapping[str, Any]], column: str, chat: bool) -> None:
        self.reward, self.task, self.column, self.chat = reward, task, column, chat

    def __call__(self, samples: Sequence[_Sample]) -> tuple[Scores, list[str]]:
        if not samples:
            return [], []
        try:
            return self._call(samples), [""] * len(samples)
        except Exception as error:
            if len(samples) == 1:
                return [None], [f"{type(error).__name__}: {error}".splitlines()[0]]
        scores, errors = zip(*(self([sample]) for sample in samples), strict=True)
        return [score[0] for score in scores], [error[0] for error in errors]

    def _call(self, samples: Sequence[_Sample]) -> Scores:
        rows = [self.task[sample.row] for sample in samples]
        columns = {key: [row[key] for row in rows] for key in rows[0] if key != "prompt"}
        completions = [[{"role": "assistant", "content": s.text}] if self.chat else s.text for s in samples]
        prompts = [
            [{"role": "user", "content": row["prompt"]}]
            if self.chat and isinstance(row["prompt"], str)
            else row["prompt"]
            for row in rows
        ]
        return call_reward(
            self.reward,
            prompts=prompts,
            completions=completions,
            completion_ids=[list(sample.ids) for sample in samples],
            trainer_state=SimpleNamespace(global_step=0, max_steps=1, epoch=0.0),
            log_extra=_no_log,
            log_metric=_no_log,
            **columns,
        )


def _no_log(name: str, value: Any) -> None:
    """An audit logs nothing."""


def _conversational(
    reward: Reward,
    samples: Sequence[_Sample],
    task: Sequence[Mapping[str, Any]],
    column: str,
    asked: bool | None,
) -> bool:
    if asked is not None or not samples:
        return bool(asked)
    return not _Caller(reward, task, column, True)(samples[:1])[1][0]


#: A group of eight as a policy writes it halfway through training.
_GROUP = (
    "honest: boxed",
    "honest: the answer is",
    "near miss: next number",
    "only in the thought: wrong after it",
    "truncated: in the thought",
    "short thought: nine tokens",
    "empty thought: no tokens",
    "thought, no answer: done",
)


def _spreads(
    writer: _Writer, call: _Caller, task: Sequence[Mapping[str, Any]], column: str, form: str
) -> tuple[float, float]:
    cut = [
        Case(
            "cut off",
            str(n),
            "{open}" + "{thought}" * n,
            NOTHING,
            NOTHING,
            "a limit too short for the thought",
        )
        for n in range(1, 9)
    ]
    groups = ([in_form(case, form) for case in CASES if _label(case) in _GROUP], cut)
    typical, cut_off = (_group_std(writer.samples(group, task, column), call) for group in groups)
    return typical, cut_off


def _group_std(samples: Sequence[_Sample], call: _Caller) -> float:
    scores = call(samples)[0]
    rows = {sample.row for sample in samples}
    groups = (
        [s for s, sample in zip(scores, samples, strict=True) if sample.row == row and s is not None]
        for row in rows
    )
    return fmean(pstdev(group) if group else 0.0 for group in groups)
