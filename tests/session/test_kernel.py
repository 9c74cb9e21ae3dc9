"""`release` and `shutdown_kernel`, in the runners and on the Jupyter servers people use.

Each notebook here is three small cells without torch; every kernel, runner and server is a real one.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import nbformat
import psutil
import pytest
import torch
import websocket
from jupyter_client.manager import start_new_kernel

from rloo_kit.session.release import Released, release

MIB = 2**20
GONE_WITHIN_SECONDS = 20.0  # a hung thread takes 5.4 s by design, a busy machine more
HUNG_THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()"
SHUT_DOWN = "from rloo_kit.session.kernel import shutdown_kernel\nshutdown_kernel()"


@pytest.fixture(scope="module", autouse=True)
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Jupyter of our own: this interpreter's kernel, nobody else's settings, no VS Code around."""
    home = tmp_path_factory.mktemp("jupyter")
    spec = home / "data" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith(("JUPYTER", "JPY_", "VSCODE_", "IPYTHON"))]:
            patch.delenv(name)
        patch.setenv("JUPYTER_PATH", str(home / "data"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(home / "runtime"))
        patch.setenv("JUPYTER_CONFIG_DIR", str(home / "config"))
        patch.setenv("IPYTHONDIR", str(home / "ipython"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        yield home


def seconds_until(condition: Callable[[], bool], limit: float) -> float:
    start = time.monotonic()
    while not condition() and time.monotonic() - start < limit:
        time.sleep(0.05)
    return time.monotonic() - start


def gone(pid: int) -> bool:
    """True when the process has ended; one that waits to be reaped has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# ------------------------------------------------------------- shutdown_kernel: runners and scripts

FIRST = ("40 + 2", "42")
LAST = (SHUT_DOWN, None)
BELOW = ("import time; time.sleep(1.2); 'be' + 'low'", "'below'")


def write_notebook(path: Path, *cells: tuple[str, str | None]) -> Path:
    """A notebook as a run stores it: execution counts and outputs, which strict nbval compares."""
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "P"}})
    for count, (source, text) in enumerate(cells, start=1):
        cell = nbformat.v4.new_code_cell(source, execution_count=count)
        if text is not None:
            data = {"text/plain": text}
            cell.outputs = [nbformat.v4.new_output("execute_result", data, execution_count=count)]
        notebook.cells.append(cell)
    nbformat.write(notebook, path)
    return path


NBVAL = "-m pytest -q -p no:cacheprovider --nbval-current-env --nbval-cell-timeout=20"
PAPERMILL = "import papermill; [papermill.execute_notebook(n, n, progress_bar=False, execution_timeout=20)"
RUNNERS = {
    "nbval strict": f"{NBVAL} --nbval last.ipynb below.ipynb",
    "nbval lax": f"{NBVAL} --nbval-lax last.ipynb below.ipynb",
    "nbconvert": "-m nbconvert --execute --to notebook --inplace --ExecutePreprocessor.timeout=20 "
    "last.ipynb below.ipynb",
    "papermill": f"-c \"{PAPERMILL} for n in ('last.ipynb', 'below.ipynb')]\"",
}
IN_VSCODE_TERMINAL = {"VSCODE_GIT_IPC_HANDLE": "x"}


@pytest.mark.parametrize(
    ("runner", "variables"),
    [
        *((runner, {}) for runner in RUNNERS),
        # A terminal of VS Code is not its notebook.
        ("nbval strict", IN_VSCODE_TERMINAL),
    ],
)
def test_a_runner_sees_every_cell_through(runner: str, variables: dict[str, str], tmp_path: Path) -> None:
    """As the last cell and with a cell below: no error, no output of its own, the cell below runs."""
    last = write_notebook(tmp_path / "last.ipynb", FIRST, LAST)
    below = write_notebook(tmp_path / "below.ipynb", FIRST, LAST, BELOW)
    command = [sys.executable, *shlex.split(RUNNERS[runner])]
    env = os.environ | variables
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if "nbval" in runner:
        assert "5 passed" in done.stdout
    for path in (last, below):
        for cell, (_, text) in zip(
            nbformat.read(path, as_version=4).cells, (FIRST, LAST, BELOW), strict=False
        ):
            assert [output.data["text/plain"] for output in cell.outputs] == ([text] if text else [])


@pytest.mark.parametrize("program", [["-c"], ["-m", "IPython", "--quick", "--no-banner", "-c"]])
@pytest.mark.parametrize("parent", ["", "of a notebook in a server"])
def test_in_a_script_and_in_a_terminal_it_returns_at_once_and_says_nothing(
    program: list[str], parent: str, server: Server
) -> None:
    # A script that a notebook starts inherits the variable that names the server.
    env = os.environ | ({"JPY_PARENT_PID": str(server.process.pid), "VSCODE_PID": "1"} if parent else {})
    code = f"import time\n{SHUT_DOWN}\ntime.sleep(1.5)\nprint('went on')"
    done = subprocess.run(
        [sys.executable, *program, code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")


# ------------------------------------------------------------------ shutdown_kernel: Jupyter servers


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


@dataclass
class Server:
    """A running Jupyter server and the REST calls a page makes."""

    process: subprocess.Popen[bytes]
    log: Path
    base_url: str
    token: str
    port: int
    unix_socket: str

    def connect(self) -> http.client.HTTPConnection:
        if self.unix_socket:
            return UnixConnection(self.unix_socket)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    @property
    def headers(self) -> list[str]:
        return (
            [f"Authorization: token {self.token}"] if self.token else ["Cookie: _xsrf=11", "X-XSRFToken: 11"]
        )

    def ask(self, method: str, what: str, body: object = None) -> tuple[int, Any]:
        connection = self.connect()
        headers = dict(line.split(": ", 1) for line in self.headers)
        connection.request(method, f"{self.base_url}api/{what}", json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if text else None

    def listens(self) -> bool:
        try:
            return self.ask("GET", "status")[0] == 200
        except OSError:
            return False

    def open_page(self, *, session: bool = True) -> Page:
        if session:
            name = f"{uuid.uuid4().hex}.ipynb"
            body = {"path": name, "type": "notebook", "name": name, "kernel": {"name": "python3"}}
            kernel_id = self.ask("POST", "sessions", body)[1]["kernel"]["id"]
        else:
            kernel_id = self.ask("POST", "kernels", {"name": "python3"})[1]["id"]
        return Page(self, kernel_id)

    def kernel_pids(self) -> set[int]:
        return {child.pid for child in psutil.Process(self.process.pid).children()}


@dataclass
class Page:
    """A notebook page: sends cells over the websocket, all at once as Run All does, and reads answers."""

    server: Server
    kernel_id: str
    socket: websocket.WebSocket = field(init=False)
    pid: int = field(init=False)

    def __post_init__(self) -> None:
        connection = self.server.connect()
        connection.connect()
        url = f"ws://localhost{self.server.base_url}api/kernels/{self.kernel_id}/channels"
        self.socket = websocket.create_connection(
            url, socket=connection.sock, header=self.server.headers, timeout=30
        )
        self.pid = int(self.run("import os; print(os.getpid())")[0])

    def send(self, code: str, *, history: bool = True) -> str:
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": "", "version": "5.3"}
        header |= {"session": self.kernel_id, "date": "2026-01-01T00:00:00Z"}
        content = {"code": code, "silent": False, "store_history": history, "allow_stdin": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        self.socket.send(json.dumps(message | {"channel": "shell", "buffers": []}))
        return header["msg_id"]

    def run(self, *cells: str, history: bool = True) -> list[str]:
        """Answers of the cells: what each printed.  Fails where a cell raises or is not answered."""
        printed = {self.send(code, history=history): "" for code in cells}
        waiting = {(msg_id, kind) for msg_id in printed for kind in ("execute_reply", "idle")}
        while waiting:
            message = json.loads(self.socket.recv())
            parent = message["parent_header"].get("msg_id")
            kind, content = message["header"]["msg_type"], message["content"]
            if kind == "execute_reply":
                assert content["status"] == "ok", content
            if kind == "stream" and parent in printed:
                printed[parent] += content["text"]
            waiting -= {(parent, kind), (parent, content.get("execution_state"))}
        return list(printed.values())

    def seconds_until_gone(self) -> float:
        return seconds_until(lambda: gone(self.pid), 15)


def start_server(folder: Path, *options: str, token: str) -> Server:
    log = folder / "server.log"
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", *options]
    with log.open("wb") as out:
        env = os.environ | {"JUPYTER_TOKEN": token}  # not an option: those are for all to see
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=out)
    file = Path(os.environ["JUPYTER_RUNTIME_DIR"]) / f"jpserver-{process.pid}.json"
    seconds_until(lambda: file.exists() and file.read_text().endswith("}"), 30)
    assert file.exists(), log.read_text()
    info = json.loads(file.read_text())
    running = Server(process, log, info["base_url"], token, info["port"], info["sock"])
    seconds_until(running.listens, 30)  # it writes the file first
    return running


def stop_server(server: Server) -> None:
    children = psutil.Process(server.process.pid).children(recursive=True)
    server.process.send_signal(signal.SIGTERM)
    try:
        server.process.wait(15)
    except subprocess.TimeoutExpired:
        server.process.kill()
    for child in children:
        if not gone(child.pid):
            child.kill()


TCP = ("--ip=127.0.0.1", "--port=0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start_server(tmp_path_factory.mktemp("server"), *TCP, token=uuid.uuid4().hex)
    yield running
    stop_server(running)


def test_on_a_server_the_kernel_is_soon_gone_and_stays_gone(server: Server) -> None:
    pages = plain, hung, alone = server.open_page(), server.open_page(), server.open_page(session=False)
    hung.run(HUNG_THREAD)
    for page in (hung, plain, alone):
        assert page.run(SHUT_DOWN) == [""]
        answered = time.monotonic()
    for page in (plain, alone, hung):
        assert page.seconds_until_gone() < GONE_WITHIN_SECONDS
    assert time.monotonic() - answered < GONE_WITHIN_SECONDS
    time.sleep(4)  # a server looks every 3 s whether a kernel has died, and then restarts it
    assert not server.kernel_pids()
    assert {server.ask("GET", f"kernels/{page.kernel_id}")[0] for page in pages} == {404}
    assert server.ask("GET", "sessions") == (200, [])
    assert server.token not in server.log.read_text()


def test_cells_below_still_run_in_a_run_all_and_the_kernel_lives_on(server: Server) -> None:
    page = server.open_page()
    printed = page.run(SHUT_DOWN, "import time; time.sleep(2); print('below')", "print('and below')")
    assert printed == ["", "below\n", "and below\n"]
    assert seconds_until(lambda: gone(page.pid), 2) >= 2
    page.run(SHUT_DOWN)  # and it can be asked for again
    assert page.seconds_until_gone() < GONE_WITHIN_SECONDS


def test_a_long_cell_is_answered_first_and_a_frontends_own_code_does_not_call_it_off(server: Server) -> None:
    page = server.open_page()
    cell = f"{SHUT_DOWN}\nshutdown_kernel()\nimport time; time.sleep(2); print('to the end')"
    assert page.run(cell) == ["to the end\n"]
    assert page.run("print('variables')", history=False) == ["variables\n"]
    assert page.seconds_until_gone() < GONE_WITHIN_SECONDS


def test_a_server_that_refuses_loses_the_process_all_the_same(server: Server) -> None:
    page = server.open_page()
    refused = "import dataclasses, rloo_kit.session.kernel as k; real = k._find_server()\n"
    refused += "k._find_server = lambda: dataclasses.replace(real, token='wrong')"
    page.run(refused)
    assert page.run(SHUT_DOWN) == [""]
    assert page.seconds_until_gone() < GONE_WITHIN_SECONDS
    server.ask("DELETE", f"kernels/{page.kernel_id}")


def test_the_token_is_in_no_text_of_the_server(server: Server) -> None:
    page = server.open_page()
    (text,) = page.run(
        "import rloo_kit.session.kernel as k; s = k._find_server(); print(s, repr(s), vars(s).keys())"
    )
    assert "token" in text
    assert server.token not in text
    server.ask("DELETE", f"kernels/{page.kernel_id}")


def test_a_server_without_a_token_on_a_unix_socket_under_a_base_url_is_asked_too(tmp_path: Path) -> None:
    unix_socket = f"/tmp/{uuid.uuid4().hex}"  # a path of a socket has at most 108 characters
    options = f"--sock={unix_socket}", "--ServerApp.base_url=/a/b/", "--IdentityProvider.token="
    other = start_server(tmp_path, *options, token="")
    try:
        page = other.open_page()
        page.run(SHUT_DOWN)
        assert page.seconds_until_gone() < GONE_WITHIN_SECONDS
        seconds_until(lambda: other.ask("GET", "sessions")[1] == [], 3)
        assert other.ask("GET", f"kernels/{page.kernel_id}")[0] == 404
    finally:
        stop_server(other)
        Path(unix_socket).unlink(missing_ok=True)


# ------------------------------------------------------- shutdown_kernel: VS Code; release: kernels


@contextlib.contextmanager
def kernel_of(**variables: str) -> Iterator[tuple[int, Callable[[str], str]]]:
    """A kernel without a server: its process id, and a function that runs a cell and gives its output."""
    manager, client = start_new_kernel(env=os.environ | variables)

    def run(code: str) -> str:
        shown: list[str] = []

        def keep(message: dict[str, Any]) -> None:
            content = message["content"]
            shown.append(content.get("text", "") or content.get("data", {}).get("text/plain", ""))

        answer = client.execute_interactive(code, timeout=90, output_hook=keep)["content"]
        return "".join(shown) if answer["status"] == "ok" else answer["ename"]

    try:
        yield manager.provisioner.pid, run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("before", ["", HUNG_THREAD], ids=["", "with a thread that does not end"])
def test_a_kernel_of_vs_code_ends_after_its_cell_was_answered(before: str) -> None:
    """VS Code starts kernels without a server; here its variables and its way of starting one."""
    with kernel_of(VSCODE_CWD="/") as (pid, run):
        assert run(before) == ""
        assert run(SHUT_DOWN) == ""
        assert seconds_until(lambda: gone(pid), 15) < GONE_WITHIN_SECONDS


def test_a_notebook_of_vs_code_is_known_by_the_name_it_is_given() -> None:
    with kernel_of() as (pid, run):
        assert run("__vsc_ipynb_file__ = 'a.ipynb'") == ""
        assert run(SHUT_DOWN) == ""
        assert seconds_until(lambda: gone(pid), 15) < GONE_WITHIN_SECONDS


def test_in_a_terminal_of_vs_code_a_kernel_is_left_to_whoever_started_it() -> None:
    with kernel_of(**IN_VSCODE_TERMINAL) as (pid, run):
        assert run(SHUT_DOWN) == ""
        assert seconds_until(lambda: gone(pid), 3) >= 3


def test_models_go_before_the_process_does(tmp_path: Path) -> None:
    """An orderly end takes seconds; here a thread keeps the process alive, so that nothing else frees the model."""
    model = f"""
import torch, weakref, pathlib
model = torch.nn.Linear(2, 2)
freed = weakref.finalize(model, pathlib.Path({str(tmp_path / "freed")!r}).touch)
"""
    with kernel_of(VSCODE_CWD="/") as (pid, run):
        assert run(HUNG_THREAD) == run(model) == run(SHUT_DOWN) == ""
        assert seconds_until((tmp_path / "freed").exists, 15) < 15
        assert not gone(pid), "freed by the end of the process, which this is not about"


def test_a_kernel_that_its_server_does_not_know_is_left_alone(server: Server) -> None:
    """A runner inside a server (an export that executes, a scheduler) ends its kernels itself."""
    with kernel_of() as (pid, run):
        run(f"import os; os.environ['JPY_PARENT_PID'] = '{server.process.pid}'")
        assert run(SHUT_DOWN) == ""
        assert seconds_until(lambda: gone(pid), 3) >= 3


TRAINED = """
import logging, warnings
warnings.simplefilter("ignore"); logging.disable()
from transformers import Trainer, TrainingArguments  # before rloo_kit, which would bring unsloth: 8 s
import rloo_kit, torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.lin = torch.nn.Embedding(1024, 1024), torch.nn.Linear(1024, 1024, bias=False)
    def forward(self, x, labels=None):
        return {"loss": self.lin(self.emb(x)).square().mean()}
def train():
    args = TrainingArguments(FOLDER, max_steps=1, report_to=[], disable_tqdm=True, use_cpu=True,
                             save_strategy="no", per_device_train_batch_size=2)
    data = [{"x": torch.tensor(i), "labels": torch.tensor(0)} for i in range(8)]
    trainer = Trainer(model=Model(), args=args, train_dataset=data)
    trainer.train()
    return trainer
"""


def test_after_a_real_training_run_in_a_notebook_nothing_of_the_model_is_left(tmp_path: Path) -> None:
    """8 MiB of weights and twice that of Adam's moments; kept by names, Out, a traceback and a list."""
    with kernel_of() as (_, run):
        run(TRAINED.replace("FOLDER", repr(str(tmp_path))))
        assert run("rloo_kit.release()") == "Released 0 MiB; <1 MiB still held."
        run("trainer = train()")
        assert "Model" in run("model = trainer.model; model")
        assert "Embedding" in run("[model.emb]")
        assert run("def fail(m): 1 / 0\nfail(trainer.model)") == "ZeroDivisionError"
        run("keeper = [trainer]")
        assert run("rloo_kit.release()") == "Released 24 MiB; <1 MiB still held."
        assert run("[n for n in ('trainer', 'model', 'keeper') if n in globals()]") == "['keeper']"
        assert run("rloo_kit.release()") == "Released 0 MiB; <1 MiB still held."
        assert run("keeper[0].state.global_step") == "1"
        assert run("_") == "1"  # IPython goes on numbering and keeping outputs


# ------------------------------------------------------------------------------- release: in a process


def four_mib() -> torch.nn.Linear:
    return torch.nn.Linear(1024, 1024, bias=False)


@dataclass(frozen=True)
class Policy:
    model: Any
    tokenizer: object = None


class Accelerator:
    """Keeps what it prepared, as accelerate's does, until told to free it."""

    def __init__(self, *models: torch.nn.Module) -> None:
        self._models = list(models)

    def free_memory(self) -> None:
        self._models = []


class Trainer:
    def __init__(self, model: torch.nn.Module) -> None:
        self.model = self.model_wrapped = model
        self.optimizer = torch.optim.SGD(model.parameters())
        self.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer)
        self.accelerator = Accelerator(model)
        self.callback_handler = SimpleNamespace(model=model, callbacks=[SimpleNamespace(model=model)])
        self.reward_funcs = [len, four_mib()]
        self.state = "kept"


def named(result: Released) -> dict[str, int]:
    """MiB by holder, without line numbers."""
    return {re.sub(r", line \d+", "", who): held // MIB for who, held in result.holders if held >= MIB}


def test_without_holders_every_name_of_a_model_goes_and_nothing_else() -> None:
    model = four_mib()
    optimizer = torch.optim.SGD(model.parameters())
    goes = {
        "model": model,
        "policy": Policy(four_mib()),
        "trainer": Trainer(four_mib()),
        "optimizer": optimizer,
        "schedule": torch.optim.lr_scheduler.ConstantLR(optimizer),
    }
    stays = {"answer": 42, "nothing": None, "torch": torch, "Linear": torch.nn.Linear, "make": four_mib}
    stays |= {"batch": torch.zeros(3), "text": "x", "of_text": Policy("a name"), "rows": [1, 2]}
    namespace = goes | stays
    release(namespace=namespace)
    assert namespace.keys() == stays.keys()


def test_with_holders_only_their_names_and_those_of_their_parts_go() -> None:
    policy, other = Policy(torch.nn.Sequential(four_mib())), Policy(four_mib())
    namespace = {"policy": policy, "again": policy, "model": policy.model, "layer": policy.model[0]}
    stays = {"other": other, "nothing": None, "answer": 42}
    namespace |= stays
    release(policy, namespace=namespace)
    assert namespace == stays


def test_a_holder_that_can_hold_nothing_takes_no_name_with_it() -> None:
    values = [None, 42, "x", torch, torch.nn.Linear, len, four_mib]
    namespace = {f"name{i}": value for i, value in enumerate(values)}
    release(*values, namespace=namespace)
    assert list(namespace.values()) == values


def test_a_trainer_that_something_else_keeps_is_emptied() -> None:
    keeper = [Trainer(four_mib())]
    assert release(keeper[0], namespace={}).freed_bytes == 8 * MIB  # the policy, and a model as a reward
    assert keeper[0].state == "kept"
    assert keeper[0].model is None


def test_a_storage_counts_once_and_a_gradient_counts() -> None:
    namespace: dict[str, object] = {"model": four_mib()}
    namespace["view"] = namespace["model"].weight.detach()[:10]
    namespace["model"].weight.sum().backward()
    first = release(namespace=namespace)
    assert first.freed_bytes == 4 * MIB  # the gradient: the weight lives on in its view
    assert named(first)["view (name in the notebook)"] == 4
    namespace.clear()
    second = release(namespace=namespace)
    assert first.held_bytes - second.held_bytes == 4 * MIB
    assert "view (name in the notebook)" not in named(second)


def test_whoever_still_holds_a_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = four_mib()
    library = ModuleType("library")
    library.CACHE = {"models": [model]}
    library.Registry = type("Registry", (), {"__module__": "library", "entries": [four_mib()]})
    monkeypatch.setitem(sys.modules, "library", library)

    def closure() -> object:
        return model

    namespace = {"generate": closure, "kept": {"in": (model,)}, "free": [1, 2]}
    test = "test_whoever_still_holds_a_model_is_named()"
    found = named(release(namespace=namespace))
    assert (
        found.items()
        >= {
            "generate (name in the notebook)": 4,
            "kept (name in the notebook)": 4,
            f"model (variable of {test})": 4,
            "library.CACHE (global of a module)": 4,
            "library.Registry.entries (attribute of a class)": 4,
        }.items()
    )
    assert "free (name in the notebook)" not in found


def test_looking_at_a_functions_variables_does_not_hold_them() -> None:
    model = four_mib()
    assert any(who.startswith("model (") for who in named(release(namespace={})))
    gone_model = weakref.ref(model)
    del model
    assert gone_model() is None


def test_an_error_that_is_being_handled_or_was_shown_last_lets_go_of_its_variables() -> None:
    def fail(size: int) -> None:
        activations = torch.ones(size, MIB // 4)
        raise MemoryError(len(activations))

    def wrap() -> None:
        try:
            fail(4)
        except MemoryError as error:
            more = torch.ones(2, MIB // 4)
            raise RuntimeError(len(more)) from error

    try:
        wrap()
    except RuntimeError as error:
        assert release(namespace={}).freed_bytes == 6 * MIB
        sys.last_value = error
        sys.last_traceback = error.__traceback__
    release(namespace={})
    assert sys.last_value is sys.last_traceback is None


def test_outside_ipython_an_underscore_is_the_users_own() -> None:
    model = four_mib()
    namespace = {"_": str.upper, "_7": 1}
    release(namespace=namespace)
    assert namespace == {"_": str.upper, "_7": 1}
    history = {7: model}
    namespace = {"_oh": history, "Out": history, "_": model, "__": 1, "___": 2, "_7": model, "_i7": "model"}
    release(namespace=namespace)
    assert namespace == {"_oh": {}, "Out": {}, "__": "", "___": "", "_i7": "model"}


class Odd:
    """Answers every question with an error."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None


ODD: dict[str, Callable[[], object]] = {  # made in the test: pytest itself stumbles over some
    "raises at every attribute": Odd,
    "holds what raises": lambda: SimpleNamespace(accelerator=Odd(), model=Odd()),
    "raises when freed": lambda: SimpleNamespace(accelerator=SimpleNamespace(free_memory=lambda: 1 / 0)),
    "has every attribute": MagicMock,
    "a tensor without storage": lambda: torch.zeros(2, device="meta"),
    "a sparse tensor": lambda: torch.zeros(2, 2).to_sparse(),
    "a model without storage": lambda: torch.nn.Linear(2, 2, device="meta"),
}


def test_odd_holders_are_passed_over() -> None:
    odd = {kind: make() for kind, make in ODD.items()}
    namespace = odd | {"model": four_mib()}
    assert release(namespace=namespace).freed_bytes == 4 * MIB
    assert "a tensor without storage" in namespace
    release(*odd.values(), namespace=odd)


def test_bitsandbytes_forgets_the_embeddings_of_what_is_released_and_keeps_others() -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    manager.initialize()
    model, other = torch.nn.Sequential(torch.nn.Embedding(1024, 1024)), torch.nn.Embedding(2, 2)
    for embedding in (model[0], other):  # as transformers' Trainer does for an 8-bit optimizer
        manager.register_module_override(embedding, "weight", {"optim_bits": 32})
    del embedding
    namespace = {"model": model}
    del model
    result = release(namespace["model"], namespace=namespace)
    assert result.freed_bytes == 4 * MIB
    assert [triple[0] for triple in manager.module_weight_config_triple] == [other]
    manager.initialize()


def test_called_twice_it_is_harmless() -> None:
    namespace = {"model": four_mib()}
    first, second = release(namespace=namespace), release(namespace=namespace)
    assert (first.freed_bytes, second.freed_bytes) == (4 * MIB, 0)
    assert first.held_bytes == second.held_bytes


def test_torch_and_ipython_are_not_loaded_for_it() -> None:
    code = "import sys, rloo_kit\n"
    code += "rloo_kit.shutdown_kernel(); model = [1]; print(rloo_kit.release(model), 'torch' in sys.modules, "
    code += "'IPython' in sys.modules, 'model' in globals())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Released 0 MiB; 0 MiB still held. False False False\n"


FREED_AND_KEPT = """
from pathlib import Path
from rloo_kit.session import imports, release

def resident():
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])

imports._keep_freed_memory()
blocks = [bytearray(20 * 2**20) for _ in range(10)]
del blocks
kept = resident()
release.release()
print(kept >> 20, resident() >> 20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_memory_that_the_kit_lets_the_process_keep_goes_back(script: Any) -> None:
    kept, left = map(int, script(FREED_AND_KEPT).stdout.split())
    assert kept > 200, "nothing was kept, so this shows nothing"
    assert left < 50


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (Released(0, 0, ()), "Released 0 MiB; 0 MiB still held."),
        (Released(5 * MIB + 1000, 100, ()), "Released 5 MiB; <1 MiB still held."),
        (
            Released(3 * 1024 * MIB, 700 * MIB, (("cache (name in the notebook)", 699 * MIB),)),
            "Released 3072 MiB; 700 MiB still held.\n    699 MiB  cache (name in the notebook)",
        ),
    ],
)
def test_the_text_is_in_whole_mib_so_that_it_repeats(result: Released, text: str) -> None:
    assert str(result) == repr(result) == text


def test_the_text_fits_on_a_screen() -> None:
    text = str(Released(0, 99 * MIB, tuple((f"name{i}", MIB) for i in range(99))))
    assert len(text.splitlines()) == 10
    assert text.endswith("and 91 more in .holders")
