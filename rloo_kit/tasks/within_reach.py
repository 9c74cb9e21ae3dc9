"""Keep the prompts that a policy solves sometimes: where all K completions earn the same, RLOO learns nothing.

Sampled completions are kept in a table, one line per prompt, so that sampling is done once and resumes after an
interruption.  The reward grades them anew each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewards.trl_interface import Reward, check_signature, passed_columns
from rloo_kit import argument_types, data_checks
from rloo_kit.argument_types import Count, Seed, Share
from rloo_kit.errors import ConfigError, DatasetError
from rloo_kit.memory.policy_tensors import digest_of, frozen
from rloo_kit.session import distributed, output
from rloo_kit.tasks.reward_calls import solved

if TYPE_CHECKING:
    from datasets import Dataset

    from rloo_kit.policy.policy import Completion, Policy

CHUNK = 64  # completions sampled, kept and graded at a time
STRIDE = 101  # one weight in so many is hashed to tell policies apart: an update moves them all
Row = dict[str, Any]


def within_reach(
    dataset: Dataset,
    policy: Policy,
    reward: Reward,
    low: float = 0.2,
    high: float = 0.8,
    n: int = 8,
    *,
    n_prompts: int | None = None,
    max_new_tokens: int = 256,
    seed: int = 0,
    folder: str | os.PathLike[str] = "out/within_reach",
    **sampling: Any,
) -> Dataset:
    """Keep rows whose prompt the policy solves in a share ``low`` to ``high`` of ``n`` completions; print a histogram.

    A completion solves its prompt if it ends and earns the reward's full score: ``reward.right``, or 1 if unknown.

    Args:
        n_prompts: sample only the first ones, for a quick look; a later call with more continues from there.
        folder: holds a table per policy and sampling; other bounds, or another reward, sample nothing.
        max_new_tokens, sampling: for ``Policy.generate``, as in training; the checkpoint's temperature by default.

    Raises:
        ConfigError: a number out of range; several processes without a finished table.
        DatasetError: no row, or no prompt within reach.
    """
    check_asked(low=low, high=high, n=n, n_prompts=n_prompts, seed=seed)
    data_checks.check_rows(dataset, "within_reach")
    rows: list[Row] = list(dataset.take(min(n_prompts or len(dataset), len(dataset))))
    data_checks.check_prompts([row["prompt"] for row in rows], None, "dataset")
    check_signature(reward, passed_columns(rows[0]))
    sampling = {"temperature": policy.checkpoint.temperature, **sampling, "max_new_tokens": max_new_tokens}
    head: Row = {"policy": policy.base, "weights": _digest_of_weights(policy), "thinking": policy.thinking}
    head |= {"seed": seed, "n": n, **sampling}
    head.pop("batch_size", None)
    path = Path(folder, f"{_hashed(head)}.jsonl").expanduser()
    counts, cut = _solved(policy, reward, rows, path, head, sampling)

    kept = [index for index, count in enumerate(counts) if low <= count / n <= high]
    what = f"{len(kept)} of {len(rows)} prompts were solved in {low:.0%} to {high:.0%} of {n} completions"
    histogram = _histogram(Counter(counts), Counter(counts[index] for index in kept), n)
    output.say(f"within reach: {what}, {cut:.0%} cut ({path})\n{histogram}")
    if not kept:
        todo = "give easier problems, more max_new_tokens or a lower low; where most are solved, harder ones"
        where = f"{path}, {cut:.0%} cut; the histogram is above"
        raise DatasetError(f"no prompt is within reach: {what}", where=where, todo=todo)
    return dataset.select(kept)


def check_asked(**given: object) -> None:
    """Check :func:`within_reach`'s own arguments, before there is a policy."""
    hints = {"low": Share, "high": Share, "n": Count, "n_prompts": Count | None, "seed": Seed}
    argument_types.check({name: given[name] for name in hints if name in given}, hints, "within_reach")
    low, high, n = (given.get(name, default) for name, default in (("low", 0.2), ("high", 0.8), ("n", 8)))
    if not any(low <= count / n <= high for count in range(n + 1)):  # type: ignore[operator]
        what, todo = f"no count of {n} completions lies between low and high", "give a higher n, or wider bounds"
        raise ConfigError(what, where=f"within_reach(low={low}, high={high})", todo=todo)


