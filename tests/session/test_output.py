"""Output: names that are shortened, and lines that are dropped."""

from rloo_kit.session import output
from rloo_kit.session.output import quiet


def test_a_long_name_keeps_its_beginning_and_its_end():
    assert output.shortened("a" * 26) == "a" * 26
    assert output.shortened("beginning" + "x" * 40 + "ending") == "beginningxxx…xxxxxxxending"


def test_known_lines_are_dropped_and_others_get_through_also_one_without_a_newline(capsys):
    with quiet():
        print("🦥 Unsloth\n==((====))==  Unsloth 2026.10.9: Fast Qwen3 patching. Transformers: 5.17.0.")
        print("one\n\nUnsloth: Switching to float32 training", end="")
    assert capsys.readouterr().out == "one\n\nUnsloth: Switching to float32 training"
