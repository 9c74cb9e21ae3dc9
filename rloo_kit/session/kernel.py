"""End a notebook's kernel with its last line: `shutdown_kernel()`, which gives everything back.

For whoever trains in a notebook: a kernel that stays alive keeps the card for itself, and the next notebook finds it
full.  Whose place it is to end the process depends on who runs the notebook, and that is found out here: a
Jupyter server is asked, VS Code's kernel stops by itself, and a runner or a script is left alone.

It never loads IPython or torch, and saves nothing.  To go on in the same process, :mod:`.release` lets go
of models only.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rloo_kit.session.release import collect, release
from rloo_kit.session.show import running_shell

_DELAY_SECONDS = 1.0  # for the cell's answer to reach whoever waits for it
_GRACE_SECONDS = 4.0  # for an orderly end; a Jupyter server kills after 5
_PARENT_PID = "JPY_PARENT_PID"
# VS Code's extension host has these, and its terminal has not; its notebooks have the name.
_VSCODE_VARIABLES, _VSCODE_NAME = ("VSCODE_PID", "VSCODE_CWD"), "__vsc_ipynb_file__"

_pending: threading.Timer | None = None


def shutdown_kernel() -> None:
    """End this notebook's kernel once the cell has been answered; the last line of a notebook.

    A kernel that stays alive keeps the card for itself.  What happens depends on who runs the notebook:

    - A Jupyter server (JupyterLab, Notebook 7): the server is asked to end the session, as its own
      "Shut Down Kernel" does, about a second after the cell has been answered.  The kernel does not come
      back, and the page says that it has none.  Asking is local, to the server that started this kernel,
      and the server's token goes nowhere else.  If the server cannot be asked, the kernel stops by itself.
    - VS Code: its kernels have no server, so the kernel stops by itself, and VS Code says it has died.
    - nbconvert, papermill, nbval, ``jupyter execute``: nothing, since these end their kernels themselves,
      and one that ends early is an error to them.
    - A script, a terminal IPython: nothing.

    If another cell starts first (Run All with cells below), the shutdown is called off.  A thread that
    does not end is no obstacle: after a grace period the process ends without it.  Models are released first, since
    an orderly end takes some seconds.  Call it in a cell, not in a widget's callback.  It prints nothing, returns
    nothing and raises nothing.

    Tried: Jupyter Server 2.21 with a token, and without one on a Unix socket under a base URL; ipykernel
    7.4; the runners above with cells below and without.  Not tried: VS Code itself (its environment
    variables were set by hand), servers over HTTPS, Colab, Kaggle, Windows, and JupyterHub: where its
    server refuses the request, the kernel stops by itself, which frees the memory, and the server may
    start a fresh one.
    """
    global _pending
    shell = running_shell()
    kernel = getattr(shell, "kernel", None)
    if kernel is None or (_pending is not None and not _pending.finished.is_set()):
        return
    server = _find_server()
    if server is not None or _in_vscode(shell):
        collect()
        _pending = _once_answered(shell, partial(_end, kernel, server))


def _in_vscode(shell: Any) -> bool:
    return _VSCODE_NAME in shell.user_ns or any(name in os.environ for name in _VSCODE_VARIABLES)


def _once_answered(shell: Any, action: Callable[[], None]) -> threading.Timer:
    """Run ``action`` a moment after this cell has ended, unless another cell starts first."""
    timer = threading.Timer(_DELAY_SECONDS, action)
    timer.daemon = True

    def start(_result: object) -> None:
        shell.events.unregister("post_run_cell", start)
        timer.start()

    def call_off(info: Any) -> None:
        # Frontends run code of their own between cells (variable viewers), without history.
        if info is None or info.store_history:
            shell.events.unregister("pre_run_cell", call_off)
            timer.cancel()

    shell.events.register("post_run_cell", start)
    shell.events.register("pre_run_cell", call_off)
    return timer


def _end(kernel: Any, server: _Server | None) -> None:
    """End the process, by the server if there is one; runs in a thread that dies with the process."""
    try:
        if server is not None and server.end_kernel(first=_release_quietly) is False:
            return  # a runner inside the server started this kernel and will end it
        asked = server is not None
    except Exception:  # no connection, a refusal, an answer that is none
        asked = False
    if not asked:
        _release_quietly()
        with contextlib.suppress(Exception):
            kernel.io_loop.add_callback(kernel.do_shutdown, False)
        time.sleep(_GRACE_SECONDS)
    os._exit(0)  # reached only where a thread or an exit handler keeps the process alive


def _release_quietly() -> None:
    with contextlib.suppress(Exception):
        release()


@dataclass(frozen=True)
class _Server:
    """The Jupyter server that started this kernel, and how to reach it from this machine."""

    kernel_id: str
    host: str
    port: int
    unix_socket: str
    https: bool
    base_url: str
    token: str = field(repr=False)

    def end_kernel(self, first: Callable[[], None]) -> bool:
        """End the kernel's session; False where the server does not know the kernel.

        Args:
            first: what is done before, once a session of this kernel is found.

        Raises:
            OSError: no connection, no answer or a refusal.
        """
        status, sessions = self._ask("GET", "api/sessions")
        if status != 200:
            raise ConnectionRefusedError(f"the server answered {status}")
        mine = [one["id"] for one in sessions if one["kernel"]["id"] == self.kernel_id]
        if mine:
            first()
        what = f"api/sessions/{mine[0]}" if mine else f"api/kernels/{self.kernel_id}"
        try:
            status, _ = self._ask("DELETE", what)
        except TimeoutError:  # the server answers when this process has ended, which something prevents
            return True
        if status not in (204, 404):
            raise ConnectionRefusedError(f"the server answered {status}")
        return status == 204

    def _ask(self, method: str, what: str) -> tuple[int, Any]:
        import json

        # Twice the same value is what the server's check against forged requests wants of a caller
        # without a token; one with a token is not checked.
        headers = {"Cookie": "_xsrf=72", "X-XSRFToken": "72"}
        if self.token:
            headers["Authorization"] = f"token {self.token}"
        connection = self._connect()
        try:
            connection.request(method, self.base_url + what, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(body) if answer.status == 200 else None

    def _connect(self) -> Any:
        # http.client, not urllib: it follows no proxy and no redirect, so the token stays here.
        import http.client
        import socket
        import ssl

        if self.unix_socket:
            connection = http.client.HTTPConnection("localhost", timeout=_GRACE_SECONDS)
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(_GRACE_SECONDS)
            connection.sock.connect(self.unix_socket)
            return connection
        if self.https:  # unverified: on this machine, and the certificate names another host as a rule
            context = ssl._create_unverified_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=_GRACE_SECONDS, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=_GRACE_SECONDS)


def _find_server() -> _Server | None:
    """The server that started this kernel, by the file each server leaves in its runtime folder."""
    try:
        from ipykernel import get_connection_file
        from jupyter_core.paths import jupyter_runtime_dir

        connection = Path(get_connection_file())
        parents = {os.environ.get(_PARENT_PID), str(os.getppid())}
        folders = [connection.parent, Path(jupyter_runtime_dir())]
        files = [folder / f"jpserver-{pid}.json" for folder in folders for pid in parents if pid]
        return _read_server(next(file for file in files if file.is_file()), connection)
    except Exception:  # no file, an unreadable one, a kernel that is no ipykernel
        return None


def _read_server(file: Path, connection: Path) -> _Server:
    import json

    info = json.loads(file.read_text(encoding="utf-8"))
    everywhere = info["hostname"] in ("", "*", "0.0.0.0", "::")
    return _Server(
        kernel_id=connection.stem.removeprefix("kernel-"),
        host="127.0.0.1" if everywhere else info["hostname"],
        port=info["port"],
        unix_socket=info.get("sock") or "",
        https=bool(info.get("secure")),
        base_url=info["base_url"],
        token=info.get("token") or "",
    )
