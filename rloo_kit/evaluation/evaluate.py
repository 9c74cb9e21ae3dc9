"""Evaluate a policy: accuracy and mean reward on a dataset, each with a 95 % interval.

It calls reward functions as TRL does.  A reward decides what is right, by the same rule as in training.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import rewards
from rewards.answers import answer_reward
from rewards.trl_interface import Reward, full_score, judges_of, passed_columns, reward_name
from rloo_kit import argument_types, data_checks, tasks
from rloo_kit.argument_types import Count, Seed
from rloo_kit.errors import ArgumentError, ConfigError, DatasetError, RewardError
from rloo_kit.evaluation.intervals import Interval, bootstrap, means_by_prompt, wilson
from rloo_kit.policy.policy import Completion, Policy, Prompt, check_sampling
from rloo_kit.policy.thinking import warn_of_no_room
from rloo_kit.session import output
from rloo_kit.tasks import reward_calls

Row = Mapping[str, Any]

SAMPLING: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "chat_template_kwargs": None}
"""Arguments of ``Policy.generate`` that change what is drawn, with their defaults."""

LONG = 20_000
"""An evaluation that may sample more tokens prints its progress: half a minute of the tiny policy, or of a GPU."""


@dataclass(frozen=True)
class Evaluation:
    """What :func:`evaluate` found.

    Attributes:
        accuracy: share of completions that assert the row's answer; None where the dataset has no readable answers.
        reward: mean of the weighted sums, each prompt with equal weight; None without reward functions.
        reward_means: each function's mean over the completions that it scored.
        mean_length, truncated: tokens per completion; share of completions cut at the length limit.
        rewards, correct: for each completion its weighted sum, and whether it asserts the row's answer; None if no
            function applied, or the row has no answer.
        samples: completions per prompt.  From 2 on, both intervals are bootstraps over prompts; at 1, the
            accuracy's is Wilson's.
        room, accuracy_with_room, truncated_with_room, correct_with_room: the same, with truncated completions
            continued up to ``room`` times the length limit; not measured at ``room`` 1.
        settings: rewards with weights, the reward that tells right from wrong, length limit and sampling.  Evaluations
            that differ in it are not compared.
    """

    accuracy: Interval | None
    reward: Interval | None
    reward_means: dict[str, float]
    mean_length: float
    truncated: float
    completions: tuple[Completion, ...] = field(repr=False)
    rewards: tuple[float | None, ...] = field(repr=False)
    greedy: bool = True
    samples: int = 1
    correct: tuple[bool | None, ...] = field(default=(), repr=False)
    settings: Mapping[str, object] = field(default_factory=dict, repr=False)
    room: int = 1
    accuracy_with_room: Interval | None = None
    truncated_with_room: float | None = None
    correct_with_room: tuple[bool | None, ...] = field(default=(), repr=False)

    def pass_at(self, k: int) -> Interval:
        """Return the share of prompts that ``k`` completions would solve, bootstrapped over prompts.

        For a prompt's n samples, c of them right: 1 - C(n - c, k) / C(n, k), the unbiased
        estimator (Chen et al. 2021, equation 1).

        Raises:
            ConfigError: ``k`` is not between 1 and ``samples``, or a completion was not graded.
        """
        n, known = self.samples, [right for right in self.correct if right is not None]
        if not 1 <= k <= n or not known or len(known) < len(self.correct):
            where = f"pass_at({k}) of {n} samples a prompt, {len(known)} of {len(self.correct)} graded"
            what = "pass@k needs k graded completions of each prompt"
            raise ConfigError(what, where=where, todo="evaluate(samples=...)")
        counts = (sum(known[start : start + n]) for start in range(0, len(known), n))
        interval = bootstrap([1 - math.comb(n - c, k) / math.comb(n, k) for c in counts])
        assert interval is not None  # there are prompts
        return interval

    def __str__(self) -> str:
        several = f", {self.samples} per prompt" if self.samples > 1 else ""
        rows = {"completions": f"{len(self.completions)}, {'greedy' if self.greedy else 'sampled'}{several}"}
        figures = {"accuracy": self.accuracy, "  with room": self.accuracy_with_room, "reward": self.reward}
        for name, interval in figures.items():
            method = "bootstrap over prompts" if several else "bootstrap" if name == "reward" else "Wilson"
            if interval is not None:
                rows[name] = f"{interval} (95 %, {method})" if interval.is_bounded else str(interval)
        graded = sum(right is not None for right in self.correct)
        if self.accuracy and graded < len(self.correct):
            rows["accuracy"] += f", of {graded} completions"
        if self.accuracy_with_room:
            rows["  with room"] += f", {self.room} times the length, {self.truncated_with_room:.0%} cut"
        rows |= {f"  {name}": f"{mean:.3f}" for name, mean in self.reward_means.items()}
        rows["length"] = f"{self.mean_length:.1f} tokens, {self.truncated:.0%} cut"
        width = max(map(len, rows)) + 2
        return "\n".join(f"{label:<{width}}{text}" for label, text in rows.items())


def evaluate(
    policy: Policy,
    dataset: Iterable[Row] | tasks.Task,
    reward_funcs: Reward | Sequence[Reward] = (),
    *,
    n: Count | None = None,
    samples: Count = 1,
    greedy: bool = True,
    max_new_tokens: Count = 256,
    room: Count = 1,
    batch_size: Count | None = None,
    correct: Reward | None = None,
    reward_weights: Sequence[float] | None = None,
    seed: Seed | None = 0,
    **generate: Any,
) -> Evaluation:
    """Sample completions of a dataset's prompts and grade them; the intervals hold for other prompts of the same kind.

    Args:
        dataset: with a column ``prompt`` and, for accuracy, ``answer``; or a ``Task``, whose held-out set is used.  An
            ``answer`` may be a whole solution: the text after "####", or its last box, counts.
        reward_funcs, reward_weights: TRL reward callables and a weight for each; their weighted sum is the reward.
        n, samples: the first n rows, None means all; completions per prompt, several only with ``greedy=False``.
        max_new_tokens: as in training, or the numbers are not comparable.
        room: with 4, truncated completions continue up to four times ``max_new_tokens``; accuracy is given for both.
        greedy, batch_size, seed, generate: as for ``Policy.generate``.
        correct: the reward that tells right from wrong; right means its full score (``correct.right``, else 1).  By
            default the task's, else the first of ``reward_funcs`` that judges the answer (``judges = "answer"``), else
            ``rewards.answer_reward()``.  Rows that it cannot judge are not counted; truncated completions are wrong.

    Raises:
        ConfigError: a model or a trainer instead of the policy (ArgumentError), or an argument out of range.
        DatasetError: no rows, no ``prompt`` column, or an invalid prompt.
        RewardError: weights that do not match the functions, or a reward model instead of a function.
        rewards.RewardSignatureError, RewardValueError: TRL could not call a reward; a reward returned an invalid value.
    """
    how: dict[str, Any] = dict(max_new_tokens=max_new_tokens, batch_size=batch_size, seed=seed, **generate)
    check_asked(n=n, samples=samples, room=room, greedy=greedy, **how)
    _check_policy(policy)
    rows = _rows(dataset.held_out if isinstance(dataset, tasks.Task) else dataset, n)
    prompts, count = [row["prompt"] for row in rows], len(rows) * samples
    funcs: list[Any] = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    correct = correct or (dataset.correct if isinstance(dataset, tasks.Task) else _grader(funcs, rows, policy))
    _check(rows, funcs, correct, policy, room, how)
    weights = _weights(funcs, reward_weights)
    completions = policy.generate(prompts, n=samples, greedy=greedy, progress=_quarters(count, max_new_tokens), **how)
    rows = [row for row in rows for _ in range(samples)]
    figures = _graded(correct, rows, completions, samples, seed)
    if room > 1:
        with_room = _graded(correct, rows, _with_room(policy, completions, greedy, room, how), samples, seed)
        figures |= {"room": room, **{f"{name}_with_room": figure for name, figure in with_room.items()}}
    return Evaluation(
        **figures,
        **_rewarded(funcs, weights, rows, completions, samples, seed),
        mean_length=statistics.fmean(len(completion.ids) for completion in completions),
        completions=tuple(completions),
        greedy=greedy,
        samples=samples,
        settings={"rewards": weights, "correct": correct and reward_name(correct), **_asked(policy, greedy, room, how)},
    )


def _check_policy(policy: Policy) -> None:
    if not isinstance(policy, Policy):
        where, todo = f"evaluate({type(policy).__name__})", "pass what rloo_kit.load_policy returned"
        raise ArgumentError("evaluate takes a policy", where=where, todo=todo)


def _weights(funcs: Sequence[Any], weights: Sequence[float] | None) -> dict[str, float]:
    data_checks.check_weights(funcs, weights, where="evaluate")
    names = data_checks.distinct([rewards.guarded(func).__name__ for func in funcs])
    return dict(zip(names, map(float, weights or [1] * len(funcs)), strict=True))


def _asked(policy: Policy, greedy: bool, room: int, how: dict[str, Any]) -> dict[str, Any]:
    names = ("max_new_tokens", "chat_template_kwargs", *(() if greedy else SAMPLING), *(("room",) if room > 1 else ()))
    return {"thinking": policy.thinking} | {name: (SAMPLING | how | {"room": room})[name] for name in names}


def _rewarded(
    funcs: list[Any],
    weights: dict[str, float],
    rows: list[Row],
    completions: list[Completion],
    samples: int,
    seed: int | None,
) -> dict[str, Any]:
    scores = {name: reward_calls.score(func, rows, completions) for name, func in zip(weights, funcs, strict=True)}
    totals: list[float | None] = []
    for values in zip(*scores.values(), strict=True):
        pairs = zip(weights.values(), values, strict=True)
        applied = [weight * value for weight, value in pairs if value is not None]
        totals.append(sum(applied) if applied else None)
    known = {name: [value for value in values if value is not None] for name, values in scores.items()}
    return {
        "reward": bootstrap(means_by_prompt(totals, samples), seed),
        "reward_means": {name: statistics.fmean(values or [math.nan]) for name, values in known.items()},
        "rewards": tuple(totals) or (None,) * len(rows),
    }


def _graded(
    correct: Reward | None, rows: Sequence[Row], completions: Sequence[Completion], samples: int, seed: int | None
) -> dict[str, Any]:
    """Return :class:`Evaluation`'s accuracy, truncated and correct, at the length limit or with room."""
    right = [None] * len(rows) if correct is None else reward_calls.solved(correct, rows, completions)
    shares = means_by_prompt(right, samples)
    by_wilson = samples == 1 and shares
    return {
        "accuracy": wilson(int(sum(shares)), len(shares)) if by_wilson else bootstrap(shares, seed),
        "truncated": statistics.fmean(not completion.finished for completion in completions),
        "correct": tuple(right),
    }


