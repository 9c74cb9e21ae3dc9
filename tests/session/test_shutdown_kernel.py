"""shutdown_kernel in the runners and Jupyter servers that people use: all kernels, runners and servers are real."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import nbformat
import psutil
import pytest
from jupyter_client import BlockingKernelClient, find_connection_file
from nbclient import NotebookClient

from benchmarks.gpu.hygiene import seconds_until

from .conftest import run_cells, run_kernel

PATIENCE = 60.0  # seconds; a hung thread takes 5.4 by design, more on a busy machine
HUNG_THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()"
SHUT_DOWN = "from rloo_kit.session.shutdown_kernel import shutdown_kernel\nshutdown_kernel()"


pytestmark = pytest.mark.usefixtures("jupyter")


def gone(pid: int) -> bool:
    """Return whether the process has ended; a zombie counts as ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_soon_gone(pid: int) -> bool:
    return seconds_until(lambda: gone(pid), PATIENCE) < PATIENCE


# --- runners and scripts ----------------------------------------------------------------------------------


def test_a_runner_sees_every_cell_through(tmp_path, monkeypatch):
    """nbconvert, papermill and nbval run cells by nbclient; a cell after the shutdown still runs, without an error."""
    monkeypatch.setenv("VSCODE_GIT_IPC_HANDLE", "x")  # set in a terminal of VS Code, not in a notebook
    sources = ("40 + 2", SHUT_DOWN, "import time; time.sleep(1.2); 'be' + 'low'")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(book, timeout=90, kernel_name="python3").execute()
    shown = [[output.data["text/plain"] for output in cell.outputs] for cell in book.cells]
    assert shown == [["42"], [], ["'below'"]]


