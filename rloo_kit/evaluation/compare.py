"""What training changed: completions of the same prompts before and after, with the change's own interval.

Two evaluations that were not measured alike are refused: their difference would be that of the settings.
"""

from __future__ import annotations

import html
import json
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from rewards.text import question
from rewards.thinking import CLOSE, OPEN, QWEN3, ThinkTokens
from rloo_kit import argument_types
from rloo_kit.argument_types import Natural
from rloo_kit.errors import ConfigError, DatasetError
from rloo_kit.evaluation.evaluate import Evaluation
from rloo_kit.evaluation.intervals import Interval, bootstrap
from rloo_kit.models import EOS_TEXTS

if TYPE_CHECKING:
    from rloo_kit.policy.policy import Completion, Prompt

CELL = "text-align:left;vertical-align:top;white-space:pre-wrap;overflow-wrap:anywhere"

Graded = tuple["Completion", float | None, bool | None, bool | None]
"""A completion, its reward, and whether it is right, at the limit and with room."""


@dataclass(frozen=True)
class Pair:
    """One prompt, one completion of it before training, one after.

    Attributes:
        rewards: their weighted sums; None where no function applied.
        correct, correct_with_room: whether they assert the row's answer; None where it has none.
    """

    prompt: Prompt
    before: Completion
    after: Completion
    rewards: tuple[float | None, float | None]
    correct: tuple[bool | None, bool | None] = (None, None)
    correct_with_room: tuple[bool | None, bool | None] = (None, None)

    @property
    def change(self) -> float | None:
        """Reward after minus reward before; None where one of them is missing."""
        return _difference(*self.rewards)


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


@dataclass(frozen=True, repr=False)
class Comparison:
    """Completions in pairs, largest change of reward first; ``print`` it, or make it a cell's last value.

    Attributes:
        pairs: by the size of their change of reward, then those whose tokens changed.
        reward_change: mean of reward after - before; None without rewards.  The prompts are the same before and
            after, so the test of a change is this interval, a percentile bootstrap of the per-prompt differences (Efron
            1979), not whether two intervals overlap.
        accuracy_change, accuracy_with_room_change: the same for the share of right answers, at the limit and with room
            to finish; None where answers are not known, or no room was given.
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
    accuracy_with_room_change: Interval | None = None

    def __repr__(self) -> str:
        return f"<Comparison: {self.headline}>"

    def __str__(self) -> str:
        return self.text()

    @property
    def headline(self) -> str:
        """How the means changed, and how many rewards rose, fell and stayed."""
        parts = [f"{len(self.pairs)} pairs"]
        named = {"mean reward": self.reward_change, "accuracy": self.accuracy_change}
        named["accuracy with room"] = self.accuracy_with_room_change
        if found := {name: change for name, change in named.items() if change is not None}:
            means = ", ".join(f"{name} {change:+.3f}" for name, change in found.items())
            method = ", 95 % bootstrap over prompts" if any(c.is_bounded for c in found.values()) else ""
            parts.append(f"{means} (after - before{method})")
        if changes := [pair.change for pair in self.pairs if pair.change is not None]:
            rose, fell = sum(c > 0 for c in changes), sum(c < 0 for c in changes)
            parts.append(f"reward rose on {rose}, fell on {fell}, stayed on {len(changes) - rose - fell}")
        return "; ".join([*parts, f"{min(self.n, len(self.pairs))} shown"])

    def text(self, width: int = 100) -> str:
        """The headline, then of each pair the question and both completions, in lines of at most ``width``."""
        parts = [self.headline, *(one for shown in self._shown() for one in ("", "─" * width, *shown))]
        lines = [line for part in parts for line in _printable(part).split("\n")]
        return "\n".join(wrapped for line in lines for wrapped in textwrap.wrap(line, width) or [""])

    def _repr_html_(self) -> str:
        rows = ""
        for asked, *cells in self._shown():
            both = "".join(f'<td style="{CELL}">{html.escape(cell)}</td>' for cell in cells)
            rows += f'<tr><td colspan="2" style="{CELL}"><b>{html.escape(asked)}</b></td></tr><tr>{both}</tr>'
        # The class keeps MathJax from reading "$5 and $6" as a formula.
        table = f'<table class="tex2jax_ignore" style="width:100%;table-layout:fixed">{rows}</table>'
        return f"<p>{html.escape(self.headline)}</p>{table}"

    def _shown(self) -> Iterator[tuple[str, str, str]]:
        for pair in self.pairs[: self.n]:
            rewards = ["no reward" if one is None else f"reward {one:.3f}" for one in pair.rewards]
            rewards[1] += "" if pair.change is None else f" ({pair.change:+.3f})"
            sides = zip(("before", "after"), rewards, (pair.before, pair.after), strict=True)
            before, after = (
                f"{side}: {reward}, {len(said.ids)} tokens\n{marked(said, self.tokens, self.chars)}"
                for side, reward, said in sides
            )
            yield _shortened(question(pair.prompt), self.chars), before, after


def compare(
    before: Evaluation, after: Evaluation, *, n: int = 5, tokens: ThinkTokens = QWEN3, chars: int = 600
) -> Comparison:
    """Pair the completions of two evaluations, prompt by prompt; several of a prompt in their order.

    Args:
        before, after: what ``evaluate`` returned before and after training.
        n: pairs to show; all are in ``Comparison.pairs``.
        tokens, chars: as in :class:`Comparison`.

    Raises:
        ConfigError: they were measured with other rewards, weights, judge of answers, limit, room or sampling, or a
            number below 0.
        DatasetError: something that is not an evaluation, or two that are not of the same prompts.
    """
    for name, given in {"before": before, "after": after}.items():
        if not isinstance(given, Evaluation):
            where, todo = (
                f"compare({name}={type(given).__name__})",
                "pass what rloo_kit.evaluate(...) returned",
            )
            raise DatasetError(f"{name} is not an evaluation", where=where, todo=todo)
    argument_types.check({"n": n, "chars": chars}, {"n": Natural, "chars": Natural}, "compare")
    _check_settings(before, after)
    pairs = _paired(_by_prompt(before), _by_prompt(after))
    pairs.sort(key=lambda pair: (-abs(pair.change or 0.0), pair.before.ids == pair.after.ids))
    figures = ("rewards", "correct", "correct_with_room")
    reward, accuracy, with_room = (_mean_change(pairs, name) for name in figures)
    return Comparison(tuple(pairs), reward, accuracy, n, tokens, chars, with_room)


def _check_settings(before: Evaluation, after: Evaluation) -> None:
    first, second = (
        {"greedy": one.greedy, "samples": one.samples, **one.settings} for one in (before, after)
    )
    for name in [name for name in first if name in second and first[name] != second[name]]:
        if name in ("rewards", "correct") and not (first[name] and second[name]):
            continue  # without functions there is nothing to compare
        raise ConfigError(
            f"the two evaluations differ in {name}, so that their difference would not be the policy's",
            where=f"compare, {name}={first[name]!r} before and {second[name]!r} after",
            todo="evaluate both with the same rewards, weights, correct, max_new_tokens and sampling",
        )


def _by_prompt(found: Evaluation) -> dict[str, list[Graded]]:
    unknown = (None,) * len(found.completions)
    correct = found.correct or unknown, found.correct_with_room or unknown
    groups: defaultdict[str, list[Graded]] = defaultdict(list)
    for graded in zip(found.completions, found.rewards, *correct, strict=True):
        groups[_key(graded[0].prompt)].append(graded)
    return groups


def _paired(before: dict[str, list[Graded]], after: dict[str, list[Graded]]) -> list[Pair]:
    """Each prompt's completions, first with first."""
    counts, others = ({key: len(said) for key, said in groups.items()} for groups in (before, after))
    if counts != others:
        raise DatasetError(
            "the two evaluations are not of the same prompts",
            where=f"compare, {len(counts)} prompts before, {len(others)} after, {len(counts.keys() & others)} in both",
            todo="evaluate the same rows before and after training, such as task.held_out with the same n",
        )
    both = (pair for key in before for pair in zip(before[key], after[key], strict=True))
    return [
        Pair(old[0].prompt, old[0], new[0], (old[1], new[1]), (old[2], new[2]), (old[3], new[3]))
        for old, new in both
    ]


