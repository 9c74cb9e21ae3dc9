"""Score a reward on attacks and honest answers: what it wrongly accepts, and what it wrongly refuses.

A second of CPU time before GPU hours are spent on a reward function.  The cases are in ``rewards.corpus``; this module
turns them into TRL's keywords, scores them, and compares each score with what the case should earn.

An audit finds only the exploits in its corpus: read what your policy writes as well.
"""

from __future__ import annotations

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

from rewards import corpus
from rewards.answers import accepted, gold_text
from rewards.corpus import CASES, CONTESTED, NOTHING, PAYS, Band, Case
from rewards.errors import invalid
from rewards.findings import Audit, Finding
from rewards.guard import call_reward
from rewards.signature import Reward, Scores, reward_name, said_by
from rewards.text import question
from rewards.thinking import CLOSE, OPEN, QWEN3, ThinkTokens, encode

AIMS = ("answer", "thought", "both")
_CUT_OFF = [
    Case("cut off", str(n), "{open}" + "{thought}" * n, NOTHING, NOTHING, "a limit too short for the thought")
    for n in range(1, 9)
]


def audit(
    reward: Reward,
    tokenizer: Any = None,
    cases: Iterable[Case] | None = None,
    *,
    rows: Iterable[Mapping[str, Any]] | None = None,
    column: str = "answer",
    aim: str | None = None,
    limit: int = 8,
) -> Audit:
    """Score a corpus of attacks and of honest answers with a reward, before a policy does.

    Each case is filled in with the task's own gold answers and passed to the reward by TRL's keywords.  Its score
    becomes a credit: 0 is what an empty completion earns (the median), 1 what the best honest right one earns.  A case
    that deserves nothing must stay below 0.5, one that deserves pay must reach it.

    Args:
        reward: any TRL reward callable, also ``async``.  Completions are messages, and str if that fails.
        tokenizer: makes the ids; without it a word is a token.  The markers are the reward's own, or the
            tokenizer's, or Qwen3's.
        cases: ``rewards.CASES`` by default.  To add some: ``[*rewards.CASES, rewards.Case(...)]``.
        rows: the task: dicts, or a dataset, with ``prompt``, the gold answer, and any other column the reward
            needs.  By default five arithmetic questions, or choices or words for those kinds of
            ``answer_reward``.
        column: the column of gold answers, or of solutions that end in them as ``answer_reward`` reads them.
        aim: "answer" for a reward of right answers, "thought" for one of form, "both" for one that pays only
            for both.  By default ``reward.aim`` where the reward has one, else "answer".
        limit: most rows used, spread over the task; of a stream the first ones.

    Raises:
        ValueError: an unknown aim, no rows, or rows without prompt or gold answer.

    >>> from rewards import answer_reward, thinking_reward
    >>> len(audit(answer_reward()).raise_for(exploits=0, refusals=0.02).exploits)
    0
    >>> audit(thinking_reward()).headline.split(":")[0]
    "thinking_reward pays 1.1, its maximum, for 'filler thought"
    """
    chosen = aim or said_by(reward, "aim", "answer")
    if chosen not in AIMS:
        raise invalid(f"There is no aim '{chosen}'", "audit(aim=...)", f"choose one of {AIMS}")
    task = _task(reward, rows, column, limit)
    form = str(said_by(reward, "form", "auto"))
    tokens = said_by(reward, "tokens") or (ThinkTokens.from_tokenizer(tokenizer) if tokenizer else QWEN3)
    writer = _Writer(tokenizer, tokens, task, column, form)
    samples = writer.samples(CASES if cases is None else cases)
    call = _Caller(reward, task, samples[:1])
    group_std, cut_off_std = (
        _group_std(writer.samples(group), call)
        for group in ([case for case in CASES if case.label in corpus.GROUP], _CUT_OFF)
    )
    honest, nothing = (
        [s for s in call(writer.samples(c for c in CASES if c.family == family))[0] if s is not None]
        for family in ("honest", "nothing")
    )
    full, floor = max(honest, default=0.0), median(nothing) if nothing else 0.0
    start = time.perf_counter()
    scores, errors = call(samples)
    seconds = time.perf_counter() - start
    order = random.Random(0).sample(range(len(samples)), len(samples))
    shuffled = call([samples[i] for i in order])[0]
    alone = [call([samples[i]])[0][0] for i in order[:16]]
    findings = (
        _finding(sample, score, error, chosen, full, floor)
        for sample, score, error in zip(samples, scores, errors, strict=True)
    )
    return Audit(
        name=reward_name(reward),
        aim=chosen,
        findings=tuple(findings),
        full=full,
        floor=floor,
        group_std=group_std,
        cut_off_std=cut_off_std,
        deterministic=_same(call(samples)[0], scores),
        order_free=_same([*shuffled, *alone], [scores[i] for i in (*order, *order[:16])]),
        seconds_per_1000=1000 * seconds / max(1, len(samples)),
        form=form,
    )


