"""RLOOTrainer: TRL's update, without its traps; run twice, killed, resumed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

import rloo_kit
from rloo_kit.advantages import dead_groups, total_rewards
from rloo_kit.errors import ConfigError
from rloo_kit.watch import progress
from rloo_kit.watch.run_folder import last_whole_checkpoint
from tests.conftest import CLEAN_ENVIRONMENT

METRICS = ("reward", "reward_std", "grad_norm", "entropy", "completions/mean_length")


def figures(trainer: Any) -> list[dict[str, float]]:
    """The metrics of each step that a different update would change."""
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    return [{name: entry[name] for name in METRICS} for entry in log]


def random_rewards(completions: Any, completion_ids: Any, **kwargs: Any) -> list[float]:
    """Differs within any group whose completions differ, and by nothing but them."""
    return [(sum(ids) % 97) / 97 for ids in completion_ids]


def run(trainer_class: Any, config_class: Any, policy: Any, task: Any, folder: Path, **settings: Any) -> Any:
    config = config_class(
        output_dir=str(folder),
        num_generations=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=2,
        learning_rate=1e-2,
        max_completion_length=8,
        logging_steps=1,
        save_strategy="no",
        bf16=False,
        seed=3,
        **settings,
    )
    trainer = trainer_class(
        model=policy.model,
        processing_class=policy.tokenizer,
        reward_funcs=random_rewards,
        args=config,
        train_dataset=task.train,
    )
    trainer.train()
    return trainer


def test_a_single_pass_needs_every_batch_used_once(make_trainer: Any) -> None:
    assert make_trainer()._is_single_pass
    assert not make_trainer(num_iterations=2)._is_single_pass
    assert not make_trainer(steps_per_generation=2)._is_single_pass
    assert make_trainer(steps_per_generation=2, gradient_accumulation_steps=4)._is_single_pass
    # The second half of a generation batch then meets a policy that has moved.
    assert not make_trainer(steps_per_generation=2, gradient_accumulation_steps=3)._is_single_pass
    assert not make_trainer(single_pass=False)._is_single_pass


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(kind, rows) of every forward pass for log-probabilities."""
    seen: list[tuple[str, int]] = []
    original = trl.RLOOTrainer._get_per_token_logps_and_entropies

    def counted(self: Any, model: Any, ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        adapters_off = any(
            getattr(module, "disable_adapters", False) is True for module in self.model.modules()
        )
        kind = "loss" if torch.is_grad_enabled() else "reference" if adapters_off else "old"
        seen.append((kind, len(ids)))
        return original(self, model, ids, *args, **kwargs)

    monkeypatch.setattr(trl.RLOOTrainer, "_get_per_token_logps_and_entropies", counted)
    return seen


def half_dead(problem: Any, **kwargs: Any) -> list[float]:
    """Every second prompt of a batch pays its two completions the same."""
    return [float(index % 2 and index // 2 % 2) for index in range(len(problem))]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"beta": 0.0}, [("loss", 4)]),
        ({"beta": 0.0, "single_pass": False}, [("old", 4), ("loss", 4)]),
        (
            {"beta": 0.0, "single_pass": False, "skip_dead_groups": False},
            [("old", 4)] * 2 + [("loss", 4)] * 2,
        ),
        ({"beta": 0.05}, [("reference", 4)] * 2 + [("loss", 4)] * 2),
        ({"beta": 0.05, "skip_dead_groups": True}, [("reference", 4), ("loss", 4)]),
    ],
)
def test_work_that_changes_nothing_is_not_done(
    settings: Any, expected: Any, passes: Any, fresh_policy: Any, make_trainer: Any
) -> None:
    """Eight completions in two micro-batches; four of them carry a signal."""
    make_trainer(
        model=fresh_policy, reward_funcs=half_dead, gradient_accumulation_steps=2, **settings
    ).train()
    assert passes == expected


def test_a_batch_of_dead_groups_alone_goes_through_no_pass_and_the_optimizer_steps_on(
    passes: Any, make_trainer: Any
) -> None:
    trainer = make_trainer(reward_funcs=lambda completions, **kwargs: [1.0] * len(completions), max_steps=2)
    trainer.train()
    assert passes == []
    assert trainer.state.global_step == 2
    taken = [float(state["step"]) for state in trainer.optimizer.state.values()]
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    assert taken == [2.0] * len(trained), "momentum goes on, as in stock TRL"


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


def test_an_evaluation_has_its_own_number_of_completions_and_metrics(make_trainer: Any, task: Any) -> None:
    groups: list[int] = []

    def counted(prompts: Any, completions: Any, **kwargs: Any) -> list[float]:
        groups.append(max(prompts.count(prompt) for prompt in prompts))
        return random_rewards(completions, **kwargs)

    trainer = make_trainer(
        reward_funcs=counted,
        eval_dataset=task.held_out.select(range(4)),
        num_generations_eval=2,
        per_device_eval_batch_size=4,
        beta=0.05,
        num_generations=4,
    )
    trainer.train()
    groups.clear()
    evaluated = trainer.evaluate()
    assert groups == [2, 2], "4 prompts twice, 4 completions at a time"
    assert {"eval_reward", "eval_dead_groups", "eval_kl"} <= set(evaluated)
    assert trainer.evaluate()["eval_samples_per_second"] > 0, "and again"


def test_a_plain_trl_config_means_what_it_means_in_trl(policy: Any, task: Any, tmp_path: Path) -> None:
    trainer = run(rloo_kit.RLOOTrainer, trl.RLOOConfig, policy, task, tmp_path, beta=0.0)
    assert not trainer._is_single_pass
    assert len(figures(trainer)) == 2


def test_a_tokenizer_that_is_not_given_is_the_models_own(policy: Any, task: Any, tmp_path: Path) -> None:
    trainer = rloo_kit.RLOOTrainer(
        model=policy.model,
        reward_funcs=random_rewards,
        args=rloo_kit.RLOOConfig(output_dir=str(tmp_path)),
        train_dataset=task.train,
        processing_class=None,
    )
    assert trainer.processing_class.eos_token_id == policy.tokenizer.eos_token_id


def test_two_rewards_of_one_name_are_logged_apart(make_trainer: Any) -> None:
    trainer = make_trainer(
        reward_funcs=[lambda completions, **kwargs: [0.0] * 4, lambda completions, **kwargs: [1.0] * 4]
    )
    trainer.train()
    log = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert (log["rewards/<lambda>/mean"], log["rewards/<lambda>_2/mean"]) == (0.0, 1.0)


def test_left_padding_is_kept_from_attention_in_training_mode(make_trainer: Any, policy: Any) -> None:
    """On a CPU this is transformers' forward; unsloth's on a GPU needs the flag that is asserted here."""
    trainer = make_trainer()
    rows = policy.tokenize(
        [[{"role": "user", "content": text}] for text in ("What is 1 + 2?", "What is 31 + 42 + 5?")]
    )
    answer = [17, 151645]
    policy.model.train()

    def log_probs(*pads: tuple[int, list[int]]) -> torch.Tensor:
        width = max(map(len, rows))
        ids = [
            [policy.tokenizer.pad_token_id] * (pad and width - len(row)) + row + answer for pad, row in pads
        ]
        mask = [[0] * (pad and width - len(row)) + [1] * (len(row) + 2) for pad, row in pads]
        scored, _, _ = trainer._get_per_token_logps_and_entropies(
            policy.model, torch.tensor(ids), torch.tensor(mask), 2
        )
        return scored

    trainer.args.single_pass = False
    (backbone,) = (module for module in policy.model.modules() if hasattr(module, "embed_tokens"))
    together = log_probs((1, rows[0]), (1, rows[1]))
    assert backbone._unsloth_keep_padding_mask
    for index, row in enumerate(rows):
        torch.testing.assert_close(together[index], log_probs((0, row))[0], atol=1e-4, rtol=1e-4)
        assert not backbone._unsloth_keep_padding_mask, "causal attention alone says the same, faster"


def test_with_two_iterations_the_ratio_is_taken_to_the_policy_that_sampled(make_trainer: Any) -> None:
    trainer = make_trainer(reward_funcs=random_rewards, num_iterations=2, max_steps=4, learning_rate=0.05)
    trainer.train()
    assert any(entry.get("clip_ratio/region_mean", 0) > 0 for entry in trainer.state.log_history)


# --- the reference ----------------------------------------------------------------------------------------


def test_stock_trl_refuses_a_second_trainer_on_the_same_policy(
    fresh_policy: Any, task: Any, tmp_path: Path
) -> None:
    arguments = {
        "model": fresh_policy.model,
        "processing_class": fresh_policy.tokenizer,
        "reward_funcs": random_rewards,
        "train_dataset": task.train,
    }
    config = trl.RLOOConfig(output_dir=str(tmp_path), bf16=False)
    trl.RLOOTrainer(args=config, **arguments)
    with pytest.raises(ValueError, match="ref"):
        trl.RLOOTrainer(args=config, **arguments)


@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_the_training_cell_can_be_run_again(beta: float, fresh_policy: Any, make_trainer: Any) -> None:
    for _ in range(2):
        trainer = make_trainer(model=fresh_policy, reward_funcs=random_rewards, beta=beta, learning_rate=1e-2)
        trainer.train()
        assert trainer.state.global_step == 1


def test_no_copy_of_the_adapter_is_kept_where_the_reference_is_the_base(
    fresh_policy: Any, make_trainer: Any
) -> None:
    make_trainer(model=fresh_policy, beta=0.05)
    assert list(fresh_policy.model.peft_config) == ["default"]
    make_trainer(model=fresh_policy, beta=0.0)
    assert list(fresh_policy.model.peft_config) == ["default"]


def test_a_trained_policy_is_its_own_reference(fresh_policy: Any, make_trainer: Any) -> None:
    with torch.no_grad():
        for name, parameter in fresh_policy.model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.05)
    trainer = make_trainer(model=fresh_policy, beta=0.05, reward_funcs=random_rewards)
    assert list(fresh_policy.model.peft_config) == ["default", "ref"]
    trainer.train()
    first = next(entry for entry in trainer.state.log_history if "kl" in entry)
    # Not exactly 0: TRL rounds the trained adapter to bfloat16, and not its copy.
    assert first["kl"] == pytest.approx(0.0, abs=1e-3), "the reference is the policy before the step"


