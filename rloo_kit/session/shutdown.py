"""`shutdown_kernel()`, the last line of a notebook: end the kernel, which otherwise keeps the GPU's memory.

It never loads IPython or torch, and saves nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rloo_kit.session.output import running_shell
from rloo_kit.session.release import collect, release

if TYPE_CHECKING:
    from http.client import HTTPConnection

    from ipykernel.kernelbase import Kernel
    from IPython.core.interactiveshell import ExecutionInfo, InteractiveShell

_DELAY_SECONDS = 1.0  # for the cell's reply to be sent
_GRACE_SECONDS = 4.0  # for an orderly end; a Jupyter server kills after 5
_pending: threading.Timer | None = None


def shutdown_kernel() -> None:
    """End this notebook's kernel after the running cell, and free its memory; the last line of a notebook.

    - A Jupyter server (JupyterLab, Notebook 7): about a second after the cell's reply the server is asked to
      end the session, as its own "Shut Down Kernel" does.  The kernel does not come back, and the page says
      that it has none.  The request goes to the server that started this kernel and so does the server's
      token, to no other.  If the request fails, the kernel stops by itself, and says so in the cell: the server
      takes it for a crash and starts a fresh one in its place.
    - VS Code: its kernels have no server, so the kernel stops by itself, and VS Code says it has died.
    - nbconvert, papermill, nbval, ``jupyter execute``: nothing.  They end their kernels themselves, and
      treat one that ends early as an error.
    - A script, a terminal IPython: nothing.

    If another cell starts first (Run All with cells below), the shutdown is cancelled.  A thread that does
    not end delays the end by a grace period only.  Models are released first, since an orderly end takes
    seconds.  Call it in a cell, not in a widget's callback.  It returns and raises nothing, and prints nothing else.

    Tried: Jupyter Server 2.21 with a token, and without one on a Unix socket under a base URL; ipykernel 7.4; the
    runners above.  Not tried: VS Code itself, HTTPS, Colab, Kaggle, Windows, and JupyterHub.
    """
    global _pending
    shell = running_shell()
    kernel = getattr(shell, "kernel", None)
    if kernel is None or (_pending is not None and not _pending.finished.is_set()):
        return
    server = _find_server()
    if server is not None or _in_vscode(shell):
        collect()
        _pending = _after_this_cell(shell, partial(_end, kernel, server))


def _in_vscode(shell: InteractiveShell) -> bool:
    # Its notebooks have the name; its extension host has the variables, and its terminal has not.
    known = {"VSCODE_PID", "VSCODE_CWD"} & os.environ.keys()
    return bool(known) or "__vsc_ipynb_file__" in shell.user_ns


def _after_this_cell(shell: InteractiveShell, action: Callable[[], None]) -> threading.Timer:
    """Run ``action`` a moment after this cell has ended, unless another cell starts first."""
    timer = threading.Timer(_DELAY_SECONDS, action)
    timer.daemon = True

    def start(_result: object) -> None:
        shell.events.unregister("post_run_cell", start)
        timer.start()

    def cancel(info: ExecutionInfo | None) -> None:
        # Frontends run code of their own between cells (variable viewers), without history.
        if info is None or info.store_history:
            shell.events.unregister("pre_run_cell", cancel)
            timer.cancel()

    shell.events.register("post_run_cell", start)
    shell.events.register("pre_run_cell", cancel)
    return timer


def _end(kernel: Kernel, server: _Server | None) -> None:
    """End the process, through the server if there is one; runs in a daemon thread."""
    try:
        if server is not None and server.end_kernel(first=_release_quietly) is False:
            return  # a runner inside the server started this kernel and will end it
        asked = server is not None
    except Exception as error:  # no connection, a refusal, a reply that cannot be read
        asked = False
        with contextlib.suppress(Exception):
            print(
                f"shutdown_kernel: the Jupyter server did not end this kernel ({type(error).__name__}: {error}).\n"
                "Where: its token or host is no longer that of the start of this kernel.\n"
                "What to do: the kernel stops by itself, and the server starts a fresh, empty kernel in its place: end "
                "that one with the page's Shut Down Kernel.",
                flush=True,
            )
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
            first: called before, once a session of this kernel is found.

        Raises:
            OSError: no connection, no reply or a refusal.
        """
        status, body = self._ask("GET", "api/sessions")
        if status != 200:
            raise ConnectionRefusedError(f"the server answered {status}")
        mine = [one["id"] for one in json.loads(body) if one["kernel"]["id"] == self.kernel_id]
        if mine:
            first()
        what = f"api/sessions/{mine[0]}" if mine else f"api/kernels/{self.kernel_id}"
        try:
            status, _ = self._ask("DELETE", what)
        except TimeoutError:  # the server replies when this process has ended, which a thread delays
            return True
        if status not in (204, 404):
            raise ConnectionRefusedError(f"the server answered {status}")
        return status == 204

    def _ask(self, method: str, what: str) -> tuple[int, bytes]:
        # Without a token the server's check against forged requests wants the same value twice.
        headers = {"Cookie": "_xsrf=72", "X-XSRFToken": "72"}
        if self.token:
            headers["Authorization"] = f"token {self.token}"
        connection = self._connect()
        try:
            connection.request(method, self.base_url + what, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _connect(self) -> HTTPConnection:
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
        if not self.https:
            return http.client.HTTPConnection(self.host, self.port, timeout=_GRACE_SECONDS)
        # Unverified: it is this machine, and the certificate usually names another host.
        context = ssl._create_unverified_context()
        return http.client.HTTPSConnection(self.host, self.port, timeout=_GRACE_SECONDS, context=context)


def _find_server() -> _Server | None:
    try:
        from ipykernel import get_connection_file
        from jupyter_core.paths import jupyter_runtime_dir

        connection = Path(get_connection_file())
        parents = {os.environ.get("JPY_PARENT_PID"), str(os.getppid())}
        folders = [connection.parent, Path(jupyter_runtime_dir())]
        files = [folder / f"jpserver-{pid}.json" for folder in folders for pid in parents if pid]
        info = json.loads(next(file for file in files if file.is_file()).read_text(encoding="utf-8"))
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
    except Exception:  # no file, an unreadable one, a kernel that is no ipykernel
        return None
