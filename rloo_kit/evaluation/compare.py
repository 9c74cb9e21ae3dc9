"""What training changed: completions of the same prompts before and after, side by side.

It pairs completions, gives the change of reward and accuracy with an interval of its own, sorts the pairs by how far
their reward moved, and marks where each thought begins and ends.  Two evaluations that were not measured alike are
refused: their difference would be that of the settings.  It samples nothing and grades nothing.
"""

from __future__ import annotations

import html
import io
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from rewards.text import question
from rewards.thinking import CLOSE, OPEN, QWEN3, ThinkTokens
from rloo_kit import values
from rloo_kit.errors import ConfigError, DatasetError
from rloo_kit.evaluation.evaluate import Evaluation
from rloo_kit.evaluation.intervals import Interval, bootstrap
from rloo_kit.models import EOS_TEXTS
from rloo_kit.values import Natural

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rloo_kit.policy.policy import Completion, Prompt

SIDE_BY_SIDE = 72  # Narrower than this, the two columns stand one above the other
CELL_STYLE = "text-align:left;vertical-align:top;white-space:pre-wrap;overflow-wrap:anywhere"
MARK_STYLE = "border:1px solid;border-radius:3px;padding:0 3px;font-weight:bold"


@dataclass(frozen=True)
class Piece:
    """A stretch of a completion; its kind is "text", "mark" (a boundary token) or "note" (of this module)."""

    text: str
    kind: str = "text"

    def __str__(self) -> str:
        return {"text": "{}", "mark": "«{}»", "note": " [{}]"}[self.kind].format(self.text)

    @property
    def html(self) -> str:
        """The same, escaped."""
        text = html.escape(self.text)
        if self.kind == "mark":
            return f'<span style="{MARK_STYLE}">{text}</span>'
        return f"<i> [{text}]</i>" if self.kind == "note" else text


@dataclass(frozen=True)
class Pair:
    """One prompt, one completion of it before training, one after.

    Attributes:
        rewards: their weighted sums; None where no function applied.
        correct: whether they assert the row's answer; None where it has none.
    """

    prompt: Prompt
    before: Completion
    after: Completion
    rewards: tuple[float | None, float | None]
    correct: tuple[bool | None, bool | None] = (None, None)

    @property
    def change(self) -> float | None:
        """Reward after minus reward before; None where one of them is missing."""
        return _difference(*self.rewards)

    @property
    def accuracy_change(self) -> float | None:
        """1 where the answer became right, -1 where it became wrong, else 0; None without a grade."""
        return _difference(*self.correct)


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