def _solved(
    policy: Policy, reward: Reward, rows: list[Row], path: Path, head: Row, sampling: Row
) -> tuple[list[int], float]:
    """Return how often each row is solved, and the truncated share; sample what the table lacks, and add it."""
    ids = policy.tokenize([row["prompt"] for row in rows], **(sampling.get("chat_template_kwargs") or {}))
    keys, n, table = list(map(_hashed, ids)), head["n"], _read(path)
    if (set(keys) - table.keys()) and distributed.process_count() > 1:
        what, todo = "each process would sample other completions", "call it in one process first"
        raise ConfigError(what, where=f"within_reach, without the finished table {path}", todo=todo)
    size, counts, cut = max(1, CHUNK // n), list[int](), 0
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        if missing := {key: row["prompt"] for key, row in zip(keys[part], rows[part], strict=True) if key not in table}:
            # Each chunk has its own seed, so that an interruption changes no draw.
            made = policy.generate(list(missing.values()), n=n, seed=(head["seed"] + start) % 2**32, **sampling)
            sampled = [(" ".join(map(str, completion.ids)), completion.finished) for completion in made]
            new: list[Row] = [
                {"prompt": key, "completions": sampled[i * n : i * n + n]} for i, key in enumerate(missing)
            ]
            _append(path, head, new)
            table |= {line["prompt"]: line for line in new}
            if start * 10 // len(rows) < (start + size) * 10 // len(rows):
                output.say(f"within reach: {min(start + size, len(rows))} of {len(rows)} prompts sampled")
        completions = [
            _completion(policy, row["prompt"], ids_as_text, finished)
            for key, row in zip(keys[part], rows[part], strict=True)
            for ids_as_text, finished in table[key]["completions"]
        ]
        right = solved(reward, [row for row in rows[part] for _ in range(n)], completions)
        counts += [right[i : i + n].count(True) for i in range(0, len(right), n)]
        cut += sum(not completion.finished for completion in completions)
    return counts, cut / n / len(rows)


def _completion(policy: Policy, prompt: Any, numbers: str, finished: bool) -> Completion:
    from rloo_kit.policy.policy import Completion  # which imports torch

    ids = tuple(map(int, numbers.split()))
    return Completion(prompt, policy.tokenizer.decode(ids, skip_special_tokens=True), ids, finished)


def _read(path: Path) -> dict[str, Row]:
    table: dict[str, Row] = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):  # a line cut off by an interruption
            line = json.loads(text)
            table |= {line["prompt"]: line} if "completions" in line else {}
    return table


def _append(path: Path, head: Row, lines: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"\n{json.dumps(line, default=repr)}" for line in lines)
    text = text if path.exists() else json.dumps(head, default=repr) + text
    with path.open("ab", buffering=0) as file:  # unbuffered: another call may write too
        file.write(text.encode())


def _histogram(before: Counter[int], after: Counter[int], n: int) -> str:
    lines = ["solved        before  after"]
    for count in range(n + 1):
        bar = "#" * round(40 * before[count] / max(before.values()))
        lines.append(f"{count:>4} of {n:<4} {before[count]:>7} {after[count]:>6}  {bar}".rstrip())
    return "\n".join(lines)


def _digest_of_weights(policy: Policy) -> str:
    """Hash the frozen weights and those that training changes; an untrained LoRA has the same hash for every seed."""
    digest = hashlib.sha256(digest_of(frozen(policy.model)).encode())
    for name, weight in policy.model.named_parameters():
        if weight.requires_grad and "lora_A" not in name:
            digest.update(weight.detach().flatten()[::STRIDE].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _hashed(value: object) -> str:
    return hashlib.sha256(json.dumps(value, default=repr).encode()).hexdigest()[:16]
