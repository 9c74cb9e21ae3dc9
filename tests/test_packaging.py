"""The files around the code: pins that agree, no index anywhere, a Makefile that explains itself."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from rloo_kit.session import environment, imports

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def environment_pins() -> list[str]:
    text = (ROOT / "environment.yml").read_text()
    return re.findall(r"^      - (.+)$", text, re.MULTILINE)


def test_the_conda_environment_has_the_pins_of_the_project() -> None:
    extras = PROJECT["optional-dependencies"]
    development = [line for line in extras["dev"] if line.startswith("nbval")]
    assert environment_pins() == [*PROJECT["dependencies"], *extras["notebook"], *development, "-e ."]


def test_the_conda_environment_takes_python_alone_from_conda_forge() -> None:
    text = (ROOT / "environment.yml").read_text()
    assert re.findall(r"^  - ([^:\s]+)$", text, re.MULTILINE) == [
        "conda-forge",
        "nodefaults",
        "python=3.12",
        "pip",
    ]
    assert "pytorch-cuda" not in text


def test_the_pins_are_the_versions_that_prepare_calls_tested() -> None:
    pins = dict(line.split("==") for line in PROJECT["dependencies"] if "==" in line)
    for package, tested in imports.TESTED.items():
        assert environment._matches(pins[package], tested), package


def test_the_constraints_agree_with_the_pins() -> None:
    constraints = dict(
        line.split("==")
        for line in (ROOT / "requirements/constraints.txt").read_text().splitlines()
        if "==" in line
    )
    for line in PROJECT["dependencies"]:
        name, _, version = line.partition("==")
        if version and name != "torch":
            assert constraints[name.replace("_", "-")] == version


def tracked() -> list[Path]:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in names.splitlines() if (ROOT / name).is_file()]


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("a package index", r"--(?:extra-)?index-url|index-url\s*="),
        ("a token", r"hf_[A-Za-z]{20,}"),
    ],
)
def test_no_file_holds(what: str, pattern: str) -> None:
    texts = {
        path: path.read_bytes().decode("utf-8", "ignore") for path in tracked() if path != Path(__file__)
    }
    assert [str(path) for path, text in texts.items() if re.search(pattern, text)] == []


def test_no_tracked_file_passes_a_megabyte() -> None:
    assert [str(path) for path in tracked() if path.stat().st_size > 2**20] == []


def test_make_help_lists_every_target_a_user_needs() -> None:
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("install", "quickstart", "test", "lock", "clean"):
        assert f"make {target}" in said


def test_ci_runs_the_readmes_command() -> None:
    assert "make test" in (ROOT / ".ci/run").read_text()
    assert "make test" in (ROOT / "README.md").read_text()


def test_an_installation_without_a_gpu_leaves_out_what_needs_one() -> None:
    text = (ROOT / "requirements/overrides.txt").read_text()
    everywhere, cpu = text.split("# --- cpu:")
    assert "certifi" in everywhere
    assert "never" not in everywhere
    for package in ("torchvision", "xformers", "triton", "diffusers"):
        assert f"{package}; sys_platform == 'never'" in cpu


def test_a_step_that_fails_says_which_and_what_to_do() -> None:
    code = "import sys; sys.path.insert(0, 'scripts'); import install; install.step('do it', ['false'], 'try this')"
    done = subprocess.run(["python3", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "The step failed: do it" in done.stderr
    assert "What to do: try this" in done.stderr
