"""What is shown: tables and figures, the one output of a cell that trains, and the lines that are dropped."""

import base64
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from rloo_kit.session import output
from rloo_kit.session.output import quiet


def test_a_long_name_keeps_its_beginning_and_its_end():
    assert output.shortened("a" * 26) == "a" * 26
    assert output.shortened("beginning" + "x" * 40 + "ending") == "beginningxxx…xxxxxxxending"


class Cell:
    """What a notebook's cell shows: its outputs, each as it is now, and how often they were sent."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []
        self.sent, self.now = 0, 100.0

    def display(self, bundle: dict[str, str], raw: bool, display_id: bool) -> Any:
        assert (raw, display_id) == (True, True)
        self.outputs.append({})
        place = len(self.outputs) - 1
        self.update(place, bundle)
        return SimpleNamespace(update=lambda changed, raw: self.update(place, changed))

    def update(self, place: int, bundle: dict[str, str]) -> None:
        self.outputs[place], self.sent = bundle, self.sent + 1


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Cell:
    import IPython.display

    cell = Cell()
    monkeypatch.setattr(IPython.display, "display", cell.display)
    monkeypatch.setattr(output, "in_notebook", lambda: True)
    monkeypatch.setattr(output.time, "monotonic", lambda: cell.now)
    return cell


def test_all_that_is_said_is_one_output_with_the_last_picture_above_it(notebook, capsys):
    with output.one_output():
        assert notebook.outputs == [], "nothing is shown before something is said"
        output.say("step 1 < 2")
        output.show(b"first")
        output.say("unhealthy: a\nb")
        with output.one_output():
            output.show(b"second")
        assert output.shows_pictures()
    (shown,) = notebook.outputs
    assert shown["text/plain"] == "step 1 < 2\nunhealthy: a\nb"
    assert "step 1 &lt; 2\nunhealthy: a\nb</pre>" in shown["text/html"]
    assert f'<img src="data:image/png;base64,{base64.b64encode(b"second").decode()}"' in shown["text/html"]
    assert (shown["text/html"].count("<img"), capsys.readouterr().out) == (1, "")
    with output.one_output():
        output.say("another run")
    assert [one["text/plain"] for one in notebook.outputs][1:] == ["another run"]


def test_elsewhere_lines_are_printed_and_pictures_are_not_shown(capsys):
    with output.one_output():
        output.say("step 1")
        output.show(b"picture")
        assert not output.shows_pictures()
    assert capsys.readouterr().out == "step 1\n"


def test_fast_steps_send_no_more_than_a_server_lets_through_and_the_last_line_is_shown(notebook):
    with contextlib.suppress(KeyboardInterrupt), output.one_output():
        output.show(b"p" * 100_000)
        for number in range(100):  # ten a second
            notebook.now += 0.1
            output.say(f"step {number}")
        raise KeyboardInterrupt
    assert 20 < notebook.sent < 40
    assert notebook.outputs[0]["text/plain"].endswith("step 99")


def test_known_lines_are_dropped_and_others_get_through_also_one_without_a_newline(capsys):
    with quiet():
        print("🦥 Unsloth\n==((====))==  Unsloth 2026.10.9: Fast Qwen3 patching. Transformers: 5.17.0.")
        print("one\n\nUnsloth: Switching to float32 training", end="")
    assert capsys.readouterr().out == "one\n\nUnsloth: Switching to float32 training"