@pytest.mark.parametrize("program", [["-c"], ["-m", "IPython", "--quick", "--no-banner", "-c"]])
def test_in_a_script_and_a_terminal_it_returns_at_once_silently(program, server):
    # A script that a notebook starts inherits the variables that name the server and VS Code.
    env = os.environ | {"JPY_PARENT_PID": str(server.process.pid), "VSCODE_PID": "1"}
    command = [sys.executable, *program, f"import time\n{SHUT_DOWN}\ntime.sleep(1.5)\nprint('went on')"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")


# --- Jupyter servers --------------------------------------------------------------------------------------


class Page(NamedTuple):
    """A notebook page: a kernel that the server started."""

    kernel_id: str
    pid: int
    run: Callable[..., list[str]]


@dataclass
class Server:
    """A running Jupyter server, and a client that calls it as a page does."""

    process: subprocess.Popen[bytes]
    log: Path
    token: str
    api: httpx.Client
    clients: list[Any] = field(default_factory=list)

    def kernel_pids(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.process.pid).children() if not gone(child.pid)]

    def listens(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self.api.get("status").is_success
        return False

    def open_page(self, *, session: bool = True) -> Page:
        kernel, name = {"name": "python3"}, f"{uuid.uuid4().hex}.ipynb"
        body = {"path": name, "type": "notebook", "name": name, "kernel": kernel} if session else kernel
        answer = self.api.post("sessions" if session else "kernels", json=body).json()
        kernel_id = (answer["kernel"] if session else answer)["id"]
        client = BlockingKernelClient(connection_file=find_connection_file(f"kernel-{kernel_id}.json"))
        self.clients.append(client)
        client.load_connection_file()
        client.start_channels(hb=False)  # by the heartbeat a kernel on a busy machine would count as dead
        client.wait_for_ready(timeout=PATIENCE)
        run = functools.partial(run_cells, client)
        return Page(kernel_id, int(run("import os; print(os.getpid())")[0]), run)


@pytest.fixture(scope="module")
def server(jupyter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, token = tmp_path_factory.mktemp("server"), uuid.uuid4().hex
    log = folder / "server.log"
    options = "-m jupyter_server --no-browser --allow-root --ip=127.0.0.1 --port=0"
    command = [sys.executable, *options.split()]
    with log.open("wb") as out:
        env = os.environ | {"JUPYTER_TOKEN": token}  # not an option: command lines are visible to all
        env["HTTP_PROXY"] = "http://127.0.0.1:9"  # kernels must not use the proxy, nor show it the token
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=out)
    file = Path(os.environ["JUPYTER_RUNTIME_DIR"]) / f"jpserver-{process.pid}.json"
    seconds_until(lambda: file.exists() and file.read_text().endswith("}"), PATIENCE)
    url, headers = json.loads(file.read_text())["url"], {"Authorization": f"token {token}"}
    with httpx.Client(base_url=f"{url}api/", headers=headers, timeout=PATIENCE, trust_env=False) as api:
        running = Server(process, log, token, api)
        seconds_until(running.listens, PATIENCE)  # the file is written before the server listens
        yield running
    for client in running.clients:
        client.stop_channels()  # otherwise its context waits for its sockets
    children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(15)
    for one in (process, *(child for child in children if not gone(child.pid))):
        one.kill()


def test_on_a_server_the_kernel_is_soon_gone_and_stays_gone(server):
    """Also a kernel with a thread that does not end, and a kernel started without a session."""
    pages = [server.open_page(), server.open_page(session=False)]
    pages[0].run(HUNG_THREAD)
    assert [page.run(SHUT_DOWN) for page in pages] == [[""], [""]]
    assert all(is_soon_gone(page.pid) for page in pages)
    time.sleep(4)  # a server checks every 3 s whether a kernel has died, and then restarts it
    assert not psutil.Process(server.process.pid).children()
    assert {server.api.get(f"kernels/{page.kernel_id}").status_code for page in pages} == {404}
    assert server.api.get("sessions").json() == []
    assert server.token not in server.log.read_text()


def test_cells_below_cancel_it_and_a_frontends_own_code_does_not(server):
    page = server.open_page()
    printed = page.run(SHUT_DOWN, "import time; time.sleep(2); print('below')", "print('and below')")
    assert printed == ["", "below\n", "and below\n"]
    assert seconds_until(lambda: gone(page.pid), 2) >= 2

    again = f"{SHUT_DOWN}\nshutdown_kernel()\nimport time; time.sleep(2); print('to the end')"
    assert page.run(again) == ["to the end\n"], "a long cell is answered first"
    assert page.run("print('variables')", history=False) == ["variables\n"]
    assert is_soon_gone(page.pid)


def test_a_server_that_refuses_loses_the_process_all_the_same(server):
    page = server.open_page()
    page.run(
        "import rloo_kit.session.shutdown_kernel as k; real = k._find_server()",
        "k._find_server = lambda: {**real, 'token': 'wrong'}",
    )
    assert page.run(SHUT_DOWN) == [""]
    assert is_soon_gone(page.pid)
    assert seconds_until(lambda: server.kernel_pids() not in ([], [page.pid]), PATIENCE) < PATIENCE, (
        "it starts a fresh one"
    )
    server.api.delete(f"kernels/{page.kernel_id}")


def test_a_kernel_that_its_server_does_not_know_is_left_alone(server):
    """A runner inside a server (an executing export, a scheduler) ends its kernels itself."""
    with run_kernel() as (pid, run):
        run(f"import os; os.environ['JPY_PARENT_PID'] = '{server.process.pid}'")
        assert run(SHUT_DOWN) == ""
        assert seconds_until(lambda: gone(pid), 3) >= 3


# --- VS Code ----------------------------------------------------------------------------------------------

STAND_IN_TORCH = """
import sys, types, weakref, pathlib
names = types.SimpleNamespace
Module = type("Module", (), {"modules": lambda self: [self]})
sys.modules["torch"] = names(
    Tensor=type("T", (), {}), nn=names(Module=Module), cuda=names(is_initialized=lambda: False),
    optim=names(Optimizer=type("O", (), {}), lr_scheduler=names(LRScheduler=type("S", (), {}))))
model = Module()
"""


def test_a_kernel_of_vs_code_lets_go_of_models_and_ends_after_its_cell(tmp_path):
    """VS Code starts kernels without a server; a thread that does not end delays the end, not the release."""
    freed = f"freed = weakref.finalize(model, pathlib.Path({str(tmp_path / 'freed')!r}).touch)"
    with run_kernel(VSCODE_CWD="/") as (pid, run):
        assert run(HUNG_THREAD) == run(STAND_IN_TORCH + freed) == run(SHUT_DOWN) == ""
        assert seconds_until((tmp_path / "freed").exists, PATIENCE) < PATIENCE
        assert not gone(pid), "freed by the end of the process, which this is not about"
        assert is_soon_gone(pid)
