"""The README's cells on a 12 GB GPU, from import to shutdown; the tiny policy's weights stand in for Qwen3-4B's."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import rloo_kit
from rloo_kit.models import CATALOGUE
from rloo_kit.policy.bundled import TINY
from tests.conftest import ROOT, Done

CARD, FIRST = "rtx 4070", "qwen3-4b-instruct"
SMALLER = {
    "readme": {
        'output_dir="out/run")': 'output_dir="out/run", max_steps=1, max_completion_length=8, num_generations=2)',
        "n=100": "n=2",
    },
    "quickstart": {"max_steps=env.steps": "max_steps=1, max_completion_length=8, num_generations=2", "n=200": "n=2"},
}
"""Text of a page -> what a test of one step puts in its place."""
BEFORE = """
import os
import rloo_kit
import datasets

os.mkdir(folder := os.environ["HF_HOME"] + "/notebooks")
os.chdir(folder)

def of_the_hub(repository, name, split):
    assert (repository, name) == ("openai/gsm8k", "main")
    rows = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\\n#### {n + 1}"} for n in range(300)]
    return datasets.Dataset.from_list(rows[:200] if split == "train" else rows[200:])

datasets.load_dataset = of_the_hub
"""


def readme() -> str:
    section = (ROOT / "README.md").read_text().split("\n## In a notebook")[1].split("\n## ")[0]
    return "\n".join(re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE))


def quickstart() -> str:
    cells = json.loads((ROOT / "notebooks" / "01_quickstart.ipynb").read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@pytest.fixture(scope="module", params=[readme, pytest.param(quickstart, marks=pytest.mark.long)])
def ran(
    request: pytest.FixtureRequest, on_card: Callable[..., Done], tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Path], Done]:
    home = tmp_path_factory.mktemp("home")
    repository = CATALOGUE[FIRST].four_bit_repository or ""
    stored = home / "hub" / f"models--{repository.replace('/', '--')}"
    shutil.copytree(TINY.checkpoint(), stored / "snapshots" / "0")
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("0")
    code = request.param()
    for written, smaller in SMALLER[request.param.__name__].items():
        assert written in code, written
        code = code.replace(written, smaller)
    code = code.replace(
        "policy.save(", "print(env.device, policy.checkpoint.name, task.name, trainer.memory_plan) or policy.save("
    )
    done = on_card(CARD, "-c", BEFORE + code, HF_HOME=str(home), RLOO_KIT_STEPS="1")
    return [*home.glob("**/adapter/adapter_model.safetensors")], done


def test_the_model_for_a_first_run_is_loaded_in_4_bit_trained_and_saved_and_nothing_warns(ran):
    saved, done = ran
    print(done.stdout, done.stderr)
    assert f"cuda {FIRST} gsm8k" in done.stdout
    assert f"in 4 bit, LoRA rank 16, on Pretended {CARD}" in done.stdout
    assert "fits: " in done.stdout
    assert done.stdout.count("accuracy ") >= 2, "before and after"
    assert len(saved) == 1
    assert [line for line in done.stderr.splitlines() if "Warning" in line or "Error" in line] == []


def test_what_the_cells_train_by_default_fits_the_card_in_one_piece():
    config = rloo_kit.RLOOConfig.suggested(FIRST, None, card=CARD)
    planned = rloo_kit.plan(FIRST, config, CARD)
    assert (planned.fits, planned.sliced) == ("fits", "")
    assert (config.num_generations, config.max_completion_length) == (8, 1024)
