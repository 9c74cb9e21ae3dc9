"""SKILL.md: its snippets run as they stand, one after the other, and its front matter is what the skill format asks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

SKILL = Path(__file__).resolve().parent.parent / "SKILL.md"


def front_matter() -> dict[str, str]:
    found: dict[str, str] = yaml.safe_load(SKILL.read_text().split("---\n")[1])
    return found


def test_the_front_matter_has_a_name_and_a_description_within_the_formats_limits() -> None:
    found = front_matter()
    assert set(found) == {"name", "description"}
    assert re.fullmatch(r"[a-z0-9-]{1,64}", found["name"])
    assert 0 < len(found["description"]) <= 1024


@pytest.mark.training
def test_every_snippet_runs_in_order_in_two_steps(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", SKILL.read_text(), re.DOTALL | re.MULTILINE)
    script = tmp_path / "skill.py"
    script.write_text("\n".join(blocks))
    given = {**os.environ, "RLOO_KIT_STEPS": "2", "RLOO_KIT_MODEL": "", "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=given, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "no exploit" in ran.stdout
    assert (tmp_path / "out/skill-adapter/adapter_config.json").exists()
