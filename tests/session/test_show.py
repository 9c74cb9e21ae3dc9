"""Tables, sizes and figures, as text and in a notebook."""

import sys
from types import SimpleNamespace

import pytest

from rloo_kit.session import show

ROWS = [["MiB", "planned"], ["a < b", "12.5"], ["total", "12.5"]]


def test_a_size_is_in_gib_from_one_gib_on() -> None:
    assert (show.scale_of(show.GIB - 1)[1], show.scale_of(show.GIB)[1]) == ("MiB", "GiB")


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    assert show.shortened("a" * 26) == "a" * 26
    assert show.shortened("beginning" + "x" * 40 + "ending") == "beginningxxx…xxxxxxxending"
    assert len(show.shortened("x" * 99, 48)) == 48


def test_a_text_table_without_a_total_has_one_rule_and_an_html_table_escapes_its_cells() -> None:
    rule = "-" * 14
    assert show.text_table(ROWS).splitlines() == ["MiB    planned", rule, "a < b     12.5", "total     12.5"]
    assert show.text_table(ROWS, total=True).count(rule) == 2
    table = show.html_table(ROWS, total=True)
    assert "a &lt; b" in table
    assert "<th>12.5</th>" in table
    assert "<th>12.5</th>" not in show.html_table(ROWS)


def test_a_figure_is_an_image_in_a_notebook_and_text_elsewhere() -> None:
    figure = show.shown_figure("Plan", lambda: "a table", figsize=(1, 1), layout="tight")
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert (repr(figure), str(figure)) == ("Plan", "a table")
    assert str(show.shown_figure("Plan", figsize=(1, 1), layout="tight")) == "Plan"
    assert "matplotlib.pyplot" not in type(figure).__module__


def test_a_notebook_is_known_by_its_shells_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for shell, notebook in ((None, False), (SimpleNamespace(), False), (SimpleNamespace(kernel=1), True)):
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        assert (show.running_shell(), show.in_notebook()) == (shell, notebook)
