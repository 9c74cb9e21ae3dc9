"""Prompts by Arrow's columns: what Python would find fault with is a suspect, and Python looks at no other row."""

import types
from typing import Any

import pytest
from datasets import Dataset
from datasets.formatting.formatting import PythonArrowExtractor

from rloo_kit import columns, inputs
from rloo_kit.errors import DatasetError

ROWS, BAD = 2_000, 1_234
ARGS = types.SimpleNamespace(generation_batch_size=8, num_generations=4)
TOKENIZER: Any = types.SimpleNamespace(
    chat_template="{{ messages }}",
    apply_chat_template=lambda prompt, **how: str(prompt),
    all_special_tokens=[],
    get_added_vocab=dict,
)
GOOD: dict[str, Any] = {
    "text": "What is 1 + 2?",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1 + 2?"}],
}


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


FAULTY: dict[str, tuple[str, Any]] = {
    **{f"blank {blank!r}": ("text", blank) for blank in ("", " \n", "\x1c", "\u3000\x85", "\u2028")},
    **{f"blank message {blank!r}": ("messages", user(blank)) for blank in ("", "\t", "\x1f", "\u00a0")},
    "no text": ("text", None),
    "no messages": ("messages", []),
    "no conversation": ("messages", None),
    "a user who says nothing": ("messages", [*GOOD["messages"], *user(None)]),
    "a message without a role": ("messages", [{"role": None, "content": "hello"}, *GOOD["messages"]]),
}


def with_one(kind: str, prompt: Any) -> Dataset:
    prompts = [GOOD[kind]] * ROWS
    prompts[BAD] = prompt
    return Dataset.from_dict({"prompt": prompts, "answer": ["3"] * ROWS})


@pytest.mark.parametrize(("kind", "prompt"), FAULTY.values(), ids=FAULTY)
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_faulty_row_has_the_error_and_the_number_that_looking_at_every_row_gives(
    kind: str, prompt: Any, shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "BATCH", 300)
    dataset = with_one(kind, prompt)
    dataset = dataset.shuffle(seed=1) if shuffled else dataset
    with pytest.raises(DatasetError) as slow:
        inputs.check_prompts(dataset["prompt"][:], TOKENIZER, "train_dataset")
    with pytest.raises(DatasetError) as quick:
        inputs.check_dataset(dataset, ARGS, TOKENIZER)  # type: ignore[arg-type]
    assert str(quick.value) == str(slow.value)
    assert shuffled or f"train_dataset[{BAD}]" in str(quick.value)


def test_what_only_looks_odd_is_taken() -> None:
    for kind, prompt in (
        ("text", "\u2212"),  # a minus sign is no letter and no digit
        ("text", "\U0001f600"),
        ("messages", [*GOOD["messages"], {"role": "assistant", "content": None}, *GOOD["messages"][1:]]),
    ):
        inputs.check_dataset(with_one(kind, prompt), ARGS, TOKENIZER)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", GOOD)
def test_python_looks_at_a_few_rows_however_many_there_are(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for name in ("extract_row", "extract_column", "extract_batch"):
        whole = getattr(PythonArrowExtractor, name)

        def counted(self: Any, table: Any, whole: Any = whole) -> Any:
            seen.append(table.num_rows)
            return whole(self, table)

        monkeypatch.setattr(PythonArrowExtractor, name, counted)
    dataset = with_one(kind, GOOD[kind])
    inputs.check_dataset(dataset, ARGS, TOKENIZER)  # type: ignore[arg-type]
    checked = sum(seen)
    inputs.longest_prompts(dataset, count=5)
    assert 0 < checked <= 2 * inputs.RENDERED
    assert sum(seen) - checked == 5


@pytest.mark.parametrize("kind", GOOD)
def test_the_longest_prompts_are_found_by_their_text_the_earliest_first(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "BATCH", 7)
    sizes = [3, 9, 1, 9, 4, 4, 8, 2, 9, 30, 5]
    prompts = ["\u00e9" * size if kind == "text" else user("\u00e9" * size) for size in sizes]
    rows, found = inputs.longest_prompts(Dataset.from_dict({"prompt": prompts}), count=4)
    assert rows == [9, 1, 3, 8]
    assert found == [prompts[row] for row in rows]
    chosen = Dataset.from_dict({"prompt": prompts}).select([9, 0, 6])
    assert inputs.longest_prompts(chosen, count=2)[0] == [0, 2], "by the dataset's own order"


def test_what_a_format_or_a_type_makes_something_else_is_looked_at_row_by_row() -> None:
    numbers = Dataset.from_dict({"prompt": [1, 2]})
    with pytest.raises(DatasetError, match="not a int"):
        inputs.check_dataset(numbers, ARGS, TOKENIZER)  # type: ignore[arg-type]
    upper = with_one("text", "lower").with_transform(
        lambda rows: {"prompt": [one.upper() for one in rows["prompt"]]}
    )
    assert inputs.longest_prompts(upper, count=1)[1] == ["WHAT IS 1 + 2?"]