def plain_model() -> Any:
    """All of the tiny policy, to be trained in float32: no LoRA, no quantization."""
    return AutoModelForCausalLM.from_pretrained(rloo_kit.policy.tiny.checkpoint(), dtype=torch.float32)


def logged_kl(trainer: Any) -> list[float]:
    return [entry["kl"] for entry in trainer.state.log_history if "kl" in entry]


def test_without_a_lora_the_reference_is_the_model_as_it_was_loaded(make_trainer: Any, policy: Any) -> None:
    trainer = make_trainer(
        model=plain_model(),
        processing_class=policy.tokenizer,
        reward_funcs=random_rewards,
        beta=0.05,
        max_steps=2,
        learning_rate=1e-3,
    )
    trainer.train()
    kl = logged_kl(trainer)
    assert kl[0] == pytest.approx(0.0, abs=1e-5), "before the first step they are the same"
    assert kl[1] > 1e-3


def test_a_policy_whose_lora_is_zero_but_whose_norms_were_trained_is_its_own_reference(
    make_trainer: Any, policy: Any
) -> None:
    """PEFT's ``modules_to_save``: the base model, with the adapter switched off, would have the untrained ones."""
    lora = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["norm"], task_type="CAUSAL_LM")
    model = get_peft_model(plain_model(), lora)
    trained = [p for name, p in model.named_parameters() if p.requires_grad and "lora_" not in name]
    with torch.no_grad():
        for parameter in trained:
            parameter.mul_(1.3)
    trainer = make_trainer(
        model=model, processing_class=policy.tokenizer, reward_funcs=random_rewards, beta=0.05
    )
    assert list(model.peft_config) == ["default", "ref"]
    trainer.train()
    assert logged_kl(trainer) == pytest.approx([0.0], abs=1e-5)