def _mean_change(pairs: list[Pair], name: str) -> Interval | None:
    """Each prompt's mean counts as one value."""
    by_prompt: defaultdict[str, list[float]] = defaultdict(list)
    for pair in pairs:
        if (change := _difference(*getattr(pair, name))) is not None:
            by_prompt[_key(pair.prompt)].append(change)
    return bootstrap([fmean(group) for group in by_prompt.values()])


def _key(prompt: Prompt) -> str:
    return json.dumps(prompt, sort_keys=True, default=str)


def marked(completion: Completion, tokens: ThinkTokens = QWEN3, chars: int = 600) -> str:
    """A completion's text with «» around its boundary tokens, and its end.

    Where <think> or </think> was typed in ordinary tokens, which is no boundary, none of them is marked.
    """
    places = {OPEN: tokens.open_id, CLOSE: tokens.close_id}
    real = [m for m, token in places.items() if completion.text.count(m) == completion.ids.count(token)]
    parts = re.split(f"({'|'.join(real)})", completion.text) if real else [completion.text]
    text = "".join(f"«{one}»" if one in real else _shortened(one, chars) for one in parts)
    if not completion.finished:
        return f"{text} [cut at {len(completion.ids)} tokens]"
    last = completion.ids[-1] if completion.ids else -1
    return text + (f"«{EOS_TEXTS[last]}»" if last in EOS_TEXTS and last in tokens.eos_ids else " [end]")


def _shortened(text: str, chars: int) -> str:
    """The beginning and the end of a long text: an answer stands at its end."""
    if len(text) <= chars:
        return text
    half = chars // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters … {text[len(text) - half :]}"


def _printable(text: str) -> str:
    """Without control characters, which could move a terminal's cursor: they are written out."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text.expandtabs(4))
