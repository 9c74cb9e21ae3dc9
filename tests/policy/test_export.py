"""Exports: one merged checkpoint, a GGUF, a model card; and the messages if something is missing."""

import json
import shutil
import sys
import warnings
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import rewards
import rloo_kit
from rloo_kit import models
from rloo_kit.errors import ConfigError, PolicyNotFoundError
from rloo_kit.policy import save
from rloo_kit.policy.bundled import TINY
from tests.conftest import WHOLE
from tests.policy.conftest import moved


def written(folder: Path, name: str) -> torch.Tensor:
    return load_file(folder / "model.safetensors")[f"{name}.weight"]


LAYER = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float32])
def test_a_four_bit_policy_is_merged_into_its_unquantised_base_in_the_type_that_is_asked(dtype, policy, tmp_path):
    folder = moved(policy).save_merged(policy.save_merged(tmp_path / "merged"), dtype=dtype)
    kind = getattr(torch, str(dtype).removeprefix("torch."))
    delta = policy.model.get_submodule(f"base_model.model.{LAYER}").get_delta_weight("default")
    base = written(TINY.checkpoint(), LAYER)
    assert torch.equal(written(folder, LAYER), (base.float() + delta).to(kind))
    embedding = "model.embed_tokens"
    assert torch.equal(written(folder, embedding), written(TINY.checkpoint(), embedding).to(kind))
    assert AutoModelForCausalLM.from_pretrained(folder).dtype == kind
    assert "library_name: transformers" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("dtype", "size", "least", "most"),
    [("float32", 1e-6, 0.999, 1.001), ("float16", 1e-6, 0.0, 0.2), ("bfloat16", 1e-4, 0.3, 0.8)],
)
def test_what_a_merge_keeps_of_the_update_is_said_written_and_warned_of(
    dtype, size, least, most, policy, tmp_path, capsys
):
    """Compared with the file: the change of each weight, projected on the update."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folder = moved(policy, size / 0.3).save_merged(tmp_path / "merged", dtype=dtype)
    whole = parts = 0.0
    for name, module in policy.model.base_model.model.named_modules():
        if hasattr(module, "get_delta_weight"):
            delta = module.get_delta_weight("default").detach()
            change = written(folder, name).float() - written(TINY.checkpoint(), name).float()
            parts, whole = parts + float((change * delta).sum()), whole + float((delta * delta).sum())
    assert least <= parts / whole <= most
    kept = f"{min(parts / whole, 1):.1%}"
    assert f"Merged in {dtype}: {kept} of the update is kept.\n" in capsys.readouterr().out
    assert f"- type: {dtype}\n- kept of the update: {kept}\n" in (folder / "README.md").read_text()
    warned = [one for one in caught if "of what was learned" in str(one.message)]
    assert len(warned) == (parts / whole < 0.9)
    assert all("dtype='float32'" in str(one.message) for one in warned)
    assert {one.filename for one in warned} <= {__file__}


def test_float16_is_taken_where_weights_and_what_they_compute_are_in_its_range(policy, tmp_path):
    place = tmp_path / "merged"
    assert written(policy.save_merged(place), LAYER).dtype == torch.float16
    for base, name, large in (("weights", LAYER, 1e5), ("logits", "model.norm", 6e4)):
        folder = shutil.copytree(TINY.checkpoint(), tmp_path / base)
        weights = load_file(folder / "model.safetensors")
        weights[f"{name}.weight"][..., 0] = large
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        assert written(policy.save_merged(place, base=folder), LAYER).dtype == torch.bfloat16
    with pytest.raises(ConfigError, match=r"out of float16's range[\s\S]*dtype='bfloat16'"):
        policy.save_merged(place, base=tmp_path / "weights", dtype="float16")
    with pytest.raises(ConfigError, match=r"dtype must be 'float16', 'bfloat16' or 'float32'"):
        policy.save_merged(place, dtype="half")


def test_another_base_than_the_adapters_is_no_base(tmp_path):
    policy = rloo_kit.load_policy("tiny", seed=0, load_in_4bit=False)
    other = Path(shutil.copytree(TINY.checkpoint(), tmp_path / "other"))
    tensors = load_file(other / "model.safetensors")
    save_file({n: t * 1.5 for n, t in tensors.items()}, other / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match="not the base that the adapter was trained on"):
        policy.save_merged(tmp_path / "merged", base=other)
    with pytest.raises(PolicyNotFoundError, match="the base cannot be loaded"):
        policy.save_merged(tmp_path / "merged", base=tmp_path / "gone" / "away")
    assert not (tmp_path / "merged").exists()
    assert policy.save_merged(tmp_path / "merged", base=TINY.checkpoint()).is_dir()


def test_where_the_base_in_16_bit_is_missing_it_is_said(tmp_path):
    shape = models.CATALOGUE["qwen3-0.6b"]
    assert save.sixteen_bit_base(shape, "unsloth/Qwen3-0.6B-unsloth-bnb-4bit") == "unsloth/Qwen3-0.6B"
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {}}))
    with pytest.raises(PolicyNotFoundError, match=r"stored in 4 bit[\s\S]*base=\.\.\."):
        save.sixteen_bit_base(shape, str(tmp_path))


def test_without_llama_cpp_the_error_has_the_commands_and_nothing_is_run(policy, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr(save.subprocess, "run", pytest.fail)
    with pytest.raises(PolicyNotFoundError, match=r"git clone [\s\S]*&& pip install") as caught:
        policy.save_gguf(tmp_path / "policy.gguf")
    assert len(str(caught.value).splitlines()) == 3
    with pytest.raises(ConfigError, match=r"not 'q4_k_m'[\s\S]*llama-quantize policy.gguf smaller.gguf q4_k_m"):
        policy.save_gguf(tmp_path / "policy.gguf", quantization="q4_k_m")
    assert not (tmp_path / "policy.gguf").exists()


STAND_IN = """import json, os, pathlib, sys
folder, _, out, _, kind = sys.argv[1:6]
if kind == "f32":
    sys.exit("Model Xyz is not supported")
