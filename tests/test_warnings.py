"""Every warning stands at the user's line: the call in a notebook or a script, not a line of the kit or of TRL."""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rloo_kit
from rloo_kit.session import output

ROOM = Path(rloo_kit.__file__).parent


def from_file(folder: Path) -> None:
    file = folder / "sums.jsonl"
    rows = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(40)]
    file.write_text("\n".join(map(json.dumps, [*rows, {"question": "0 + 0?", "answer": "0"}])))
    rloo_kit.tasks.from_file(file)


def auto_level(policy: Any) -> None:
    rloo_kit.tasks.arithmetic(
        policy=policy, n_prompts=1, n_samples=1, max_new_tokens=1, n_train=4, n_held_out=2
    )


CALLS: dict[str, Callable[[Any, Any, Path], None]] = {
    "sampled from another distribution": lambda make, policy, folder: rloo_kit.RLOOConfig(top_p=0.9) and None,
    "beta": lambda make, policy, folder: rloo_kit.RLOOConfig(kl_coef=0.1) and None,
    "max_prompt_length=9": lambda make, policy, folder: rloo_kit.RLOOConfig(max_prompt_length=9) and None,
    "left out": lambda make, policy, folder: from_file(folder),
    "no level has a pass rate": lambda make, policy, folder: auto_level(policy),
    "one more forward pass": lambda make, policy, folder: (
        make(beta=0.1, num_generations=4, per_device_train_batch_size=2, gradient_accumulation_steps=2)
        and None
    ),
}


@pytest.mark.parametrize("said", CALLS)
def test_a_warning_stands_at_the_line_of_the_call(
    said: str, make_trainer: Any, policy: Any, tmp_path: Path
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CALLS[said](make_trainer, policy, tmp_path)
    ours = (__file__, str(Path(__file__).with_name("conftest.py")))  # make_trainer makes the trainer there
    assert [one.filename in ours for one in caught if said in str(one.message)] == [True]


def test_no_room_counts_its_callers_by_hand() -> None:
    own = [file for file in ROOM.rglob("*.py") if file != Path(output.__file__)]
    assert [str(file) for file in own if re.search(r"warnings\.warn\(|stacklevel", file.read_text())] == []
