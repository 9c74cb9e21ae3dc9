"""A notebook from the first line to the last, on an RTX 4060 and on a CPU that is asked for bfloat16."""

import json
import re
from typing import Any, NamedTuple

import pytest

from tests.conftest import ROOT

RUN = ROOT / "tests" / "gpu_path" / "run_as_user.py"
pytestmark = pytest.mark.long  # make gpu-path; make test runs the README on a card (test_readme.py)
STEP, HEAD = re.compile(r" +\d+/\d+ +[+-]\d"), re.compile(r" +step  reward")
AGAIN = "again, truncated and accumulated"
CARD = "rtx 4060"
PLACES: dict[str, dict[str, Any]] = {
    CARD: {"device": "cuda", "policy is on": "cuda:0", "planned for": f"Pretended {CARD}", "autocast": True},
    "cpu": {"device": "cpu", "policy is on": "cpu", "planned for": "this CPU", "autocast": False},
}


class Said(NamedTuple):
    """The facts, and what each part printed on stdout and stderr."""

    place: str
    facts: dict[str, Any]
    out: dict[str, list[str]]
    err: dict[str, list[str]]


def parts(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("== "):
            found[line[3:]] = []
        elif line.strip():
            next(reversed(found.values()), []).append(line)
    return found


@pytest.fixture(scope="module", params=PLACES)
def said(request, script, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("user") / "run")
    if request.param == CARD:
        done = request.getfixturevalue("on_card")(CARD, str(RUN), folder)
    else:
        done = script(RUN.read_text(), folder, UNSLOTH_CPU_BF16="1", HF_HUB_OFFLINE="1")
    out, _, facts = done.stdout.strip().rpartition("\n")
    return Said(request.param, json.loads(facts), parts(out), parts(done.stderr))


def test_everything_is_there_and_planned_for_it_in_16_bits_and_the_lora_in_32(said):
    facts, expected = said.facts, PLACES[said.place]
    assert {name: facts[name] for name in expected} == expected
    assert "computes in bfloat16" in "\n".join(said.out["prepare"])
    assert (facts["bf16"], facts["weights"], facts["lora"]) == (True, "torch.bfloat16", ["torch.float32"])
    assert facts["fits"] == "fits"


def test_steps_train_resume_train_again_and_are_saved_and_released(said):
    facts = said.facts
    assert facts["moved"]
    assert [entry["step"] for entry in facts["log"]] == [1, 2]
    assert all(0 < entry["reward"] < 1 for entry in facts["log"])
    assert facts["resumed to"] == 3
    assert facts["again"] == 1
    assert facts["dead where all is cut"] == 1.0
    assert "nan" not in facts["evaluated"].lower()
    assert facts["reloaded"]
    assert facts["left, MiB"] < 1


@pytest.mark.parametrize(("part", "steps"), [("train", 2), ("resume", 1), (AGAIN, 1)])
def test_a_step_prints_one_line_and_nothing_else(said, part, steps):
    head, *rest = (line for line in said.out[part] if not line.startswith("resuming from "))
    assert HEAD.match(head)
    assert len(rest) == steps
    assert all(map(STEP.match, rest))


def test_loading_evaluating_and_saving_print_nothing_and_no_part_warns(said):
    assert [said.out[part] for part in ("load", "evaluate", "save")] == [[]] * 3
    assert {part: lines for part, lines in said.err.items() if lines and part != AGAIN} == {}