# --- what is shown ----------------------------------------------------------------------------------------


def test_one_line_of_fixed_width_per_logged_step_and_nothing_else(
    make_trainer: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    make_trainer(max_steps=3).train()
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert lines[0] == progress.header()
    assert len(lines) == 4
    assert {len(line) for line in lines} == {len(progress.header())}
    assert re.match(r"\s+1/3\s+[+-]\d\.\d{3}", lines[1])


def test_a_line_has_a_dash_where_there_is_no_figure() -> None:
    assert progress.line(1, 30, {"reward": 0.5}, None).split() == ["1/30", "+0.500", *["-"] * 7]


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (125.6, "2:06"), (3725, "1:02:05")])
def test_the_clock_reads_like_a_clock(seconds: float, text: str) -> None:
    assert progress.clock(seconds) == text


@pytest.mark.parametrize(
    ("scores", "dead", "why"),
    [
        ([[0.0], [1.0]], False, "a spread"),
        ([[1.0], [1.0]], True, "all right"),
        ([[0.0], [0.0]], True, "all wrong"),
        ([[0.2, 0.8], [0.8, 0.2]], True, "the sums are equal"),
        ([[torch.nan], [1.0]], True, "one scored completion has nothing to be compared with"),
        ([[torch.nan], [torch.nan]], True, "nothing is scored"),
        ([[torch.nan, 1.0], [1.0, 1.0]], False, "a reward that does not apply adds nothing"),
    ],
)
def test_a_group_is_dead_when_its_scored_rewards_are_all_equal(scores: Any, dead: bool, why: str) -> None:
    scores = torch.tensor(scores)
    rewards = total_rewards(scores, torch.ones(scores.shape[1]), clip=None)
    assert dead_groups(rewards.view(1, 2)).tolist() == [dead], why


