"""A run twice, stopped, killed and resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch

import rloo_kit
from rloo_kit.errors import ConfigError
from rloo_kit.watch.run_folder import last_whole_checkpoint
from tests.conftest import random_rewards

# --- which checkpoint is taken ----------------------------------------------------------------------------


def test_a_cell_stopped_within_a_step_goes_on_with_fresh_completions(make_trainer: Any) -> None:
    trainer = make_trainer(
        reward_funcs=random_rewards,
        max_steps=3,
        gradient_accumulation_steps=2,
        save_strategy="steps",
        save_steps=1,
    )
    events: list[str] = []
    sample, loss = trainer._generate_and_score_completions, trainer._compute_loss

    def stops(model: Any, inputs: Any) -> Any:
        if len(events) == 5:
            events.append("stopped")
            raise KeyboardInterrupt
        events.append("loss")
        return loss(model, inputs)

    def watched(inputs: Any) -> Any:
        events.append("sample")
        return sample(inputs)

    trainer._compute_loss, trainer._generate_and_score_completions = stops, watched
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.train(resume_from_checkpoint=True)
    whole_step = ["sample", "loss", "loss"]
    assert events == [*whole_step, "sample", "loss", "stopped", *whole_step, *whole_step]
    assert trainer.state.global_step == 3


def test_a_path_that_is_no_checkpoint_is_refused_with_those_that_are(
    make_trainer: Any, tmp_path: Path
) -> None:
    trainer = make_trainer(save_strategy="steps", save_steps=1, max_steps=2)
    with pytest.raises(ConfigError, match="call train\\(\\) without it"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-9"))
    trainer.train()
    cut_off = tmp_path / "run" / "checkpoint-2"
    (cut_off / "trainer_state.json").write_text('{"global_step": 2')
    with pytest.raises(
        ConfigError, match=r"(?s)checkpoint-2 is not .* take one of those beside it: checkpoint-1"
    ):
        trainer.train(resume_from_checkpoint=str(cut_off))


def test_a_whole_checkpoint_under_another_name_is_taken(make_trainer: Any, tmp_path: Path) -> None:
    make_trainer(save_strategy="steps", save_steps=1).train()
    best = (tmp_path / "run" / "checkpoint-1").rename(tmp_path / "best")
    trainer = make_trainer(max_steps=2)
    trainer.train(resume_from_checkpoint=str(best))
    assert trainer.state.global_step == 2
    assert make_trainer(max_steps=1).train(resume_from_checkpoint=str(best)).global_step == 1, (
        "nothing is left"
    )


def test_a_resumed_runs_weights_are_those_of_one_that_was_not_stopped(make_trainer: Any) -> None:
    """To the bit: precision, optimizer, schedule and draws are those of the checkpoint."""

    def every_other(completions: Any, **kwargs: Any) -> list[float]:
        return [float(index % 2) for index in range(len(completions))]

    settings = {"learning_rate": 1e-3, "save_strategy": "steps", "save_steps": 1, "save_total_limit": None}
    settings |= {"max_completion_length": 16, "reward_funcs": every_other}
    whole = make_trainer(max_steps=3, **settings, model=rloo_kit.load_policy("tiny", seed=0))
    whole.train()
    resumed = make_trainer(max_steps=3, **settings, model=rloo_kit.load_policy("tiny", seed=0))
    resumed.train(resume_from_checkpoint=str(Path(whole.args.output_dir) / "checkpoint-1"))
    pairs = zip(whole.model.named_parameters(), resumed.model.named_parameters(), strict=True)
    trained = [(name, a, b) for (name, a), (_, b) in pairs if a.requires_grad]
    assert {a.dtype for _, a, _ in trained} == {torch.float32}
    assert any(b.abs().sum() > 0 for name, _, b in trained if "lora_B" in name), "nothing was trained"
    assert not [name for name, a, b in trained if not torch.equal(a, b)]


def test_a_resumed_run_takes_the_learning_rate_that_it_is_given(
    make_trainer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers takes it from the checkpoint, so that lowering it would have no effect."""
    schedule = {"lr_scheduler_type": "linear", "save_strategy": "steps", "save_steps": 2, "weight_decay": 0.0}
    make_trainer(max_steps=2, learning_rate=4e-3, **schedule).train()
    trainer = make_trainer(max_steps=4, learning_rate=1e-3, **{**schedule, "weight_decay": 0.1})
    trainer.train(resume_from_checkpoint=True)
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    # Linear to 0 over 2 steps of 4e-3, then the last two of 4 steps of 1e-3.
    assert rates == pytest.approx([4e-3, 2e-3, 0.5e-3, 0.25e-3])
    assert {group["weight_decay"] for group in trainer.optimizer.param_groups} == {0.1, 0.0}
    assert "learning_rate is 0.001 from here on; it was 0.004" in capsys.readouterr().out


