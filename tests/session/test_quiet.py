"""What is dropped of the stack's start-up lines, and that nothing else is."""

import logging
from typing import Any

import pytest

from rloo_kit.session import quiet as quiet_of_the_stack
from rloo_kit.session.quiet import is_noise, quiet


def test_known_lines_are_dropped_and_others_get_through_also_one_without_a_newline(capsys: Any) -> None:
    assert is_noise("==((====))==  Unsloth 2026.10.9: Fast Qwen3 patching. Transformers: 5.17.0.")
    assert not is_noise("Unsloth (CPU): bitsandbytes 4-bit does not work on this CPU, loading 16-bit")
    assert not is_noise("Unsloth: Switching to float32 training since model cannot work with float16")
    with quiet():
        print("🦥 Unsloth")
        print("one\n\ntwo", end="")
    assert capsys.readouterr().out == "one\n\ntwo"


def test_what_trl_says_of_none_rewards_in_every_step_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ((name, start),) = quiet_of_the_stack.ONCE.items()
    monkeypatch.setattr(quiet_of_the_stack, "_said", set())
    quiet_of_the_stack.drop_logged_noise()
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(name).addHandler(handler)
    line = f"[RANK 0] {start}\n{{'answer': '7'}}\nPlease ensure that at least one reward function"
    for said in (line, line, "another line", line):
        logging.getLogger(name).warning(said)
    logging.getLogger(name).removeHandler(handler)
    assert heard == [line, "another line"]


def test_a_first_cell_and_loading_print_nothing_that_looks_like_a_fault(first_cells: Any) -> None:
    """bitsandbytes logs at import on a CPU with AVX512-BF16; the process also logs that line by hand."""
    assert first_cells.shown["load"] == ""
    assert "nsloth:" not in first_cells.shown["prepare"]
    (line,) = first_cells.stderr.splitlines()
    assert line.endswith("another line of the same logger")