def _with_room(
    policy: Policy, completions: Sequence[Completion], greedy: bool, room: int, how: dict[str, Any]
) -> list[Completion]:
    """Return the completions, with truncated ones continued from their last token.

    A token depends on the tokens before it, not on the limit.  So the results, greedy or sampled, are completions with
    ``room`` times the limit, and finished ones need not be sampled again.
    """
    cut = [completion for completion in completions if not completion.finished]
    if not cut:
        return list(completions)
    # Another seed, so that the uniform numbers of the first part are not used again.
    seed = None if how["seed"] is None else (how["seed"] + 1) % 2**32
    more = {"max_new_tokens": (room - 1) * how["max_new_tokens"], "seed": seed}
    prompts, begun = [completion.prompt for completion in cut], [completion.ids for completion in cut]
    longer = iter(policy.generate(prompts, begun=begun, greedy=greedy, **how | more))
    return [completion if completion.finished else next(longer) for completion in completions]


def _check_room(policy: Policy, prompts: Sequence[Prompt], room: int, how: dict[str, Any]) -> None:
    """Raise ConfigError if a sequence may exceed the policy's limit: unsloth cuts longer ones in the forward pass."""
    limit = getattr(policy.model, "max_seq_length", None)
    longest = max(map(len, policy.tokenize(prompts, **how.get("chat_template_kwargs") or {}))) if limit else 0
    if limit and (total := longest + room * how["max_new_tokens"]) > limit:
        raise ConfigError(
            f"prompt + completion with room can reach {total} tokens, and the policy was loaded for {limit}",
            where=f"evaluate(max_new_tokens={how['max_new_tokens']}, room={room})",
            todo=f"load_policy(max_seq_length={total}), or a smaller room",
        )


