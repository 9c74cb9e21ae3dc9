"""GSM8K, grade-school word problems, as a task: from the Hugging Face hub, its cache, or a folder."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

from rewards.answers import Form, gold_text
from rloo_kit import argument_types
from rloo_kit.errors import DatasetError
from rloo_kit.session.prepare import HUB_SECONDS, within
from rloo_kit.tasks.files import read
from rloo_kit.tasks.task import Problem, Row, Task, asked_for, made, task_of

if TYPE_CHECKING:
    from rloo_kit.policy.policy import Policy

REPOSITORY = "openai/gsm8k"


@made
def gsm8k(
    policy: Policy | None = None,
    *,
    form: Form | None = None,
    n_train: int | None = None,
    n_held_out: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> Task:
    """Make a task of GSM8K, grade-school word problems, for a policy of a few billion parameters.

    Cobbe et al. 2021, arXiv 2110.14168; MIT licence.  Its own split is kept: 7,473 to train on, 1,319 held out.

    Args:
        policy, form, seed: as for ``arithmetic``.
        n_train, n_held_out: problems to draw at random; None means all.
        folder: read instead of the hub; it holds ``train.jsonl`` and ``test.jsonl`` (or .parquet), as in
            github.com/openai/grade-school-math: {"question": "...", "answer": "... #### 72"} on each line.

    Raises:
        DatasetError: neither hub nor cache has it; the folder lacks the files; more problems than exist.
        ConfigError: a number of problems that is not an integer.
    """
    correct, asks = asked_for(form, policy)
    sides = []
    for split, name, n in (("train", "n_train", n_train), ("test", "n_held_out", n_held_out)):
        argument_types.check({name: n}, {name: int | None}, "tasks.gsm8k")
        rows = _from_hub(split) if folder is None else _from_folder(Path(folder).expanduser(), split)
        if n is not None and not 1 <= n <= len(rows):
            what, todo = f"there are {len(rows)} problems on that side", f"ask for 1 to {len(rows)}"
            raise DatasetError(what, where=f"tasks.gsm8k({name}={n})", todo=todo)
        rows = rows if n is None else random.Random(seed).sample(rows, n)
        sides.append([Problem(row["question"], gold_text(row["answer"]), "") for row in rows])
    description = "word problems of grade school, two to eight steps"
    return task_of("gsm8k", sides, correct, description, asks=asks)


def _from_folder(folder: Path, split: str) -> list[Row]:
    file = folder / f"{split}.parquet"
    return read(file if file.is_file() else file.with_suffix(".jsonl"), "question", "answer")


def _from_hub(split: str) -> list[Row]:
    from datasets import config, load_dataset
    from huggingface_hub import constants, dataset_info

    in_cache = (Path(config.HF_DATASETS_CACHE) / REPOSITORY.replace("/", "___")).is_dir()
    try:
        if not (in_cache or constants.HF_HUB_OFFLINE):  # datasets itself would try for minutes
            within(HUB_SECONDS, lambda: dataset_info(REPOSITORY, timeout=HUB_SECONDS))
        return list(load_dataset(REPOSITORY, "main", split=split).to_list())
    except Exception as error:  # from datasets, the hub's library, its HTTP library, or a timeout
        offline = "on" if constants.HF_HUB_OFFLINE else "off"
        raise DatasetError(
            f"{REPOSITORY} is not in the cache of datasets, and the Hugging Face hub cannot be reached",
            where=f"tasks.gsm8k; offline mode is {offline}; {type(error).__name__}",
            todo="prepare(offline=False) in a fresh kernel with a network, or gsm8k(folder=...) with its two files",
        ) from error
