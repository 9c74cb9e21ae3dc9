"""Make .venv and install the pinned stack: CUDA builds where nvidia-smi succeeds, CPU builds otherwise.

Called by ``make install``; needs only Python 3.11 or newer and a package index.  Each step prints what it does, and a
step that fails says what to do.  Settings that pip reads from the environment (index, links, certificates) are passed
on to uv, which does not read pip's.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
CPU_SECTION = "# --- cpu:"
TORCH = ("torch", "torchvision", "torchaudio", "triton", "xformers")
CERTIFI = "certifi>=2026.7"  # Unsloth requires a release that some indexes lack
PIP_TO_UV = {
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_CERT": "SSL_CERT_FILE",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--here", action="store_true", help="into this Python, beside its torch")
    parser.add_argument("--triton", type=Path, metavar="DIR", help="put Triton there instead, for make test")
    arguments = parser.parse_args()
    version = sys.version.split()[0]
    if sys.version_info < (3, 11):
        raise SystemExit(f"Python {version} is too old: make install PYTHON=python3.11, or newer")
    if arguments.triton:
        install_triton(arguments.triton)
    elif arguments.here:
        install_here()
    else:
        install(arguments)


def install(arguments: argparse.Namespace) -> None:
    device = arguments.device if arguments.device != "auto" else detected_device()
    venv = arguments.venv.absolute()
    python = str(venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))

    step(
        f"make {venv.name} with Python {sys.version.split()[0]}",
        [sys.executable, "-m", "venv", str(venv)],
        "install Python's venv module (Debian, Ubuntu: apt install python3-venv)",
    )
    uv = get_uv(python)
    asked = ["--constraint", str(REQUIREMENTS / "constraints.txt"), "--editable", f"{ROOT}[dev]"]
    install_stack(uv, python, device, asked)
    step(
        "import the stack once, which also compiles it to bytecode",
        [python, "-c", "from rloo_kit.session.import_order import import_unsloth; import_unsloth()"],
        "run `make clean install`; if it fails again, the lines above name the package at fault",
        cwd=venv,  # unsloth may write into the working directory
    )


def get_uv(python: str) -> list[str]:
    """Install uv into the environment of ``python`` and return the command that runs it."""
    command = [python, "-m", "pip", "install", "-q", "uv>=0.9"]
    todo = "check that pip reaches a package index: pip download uv"
    step("get uv, which resolves with overrides", command, todo)
    return [python, "-m", "uv"]


def install_here() -> None:
    """Install the kit into a notebook's environment, from its first cell; torch and what is built for it stay."""
    there = {one.name: one.version for one in distributions()}
    family = TORCH if "torch" in there else ()
    kept = [f"{one}=={there[one]}" if one in there else f"{one}; sys_platform == 'never'" for one in family]
    with tempfile.TemporaryDirectory() as folder:
        overrides = Path(folder) / "overrides.txt"
        overrides.write_text("\n".join([*kept, CERTIFI, ""]))
        command = [*get_uv(sys.executable), "pip", "install", "-q", "--python", sys.executable]
        todo = "look for the package that the lines above name; a torch below 2.13 has to be updated first"
        step("install the kit beside this torch", [*command, "--override", str(overrides), str(ROOT)], todo)


def install_triton(folder: Path) -> None:
    """Install Triton into its own folder, with the uv of the Python that runs this script."""
    folder.mkdir(exist_ok=True)
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        print(f"==> no Triton for {sys.platform} {platform.machine()}: tests of the GPU path are skipped")
        return
    command = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    step(
        f"put Triton into {folder}, for tests of the GPU path",
        [*command, "--requirement", str(REQUIREMENTS / "triton.txt")],
        "check that uv reaches a package index; `make check` needs no Triton",
    )


def detected_device() -> str:
    found = shutil.which("nvidia-smi")
    is_cuda = found and subprocess.run([found], capture_output=True, check=False).returncode == 0
    return "cuda" if is_cuda else "cpu"


def install_stack(uv: list[str], python: str, device: str, asked: list[str]) -> None:
    """Install what is ``asked`` into the environment of ``python``; on a CPU, leave out what needs a GPU."""
    overrides = Path(python).parents[1] / "overrides.txt"
    text = (REQUIREMENTS / "overrides.txt").read_text()
    overrides.write_text(text if device == "cpu" else text.split(CPU_SECTION)[0])
    command = [*uv, "pip", "install", "-q", "--python", python, "--override", str(overrides), *asked]
    what = f"install the stack for {device}"
    todo = "look for the package that the lines above name; `make install DEVICE=cpu` needs the least"
    backend = {"cuda": "auto", "cpu": "cpu"}[device]
    has_links = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS")
    if device == "cpu" and has_links:
        step(what, command, todo)
    elif not step(what, [*command, "--torch-backend", backend]):
        print("    PyTorch's own index failed; trying the package index alone (its build has CUDA, 6.7 GB)")
        step(what, command, todo)


def step(what: str, command: list[str], todo: str = "", cwd: Path | None = None) -> bool:
    """Run one step and return whether it succeeded; with a ``todo``, a failure ends the installation."""
    print(f"==> {what}", flush=True)
    started = time.monotonic()
    environment = {**uv_environment(), "PYTHONDONTWRITEBYTECODE": ""}
    succeeded = subprocess.run(command, env=environment, cwd=cwd, check=False).returncode == 0
    if succeeded:
        print(f"    {time.monotonic() - started:.0f} s", flush=True)
    elif todo:
        raise SystemExit(f"\nThe step failed: {what}\nWhat to do: {todo}")
    return succeeded


def uv_environment() -> dict[str, str]:
    for_uv = {uv: os.environ[pip] for pip, uv in PIP_TO_UV.items() if pip in os.environ}
    return {**for_uv, **os.environ}


if __name__ == "__main__":
    main()
