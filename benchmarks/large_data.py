"""What the checks of a dataset cost before training, from a thousand rows to a million.

    OMP_NUM_THREADS=1 python benchmarks/large_data.py

Times what ``RLOOTrainer(...)`` does with a dataset: the checks, and the search for the longest prompts.
Writes benchmarks/results/large_data.md.
"""

from rloo_kit.policy import tiny  # isort: skip - unsloth first

import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow
from datasets import Dataset
from tables import RESULTS, command_line, cpu_name, document, table

from rloo_kit import inputs

ROWS = (1_000, 10_000, 100_000, 1_000_000)
ARGS: Any = SimpleNamespace(generation_batch_size=8, num_generations=4)


def main() -> None:
    """Measure and write the table."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(tiny.checkpoint()))
    rows = []
    for count in ROWS:
        prompts = made(count)

        def checked(prompts: Dataset = prompts) -> None:
            inputs.check_dataset(prompts, ARGS, tokenizer)
            inputs.longest_prompts(prompts)

        rows.append((f"{count:,}", f"{seconds(checked):.2f}", f"{megabytes(checked):.1f}"))
        print(*rows[-1], flush=True)
    head = ("rows", "checks, CPU s", "Python's and numpy's memory at most, MB")
    intro = (
        f"{command_line()} on {cpu_name()}, shared with other work. A thousand conversations of two messages, "
        "repeated; the checks are those of `RLOOTrainer(...)` with the search for the longest prompts."
    )
    (RESULTS / "large_data.md").write_text(
        document("Checks of large datasets", intro, table(head, "rrr", rows))
    )


def made(count: int) -> Dataset:
    """So many conversations, a thousand to a chunk, as ``datasets`` writes them."""
    asked = [f"What is {number} + {number % 97}?" + " Think first." * (number % 5) for number in range(1_000)]
    messages = [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}] for text in asked
    ]
    thousand = Dataset.from_dict({"prompt": messages, "answer": asked}).data.table
    return Dataset(pyarrow.concat_tables([thousand] * (count // 1_000)))


def seconds(work: Callable[[], None]) -> float:
    """CPU seconds of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def megabytes(work: Callable[[], None]) -> float:
    """The most that Python and numpy hold meanwhile; Arrow's buffers are not counted."""
    tracemalloc.start()
    work()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / 1e6


if __name__ == "__main__":
    main()
