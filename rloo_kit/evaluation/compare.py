"""Compare two evaluations: completions of the same prompts before and after, with the change's own interval.

Two evaluations with different settings are refused: their difference would come from the settings.
"""

import html
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from rewards.text import question
from rewards.thinking import CLOSE, OPEN, QWEN3, ThinkTokens
from rloo_kit import argument_types
from rloo_kit.argument_types import Natural
from rloo_kit.errors import ConfigError, DatasetError
from rloo_kit.evaluation.evaluate import Evaluation
from rloo_kit.evaluation.intervals import Interval, bootstrap, means_by_prompt
from rloo_kit.models import EOS_TEXTS
from rloo_kit.policy.policy import Completion, Prompt

FIGURES = ("rewards", "correct", "correct_with_room")
CELL = "text-align:left;vertical-align:top;white-space:pre-wrap;overflow-wrap:anywhere"


@dataclass(frozen=True)
class Pair:
    """One prompt, a completion of it before training and one after, their rewards, and whether they are right."""

    prompt: Prompt
    before: Completion
    after: Completion
    rewards: tuple[float | None, float | None]
    correct: tuple[bool | None, bool | None] = (None, None)
    correct_with_room: tuple[bool | None, bool | None] = (None, None)

    @property
    def change(self) -> float | None:
        return _difference(*self.rewards)


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


@dataclass(frozen=True, repr=False)
class Comparison:
    """Pairs of completions, the largest rises and falls of reward first; ``print`` it, or make it a cell's last value.

    Attributes:
        pairs: rises and falls of the reward in turn, the largest first; ``n`` are shown.
        reward_change: mean of reward after - before; None without rewards.  The prompts are the same before and
            after, so the test of a change is this interval, a percentile bootstrap of the per-prompt differences (Efron
            1979), not whether two intervals overlap.
        accuracy_change, accuracy_with_room_change: the same for the share of right answers, at the limit and with room
            to finish; None if answers are not known, or no room was given.
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
        scored, parts = sum(pair.change is not None for pair in self.pairs), [f"{len(self.pairs)} pairs"]
        if 0 < scored < len(self.pairs):
            parts[0] += f", {scored} of them scored before and after"
        changes = {"mean reward": self.reward_change, "accuracy": self.accuracy_change}
        changes["accuracy with room"] = self.accuracy_with_room_change
        known = {name: change for name, change in changes.items() if change is not None}
        if known:
            means = ", ".join(f"{name} {change:+.3f}" for name, change in known.items())
            bounded = any(change.is_bounded for change in known.values())
            parts.append(f"{means} (after - before{', 95 % bootstrap over prompts' * bounded})")
        if by_pair := [pair.change for pair in self.pairs if pair.change is not None]:
            rose, fell = sum(change > 0 for change in by_pair), sum(change < 0 for change in by_pair)
            parts.append(f"reward rose on {rose}, fell on {fell}, stayed on {len(by_pair) - rose - fell}")
        return "; ".join([*parts, f"{min(self.n, len(self.pairs))} shown"])

    def text(self, width: int = 100) -> str:
        """Return the headline, then each pair's question and both completions, in lines of at most ``width``."""
        parts = [self.headline, *(part for pair in self._shown() for part in ("", "─" * width, *pair))]
        lines = [line for part in parts for line in _printable(part).split("\n")]
        return "\n".join(wrapped for line in lines for wrapped in textwrap.wrap(line, width) or [""])

    def _repr_html_(self) -> str:
        rows = ""
        for problem, *sides in self._shown():
            cells = "".join(f'<td style="{CELL}">{html.escape(cell)}</td>' for cell in sides)
            head = f'<td colspan="2" style="{CELL}"><b>{html.escape(problem)}</b></td>'
            rows += f"<tr>{head}</tr><tr>{cells}</tr>"
        # The class keeps MathJax from reading "$5 and $6" as a formula.
        table = f'<table class="tex2jax_ignore" style="width:100%;table-layout:fixed">{rows}</table>'
        return f"<p>{html.escape(self.headline)}</p>{table}"

    def _shown(self) -> Iterator[tuple[str, str, str]]:
        for pair in self.pairs[: self.n]:
            change = "" if pair.change is None else f" ({pair.change:+.3f})"
            before = self._side("before", pair.rewards[0], pair.correct[0], "", pair.before)
            after = self._side("after", pair.rewards[1], pair.correct[1], change, pair.after)
            yield _shortened(question(pair.prompt), self.chars), before, after

    def _side(self, name: str, reward: float | None, right: bool | None, change: str, completion: Completion) -> str:
        judged = "no reward" if right is None else "right" if right else "wrong"
        earned = judged if reward is None else f"reward {reward:.3f}"
        text = marked(completion, self.tokens, self.chars)
        return f"{name}: {earned}{change}, {len(completion.ids)} tokens\n{text}"


