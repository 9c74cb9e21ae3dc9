"""Code and files written for or by version 0.1.0, before modules were moved, still work.

tests/data/written_by_0_1_0 holds an adapter that ``Policy.save`` wrote after 2 steps with ``SETTINGS``, and the other
files of the run's checkpoint-2.
"""

import rloo_kit  # isort: skip - unsloth first

import shutil

import pytest
import torch
from peft import get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import TrainerCallback

from rloo_kit.errors import ConfigError
from tests.conftest import ROOT, Completions

WRITTEN = ROOT / "tests" / "data" / "written_by_0_1_0"
WEIGHTS = load_file(WRITTEN / "adapter" / "adapter_model.safetensors")
SETTINGS = {"num_generations": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
SETTINGS |= {"max_completion_length": 16, "save_steps": 2, "logging_steps": 1, "learning_rate": 1e-3}


def closed(completions: Completions, **kwargs: object) -> list[float]:
    return [float("</think>" in c[0]["content"]) + len(c[0]["content"]) / 1000 for c in completions]


def assert_same(found: dict[str, torch.Tensor], stored: dict[str, torch.Tensor]) -> None:
    """Check that tensors are equal; a machine that computes in float32 widens stored bfloat16 without loss."""
    assert found.keys() == stored.keys()
    for name, value in stored.items():
        assert torch.equal(found[name], value.to(found[name].dtype)), name


def test_an_adapter_loads_with_exactly_its_weights():
    assert_same(get_peft_model_state_dict(rloo_kit.load_policy(WRITTEN / "adapter").model), WEIGHTS)


def test_a_stopped_run_resumes_with_its_weights_and_optimizer_and_says_what_is_not_known(task, tmp_path, capsys):
    class Start(TrainerCallback):
        def on_step_begin(self, args: object, state: object, control: object, **kwargs: object) -> None:
            begun.append(state.global_step)
            assert_same(get_peft_model_state_dict(trainer.model), WEIGHTS)
            for index, moments in trainer.optimizer.state_dict()["state"].items():
                assert_same(moments, optimizer["state"][index])

    checkpoint = tmp_path / "checkpoint-2"
    for part in ("adapter", "checkpoint-2"):
        shutil.copytree(WRITTEN / part, checkpoint, dirs_exist_ok=True)
    optimizer = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    begun: list[int] = []

    def trainer_with(**lora: int) -> rloo_kit.RLOOTrainer:
        policy = rloo_kit.load_policy("tiny", lora_rank=2, seed=0, **lora)
        config = rloo_kit.RLOOConfig(output_dir=str(tmp_path), max_steps=3, **SETTINGS)
        return rloo_kit.RLOOTrainer(policy, closed, config, task.train, callbacks=[Start()])

    with pytest.raises(ConfigError, match=r"lora_alpha=7 \(it was 2\)"):
        trainer_with(lora_alpha=7).train(resume_from_checkpoint=str(checkpoint))
    trainer = trainer_with()
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert "so only the LoRA's scale is compared" in capsys.readouterr().out
    assert (begun, trainer.state.global_step) == ([2], 3)
    assert [entry["step"] for entry in trainer.state.log_history if "reward" in entry] == [1, 2, 3]
