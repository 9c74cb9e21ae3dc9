"""docs/examples: a GRPO script of Unsloth's users, and the few lines that turn it to RLOO; both run."""

import difflib
import re
from pathlib import Path
from typing import Any

import pytest

from rloo_kit.policy.bundled import TINY

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples"
SMALL = {
    '"unsloth/Qwen3-4B-Base"': "TINY",
    "max_seq_length = 1024": "max_seq_length = 128",
    "max_completion_length = 512": "max_completion_length = 8",
    "max_steps = 100": "max_steps = 2",
    "warmup_steps=10": "warmup_steps=0",
}
"""What a test of two steps on the tiny policy writes instead."""


def example(name: str) -> str:
    return (EXAMPLES / f"{name}.py").read_text()


def changed_lines() -> tuple[list[str], list[str]]:
    """The lines of GRPO's form that go, and those of RLOO's that come."""
    lines = list(difflib.ndiff(*(example(name).splitlines() for name in ("unsloth_grpo", "unsloth_rloo"))))
    return [line[2:] for line in lines if line[0] == "-"], [line[2:] for line in lines if line[0] == "+"]


def test_a_grpo_script_is_turned_to_rloo_by_at_most_five_lines() -> None:
    gone, come = changed_lines()
    assert 0 < max(len(gone), len(come)) <= 5
    assert all("GRPO" in line for line in gone)


def test_the_page_for_those_who_come_from_grpo_shows_every_changed_line() -> None:
    page = (EXAMPLES.parent / "coming-from-grpo.md").read_text()
    shown = [
        line.strip()
        for block in re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
        for line in block.splitlines()
    ]
    gone, come = changed_lines()
    assert [
        line for line in (*(f"-{one}" for one in gone), *(f"+{one}" for one in come)) if line not in shown
    ] == []


@pytest.mark.training
@pytest.mark.parametrize("name", ["unsloth_grpo", "unsloth_rloo"])
@pytest.mark.filterwarnings("ignore:.*were cut:UserWarning")
def test_an_example_trains_saves_and_samples(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = example(name)
    for written, small in SMALL.items():
        assert code.count(written) == 1, written
        code = code.replace(written, small)
    ran: dict[str, Any] = {"TINY": str(TINY.checkpoint())}
    exec(compile(code, f"{name}.py", "exec"), ran)
    assert ran["trainer"].state.global_step == 2
    assert (tmp_path / "lora" / "adapter_model.safetensors").exists()
    logged = [entry for entry in ran["trainer"].state.log_history if "reward" in entry]
    assert {f"rewards/{reward}_reward/mean" for reward in ("format", "tags", "answer")} <= set(logged[-1])
    assert "What is 17 + 25?" in capsys.readouterr().out