def test_a_group_that_is_equal_once_clipped_is_dead() -> None:
    rewards = total_rewards(torch.tensor([[5.0], [9.0]]), torch.ones(1), clip=(0.0, 1.0))
    assert dead_groups(rewards.view(1, 2)).tolist() == [True]


def test_dead_groups_are_counted_before_the_kl_term_hides_them(fresh_policy: Any, make_trainer: Any) -> None:
    def same(completions: Any, **kwargs: Any) -> Any:
        return [1.0] * len(completions)

    trainer = make_trainer(model=fresh_policy, reward_funcs=[random_rewards], beta=0.05, learning_rate=0.05)
    trainer.train()
    trainer = make_trainer(model=fresh_policy, reward_funcs=same, beta=0.05, max_steps=2, learning_rate=0.05)
    trainer.train()
    last = [entry for entry in trainer.state.log_history if "reward" in entry][-1]
    assert last["dead_groups"] == last["frac_reward_zero_std"] == 1.0
    assert last["kl"] != 0.0, "which in stock TRL gives them a spread"


# --- killed and resumed -----------------------------------------------------------------------------------

RESUMABLE = """
import sys
import rloo_kit
from tests.conftest import right_after_thought

policy = rloo_kit.load_policy("tiny", seed=0)
task = rloo_kit.tasks.addition(n_train=64, n_held_out=32, seed=0)
config = rloo_kit.RLOOConfig(
    output_dir=sys.argv[1], num_generations=4, per_device_train_batch_size=8, gradient_accumulation_steps=1,
    max_steps=6, learning_rate=1e-2, max_completion_length=16, beta=0.05, save_steps=2, seed=1)
trainer = rloo_kit.RLOOTrainer(model=policy, reward_funcs=right_after_thought, args=config, train_dataset=task.train)
trainer.train(resume_from_checkpoint=True)
print([entry["reward"] for entry in trainer.state.log_history if "reward" in entry])
"""


