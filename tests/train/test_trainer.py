"""RLOOTrainer: the passes of a step, what it logs, and TRL's arguments with the same meaning as in TRL."""

from typing import Any

import pytest
import torch
import trl

from rloo_kit.errors import ConfigError
from tests.conftest import random_rewards


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(kind, rows) of every forward pass for log-probabilities."""
    seen: list[tuple[str, int]] = []
    original = trl.RLOOTrainer._get_per_token_logps_and_entropies

    def counted(self: Any, model: Any, ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        adapters_off = any(getattr(module, "disable_adapters", False) is True for module in self.model.modules())
        kind = "loss" if torch.is_grad_enabled() else "reference" if adapters_off else "old"
        seen.append((kind, len(ids)))
        return original(self, model, ids, *args, **kwargs)

    monkeypatch.setattr(trl.RLOOTrainer, "_get_per_token_logps_and_entropies", counted)
    return seen


def half_dead(problem: Any, **kwargs: Any) -> list[float]:
    """Pay both completions of every second prompt the same."""
    return [float(index % 2 and index // 2 % 2) for index in range(len(problem))]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"beta": 0.0}, [("loss", 4)]),
        ({"beta": 0.0, "single_pass": False}, [("old", 4), ("loss", 4)]),
        ({"beta": 0.05, "kl_placement": "loss"}, [("reference", 4)] * 2 + [("loss", 4)] * 2),
        ({"beta": 0.05, "skip_zero_variance_groups": True}, [("old", 4), ("reference", 4), ("loss", 4)]),
    ],
)
def test_work_that_changes_nothing_is_not_done(settings, expected, passes, fresh_policy, make_trainer):
    """Eight completions in two micro-batches; four of them carry a signal."""
    make_trainer(model=fresh_policy, reward_funcs=half_dead, gradient_accumulation_steps=2, **settings).train()
    assert passes == expected


def test_a_batch_of_zero_variance_groups_alone_goes_through_no_pass_and_the_optimizer_steps_on(passes, make_trainer):
    trainer = make_trainer(reward_funcs=lambda completions, **kwargs: [1.0] * len(completions), max_steps=2)
    trainer.train()
    assert passes == []
    taken = [float(state["step"]) for state in trainer.optimizer.state.values()]
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    assert taken == [2.0] * len(trained), "momentum goes on, as in stock TRL"


def test_an_evaluation_has_its_own_number_of_completions_and_metrics(make_trainer, task):
    groups: list[int] = []
    seen: set[str] = set()

    def counted(prompts: Any, completions: Any, **kwargs: Any) -> list[float]:
        seen.update(kwargs)
        groups.append(max(prompts.count(prompt) for prompt in prompts))
        return random_rewards(completions, **kwargs)

    held_out, of_eval = task.held_out.select(range(4)), {"num_generations_eval": 2}
    of_eval |= {"per_device_eval_batch_size": 4, "num_generations": 4, "beta": 0.05}
    trainer = make_trainer(reward_funcs=counted, eval_dataset=held_out, **of_eval)
    trainer.train()
    groups.clear()
    evaluated = trainer.evaluate()
    assert groups == [2, 2], "4 prompts twice, 4 completions at a time"
    assert {"eval_reward", "eval_kl"} <= set(evaluated)
    trainer.evaluate(trainer.train_dataset.select(range(4)))
    assert {"answer", "problem"} <= seen, "the users' columns, on the training prompts too"


def test_an_evaluation_whose_batch_holds_parts_of_groups_is_refused(make_trainer, task):
    trainer = make_trainer(per_device_eval_batch_size=6, num_generations=4, eval_dataset=task.held_out)
    with pytest.raises(ConfigError, match=r"batch of 6 completions[\s\S]*a multiple of 4"):
        trainer.evaluate()


def test_a_trainer_is_refused_once_a_later_one_was_built_on_its_policy(make_trainer, task):
    settings = {"eval_dataset": task.held_out.select(range(2))}
    earlier, later = (make_trainer(random_rewards, temperature=heat, **settings) for heat in (1.0, 0.5))
    for act in (earlier.train, earlier.evaluate):
        with pytest.raises(ConfigError, match=r"a later trainer[\s\S]*build this trainer anew"):
            act()
    later.train()
    later.evaluate()
    with pytest.raises(ConfigError, match="eval_dataset"):
        make_trainer(random_rewards, eval_strategy="steps", eval_steps=1)
    with pytest.raises(ConfigError, match="a later trainer"):
        later.train()


def test_a_plain_trl_config_means_what_it_means_in_trl(make_trainer, tmp_path):
    small = {"num_generations": 2, "per_device_train_batch_size": 4, "max_completion_length": 8}
    args = trl.RLOOConfig(output_dir=str(tmp_path), bf16=False, beta=0.0, max_steps=1, **small)
    trainer = make_trainer(args=args)
    trainer.train()
    assert trainer.old_pass
    assert (trainer.args.skip_zero_variance_groups, trainer.args.fast_sampling) == (False, False)
    assert not hasattr(args, "single_pass"), "the user's own is left as it was"
    assert trainer.state.global_step == 1
