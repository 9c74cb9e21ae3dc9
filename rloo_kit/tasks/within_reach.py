"""Keep the prompts that a policy solves sometimes: where all K completions earn the same, RLOO learns nothing.

What was sampled is kept in a table, a line a prompt, so that it is done once and goes on after an interruption.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewards.provenance import made_by
from rewards.trl_interface import check_signature, reward_name
from rloo_kit import argument_types
from rloo_kit.argument_types import Count, Seed, Share
from rloo_kit.errors import ConfigError, DatasetError
from rloo_kit.session import multi_process, output
from rloo_kit.tasks.reward_calls import columns_of, solved

if TYPE_CHECKING:
    from datasets import Dataset

    from rewards.trl_interface import Reward
    from rloo_kit.policy.policy import Policy

CHUNK = 64  # completions between two writes of the table
STRIDE = 101  # of so many weights one is looked at, to tell policies apart: an update moves them all
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
    """The rows whose prompt the policy solves in ``low`` to ``high`` of ``n`` completions; prints a histogram.

    A completion solves its prompt if it ends and earns the reward's full score, ``reward.right``, else 1.

    Args:
        n_prompts: only the first so many, to have a look; with more of them later it goes on from there.
        folder: of the tables, each with the name of its policy, reward and sampling: other bounds sample nothing.
        max_new_tokens, sampling: for ``Policy.generate``, as in training; the checkpoint's temperature by default.

    Raises:
        ConfigError: a number out of range; several processes.
        DatasetError: no row, or no prompt within reach.
    """
    hints = {"low": Share, "high": Share, "n": Count, "n_prompts": Count | None, "seed": Seed}
    given = {"low": low, "high": high, "n": n, "n_prompts": n_prompts, "seed": seed}
    argument_types.check(given, hints, "within_reach")
    rows: list[Row] = list(dataset if n_prompts is None else dataset.take(n_prompts))
    if not rows:
        todo = "give the prompts to train on"
        raise DatasetError("the dataset has no rows", where="within_reach", todo=todo)
    check_signature(reward, columns_of(rows[0]))
    sampling = {"temperature": policy.checkpoint.temperature, **sampling, "max_new_tokens": max_new_tokens}
    head: Row = {"policy": policy.base, "weights": _digest_of_weights(policy), "reward": _digest_of(reward)}
    head |= {"thinking": policy.thinking, "seed": seed, "n": n, **sampling}
    head.pop("batch_size", None)
    ids = policy.tokenize([row["prompt"] for row in rows], **(sampling.get("chat_template_kwargs") or {}))
    keys = [_hashed(one) for one in zip(ids, rows, strict=True)]
    path = Path(folder, f"{_hashed(head)}.jsonl")
    table = _sampled(policy, reward, dict(zip(keys, rows, strict=True)), path, head, sampling)

    counts = [table[key]["solved"] for key in keys]
    kept = [index for index, count in enumerate(counts) if low <= count / n <= high]
    what = f"{len(kept)} of {len(keys)} prompts are solved in {low:.0%} to {high:.0%} of {n} completions"
    cut = sum(table[key]["cut"] for key in keys) / n / len(keys)
    histogram = _histogram(Counter(counts), Counter(counts[index] for index in kept), n)
    output.say(f"within reach: {what}, {cut:.0%} cut ({path})\n{histogram}")
    if not kept:
        todo = "give easier problems, more max_new_tokens or a lower low; where most are solved, harder ones"
        where = f"{path}, {cut:.0%} cut; the histogram is above"
        raise DatasetError(f"no prompt is within reach: {what}", where=where, todo=todo)
    return dataset.select(kept)


def _sampled(
    policy: Policy, reward: Reward, rows: dict[str, Row], path: Path, head: Row, sampling: Row
) -> dict[str, Row]:
    """The table's lines by their prompt; what is missing is sampled, and the file written after each chunk."""
    keys, n, table = list(rows), head["n"], _read(path)
    if (rows.keys() - table) and multi_process.process_count() > 1:
        what, todo = "several processes would sample other completions each", "call it in one process first"
        raise ConfigError(what, where=f"within_reach, without the finished table {path}", todo=todo)
    size = max(1, CHUNK // n)
    for start in range(0, len(keys), size):
        if not (chunk := [key for key in keys[start : start + size] if key not in table]):
            continue
        prompts = [rows[key]["prompt"] for key in chunk]
        # Each chunk has its own seed, so that an interruption changes no draw.
        completions = policy.generate(prompts, n=n, seed=(head["seed"] + start) % 2**32, **sampling)
        right = solved(reward, [rows[key] for key in chunk for _ in range(n)], completions)
        for index, key in enumerate(chunk):
            own = slice(index * n, (index + 1) * n)
            cut = sum(not completion.finished for completion in completions[own])
            table[key] = {"prompt": key, "solved": right[own].count(True), "cut": cut}
        _write(path, [head, *table.values()])
        if start * 10 // len(keys) < (start + size) * 10 // len(keys):
            output.say(f"within reach: {min(start + size, len(keys))} of {len(keys)} prompts sampled")
    return table


def _read(path: Path) -> dict[str, Row]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {line["prompt"]: line for line in map(json.loads, lines[1:])}


def _write(path: Path, lines: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".part")
    scratch.write_text("".join(f"{_as_json(line)}\n" for line in lines), encoding="utf-8")
    scratch.replace(path)  # whole or not at all


def _histogram(before: Counter[int], after: Counter[int], n: int) -> str:
    lines = ["solved        before  after"]
    for count in range(n + 1):
        bar = "#" * round(40 * before[count] / max(before.values()))
        lines.append(f"{count:>4} of {n:<4} {before[count]:>7} {after[count]:>6}  {bar}".rstrip())
    return "\n".join(lines)


def _digest_of_weights(policy: Policy) -> str:
    """Of what training changes: of a LoRA that was not trained it is the same for every seed."""
    digest = hashlib.sha256()
    for name, weight in policy.model.named_parameters():
        if weight.requires_grad and ("lora_B" in name or not policy.has_lora):
            digest.update(weight.detach().flatten()[::STRIDE].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _digest_of(reward: Reward) -> str:
    """Its name, and a digest of the call that made it, or of its source."""
    source: Any = made_by(reward)
    with contextlib.suppress(OSError, TypeError):  # a source that is not there
        source = source or inspect.getsource(reward if inspect.isroutine(reward) else type(reward))
    return f"{reward_name(reward)} {_hashed(source)}"


def _hashed(value: object) -> str:
    return hashlib.sha256(_as_json(value).encode()).hexdigest()[:16]


def _as_json(value: object) -> str:
    # Without addresses, which differ from process to process.
    return json.dumps(value, default=lambda one: re.sub(r" at 0x\w+", "", repr(one)))