def test_a_run_killed_while_it_saves_resumes_with_the_rewards_of_one_that_was_not(
    script: Any, tmp_path: Path
) -> None:
    whole = script(RESUMABLE, str(tmp_path / "whole")).stdout.splitlines()
    killed = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-c", RESUMABLE, str(killed)],
        stdout=subprocess.DEVNULL,
        env={**CLEAN_ENVIRONMENT, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 240
    while not (killed / "checkpoint-4").exists() and time.monotonic() < deadline:
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = last_whole_checkpoint(killed)
    assert found is not None
    assert found.name in ("checkpoint-2", "checkpoint-4"), "the run ended before it could be killed"

    resumed = script(RESUMABLE, str(killed)).stdout.splitlines()
    assert f"resuming from {found}" in resumed
    assert "no checkpoint yet: starting at step 0" in whole
    assert resumed[-1] == whole[-1]


def _checkpoint(folder: Path, step: int, state: str | None) -> Path:
    made = folder / f"checkpoint-{step}"
    made.mkdir(parents=True)
    if state is not None:
        (made / "trainer_state.json").write_text(state)
    return made


def test_a_checkpoint_that_was_cut_off_is_passed_over_and_removed(make_trainer: Any, tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    trainer = make_trainer(save_strategy="steps", save_steps=1)
    trainer.train()
    cut_off = [_checkpoint(run_folder, 2, None), _checkpoint(run_folder, 3, '{"global_step": 3')]
    other = _checkpoint(run_folder, 4, '{"global_step": 1}')
    assert last_whole_checkpoint(run_folder) == run_folder / "checkpoint-1"
    make_trainer(max_steps=2).train(resume_from_checkpoint=True)
    assert not any(folder.exists() for folder in [*cut_off, other])


def test_a_path_that_is_no_checkpoint_is_refused_with_those_that_are(
    make_trainer: Any, tmp_path: Path
) -> None:
    trainer = make_trainer()
    with pytest.raises(ConfigError, match="call train\\(\\) without it"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-9"))
    _checkpoint(tmp_path / "run", 3, '{"global_step": 3}')
    cut_off = _checkpoint(tmp_path / "run", 4, '{"global_step": 4')
    with pytest.raises(
        ConfigError, match=r"(?s)checkpoint-4 is not .* take one of those beside it: checkpoint-3"
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
    assert {a.dtype for _, a, _ in trained} == {torch.bfloat16}
    assert any(b.abs().sum() > 0 for name, _, b in trained if "lora_B" in name), "nothing was trained"
    assert not [name for name, a, b in trained if not torch.equal(a, b)]


def test_a_resumed_run_takes_the_learning_rate_that_it_is_given(
    make_trainer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers: transformers takes it from the checkpoint, so the usual mend of a run would change nothing."""
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


def test_a_run_that_is_stopped_by_hand_keeps_its_last_step(make_trainer: Any, tmp_path: Path) -> None:
    def stops(completions: Any, trainer_state: Any, **kwargs: Any) -> list[float]:
        if trainer_state.global_step == 2:
            raise KeyboardInterrupt
        return random_rewards(completions, **kwargs)

    settings = {"save_strategy": "steps", "save_steps": 50, "max_steps": 4}
    with pytest.raises(KeyboardInterrupt):
        make_trainer(reward_funcs=stops, **settings).train()
    assert last_whole_checkpoint(tmp_path / "run") == tmp_path / "run" / "checkpoint-2"
    trainer = make_trainer(reward_funcs=random_rewards, **settings)
    trainer.train(resume_from_checkpoint=True)
    assert [entry["step"] for entry in trainer.state.log_history if "reward" in entry] == [1, 2, 3, 4]


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
    assert (tmp_path / "run" / "earlier" / "checkpoint-2").is_dir()
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
    assert len(figures(trainer)) == 2
    for name, value in trained.items():
        assert torch.equal(other.model.get_parameter(name), value), name


def test_a_run_leaves_its_log_in_the_output_folder(make_trainer: Any, tmp_path: Path) -> None:
    make_trainer().train()
    assert (tmp_path / "run" / "trainer_state.json").is_file()


RELEASED = """
import rloo_kit
policy = rloo_kit.load_policy("tiny")
task = rloo_kit.tasks.addition(n_train=64, n_held_out=32)
config = rloo_kit.RLOOConfig(output_dir=__import__("sys").argv[1], num_generations=2, per_device_train_batch_size=4,
                             gradient_accumulation_steps=1, max_steps=1, max_completion_length=8, beta=0.05)
trainer = rloo_kit.RLOOTrainer(model=policy, reward_funcs=lambda completions, **kwargs: [0.0, 1.0, 0.0, 1.0],
                               args=config, train_dataset=task.train)
trainer.train()
released = rloo_kit.release(namespace=globals())
print(released.freed_bytes > 30 * 2**20, released.held_bytes < 2**20, "trainer" in globals(), "policy" in globals())
"""


def test_release_gives_back_what_a_run_held(script: Any, tmp_path: Path) -> None:
    assert script(RELEASED, str(tmp_path)).stdout.splitlines()[-1] == "True True False False"


# --- the class that GPU users get -------------------------------------------------------------------------

GENERATED = """
import os, sys
os.environ["UNSLOTH_ALLOW_CPU"] = "1"  # unsloth's own switch: its GPU path, tested without one
os.environ["UNSLOTH_COMPILE_LOCATION"] = sys.argv[1]
import unsloth, unsloth_zoo.cpu.ops
unsloth.models.rl._patch_trl_rl_trainers_impl("rloo_trainer")
unsloth_zoo.cpu.ops.patch_trl_fused_lm_head()  # TRL's own kernel is Triton

import rloo_kit, rloo_kit.policy.tiny, transformers, trl
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
import torch

assert trl.RLOOTrainer.__name__ == "UnslothRLOOTrainer", trl.RLOOTrainer
assert trl.RLOOTrainer in rloo_kit.RLOOTrainer.__mro__
folder = rloo_kit.policy.tiny.checkpoint()
tokenizer = AutoTokenizer.from_pretrained(folder)
task = rloo_kit.tasks.addition(n_train=64, n_held_out=32)

def policy():
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))

def score(completions, completion_ids, **kwargs):
    return [(sum(ids) % 97) / 97 for ids in completion_ids]

def config(**settings):
    small = dict(
        output_dir=sys.argv[2], num_generations=4, per_device_train_batch_size=8, gradient_accumulation_steps=1,
        max_steps=2, max_completion_length=8, learning_rate=1e-2, save_strategy="no", use_cpu=True,
        bf16=False, fp16=False)
    return rloo_kit.RLOOConfig(**{**small, **settings})

def train(model, reward=score, eval=False, **settings):
    trainer = rloo_kit.RLOOTrainer(model=model, processing_class=tokenizer, reward_funcs=reward,
                                   args=config(**settings), train_dataset=task.train,
                                   eval_dataset=task.held_out.select(range(4)) if eval else None)
    trainer.train()
    return trainer

model = policy()
before = {name: p.clone() for name, p in model.named_parameters() if p.requires_grad}
trainer = train(model, beta=0.0)
assert any(not torch.equal(p, before[name]) for name, p in model.named_parameters() if name in before)
single = [(e["reward"], e["grad_norm"]) for e in trainer.state.log_history if "reward" in e]
twice = [(e["reward"], e["grad_norm"]) for e in
         train(policy(), beta=0.0, single_pass=False).state.log_history if "reward" in e]
print("single pass equals two:", single == twice and len(single) == 2)
def after_one_step(rows, accumulation):  # the gradient's norm and the weights
    trained = policy()
    norm = train(trained, beta=0.05, single_pass=False, max_steps=1, per_device_train_batch_size=rows,
                 gradient_accumulation_steps=accumulation).state.log_history[0]["grad_norm"]
    return torch.cat([torch.tensor([norm]), *(p.detach().flatten() for p in trained.parameters() if p.requires_grad)])

# As unsloth does when it loads a model on a GPU: what divides by the accumulation is then its own.
unsloth.models._utils.patch_gradient_accumulation_fix(transformers.Trainer)
whole = after_one_step(8, 1)
cut = [after_one_step(rows, 8 // rows) for rows in (4, 2)]
print("accumulated:", [torch.allclose(found, whole, rtol=1e-4, atol=1e-6) for found in cut],
      transformers.Trainer.training_step.__name__)
print("again:", train(model, beta=0.05).state.global_step)
# On a GPU unsloth ends every sampling in training mode, in an evaluation too.
import trl.trainer.rloo_trainer as module
from contextlib import contextmanager
unwrap = module.unwrap_model_for_generation
@contextmanager
def leaves_it_training(model, *args, **kwargs):
    with unwrap(model, *args, **kwargs) as unwrapped:
        yield unwrapped
    model.train()
for found in list(sys.modules.values()):
    if vars(found).get("unwrap_model_for_generation") is unwrap:
        found.unwrap_model_for_generation = leaves_it_training
evaluated = train(policy(), beta=0.05, eval=True).evaluate()
print("evaluates:", "eval_reward" in evaluated)
print("dead groups:", [e["dead_groups"] for e in trainer.state.log_history if "reward" in e])

def refused(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"

print("inf:", refused(lambda: train(model, lambda completions, **kwargs: [float("inf")] * len(completions))))
print("batch:", refused(lambda: config(generation_batch_size=None, per_device_eval_batch_size=8) and
                        rloo_kit.RLOOConfig(num_generations=4, per_device_train_batch_size=6,
                                            gradient_accumulation_steps=1)))
print("name:", refused(lambda: rloo_kit.RLOOTrainer(model="tiny", reward_funcs=score, train_dataset=task.train)))
print("peft_config:", refused(lambda: rloo_kit.RLOOTrainer(
    model=model, reward_funcs=score, train_dataset=task.train, peft_config=LoraConfig())))
print("optimizers:", refused(lambda: rloo_kit.RLOOTrainer(
    model=model, processing_class=tokenizer, reward_funcs=score, args=config(), train_dataset=task.train,
    optimizers=(None, None))))
print("finite:", all(p.isfinite().all().item() for p in model.parameters()))
defaults = rloo_kit.RLOOConfig(use_cpu=True, bf16=False, fp16=False)
print("defaults:", defaults.learning_rate, defaults.optim.value, defaults.seed, defaults.weight_decay,
      defaults.warmup_steps, defaults.num_generations, defaults.per_device_train_batch_size)
"""


def test_the_trainer_runs_over_the_class_that_gpu_users_get(script: Any, tmp_path: Path) -> None:
    done = script(GENERATED, str(tmp_path / "compiled"), str(tmp_path / "run"))
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert said["single pass equals two"] == "True"
    assert said["accumulated"] == "[True, True] _unsloth_training_step"
    assert said["again"] == "2"
    assert said["evaluates"] == "True"
    assert said["dead groups"] == "[0.0, 0.0]"
    assert said["inf"] == "RewardValueError"
    assert said["batch"] == "ConfigError"
    assert said["name"] == "ConfigError"
    assert said["peft_config"] == "ConfigError"
    assert said["optimizers"] == "nothing"
    assert said["finite"] == "True"
    assert said["defaults"] == "1e-05 adamw_torch_fused 42 0.0 0 4 4"


def test_a_reward_may_log_a_metric_under_any_name(make_trainer: Any) -> None:
    """One of the trainer's own names keeps the trainer's figure."""

    def reward(completions: Any, log_metric: Any, **kwargs: Any) -> list[float]:
        log_metric("entropy", 99.0)
        log_metric("digits", 3.0)
        return [float(index % 2) for index in range(len(completions))]

    trainer = make_trainer(reward_funcs=reward, max_steps=2)
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert [entry["digits"] for entry in log] == [3.0, 3.0]
    assert all(0 < entry["entropy"] < 20 for entry in log)


def test_rewards_see_the_users_columns_in_an_evaluation_on_the_training_prompts_too(
    make_trainer: Any,
) -> None:
    seen: set[str] = set()

    def reward(completions: Any, **kwargs: Any) -> list[float]:
        seen.update(kwargs)
        return [0.0] * len(completions)

    trainer = make_trainer(reward_funcs=reward, prompt_sampling="informative")
    trainer.evaluate(trainer.train_dataset.select(range(4)))
    assert {"answer", "problem"} <= seen
    assert not any("rloo_kit" in name for name in seen)