config = pathlib.Path(folder, "config.json").read_text()
pathlib.Path(out).write_text(f"{kind} of {json.loads(config)['dtype']} " + ",".join(os.listdir(folder)))
"""


def test_llama_cpps_programs_get_the_merged_checkpoint_and_their_last_line_is_shown(policy, tmp_path):
    (tmp_path / "convert_hf_to_gguf.py").write_text(STAND_IN)
    file = policy.save_gguf(tmp_path / "out" / "policy.gguf", llama_cpp=tmp_path)
    assert file.read_text().startswith("q8_0 of float16 ")
    assert "model.safetensors" in file.read_text()
    with pytest.warns(UserWarning, match=r"of what was learned.*quantization='f32'"):
        moved(policy, 1e-6 / 0.3).save_gguf(file, quantization="bf16", llama_cpp=tmp_path)
    assert file.read_text().startswith("bf16 of bfloat16 ")
    (thesis := tmp_path / "thesis.txt").touch()
    for place in (thesis, policy.save(tmp_path / "adapter.gguf")):
        with pytest.raises(ConfigError, match=r"would be replaced[\s\S]*out/policy.gguf"):
            policy.save_gguf(place, llama_cpp=tmp_path)
    with pytest.raises(ConfigError, match="Model Xyz is not supported"):
        policy.save_gguf(file, quantization="f32", llama_cpp=tmp_path)
    assert [path.name for path in file.parent.iterdir()] == ["policy.gguf"]


def test_a_card_has_base_results_audits_versions_and_no_place_of_this_machine(policy, task, tmp_path):
    before, audit = rloo_kit.evaluate(policy, task, n=4, max_new_tokens=8), rewards.audit(WHOLE)
    folder = policy.save(tmp_path / "adapter", results={"before": before}, audits=[audit])
    card = (folder / "README.md").read_text()
    lines = [f"| before | 4, greedy | {before.accuracy} |", f"{len(audit.exploits)} exploits", "- rloo-kit\n"]
    lines += [f"peft {peft.__version__}", "license: apache-2.0"]
    assert [line for line in lines if line not in card] == []
    assert str(Path.home()) not in card