def test_resuming_restores_the_trained_adapter_beside_its_reference(
    fresh_policy: Any, make_trainer: Any
) -> None:
    """transformers loads the adapters in a checkpoint's subfolders and then not the one at its top."""
    with torch.no_grad():
        for name, parameter in fresh_policy.model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.05)
    settings = {"beta": 0.05, "reward_funcs": random_rewards, "save_strategy": "steps", "save_steps": 1}
    make_trainer(model=fresh_policy, learning_rate=0.05, **settings).train()
    trained = {n: p.clone() for n, p in fresh_policy.model.named_parameters() if ".default." in n}

    other = rloo_kit.load_policy("tiny", seed=0)
    with torch.no_grad():
        for name, parameter in other.model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.05)
    trainer = make_trainer(model=other, **settings)
    trainer.train(resume_from_checkpoint=True)
    for name, value in trained.items():
        assert torch.equal(other.model.get_parameter(name), value), name


def test_resuming_in_a_used_kernel_has_the_reference_of_a_fresh_one(make_trainer: Any) -> None:
    settings = {"beta": 0.05, "reward_funcs": random_rewards, "save_strategy": "steps", "learning_rate": 0.05}
    policy = rloo_kit.load_policy("tiny", seed=0)
    make_trainer(model=policy, save_steps=1, max_steps=2, **settings).train()
    kl = []
    for model in (policy, rloo_kit.load_policy("tiny", seed=0)):  # the used kernel's policy, and a fresh one
        trainer = make_trainer(model=model, save_steps=10, max_steps=3, **settings)
        trainer.train(resume_from_checkpoint=True)
        kl.append([entry["kl"] for entry in trainer.state.log_history if "kl" in entry][-1])
    assert kl[0] == kl[1]
    assert abs(kl[0]) > 1e-3


def test_a_new_run_sets_the_checkpoints_of_an_earlier_one_aside(
    make_trainer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer(save_strategy="steps", save_steps=1, max_steps=2).train()
    make_trainer(max_steps=1).train()
    assert last_whole_checkpoint(tmp_path / "run") is None
    assert (tmp_path / "run" / "earlier-1" / "checkpoint-2").is_dir()
    assert "checkpoints of an earlier run are now in" in capsys.readouterr().out


def test_resuming_a_run_that_is_done_restores_it_and_trains_nothing(
    fresh_policy: Any, make_trainer: Any
) -> None:
    settings = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "reward_funcs": random_rewards}
    make_trainer(model=fresh_policy, learning_rate=0.05, **settings).train()
    trained = {n: p.clone() for n, p in fresh_policy.model.named_parameters() if ".default." in n}
    other = rloo_kit.load_policy("tiny", seed=0)
    trainer = make_trainer(model=other, **settings)
    result = trainer.train(resume_from_checkpoint=True)
    assert result.global_step == 2
    assert sum("reward" in entry for entry in trainer.state.log_history) == 2
    for name, value in trained.items():
        assert torch.equal(other.model.get_parameter(name), value), name


def test_a_run_leaves_its_log_in_the_output_folder(make_trainer: Any, tmp_path: Path) -> None:
    make_trainer().train()
    assert (tmp_path / "run" / "trainer_state.json").is_file()
