"""What a user with a GPU would install resolves on Linux, WSL and Windows and Python 3.11 to 3.13; it is not installed.

The resolutions ask a package index for metadata, and skip where there is none.
"""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import compat
import install

from rloo_kit.session import versions


@pytest.mark.long  # asks a package index
@pytest.mark.parametrize("python", compat.PYTHONS)
@pytest.mark.parametrize("platform", compat.PLATFORMS)
def test_the_cuda_set_resolves(platform: str, python: str) -> None:
    done = compat.resolved(compat.PLATFORMS[platform], python)
    if done.returncode and re.search(r"(?i)network|connect|dns|timed out|failed to fetch", done.stderr):
        pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    found = compat.versions_in(done.stdout)
    triton = found["triton-windows" if platform == "Windows" else "triton"]
    made_with = (install.REQUIREMENTS / "triton.txt").read_text().split("triton==")[1].strip()
    assert triton.split(".")[:2] == made_with.split(".")[:2], "torch was made with it"
    assert {name: found[name] for name in compat.SHOWN} == {
        name: versions.TESTED[name] for name in compat.SHOWN
    }