def _task(
    reward: Reward, rows: Iterable[Mapping[str, Any]] | None, column: str, limit: int
) -> list[dict[str, Any]]:
    if rows is None:
        built_in = corpus.QUESTIONS.get(str(said_by(reward, "kind")), corpus.QUESTIONS["number"])
        return [{"prompt": row["prompt"], column: row["answer"]} for row in built_in]
    table: Any = rows
    if hasattr(rows, "__len__") and hasattr(rows, "__getitem__"):
        # A dataset decodes a row only where it is asked for.
        task = [dict(table[i]) for i in range(0, len(table), max(1, len(table) // limit))[:limit]]
    else:
        task = [dict(row) for row in itertools.islice(rows, limit)]
    bad = [row for row in task if "prompt" not in row or row.get(column) is None]
    if not task or bad:
        raise invalid(
            f"Every row needs a prompt and a gold answer in column '{column}'",
            f"audit(rows=...), which has {sorted(bad[0]) if bad else 'no rows'}",
            "pass rows=task.train, and column= with the name of the gold answers",
        )
    return task


def _same(a: Scores, b: Scores) -> bool:
    # Reward models round differently in batches of another size.
    return all(
        x == y or (x is not None and y is not None and math.isclose(x, y, rel_tol=1e-3, abs_tol=1e-4))
        for x, y in zip(a, b, strict=True)
    )


def _group_std(samples: Sequence[_Sample], call: _Caller) -> float:
    """The standard deviation of a group's scores, averaged over the rows of the task."""
    groups: dict[int, list[float]] = {sample.row: [] for sample in samples}
    for sample, score in zip(samples, call(samples)[0], strict=True):
        if score is not None:
            groups[sample.row].append(score)
    return fmean(pstdev(group) if group else 0.0 for group in groups.values())


def band_for(case: Case, aim: str) -> Band:
    """What a case should earn from a reward with this aim."""
    if aim != "both":
        return case.answer if aim == "answer" else case.thought
    if case.answer == NOTHING:
        return NOTHING
    return case.thought if case.answer == PAYS and case.thought == PAYS else CONTESTED


def _finding(
    sample: _Sample, score: float | None, error: str, aim: str, full: float, floor: float
) -> Finding:
    # A reward that pays an honest completion no more than an empty one gives no credit at all.
    credit = None if score is None else (score - floor) / (full - floor) if full > floor else 0.0
    band = band_for(sample.case, aim)
    return Finding(sample.case, sample.prompt, sample.gold, sample.text, band, score, credit, error)


@dataclass(frozen=True)
class _Sample:
    case: Case
    row: int
    prompt: str
    gold: str
    text: str
    ids: tuple[int, ...]


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

    def __init__(
        self, tokenizer: Any, tokens: ThinkTokens, task: Sequence[Mapping[str, Any]], column: str, form: str
    ) -> None:
        self.tokenizer, self.tokens, self.form = tokenizer or _Words(), tokens, form
        self.prompts = [question(row["prompt"]) for row in task]
        self.golds = [gold_text(str(next(iter(accepted(row[column])), ""))) for row in task]
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

    def samples(self, cases: Iterable[Case]) -> list[_Sample]:
        """Every case for every row of the task that it applies to."""
        written = [corpus.in_form(case, self.form) for case in cases]
        made = (self._sample(case, row) for case in written for row in range(len(self.golds)))
        return [sample for sample in made if sample is not None]

    def _sample(self, case: Case, row: int) -> _Sample | None:
        prompt, gold = self.prompts[row], self.golds[row]
        forms = corpus.gold_forms(gold, self.golds)
        pieces = corpus.fill(case, forms, prompt, prompt_opens=self.tokens.prompt_opens)
        if pieces is None:
            return None
        parts = [self.markers.get(piece) or (encode(self.tokenizer, piece), piece) for piece in pieces]
        ids = tuple(i for part, _ in parts for i in part)
        return _Sample(case, row, prompt, gold, "".join(text for _, text in parts), ids)


class _Caller:
    """Calls a reward as TRL does; a batch that raises is retried one by one, to name the failing completions."""

    def __init__(self, reward: Reward, task: Sequence[Mapping[str, Any]], first: Sequence[_Sample]) -> None:
        self.reward, self.task, self.chat = reward, task, True
        self.chat = not any(self(first)[1])

    def __call__(self, samples: Sequence[_Sample]) -> tuple[Scores, list[str]]:
        try:
            return self._call(samples) if samples else [], [""] * len(samples)
        except Exception as error:
            if len(samples) == 1:
                return [None], [f"{type(error).__name__}: {error}".splitlines()[0]]
        scores, errors = zip(*(self([sample]) for sample in samples), strict=True)
        return [score[0] for score in scores], [error[0] for error in errors]

    def _call(self, samples: Sequence[_Sample]) -> Scores:
        rows = [self.task[sample.row] for sample in samples]
        prompts = [row["prompt"] for row in rows]
        completions: list[Any] = [sample.text for sample in samples]
        if self.chat:
            completions = [[{"role": "assistant", "content": text}] for text in completions]
            prompts = [[{"role": "user", "content": p}] if isinstance(p, str) else p for p in prompts]
        return call_reward(
            self.reward,
            prompts=prompts,
            completions=completions,
            completion_ids=[list(sample.ids) for sample in samples],
            trainer_state=SimpleNamespace(global_step=0, max_steps=1, epoch=0.0),
            log_extra=lambda column, values: None,
            log_metric=lambda name, value: None,
            **{key: [row[key] for row in rows] for key in rows[0] if key != "prompt"},
        )
