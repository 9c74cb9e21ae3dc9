"""Shared by the session tests: a recorded process that imports the stack, and kernels."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SECRET = "hf_" + "x" * 30
NO_PROXY = dict.fromkeys(("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"), "")
NOWHERE = "http://127.0.0.1:9"  # nothing listens on the discard port

# Variables that these tests set or expect unset, so the caller's are removed.
OWN = "HF_TOKEN HF_HUB_OFFLINE TRANSFORMERS_OFFLINE PYTORCH_ALLOC_CONF UNSLOTH_CPU_BF16 UNSLOTH_COMPILE_LOCATION "
OWN += "GOMP_SPINCOUNT HF_HUB_ENABLE_HF_TRANSFER"  # the last is set by unsloth_zoo in a test before
UNSET = f"import os\nfor name in {OWN.split()}: os.environ.pop(name, None)\n"

# The first cells of a notebook in a new process; a line "--- name" starts a cell's output.
FIRST_CELLS = """
import json, os, sys
import rloo_kit
print(json.dumps([name for name in sys.argv[1].split() if name in sys.modules]))

print("--- look-up")
import importlib.util
found = importlib.util.find_spec("transformers")
print(found.origin.endswith("__init__.py"), bool(found.submodule_search_locations), "unsloth" in sys.modules)

print("--- prepare")
env = rloo_kit.prepare(offline=True, seed=7)

print("--- state")
from huggingface_hub import constants
names = ("MINE", "ABOVE", "HF_TOKEN", "UNSLOTH_CPU_BF16")
print(json.dumps({name: os.environ[name] for name in names} | {
    "env.offline": env.offline, "hub.offline": constants.HF_HUB_OFFLINE, "env.bf16": env.bf16,
    "repr": repr(env), "variables": env.variables}))

print("--- late")
os.environ["OMP_NUM_THREADS"] = "7"
open("late.env", "w").write("UNSLOTH_COMPILE_LOCATION=elsewhere\\n")
rloo_kit.prepare(dotenv="late.env")

print("--- missing")
rloo_kit.prepare(dotenv="nowhere.env")

print("--- load")
policy = rloo_kit.load_policy()

print("--- dtype")
print(policy.model.dtype)
"""


@pytest.fixture(scope="session")
def first_cells(script: Any, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The output of a new process: ``shown`` by cell, and ``stderr``; its .env lies in the folder above."""
    above = tmp_path_factory.mktemp("project")
    (above / ".env").write_text(f"HF_TOKEN={SECRET}\nMINE=from-file\nABOVE=from-above\n")
    (above / "notebooks").mkdir()
    done = script(
        f"{UNSET}os.chdir({str(above / 'notebooks')!r})\n{FIRST_CELLS}",
        "torch transformers accelerate trl peft unsloth datasets matplotlib IPython",
        MINE="from-shell",
        PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64",
        TOKENIZERS_PARALLELISM="true",
        XDG_CACHE_HOME=str(above),
    )
    cells = ("--- import\n" + done.stdout).split("--- ")[1:]
    return SimpleNamespace(shown=dict(cell.split("\n", 1) for cell in cells), stderr=done.stderr)


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An isolated Jupyter: this interpreter's kernel, no user settings, no VS Code."""
    home = tmp_path_factory.mktemp("jupyter")
    spec = home / "data" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith(("JUPYTER", "JPY_", "VSCODE_", "IPYTHON"))]:
            patch.delenv(name)
        for name in ("JUPYTER_PATH", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(home / ("data" if name == "JUPYTER_PATH" else name)))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        yield home


def run_cells(client: Any, *cells: str, history: bool = True) -> list[str]:
    """Send all cells at once, as Run All does; return what each printed or returned, or its error's name.

    Fails if a cell gets no answer.
    """
    shown = {client.execute(code, store_history=history, allow_stdin=False): "" for code in cells}
    running = set(shown)
    while running:
        message = client.get_iopub_msg(timeout=90)
        parent, content = message["parent_header"].get("msg_id"), message["content"]
        if parent in shown:
            text = content.get("data", {}).get("text/plain", "")
            shown[parent] += content.get("text", "") or text or content.get("ename", "")
        if content.get("execution_state") == "idle":
            running.discard(parent)
    unanswered = set(shown)
    while unanswered:
        unanswered.discard(client.get_shell_msg(timeout=90)["parent_header"]["msg_id"])
    return list(shown.values())


@contextlib.contextmanager
def run_kernel(**variables: str) -> Iterator[tuple[int, Callable[[str], str]]]:
    """Start a kernel without a server; yield its process id, and a function that runs a cell and returns its output."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(env=os.environ | variables)
    try:
        yield manager.provisioner.pid, lambda code: run_cells(client, code)[0]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
