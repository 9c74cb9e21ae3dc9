"""What a user with a GPU would install resolves on Linux, WSL and Windows and Python 3.11 to 3.13; it is not installed.

The resolutions ask a package index for metadata, and skip where there is none.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import install

from rloo_kit.session import versions

PLATFORMS = {"Linux": "x86_64-manylinux_2_28", "WSL": "x86_64-manylinux_2_35", "Windows": "windows"}


def resolved(platform: str, python: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """uv's answer to what an installation with CUDA would take there."""
    overrides, text = folder / "overrides.txt", (install.REQUIREMENTS / "overrides.txt").read_text()
    overrides.write_text(text.split(install.CPU_SECTION)[0])
    command = [*(sys.executable, "-m", "uv", "pip", "compile", "-q"), str(install.ROOT / "pyproject.toml")]
    command += ["--no-header", "--no-annotate", "--python-platform", platform, "--python-version", python]
    command += ["--override", str(overrides), "--constraint", str(install.REQUIREMENTS / "constraints.txt")]
    env = install.uv_environment()
    env.pop("UV_FIND_LINKS", None)  # a folder of CPU builds is not what a machine with a GPU takes
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.mark.long  # asks a package index
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_cuda_set_resolves(platform: str, python: str, tmp_path: Path) -> None:
    done = resolved(PLATFORMS[platform], python, tmp_path)
    if done.returncode and re.search(r"(?i)network|connect|dns|timed out|failed to fetch", done.stderr):
        pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    lines = (line.split(";")[0].strip() for line in done.stdout.splitlines() if "==" in line)
    found = dict(line.replace("unsloth-zoo", "unsloth_zoo").split("==") for line in lines)
    triton = found["triton-windows" if platform == "Windows" else "triton"]
    made_with = (install.REQUIREMENTS / "triton.txt").read_text().split("triton==")[1].strip()
    assert triton.split(".")[:2] == made_with.split(".")[:2], "torch was made with it"
    stack = ("torch", "unsloth", "trl", "transformers", "peft", "bitsandbytes", "datasets")
    assert {name: found[name] for name in stack} == {name: versions.TESTED[name] for name in stack}
