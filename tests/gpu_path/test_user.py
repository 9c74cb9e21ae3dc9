"""A notebook's way on an RTX 4060, from the first line to the last: what it computes, and what it prints."""

import json
import re
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.gpu_path.conftest import Pretended

STEP = re.compile(r" +\d+/\d+ +[+-]\d")
AGAIN = "again, truncated and accumulated"
HEAD = re.compile(r" +step  reward")


class Said(dict[str, Any]):
    """Facts, and what was printed in each part."""

    out: dict[str, list[str]]
    errors: dict[str, list[str]]


def parts(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("== "):
            found[line[3:]] = []
        elif line.strip():
            next(reversed(found.values()), []).append(line)
    return found


@pytest.fixture(scope="module")
def said(on_card: Pretended, tmp_path_factory: pytest.TempPathFactory) -> Said:
    folder = tmp_path_factory.mktemp("user")
    done = on_card("rtx 4060", str(ROOT / "tests/gpu_path/run_as_user.py"), str(folder / "run"))
    *lines, facts = done.stdout.splitlines()
    found = Said(json.loads(facts))
    found.out, found.errors = parts("\n".join(lines)), parts(done.stderr)
    return found


def test_everything_is_on_the_card_and_planned_for_it_in_its_16_bits_and_the_lora_in_32(said: Said) -> None:
    assert (said["device"], said["policy is on"]) == ("cuda", "cuda:0")
    assert said["bf16"] is True
    assert said["precision"] == {"bf16": True, "fp16": False}
    assert said["lora dtypes"] == ["torch.float32"]
    assert said["plan"]["device"] == "Pretended rtx 4060"
    assert said["plan"]["fits"] == "fits"
    assert "generate" in said["peaks"], "phases are measured"
    assert all(size > 0 for size in said["peaks"].values())


def test_steps_train_resume_train_again_and_are_saved_and_released(said: Said) -> None:
    assert said["moved"]
    assert [entry["step"] for entry in said["log"]] == [1, 2]
    assert said["resumed to"] == 3
    assert said["again"] == 1
    assert said["dead where all is cut"] == 1.0
    assert said["reloaded"]
    assert said["left, MiB"] < 1


@pytest.mark.parametrize(("part", "steps"), [("train", 2), ("resume", 1), (AGAIN, 1)])
def test_a_step_prints_one_line_and_nothing_else(said: Said, part: str, steps: int) -> None:
    head, *rest = (line for line in said.out[part] if not line.startswith("resuming from "))
    assert HEAD.match(head)
    assert len(rest) == steps
    assert all(map(STEP.match, rest))


def test_loading_evaluating_and_saving_print_nothing_and_no_part_warns(said: Said) -> None:
    assert [said.out[part] for part in ("load", "evaluate", "save")] == [[]] * 3
    warned = {part: lines for part, lines in said.errors.items() if lines and part != AGAIN}
    assert warned == {}