def check_asked(*, n: int | None = None, samples: int = 1, greedy: bool = True, room: int = 1, **generate: Any) -> None:
    """Check :func:`evaluate`'s arguments, before there is a policy; ``generate`` is for ``Policy.generate``."""
    given = {"n": n, "samples": samples, "room": room, "greedy": greedy}
    hints = {"n": Count | None, "samples": Count, "room": Count, "greedy": bool}
    argument_types.check(given, hints, "evaluate")
    if greedy and samples > 1:
        raise ConfigError(
            f"greedy takes the most probable token each time, so {samples} samples of a prompt would be one",
            where=f"evaluate(samples={samples}, greedy=True)",
            todo="set greedy=False to sample that many, or leave samples out",
        )
    check_sampling(greedy, **generate)


def _rows(dataset: Iterable[Row], n: int | None) -> list[Row]:
    rows = list(itertools.islice(dataset, n))
    if rows and not isinstance(rows[0], Mapping):
        raise data_checks.not_a_dataset(dataset, "dataset", where="evaluate")
    lacks = next((row for row in rows if "prompt" not in row), None)
    if not rows or lacks is not None:
        what = "there is nothing to evaluate" if lacks is None else "the dataset has no column 'prompt'"
        there = "0 rows" if lacks is None else f"a row with the columns {', '.join(sorted(lacks))}"
        todo = "give a dataset with the columns prompt and answer, such as task.held_out"
        raise DatasetError(what, where=f"evaluate, {there}", todo=todo)
    return rows


