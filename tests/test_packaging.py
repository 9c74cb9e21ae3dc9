"""The files around the code: ranges and pins that agree, no index anywhere, a Makefile that explains itself."""

import re
import subprocess
import tomllib
from importlib.metadata import requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rloo_kit.session import versions
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = (ROOT / "requirements/constraints.txt").read_text()
CONDA = (ROOT / "environment.yml").read_text()
TRACKED = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
FILES = {name: (ROOT / name).read_bytes() for name in TRACKED if (ROOT / name).is_file()}


def test_conda_forge_gives_python_alone_and_pip_the_ranges_of_the_project() -> None:
    outside = re.findall(r"^  - ([^:\s]+)$", CONDA, re.MULTILINE)
    assert outside == ["conda-forge", "nodefaults", "python=3.12", "pip"]
    extras = PROJECT["optional-dependencies"]
    development = [line for line in extras["dev"] if line.startswith("nbval")]
    ranges = [*PROJECT["dependencies"], *extras["notebook"], *development, "-e ."]
    assert re.findall(r"^      - (.+)$", CONDA, re.MULTILINE) == ranges


def test_the_constraints_hold_an_exact_version_of_each_range_and_it_is_the_one_called_tested() -> None:
    """CI and ``make install`` take them; the ranges are for users, whose other packages are left alone."""
    constraints = dict(
        line.split("==") for line in CONSTRAINTS.splitlines() if not line.startswith("#") and "==" in line
    )
    for line in PROJECT["dependencies"]:
        needed = Requirement(line)
        exact = constraints[canonicalize_name(needed.name)]
        assert needed.specifier.contains(exact), line
        assert versions.TESTED.get(needed.name, exact) == exact
    exact = [line for line in PROJECT["dependencies"] if "==" in line]
    assert [line.split("==")[0] for line in exact] == ["unsloth", "unsloth_zoo"], "their only CPU release"


def test_no_file_holds_a_package_index_or_a_token_or_is_over_a_megabyte() -> None:
    secret = rb"--(?:extra-)?index-url|index-url\s*=|hf_[A-Za-z]{20,}"
    others = {name: text for name, text in FILES.items() if name != "tests/test_packaging.py"}
    assert [name for name, text in others.items() if len(text) > 2**20 or re.search(secret, text)] == []


def test_an_installation_without_a_gpu_leaves_out_what_needs_one() -> None:
    everywhere, cpu = (ROOT / "requirements/overrides.txt").read_text().split("# --- cpu:")
    assert "certifi" in everywhere
    never = re.findall(r"^(\S+); sys_platform == 'never'$", everywhere, re.MULTILINE)
    assert never == ["llm", "llama-cpp-python"], "what a package of weights would bring along, on any machine"
    needed = ("torchvision", "xformers", "triton", "diffusers")
    assert all(f"{package}; sys_platform == 'never'" in cpu for package in needed)


def test_triton_is_for_make_test_alone_in_the_release_that_torch_pins() -> None:
    pin = re.search(r"^triton==\S+$", FILES["requirements/triton.txt"].decode(), re.MULTILINE)
    assert pin
    pinned = [line.split(";")[0].strip() for line in requires("torch") or () if line.startswith("triton")]
    assert set(pinned) <= {pin[0]}, "a CUDA build of torch says which"
    planned = {
        target: subprocess.check_output(["make", "--dry-run", "-B", target], cwd=ROOT, text=True)
        for target in ("install", "check", "pytest")
    }
    assert [name for name, said in planned.items() if "--triton" in said] == ["pytest"]
    assert b".triton" in FILES[".gitignore"].splitlines()


def test_every_planted_bug_still_fits_its_place_and_names_tests_that_are_there() -> None:
    """What tests/mutants.py puts in; it takes a minute a bug, so it is not run here."""
    for bug in tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["mutant"]:
        assert (ROOT / bug["file"]).read_text().count(bug["old"]) == 1, bug["why"]
        assert all((ROOT / path).exists() for path in bug["tests"].split(" -")[0].split()), bug["why"]