def compare(
    before: Evaluation, after: Evaluation, *, n: int = 5, tokens: ThinkTokens = QWEN3, chars: int = 600
) -> Comparison:
    """Pair the completions of two evaluations, prompt by prompt; several completions of a prompt in order.

    Args:
        before, after: what ``evaluate`` returned before and after training.
        n: pairs to show; all are in ``Comparison.pairs``.
        tokens, chars: as in :class:`Comparison`.

    Raises:
        ConfigError: they differ in rewards, weights, judge of answers, limit, room or sampling, or a number is below 0.
        DatasetError: an argument is not an evaluation, or the two are not of the same prompts.
    """
    for name, value in {"before": before, "after": after}.items():
        if not isinstance(value, Evaluation):
            where = f"compare({name}={type(value).__name__})"
            todo = "pass what rloo_kit.evaluate(...) returned"
            raise DatasetError(f"{name} is not an evaluation", where=where, todo=todo)
    argument_types.check({"n": n, "chars": chars}, {"n": Natural, "chars": Natural}, "compare")
    _check_settings(before, after)
    found = _paired(before, after)
    by_name = ([_difference(*getattr(pair, name)) for pair in found] for name in FIGURES)
    reward, accuracy, with_room = (bootstrap(means_by_prompt(changes, before.samples)) for changes in by_name)
    found.sort(key=lambda pair: (-abs(_rise(pair)), pair.before.ids == pair.after.ids))
    rises, falls = ([pair for pair in found if _rise(pair) * sign > 0] for sign in (1, -1))
    pairs = [pair for both in zip_longest(rises, falls) for pair in both if pair]
    pairs += [pair for pair in found if not _rise(pair)]
    return Comparison(tuple(pairs), reward, accuracy, n, tokens, chars, with_room)


def _rise(pair: Pair) -> float:
    """Return the change of the reward; without rewards, of being right."""
    changes = (_difference(*values) for values in (pair.rewards, pair.correct))
    return next((change for change in changes if change is not None), 0.0)


def _check_settings(before: Evaluation, after: Evaluation) -> None:
    first, second = ({"greedy": of.greedy, "samples": of.samples, **of.settings} for of in (before, after))
    for name in [name for name in first if name in second and first[name] != second[name]]:
        if name in ("rewards", "correct") and not (first[name] and second[name]):
            continue  # without functions there is nothing to compare
        raise ConfigError(
            f"the two evaluations differ in {name}, so a change would not come from the policy alone",
            where=f"compare, {name}={first[name]!r} before and {second[name]!r} after",
            todo=f"evaluate both with the same {name}",
        )


def _paired(before: Evaluation, after: Evaluation) -> list[Pair]:
    old, new = ([completion.prompt for completion in of.completions] for of in (before, after))
    if old != new:
        raise DatasetError(
            "the two evaluations are not of the same prompts in the same order",
            where=f"compare, {len(old)} completions before, {len(new)} after",
            todo="evaluate the same rows in the same order, such as task.held_out with the same n",
        )
    unknown, names = (None,) * len(old), ("completions", *FIGURES)
    columns = [zip(*(getattr(of, name) or unknown for of in (before, after)), strict=True) for name in names]
    return [Pair(prompt, *both, *figures) for prompt, both, *figures in zip(old, *columns, strict=True)]


def marked(completion: Completion, tokens: ThinkTokens = QWEN3, chars: int = 600) -> str:
    """Return a completion's text with «» around its boundary tokens, and how it ends.

    If <think> or </think> also occurs in ordinary tokens, which are no boundary, no occurrence of it is marked.
    """
    tags = {OPEN: tokens.open_id, CLOSE: tokens.close_id}
    real = [tag for tag, token in tags.items() if completion.text.count(tag) == completion.ids.count(token)]
    parts = re.split(f"({'|'.join(real)})", completion.text) if real else [completion.text]
    text = "".join(f"«{part}»" if part in real else _shortened(part, chars) for part in parts)
    if not completion.finished:
        return f"{text} [cut at {len(completion.ids)} tokens]"
    last = completion.ids[-1] if completion.ids else -1
    return text + (f"«{EOS_TEXTS[last]}»" if last in EOS_TEXTS and last in tokens.eos_ids else " [end]")


def _shortened(text: str, chars: int) -> str:
    """Keep the beginning and the end of a long text: the answer is at the end."""
    half = chars // 2
    middle = f" … {len(text) - 2 * half} characters … "
    return text if len(text) <= chars else text[:half] + middle + text[len(text) - half :]


def _printable(text: str) -> str:
    """Write out control characters as escapes: printed, they could move a terminal's cursor."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text.expandtabs(4))
