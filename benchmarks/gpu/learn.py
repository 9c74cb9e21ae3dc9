"""Correct on this card: the tiny policy learns on three seeds as it does on a CPU, and the quickstart runs."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .checks import Check, Figure, Found, Place, add, at_least, check, holds, seen

STEPS, GAIN = 30, 0.2
"""The quickstart's steps, and the held-out accuracy that it must gain."""


def learning(seed: int, place: Place) -> Found:
    """The quickstart's run: held-out greedy accuracy before and after."""
    import rloo_kit

    steps, problems = (2, 8) if place.is_rehearsal else (STEPS, 200)
    policy = rloo_kit.load_policy("tiny", lora_alpha=32, seed=seed)
    task = rloo_kit.tasks.ladder.task_at(1, "arithmetic", None, None, seed)
    with tempfile.TemporaryDirectory() as folder:
        config = rloo_kit.RLOOConfig(
            output_dir=folder,
            num_generations=8,
            per_device_train_batch_size=32,
            gradient_accumulation_steps=1,
            max_steps=steps,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            beta=0.0,
            max_completion_length=32,
            save_strategy="no",
            live_plot=False,
            seed=seed,
        )
        trainer = rloo_kit.RLOOTrainer(
            model=policy,
            reward_funcs=_thought_then_right(task.answer_of),
            args=config,
            train_dataset=task.train,
        )
        accuracy = [_accuracy(policy, task, problems)]
        started = time.monotonic()
        trainer.train()
        seconds = time.monotonic() - started
        accuracy.append(_accuracy(policy, task, problems))
    gain = accuracy[1] - accuracy[0]
    return Found(
        [
            seen("accuracy's gain", gain) if place.is_rehearsal else at_least("accuracy's gain", gain, GAIN),
            seen("before", accuracy[0]),
            seen("after", accuracy[1]),
            seen("training", seconds, "s"),
        ]
    )


def _thought_then_right(answer_of: Callable[[Any], str | None]) -> Any:
    """The quickstart's reward: 0.2 for a thought closed once, 0.8 more for the right answer after it."""

    def correct_after_thought(completions: Any, answer: Any, **kwargs: Any) -> list[float]:
        scores = []
        for completion, gold in zip(completions, answer, strict=True):
            closed = completion[0]["content"].count("</think>") == 1
            scores.append(0.2 * closed + 0.8 * (closed and answer_of(completion) == gold))
        return scores

    return correct_after_thought


def _accuracy(policy: Any, task: Any, problems: int) -> float:
    import rloo_kit

    found = rloo_kit.evaluate(policy, task, n=problems, max_new_tokens=32).accuracy
    assert found is not None  # the task has answers
    return found.value


for _seed in range(3):
    add(
        Check(
            f"correct/learns, seed {_seed}",
            functools.partial(learning, _seed),
            seconds=180,
            takes=25,
            rank=20 if _seed == 0 else 41,
        )
    )


# --- the quickstart ---------------------------------------------------------------------------------------

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "01_quickstart.ipynb"
OFFLINE = (
    ('tiny = env.device == "cpu"', "tiny = True"),
    ("rloo_kit.load_policy(lora_alpha", 'rloo_kit.load_policy("tiny", lora_alpha'),
)
"""On a GPU the notebook takes the largest Qwen3 that fits, from the hub; without one the tiny policy stands in."""

SAYS = ("held-out accuracy rose by at least 0.2", "same completions: True")


def offline_notebook(source: str, output_dir: str, changes: tuple[tuple[str, str], ...] = OFFLINE) -> Any:
    """The notebook with the tiny policy and another output folder.

    Raises:
        ValueError: a line that was to be changed does not stand there once.
    """
    import nbformat

    book = nbformat.reads(source, as_version=4)
    for old, new in changes:
        cells = [cell for cell in book.cells if cell.cell_type == "code" and old in cell.source]
        if len(cells) != 1:
            raise ValueError(f"{old!r} stands in {len(cells)} cells of the notebook, not in one")
        cells[0].source = cells[0].source.replace(old, new)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.source = cell.source.replace("../out/quickstart", output_dir)
    return book


@check("correct/quickstart notebook", seconds=240, takes=70, rank=42, home="notebook", is_rehearsed=False)
def notebook(place: Place) -> Found:
    """Executed from top to bottom, in a kernel of its own."""
    from nbclient import NotebookClient

    book = offline_notebook(NOTEBOOK.read_text(), str(place.scratch / "quickstart"))
    client = NotebookClient(
        book, timeout=220, kernel_name="python3", resources={"metadata": {"path": str(place.scratch)}}
    )
    client.execute()
    said = "".join(
        output.get("text", "") for cell in book.cells if cell.cell_type == "code" for output in cell.outputs
    )
    figures: list[Figure] = [holds(f"it says: {text}", text in said) for text in SAYS]
    return Found(figures)