@dataclass(frozen=True, repr=False)
class Comparison:
    """Completions side by side, largest change of reward first; ``print`` it, or make it a cell's last value.

    Attributes:
        pairs: all of them, sorted by the size of their change of reward, then those whose tokens changed, then in the
            dataset's order.
        reward_change: mean of reward after - before; None without rewards.  The prompts are the same before and
            after, so the test of a change is this interval, a percentile bootstrap of the per-prompt differences (Efron
            1979), not whether two intervals overlap.
        accuracy_change: the same for the share of right answers; None where answers are not known.
        n: how many are shown.
        tokens: which ids open and close a thought.
        chars: most characters shown of a thought, and of an answer; longer ones lose their middle.
    """

    pairs: tuple[Pair, ...]
    reward_change: Interval | None
    accuracy_change: Interval | None
    n: int
    tokens: ThinkTokens = QWEN3
    chars: int = 600

    def __repr__(self) -> str:
        return f"<Comparison: {self.headline}>"

    def __str__(self) -> str:
        return self.text()

    @property
    def headline(self) -> str:
        """How the means changed, and how many rewards rose, fell and stayed."""
        parts = [f"{len(self.pairs)} pairs"]
        named = {"mean reward": self.reward_change, "accuracy": self.accuracy_change}
        if found := {name: change for name, change in named.items() if change is not None}:
            means = ", ".join(f"{name} {change:+.3f}" for name, change in found.items())
            method = ", 95 % bootstrap over prompts" if any(c.is_bounded for c in found.values()) else ""
            parts.append(f"{means} (after - before{method})")
        if changes := [pair.change for pair in self.pairs if pair.change is not None]:
            rose, fell = sum(c > 0 for c in changes), sum(c < 0 for c in changes)
            parts.append(f"reward rose on {rose}, fell on {fell}, stayed on {len(changes) - rose - fell}")
        return "; ".join([*parts, f"{min(self.n, len(self.pairs))} shown"])

    def text(self, width: int | None = None) -> str:
        """Two columns, or one where ``width`` (characters per line; None takes the terminal's) is below 72."""
        from rich.console import Console
        from rich.rule import Rule

        width = max(20, width or shutil.get_terminal_size().columns)
        console = Console(file=io.StringIO(), width=width, color_system=None, markup=False, highlight=False)
        console.print(self.headline)
        for pair in self.pairs[: self.n]:
            console.print("", Rule(characters="━"), _printable(self._question(pair)), Rule(), sep="\n")
            console.print(self._side_by_side(pair, narrow=width < SIDE_BY_SIDE))
        written: str = console.file.getvalue()  # type: ignore[attr-defined]
        return "\n".join(line.rstrip() for line in written.splitlines())

    def _side_by_side(self, pair: Pair, narrow: bool) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        cells = [
            Text(_printable(f"{heading}\n{''.join(map(str, self._pieces(completion)))}"), overflow="fold")
            for heading, completion in _cells(pair)
        ]
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), expand=True)
        for row in cells if narrow else ():
            table.add_row(row)
        if not narrow:
            table.add_column(ratio=1)
            table.add_column(ratio=1)
            table.add_row(*cells)
        return table

    def _repr_html_(self) -> str:
        rows = "".join(self._pair_html(pair) for pair in self.pairs[: self.n])
        # The class keeps MathJax from reading "$5 and $6" as a formula.
        table = f'<table class="tex2jax_ignore" style="width:100%;table-layout:fixed">{rows}</table>'
        return f"<p>{html.escape(self.headline)}</p>{table}"

    def _pair_html(self, pair: Pair) -> str:
        headings, bodies = "", ""
        for heading, completion in _cells(pair):
            headings += f'<th style="text-align:left">{html.escape(heading)}</th>'
            body = "".join(piece.html for piece in self._pieces(completion))
            bodies += f'<td style="{CELL_STYLE}">{body}</td>'
        asked = f"<b>{html.escape(self._question(pair))}</b>"
        return (
            f'<tr><td colspan="2" style="{CELL_STYLE};border-top:2px solid">{asked}</td></tr>'
            f"<tr>{headings}</tr><tr>{bodies}</tr>"
        )

    def _question(self, pair: Pair) -> str:
        return _shortened(question(pair.prompt), self.chars)

    def _pieces(self, completion: Completion) -> list[Piece]:
        found = pieces(completion, self.tokens)
        return [Piece(_shortened(p.text, self.chars)) if p.kind == "text" else p for p in found]


def compare(
    before: Evaluation, after: Evaluation, *, n: int = 5, tokens: ThinkTokens = QWEN3, chars: int = 600
) -> Comparison:
    """Pair the completions of two evaluations, prompt by prompt.

    Several completions of a prompt are paired in their order.

    Args:
        before, after: what ``evaluate`` returned before and after training.
        n: pairs to show; all are in ``Comparison.pairs``.
        tokens, chars: as in :class:`Comparison`.

    Raises:
        ConfigError: they were measured with other rewards, weights, judge of answers, length limit or sampling, or a
            number below 0.
        DatasetError: something that is not an evaluation, or two that are not of the same prompts.
    """
    for name, given in {"before": before, "after": after}.items():
        if not isinstance(given, Evaluation):
            raise DatasetError(
                f"{name} is not an evaluation",
                where=f"compare({name}={type(given).__name__})",
                todo="pass what rloo_kit.evaluate(policy, dataset, ...) returned, before and after training",
            )
    values.check({"n": n, "chars": chars}, {"n": Natural, "chars": Natural}, "compare")
    _check_settings(before, after)
    by_change = lambda pair: (-abs(pair.change or 0.0), pair.before.ids == pair.after.ids)  # noqa: E731
    pairs = sorted(_paired(before, after), key=by_change)
    reward_change = _mean_change([(pair.prompt, pair.change) for pair in pairs])
    accuracy_change = _mean_change([(pair.prompt, pair.accuracy_change) for pair in pairs])
    return Comparison(tuple(pairs), reward_change, accuracy_change, n, tokens, chars)


def _check_settings(before: Evaluation, after: Evaluation) -> None:
    first, second = (
        {"greedy": one.greedy, "samples": one.samples, **one.settings} for one in (before, after)
    )
    for name in [name for name in first if name in second]:
        if name in ("rewards", "correct") and not (first[name] and second[name]):
            continue  # without functions there is nothing to compare
        if first[name] != second[name]:
            raise ConfigError(
                f"the two evaluations differ in {name}, so that their difference would not be the policy's",
                where=f"compare, {name}={first[name]!r} before and {second[name]!r} after",
                todo="evaluate both with the same rewards, weights, correct, max_new_tokens and sampling",
            )


