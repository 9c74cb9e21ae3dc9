"""The files around the code: ranges and pins agree and resolve, no index or secret, planted bugs still apply."""

import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

import compat  # isort: skip - of scripts/
import install  # isort: skip

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = (ROOT / "requirements/constraints.txt").read_text()
CONDA = (ROOT / "environment.yml").read_text()
TRACKED = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
FILES = {name: (ROOT / name).read_bytes() for name in TRACKED if (ROOT / name).is_file()}


def test_conda_forge_gives_python_alone_and_pip_the_ranges_of_the_project():
    outside = re.findall(r"^  - ([^:\s]+)$", CONDA, re.MULTILINE)
    assert outside == ["conda-forge", "nodefaults", "python=3.12", "pip"]
    extras = PROJECT["optional-dependencies"]
    development = [line for line in extras["dev"] if line.startswith("nbval")]
    ranges = [*PROJECT["dependencies"], *extras["notebook"], *development, "-e ."]
    assert re.findall(r"^      - (.+)$", CONDA, re.MULTILINE) == ranges


EXACT = dict(line.split("==") for line in CONSTRAINTS.splitlines() if not line.startswith("#") and "==" in line)


def test_the_constraints_hold_an_exact_version_of_each_range():
    """CI and ``make install`` use the constraints; users get the ranges, so their other packages are left alone."""
    for line in PROJECT["dependencies"]:
        needed = Requirement(line)
        assert needed.specifier.contains(EXACT[canonicalize_name(needed.name)]), line
    exact = [line for line in PROJECT["dependencies"] if "==" in line]
    assert [line.split("==")[0] for line in exact] == ["unsloth", "unsloth_zoo"], "their only CPU release"


PLATFORMS = {"Linux": "x86_64-manylinux_2_28", "WSL": "x86_64-manylinux_2_35", "Windows": "windows"}


@pytest.mark.long  # asks a package index for metadata, and installs nothing
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_a_user_with_a_gpu_would_install_resolves(platform, python, tmp_path):
    overrides, text = tmp_path / "overrides.txt", (install.REQUIREMENTS / "overrides.txt").read_text()
    overrides.write_text(text.split(install.CPU_SECTION)[0])
    command = [sys.executable, "-m", "uv", "pip", "compile", "-q", str(ROOT / "pyproject.toml")]
    command += ["--no-header", "--no-annotate", "--override", str(overrides), "--python-version", python]
    command += ["--constraint", str(install.REQUIREMENTS / "constraints.txt")]
    command += ["--python-platform", PLATFORMS[platform]]
    env = install.uv_environment()
    env.pop("UV_FIND_LINKS", None)  # a machine with a GPU does not use a folder of CPU builds
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode and re.search(r"(?i)network|connect|dns|timed out|failed to fetch", done.stderr):
        pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    lines = (line.split(";")[0].strip() for line in done.stdout.splitlines() if "==" in line)
    found = dict(line.replace("unsloth-zoo", "unsloth_zoo").split("==") for line in lines)
    triton = found["triton-windows" if platform == "Windows" else "triton"]
    made_with = (install.REQUIREMENTS / "triton.txt").read_text().split("triton==")[1].strip()
    assert triton.split(".")[:2] == made_with.split(".")[:2], "torch was made with it"
    stack = ("torch", "unsloth", "trl", "transformers", "peft", "bitsandbytes", "datasets")
    assert {name: found[name] for name in stack} == {name: EXACT[name] for name in stack}


def test_no_file_holds_a_package_index_or_a_token_or_is_over_a_megabyte():
    secret = rb"--(?:extra-)?index-url|index-url\s*=|hf_[A-Za-z]{20,}"
    others = {name: text for name, text in FILES.items() if name != "tests/test_packaging.py"}
    assert [name for name, text in others.items() if len(text) > 2**20 or re.search(secret, text)] == []


def test_every_planted_bug_still_fits_its_place_and_names_tests_that_are_there():
    """tests/mutants.py plants these bugs; it takes a minute per bug, so it is not run here."""
    for bug in tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["mutant"]:
        assert (ROOT / bug["file"]).read_text().count(bug["old"]) == 1, bug["why"]
        assert all((ROOT / path).exists() for path in bug["tests"].split(" -")[0].split()), bug["why"]


def test_the_tests_that_make_compat_runs_are_there():
    for test in compat.TESTS:
        file, *names = re.split(r"::|\[", test.removesuffix("]"))
        assert (ROOT / file).exists(), test
        assert all(name in (ROOT / file).read_text() for name in names), test