def _grader(funcs: Sequence[Reward], rows: Sequence[Row], policy: Policy) -> Reward | None:
    """Return the first reward whose score alone says if an answer is right, else the kit's own if rows have answers."""
    graders = (func for func in funcs if judges_of(func) == "answer" and full_score(func) is not None)
    default = answer_reward(tokens=policy.checkpoint.tokens) if "answer" in rows[0] else None
    return next(graders, default)


def _check(rows: Sequence[Row], funcs: list[Any], correct: Any, policy: Policy, room: int, how: dict[str, Any]) -> None:
    from torch.nn import Module

    prompts = [row["prompt"] for row in rows]
    data_checks.check_prompts(prompts, policy.tokenizer, "dataset")
    data_checks.check_rendered(prompts, policy.tokenizer, how.get("chat_template_kwargs") or {}, "dataset")
    if room > 1 and correct is None:
        todo = "give correct=, a column 'answer', or a reward that says judges = 'answer'; or leave room out"
        raise ConfigError("room gives accuracy, and nothing here tells right from wrong", where="evaluate", todo=todo)
    if room > 1:
        _check_room(policy, prompts, room, how)
    warn_of_no_room(policy.tokenizer, how["max_new_tokens"], "max_new_tokens")
    for func in [*funcs, *filter(None, [correct])]:
        if isinstance(func, str | Module):
            model = repr(func) if isinstance(func, str) else "model, tokenizer=..."
            raise RewardError(
                "evaluate takes reward functions, and this is a reward model, which the trainer calls itself",
                where="evaluate(reward_funcs=...)",
                todo=f"reward = rewards.reward_model({model}), and give it to both",
            )
        rewards.check_signature(func, passed_columns(rows[0]))


def _quarters(completions: int, tokens: int) -> Callable[[int], None]:
    """Return a callback that prints a line per quarter, the same at any batch size, so that stored notebooks agree."""
    left = [math.ceil(completions * part / 4) for part in (1, 2, 3)] if completions * tokens > LONG else []

    def progress(done: int) -> None:
        while left and done >= left[0]:
            output.say(f"evaluate: {left.pop(0)} of {completions} completions")

    return progress
