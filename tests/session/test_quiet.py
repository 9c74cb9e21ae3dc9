"""What is dropped of the stack's start-up lines, and that nothing else is."""

from typing import Any

from rloo_kit.session.quiet import is_noise, quiet


def test_known_lines_are_dropped_and_others_get_through_also_one_without_a_newline(capsys: Any) -> None:
    assert is_noise("==((====))==  Unsloth 2026.10.9: Fast Qwen3 patching. Transformers: 5.17.0.")
    assert not is_noise("Unsloth (CPU): bitsandbytes 4-bit does not work on this CPU, loading 16-bit")
    assert not is_noise("Unsloth: Switching to float32 training since model cannot work with float16")
    with quiet():
        print("🦥 Unsloth")
        print("one\n\ntwo", end="")
    assert capsys.readouterr().out == "one\n\ntwo"


def test_a_first_cell_and_loading_print_nothing_that_looks_like_a_fault(first_cells: Any) -> None:
    """bitsandbytes logs at import on a CPU with AVX512-BF16; the process also logs that line by hand."""
    assert first_cells.shown["load"] == ""
    assert "nsloth:" not in first_cells.shown["prepare"]
    (line,) = first_cells.stderr.splitlines()
    assert line.endswith("another line of the same logger")
