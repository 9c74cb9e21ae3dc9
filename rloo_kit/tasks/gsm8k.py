"""GSM8K: 8,792 word problems of grade school (Cobbe et al. 2021, arXiv 2110.14168; MIT licence), from hub or folder.

For a policy of some billion parameters.  Its own split is kept: 7,473 problems to train on and 1,319 to measure on.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

from rewards.answers import gold_text
from rloo_kit.errors import DatasetError
from rloo_kit.session.prepare import within
from rloo_kit.tasks.files import read
from rloo_kit.tasks.task import Problem, Row, Task, asked_for, made, task_of

if TYPE_CHECKING:
    from rewards.answers import Form
    from rloo_kit.policy.policy import Policy

REPOSITORY = "openai/gsm8k"
HUB_SECONDS = 9.0
FILES = 'one with train.jsonl and test.jsonl, {"question": "...", "answer": "... #### 72"} on each line'


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
    """GSM8K as a task: its train split to train on, its test split held out.

    Args:
        policy, form, seed: as for ``arithmetic``.
        n_train, n_held_out: as many at random; None for all.
        folder: instead of the hub, one with ``train.jsonl`` and ``test.jsonl`` (or .parquet), as
            github.com/openai/grade-school-math has them: {"question": "...", "answer": "... #### 72"} on each line.

    Raises:
        DatasetError: neither hub nor cache has it; a folder without the files; more problems than there are.
    """
    correct, asks = asked_for(form, policy)
    sides = []
    for split, name, n in (("train", "n_train", n_train), ("test", "n_held_out", n_held_out)):
        rows = _from_hub(split) if folder is None else _from_folder(Path(folder).expanduser(), split)
        if n is not None and not 1 <= n <= len(rows):
            what, todo = f"there are {len(rows)} problems on that side", f"ask for 1 to {len(rows)}"
            raise DatasetError(what, where=f"tasks.gsm8k({name}={n})", todo=todo)
        rows = rows if n is None else random.Random(seed).sample(rows, n)
        sides.append([Problem(row["question"], gold_text(row["answer"]), "") for row in rows])
    description = "word problems of grade school, two to eight steps"
    return task_of("gsm8k", sides, correct, description, asks=asks)


def _from_folder(folder: Path, split: str) -> list[Row]:
    files = [*folder.glob(f"{split}.jsonl"), *folder.glob(f"{split}.parquet")]
    if not files:
        where = f"tasks.gsm8k(folder={str(folder)!r})"
        raise DatasetError(f"the folder has no {split}.jsonl", where=where, todo=f"give {FILES}")
    return read(files[0], "question", "answer")


def _from_hub(split: str) -> list[Row]:
    from datasets import config, load_dataset
    from huggingface_hub import constants, dataset_info

    in_cache = (Path(config.HF_DATASETS_CACHE) / REPOSITORY.replace("/", "___")).is_dir()
    try:
        if not (in_cache or constants.HF_HUB_OFFLINE):  # datasets itself would try for minutes
            within(HUB_SECONDS, lambda: dataset_info(REPOSITORY, timeout=HUB_SECONDS))
        return list(load_dataset(REPOSITORY, "main", split=split).to_list())
    except Exception as error:  # of datasets, the hub's library, its HTTP library, or a timeout
        offline = "on" if constants.HF_HUB_OFFLINE else "off"
        raise DatasetError(
            f"{REPOSITORY} is not in the cache of datasets, and the Hugging Face hub cannot be reached",
            where=f"tasks.gsm8k; offline mode is {offline}; {type(error).__name__}",
            todo=f"prepare(offline=False) in a fresh kernel with a network, or gsm8k(folder=...): {FILES}",
        ) from error
