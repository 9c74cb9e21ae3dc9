"""The one output of a cell that trains: lines below a picture, updated in place, stored as one."""

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rloo_kit.session import cell, processes


class Cell:
    """What a notebook's cell shows: its outputs, each as it is now, and how often they were sent."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []
        self.sent, self.now = 0, 100.0

    def display(self, thing: Any, display_id: bool) -> Any:
        assert display_id is True
        self.outputs.append({})
        place = len(self.outputs) - 1
        self.update(place, thing)
        return SimpleNamespace(update=lambda changed: self.update(place, changed))

    def update(self, place: int, thing: Any) -> None:
        self.outputs[place] = thing._repr_mimebundle_()
        self.sent += 1


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cell]:
    shown = Cell()
    monkeypatch.setattr(cell, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", shown.display)
    monkeypatch.setattr(cell.time, "monotonic", lambda: shown.now)
    return shown


def test_all_that_is_said_is_one_output_with_the_last_picture_above_it(
    notebook: Cell, capsys: pytest.CaptureFixture[str]
) -> None:
    with cell.one_output():
        assert notebook.outputs == [], "nothing is shown before something is said"
        processes.say("step 1 < 2")
        cell.show(b"first")
        processes.say("unhealthy: a\nb")
        with cell.one_output():
            cell.show(b"second")
        assert cell.shows_pictures()
    (output,) = notebook.outputs
    assert output["text/plain"] == "step 1 < 2\nunhealthy: a\nb"
    assert "step 1 &lt; 2\nunhealthy: a\nb</pre>" in output["text/html"]
    assert output["text/html"].count("<img") == 1
    assert base64.b64encode(b"second").decode() in output["text/html"]
    assert capsys.readouterr().out == ""
    with cell.one_output():
        processes.say("another run")
    assert [one["text/plain"] for one in notebook.outputs][1:] == ["another run"]


def test_elsewhere_lines_are_printed_and_pictures_are_not_shown(
    notebook: Cell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.say("before")
    monkeypatch.setattr(cell, "in_notebook", lambda: False)
    with cell.one_output():
        processes.say("step 1")
        cell.show(b"picture")
        assert not cell.shows_pictures()
    assert capsys.readouterr().out == "before\nstep 1\n"
    assert notebook.outputs == []


def test_fast_steps_send_no_more_than_a_server_lets_through_and_the_last_line_is_shown(
    notebook: Cell,
) -> None:
    with contextlib.suppress(KeyboardInterrupt), cell.one_output():
        cell.show(b"p" * 100_000)
        for number in range(100):  # ten a second
            notebook.now += 0.1
            processes.say(f"step {number}")
        raise KeyboardInterrupt
    assert notebook.sent < 1 + 11 * cell.BYTES_PER_SECOND / 133_000
    assert notebook.sent > 20
    assert notebook.outputs[0]["text/plain"].endswith("step 99")


def test_slow_steps_are_shown_as_they_come_with_what_is_said_after_them(notebook: Cell) -> None:
    with cell.one_output():
        cell.show(b"p" * 100_000)
        for number in range(20):
            notebook.now += 1.0
            processes.say(f"step {number}")
            processes.say("held out")
            assert notebook.outputs[0]["text/plain"].endswith("held out")


def test_of_very_many_lines_the_first_and_the_last_are_shown(notebook: Cell) -> None:
    with cell.one_output():
        for number in range(1000):
            notebook.now += 1.0
            processes.say(f"step {number}")
    lines = notebook.outputs[0]["text/plain"].split("\n")
    assert lines[0] == "step 0"
    assert lines[cell.FIRST] == f"... {1000 - cell.FIRST - cell.LAST} lines ..."
    assert lines[-cell.LAST] == f"step {1000 - cell.LAST}"


LIVE_CELL = """
from rloo_kit.session import cell, processes
with cell.one_output():
    for step in range(1, 4):
        processes.say(f"step {step}")
        cell.show(b"picture %d" % step)
"""


def test_an_executed_notebook_stores_one_output(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(LIVE_CELL.strip())])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (output,) = book.cells[0].outputs
    assert output.output_type == "display_data"
    assert output.data["text/plain"] == "step 1\nstep 2\nstep 3"
    assert base64.b64encode(b"picture 3").decode() in output.data["text/html"]
