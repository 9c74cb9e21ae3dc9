"""`shutdown_kernel()`, the last line of a notebook: end the kernel, which otherwise keeps the GPU's memory."""

import contextlib
import json
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from rloo_kit.session.output import running_shell
from rloo_kit.session.release import collect, release

_DELAY_SECONDS = 1.0  # for the cell's reply to be sent
_GRACE_SECONDS = 4.0  # for an orderly end; a Jupyter server kills after 5
_pending: threading.Timer | None = None


def shutdown_kernel() -> None:
    """End this notebook's kernel after the running cell, and free its memory; the last line of a notebook.

    - JupyterLab, Notebook 7: the Jupyter server that started this kernel is asked to end its session, as by its own
      "Shut Down Kernel".  If it refuses, the kernel stops by itself, and the server starts a fresh one.
    - VS Code: its kernels have no server, so the kernel stops by itself, and VS Code says it has died.
    - nbconvert, papermill, nbval, ``jupyter execute``, a script, a terminal: nothing.  Runners end kernels themselves.

    If another cell starts first (Run All with cells below), the shutdown is cancelled.  Models are released first.  A
    thread that does not end delays the shutdown by a grace period only.  It returns and raises nothing.  Not tried:
    VS Code itself, HTTPS, Colab, Kaggle, Windows, JupyterHub.
    """
    global _pending
    shell: Any = running_shell()
    kernel = getattr(shell, "kernel", None)
    if kernel is None or (_pending is not None and not _pending.finished.is_set()):
        return
    server = _find_server()
    # VS Code's notebooks define the name; its extension host sets the variables, which its terminal does not have.
    in_vscode = {"VSCODE_PID", "VSCODE_CWD"} & os.environ.keys() or "__vsc_ipynb_file__" in shell.user_ns
    if server or in_vscode:
        collect()
        _pending = threading.Timer(_DELAY_SECONDS, partial(_end, kernel, server))
        _pending.daemon = True
        _start_after_this_cell(shell, _pending)


def _start_after_this_cell(shell: Any, timer: threading.Timer) -> None:
    def start(_result: object) -> None:
        shell.events.unregister("post_run_cell", start)
        timer.start()

    def cancel(info: Any) -> None:
        if info is None or info.store_history:  # a frontend's own code, such as a variable viewer's, stores none
            shell.events.unregister("pre_run_cell", cancel)
            timer.cancel()

    shell.events.register("post_run_cell", start)
    shell.events.register("pre_run_cell", cancel)


def _end(kernel: Any, server: dict[str, Any]) -> None:
    """End the process, through the server if there is one; runs in a daemon thread."""
    try:
        if server and not _end_by_server(server):
            return  # a runner inside the server started this kernel and will end it
    except Exception:  # no connection, a refusal, a reply that cannot be read
        server = {}  # the server then starts a fresh kernel in this one's place, and its page says so
    if not server:
        with contextlib.suppress(Exception):
            release()
        with contextlib.suppress(Exception):
            kernel.io_loop.add_callback(kernel.do_shutdown, False)
        time.sleep(_GRACE_SECONDS)
    os._exit(0)  # reached only where a thread or an exit handler keeps the process alive


def _end_by_server(server: dict[str, Any]) -> bool:
    """Release models, and end the kernel's session; return False if the server does not know the kernel."""
    import httpx

    # Without a token, the server's check against forged requests wants the same value in cookie and header.
    headers = {"Cookie": "_xsrf=72", "X-XSRFToken": "72"}
    headers |= {"Authorization": f"token {server['token']}"} if server.get("token") else {}
    # The environment's proxy is not used, so that the token stays here.  Nothing is verified: the server is this
    # machine, whose certificate usually names another host.
    how: dict[str, Any] = {"headers": headers, "timeout": _GRACE_SECONDS, "trust_env": False, "verify": False}
    with httpx.Client(base_url=f"{server['url']}api", **how) as client:
        sessions = client.get("/sessions").raise_for_status().json()
        mine = [session["id"] for session in sessions if session["kernel"]["id"] == server["kernel_id"]]
        if mine:
            with contextlib.suppress(Exception):
                release()
        try:
            answer = client.delete(f"/sessions/{mine[0]}" if mine else f"/kernels/{server['kernel_id']}")
        except httpx.TimeoutException:  # the server replies once this process has ended, which a thread may delay
            return True
        return answer.status_code != 404 and bool(answer.raise_for_status())


def _find_server() -> dict[str, Any]:
    """Return what the server that started this kernel wrote about itself, plus the kernel's id; empty if none did."""
    with contextlib.suppress(Exception):  # no file, an unreadable file, a kernel other than ipykernel
        from ipykernel import get_connection_file
        from jupyter_core.paths import jupyter_runtime_dir

        connection = Path(get_connection_file())
        parents = {os.environ.get("JPY_PARENT_PID"), str(os.getppid())}
        folders = [connection.parent, Path(jupyter_runtime_dir())]
        files = [folder / f"jpserver-{pid}.json" for folder in folders for pid in parents if pid]
        info = json.loads(next(file for file in files if file.is_file()).read_text(encoding="utf-8"))
        return {**info, "kernel_id": connection.stem.removeprefix("kernel-")}
    return {}