def _paired(before: Evaluation, after: Evaluation) -> list[Pair]:
    """Each prompt's completions, first with first."""
    waiting: defaultdict[str, list[tuple[Completion, float | None, bool | None]]] = defaultdict(list)
    for later in _graded(after):
        waiting[_key(later[0].prompt)].append(later)
    mine, theirs = (Counter(_key(c.prompt) for c in one.completions) for one in (before, after))
    if mine != theirs:
        lacking, more = (mine - theirs).total(), (theirs - mine).total()
        raise DatasetError(
            "the two evaluations are not of the same prompts",
            where=f"compare, {lacking} of {mine.total()} completions have no partner after, "
            f"{more} of {theirs.total()} none before",
            todo="evaluate the same rows before and after training, such as task.held_out with the same n",
        )
    found = []
    for completion, reward, correct in _graded(before):
        partner, later_reward, later_correct = waiting[_key(completion.prompt)].pop(0)
        rewards, graded = (reward, later_reward), (correct, later_correct)
        found.append(Pair(completion.prompt, completion, partner, rewards, graded))
    return found


def _graded(evaluation: Evaluation) -> zip[tuple[Completion, float | None, bool | None]]:
    correct = evaluation.correct or (None,) * len(evaluation.completions)
    return zip(evaluation.completions, evaluation.rewards, correct, strict=True)


def _mean_change(changes: Sequence[tuple[Prompt, float | None]]) -> Interval | None:
    """The mean over (prompt, change), each prompt's mean counting as one value."""
    by_prompt: defaultdict[str, list[float]] = defaultdict(list)
    for prompt, change in changes:
        if change is not None:
            by_prompt[_key(prompt)].append(change)
    return bootstrap([fmean(group) for group in by_prompt.values()])


def _key(prompt: Prompt) -> str:
    return json.dumps(prompt, sort_keys=True, default=str)


def pieces(completion: Completion, tokens: ThinkTokens = QWEN3) -> list[Piece]:
    """A completion split at its boundary tokens, with its end.

    The letters <think> typed in ordinary tokens are not a boundary: a completion with such letters gets a note.  Where
    it has boundary tokens as well, none is marked, since the text does not tell which is which.
    """
    found: list[Piece] = []
    notes: list[Piece] = []
    real: list[str] = []
    for marker, token in ((OPEN, tokens.open_id), (CLOSE, tokens.close_id)):
        written, true = completion.text.count(marker), completion.ids.count(token)
        if written == true:
            real.append(marker)
        else:
            notes.append(Piece(f"{written - true} of {written} {marker} are typed letters", "note"))
    rest = completion.text
    while rest:
        places = [(rest.find(marker), marker) for marker in real if marker in rest]
        place, marker = min(places, default=(len(rest), ""))
        found += [Piece(rest[:place])] if place else []
        found += [Piece(marker, "mark")] if marker else []
        rest = rest[place + len(marker) :]
    return [*found, _end(completion, tokens), *notes]


def _end(completion: Completion, tokens: ThinkTokens) -> Piece:
    if not completion.finished:
        return Piece(f"cut at {len(completion.ids)} tokens", "note")
    last = completion.ids[-1] if completion.ids else -1
    known = last in EOS_TEXTS and last in tokens.eos_ids
    return Piece(EOS_TEXTS[last], "mark") if known else Piece("end", "note")


def _cells(pair: Pair) -> tuple[tuple[str, Completion], tuple[str, Completion]]:
    rewards = ["no reward" if reward is None else f"reward {reward:.3f}" for reward in pair.rewards]
    moved = "" if pair.change is None else f" ({pair.change:+.3f})"
    return (
        (f"before: {rewards[0]}, {len(pair.before.ids)} tokens", pair.before),
        (f"after: {rewards[1]}{moved}, {len(pair.after.ids)} tokens", pair.after),
    )


def _shortened(text: str, chars: int) -> str:
    """The beginning and the end of a long text: an answer stands at its end."""
    if len(text) <= chars:
        return text
    half = chars // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters … {text[len(text) - half :]}"


def _printable(text: str) -> str:
    """Without control characters, which could move a terminal's cursor: they are written out."""
    return "".join(
        c if c.isprintable() or c == "\n" else " " if c.isspace() else repr(c)[1:-1]
        for c in text.expandtabs(4)
    )
