"""RLOOConfig's fields as people, editors and type checkers see them."""

import inspect
import pydoc
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import rloo_kit
from rloo_kit.train import described, fields
from rloo_kit.train.own import NAMES

ROOT = Path(__file__).resolve().parents[2]
CHECKED = """
import rloo_kit

settings = rloo_kit.RLOOConfig("out/run", learning_rate=1e-5, kl_placement="loss", advantage_estimator=len)
reveal_type(settings)
rloo_kit.RLOOConfig.from_grpo(settings)
rloo_kit.RLOOConfig(learnin_rate=1)
rloo_kit.RLOOConfig(learning_rate="1e-5")
rloo_kit.RLOOConfig(kl_placement="los")
"""


def test_a_type_checker_refuses_a_misspelt_name_a_wrong_type_and_a_choice_that_does_not_exist(
    tmp_path: Path,
) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(CHECKED)
    needed = [f"rloo_kit/{name}.py" for name in ("__init__", "train/__init__", "train/config")]
    needed += ["rloo_kit/train/signature.pyi"]
    alone = ["--config-file=", "--follow-imports=skip", "--ignore-missing-imports", f"--cache-dir={tmp_path}"]
    command = [sys.executable, "-m", "mypy", *alone, str(snippet), *needed]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False).stdout
    found = [line for line in said.splitlines() if "snippet.py" in line]
    assert [int(line.split(":")[1]) for line in found if " error: " in line] == [7, 8, 9], said
    assert 'Revealed type is "rloo_kit.train.config.RLOOConfig"' in said
    misspelt, number, choice = (line for line in found if " error: " in line)
    assert '"learnin_rate"' in misspelt
    assert 'expected "float"' in number
    assert "Literal['reward', 'loss']" in choice


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()  # else the tests that follow would run in a shell


def test_a_notebook_completes_the_kits_settings_and_shows_types_and_defaults(shell: InteractiveShell) -> None:
    shell.user_ns["RLOOConfig"] = rloo_kit.RLOOConfig
    line = "RLOOConfig(adv"
    with provisionalcompleter():
        found = {one.text for one in shell.Completer.completions(line, len(line))}
    assert "advantage_estimator=" in found
    shown = shell.inspector.info(rloo_kit.RLOOConfig)
    assert "learning_rate: 'float' = 1e-05" in " ".join(
        str(shown["init_definition"] or shown["definition"]).split()
    )


def test_every_field_is_in_the_signature_the_kits_first_then_the_ten_then_the_rest() -> None:
    parameters = list(inspect.signature(rloo_kit.RLOOConfig).parameters)
    fields = [item.name for item in described.in_order(rloo_kit.RLOOConfig)]
    assert parameters == fields
    ten = [name for name in described.TEN if name != "output_dir"]
    assert parameters[: 1 + len(NAMES) + len(ten)] == ["output_dir", *NAMES, *ten]
    assert len(described.TEN) == 10
    defaults = {name: one.default for name, one in inspect.signature(rloo_kit.RLOOConfig).parameters.items()}
    made = rloo_kit.RLOOConfig()
    assert (defaults["beta"], defaults["learning_rate"]) == (made.beta, made.learning_rate)


def test_the_types_that_are_read_without_trl_are_trls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line refuses a misspelling by them, before the seconds that an import of TRL takes."""
    read, theirs = fields.written_down(), fields.hints()
    assert set(read) == {item.name for item in described.in_order(rloo_kit.RLOOConfig)}
    others = {n for n in read if described.written(read[n]) != described.written(theirs.get(n, read[n]))}
    assert others == set(), "run python scripts/docs.py"
    monkeypatch.setattr(fields, "version_of", lambda name: "another")
    assert fields.written_down.__wrapped__() == {}, "another release has other fields"


def test_help_begins_with_the_kits_settings_then_the_ten_then_the_rest() -> None:
    text = pydoc.plain(pydoc.render_doc(rloo_kit.RLOOConfig))
    said = text[text.index("Added, the method:") :]
    places = [
        re.search(rf"^ \|\s+{name}: ", said, re.MULTILINE) for name in (*NAMES, *described.TEN, "adam_beta1")
    ]
    assert all(places)
    starts = [place.start() for place in places if place]
    ours, ten, rest = starts[: len(NAMES)], starts[len(NAMES) : -1], starts[-1]
    assert max(ours) < min(ten)
    assert max(ten) < rest
    assert re.search(r"adam_beta1: float = 0\.9$", said, re.MULTILINE)
    missing = [item.name for item in described.in_order(rloo_kit.RLOOConfig) if f" {item.name}: " not in said]
    assert missing == []


def test_the_trainers_parameters_have_types() -> None:
    from rloo_kit.train.arguments import ARGUMENTS

    parameters = inspect.signature(rloo_kit.RLOOTrainer.__init__).parameters
    assert set(ARGUMENTS) <= set(parameters)
    assert [
        name for name in ARGUMENTS if parameters[name].annotation in (inspect.Parameter.empty, "object")
    ] == []


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (typing.Optional[int], "int | None"),  # noqa: UP045 - as transformers writes it
        (None | list[str] | str, "list[str] | str | None"),
        (dict[str, typing.Any], "dict[str, Any]"),
        (tuple[float, float] | None, "tuple[float, float] | None"),
        (Path, "Any"),
    ],
)
def test_a_type_is_written_in_builtins(hint: object, text: str) -> None:
    assert described.written(hint) == text
