"""The one output of a notebook cell that trains: a picture above lines, redrawn in place; elsewhere lines are printed.

For :func:`.processes.say`, through which the kit speaks, and for the live plot.  A notebook that is executed and stored
keeps each print of a cell as an output of its own, 32 for a run of 30 steps; this is one, by its display handle, which
JupyterLab, VS Code and nbclient all update.  What the user's own code prints is the user's, and is left alone.
"""

from __future__ import annotations

import base64
import html
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rloo_kit.session.show import in_notebook

if TYPE_CHECKING:
    from IPython.core.display_functions import DisplayHandle

FIRST, LAST = 10, 300
"""Lines that are shown of more: each update sends them all."""

BYTES_PER_SECOND = 500_000
"""At most so much is sent, in the mean over a second; a Jupyter server drops what is above 1 MB/s."""


class Output:
    """A picture above lines, as one output of a cell."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.picture = b""
        self._handle: DisplayHandle | None = None
        self._sent_until, self._pending = 0.0, False

    def say(self, text: str) -> None:
        """Add a line, or several."""
        self.lines += text.split("\n")
        self._update()

    def show(self, png: bytes) -> None:
        """Put a picture in the place of the last one."""
        self.picture = png
        self._update()

    def flush(self) -> None:
        """Show what was held back."""
        if self._pending:
            self._update(now=True)

    def _update(self, now: bool = False) -> None:
        started = time.monotonic()
        self._pending = not now and self._sent_until > started + 1.0
        if self._pending:
            return
        if self._handle is None:
            from IPython.display import display

            self._handle = display(self, display_id=True)
        else:
            self._handle.update(self)
        size = len(self.picture) * 4 / 3 + sum(map(len, self._shown()))
        self._sent_until = max(started, self._sent_until) + size / BYTES_PER_SECOND

    def _shown(self) -> list[str]:
        between = len(self.lines) - FIRST - LAST
        if between <= 0:
            return self.lines
        return [*self.lines[:FIRST], f"... {between} lines ...", *self.lines[-LAST:]]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        text = "\n".join(self._shown())
        data = base64.b64encode(self.picture).decode()
        image = f'<img src="data:image/png;base64,{data}" alt="picture of the run" style="max-width: 100%">'
        lines = f'<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'
        return {"text/html": (image if data else "") + lines, "text/plain": text}


_output: Output | None = None


@contextmanager
def one_output() -> Iterator[None]:
    """While inside, what the kit says in a notebook is one output of the running cell."""
    global _output
    if _output is not None or not in_notebook():
        yield
        return
    mine = _output = Output()
    try:
        yield
    finally:
        _output = None
        mine.flush()


def say(text: str) -> None:
    """A line of the cell's one output; printed where there is none."""
    if _output is None:
        print(text, flush=True)
    else:
        _output.say(text)


def shows_pictures() -> bool:
    """Whether there is an output that a picture can be put into."""
    return _output is not None


def show(png: bytes) -> None:
    """Put a picture above the lines, in place of the last one; nowhere but in a notebook."""
    if _output is not None:
        _output.show(png)
