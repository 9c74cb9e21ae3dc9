"""What the kit relies on in TRL 1.15 and transformers 5.17, so that an upgrade fails here first, in words.

Each test names the room that relies on the fact.  Facts are read from TRL's own class, whatever unsloth has
put in its place.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from typing import Any

import pytest
import trl.trainer.rloo_trainer
import trl.trainer.utils
from transformers import GenerationMixin, Trainer

from rewards.compose import TRL_KEYWORDS
from rloo_kit.train import names
from rloo_kit.train.arguments import ARGUMENTS
from rloo_kit.train.trainer import RLOOTrainer
from rloo_kit.watch import progress

Stock = trl.trainer.rloo_trainer.RLOOTrainer

OVERRIDDEN = {
    # method: (parameters, first 12 digits of the SHA-256 of its code)
    "_get_train_sampler": (["self", "dataset"], "aca83cba9c7a"),
    "_generate_single_turn": (["self", "prompt_ids", "images", "multimodal_fields"], "5db487adbcdb"),
    "_generate_and_score_completions": (["self", "inputs"], "626f8151befc"),
    "_get_per_token_logps_and_entropies": (
        ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"],
        "dd08ff17cae7",
    ),
    "_calculate_rewards": (
        ["self", "inputs", "prompts", "completions", "completion_ids_list"],
        "debce8d0bc83",
    ),
    "_prepare_inputs": (["self", "generation_batch"], "1d3ae280df01"),
    "log": (["self", "logs", "start_time"], "19e101d9efa8"),
    "_compute_loss": (["self", "model", "inputs"], "f3523b2026dc"),
    "training_step": (["self", "model", "inputs", "num_items_in_batch"], "04bf1003a79a"),
}
# Not overridden, but the overrides above count on what they do.
RELIED_ON = {
    "_generate": "b8fffc35aae3",
    "_tokenize_prompts": "3176f24bb39a",
}
# transformers' own, where TRL has none: how a run is resumed.
RESUMING = {
    "_load_callback_state": "b08121261b7f",
    "_load_from_checkpoint": "3ceae24659dd",
    "_load_optimizer_and_scheduler": "574f91b51261",
}
# How TRL shuffles a generation batch, and in which order it wants prompts.
FUNCTIONS = {"shuffle_sequence_dict": "9360e298941a", "RepeatSampler": "72b4c5fad94e"}


def fingerprint(function: Any) -> str:
    """Twelve digits that change with a function's code, and not with lines that are comments or empty."""
    lines = inspect.getsource(inspect.unwrap(function)).splitlines()
    code = [line for line in lines if line.strip() and not line.strip().startswith("#")]
    return hashlib.sha256("\n".join(code).encode()).hexdigest()[:12]


def explain(name: str) -> str:
    return (
        f"The trainer's {name}, of TRL or transformers, is not the one that rloo_kit.train.trainer overrides. "
        "Read its diff, check the override's docstring against it, run tests/train/test_trainer.py, and put the new "
        "fingerprint here."
    )


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_an_overridden_method_is_the_one_it_was_written_against(name: str) -> None:
    parameters, digits = OVERRIDDEN[name]
    method = inspect.unwrap(getattr(Stock, name))
    assert list(inspect.signature(method).parameters)[: len(parameters)] == parameters, explain(name)
    assert fingerprint(method) == digits, explain(name)


@pytest.mark.parametrize("name", RELIED_ON)
def test_a_method_that_the_overrides_count_on_is_unchanged(name: str) -> None:
    assert fingerprint(getattr(Stock, name)) == RELIED_ON[name], explain(name)


@pytest.mark.parametrize("name", RESUMING)
def test_resuming_is_what_its_overrides_were_written_against(name: str) -> None:
    assert fingerprint(getattr(Trainer, name)) == RESUMING[name], explain(name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_the_overrides_count_on_is_unchanged(name: str) -> None:
    assert fingerprint(getattr(trl.trainer.utils, name)) == FUNCTIONS[name], explain(name)


def test_the_list_above_names_every_override_of_trls_own_methods() -> None:
    classes = [one for one in RLOOTrainer.__mro__ if one.__module__.startswith("rloo_kit.")]
    ours = {name for one in classes for name, value in vars(one).items() if inspect.isfunction(value)}
    assert (ours & set(vars(Stock))) - {"__init__"} == set(OVERRIDDEN)
    assert (ours & set(vars(Trainer))) - set(vars(Stock)) == {*RESUMING, "train"}


def test_the_trainers_arguments_are_known() -> None:
    parameters = tuple(inspect.signature(Stock.__init__).parameters)[1:]
    assert parameters == ARGUMENTS


def test_a_reward_gets_the_keywords_that_guarded_expects(make_trainer: Any) -> None:
    seen: set[str] = set()

    def reward(**kwargs: Any) -> list[float]:
        seen.update(kwargs)
        assert all(type(token) is int for row in kwargs["completion_ids"] for token in row)
        return [0.0] * len(kwargs["completions"])

    make_trainer(reward_funcs=reward).train()
    assert seen == {*TRL_KEYWORDS, "answer", "problem"}


def test_the_metrics_that_the_progress_line_shows_are_logged(make_trainer: Any) -> None:
    trainer = make_trainer(beta=0.05)
    trainer.train()
    logged = set(next(entry for entry in trainer.state.log_history if "reward" in entry))
    assert {metric for _, metric, _, _ in progress.COLUMNS} <= logged
    assert {"grad_norm", "entropy", "frac_reward_zero_std", "num_tokens", "clip_ratio/region_mean"} <= logged


def test_names_of_older_releases_are_not_fields_today() -> None:
    fields = {item.name for item in dataclasses.fields(trl.trainer.rloo_config.RLOOConfig)}
    assert not fields & {*names.CONFIG_OLD, *names.CONFIG_GONE}


def test_the_state_of_a_checkpoint_is_written_last() -> None:
    """rloo_kit.watch.run_folder.last_whole_checkpoint takes a readable trainer_state.json for a whole checkpoint."""
    source = inspect.getsource(Trainer._save_checkpoint)
    written = [
        source.index(mark) for mark in ("self.save_model", "_save_optimizer_and_scheduler", "_save_rng_state")
    ]
    state = source.index("TRAINER_STATE_NAME")
    assert all(position < state for position in written), "trainer_state.json no longer comes last"


def test_resuming_still_passes_over_the_adapter_beside_subfolders() -> None:
    """Why RLOOTrainer._load_from_checkpoint exists; when this fails, it can go."""
    source = inspect.getsource(Trainer._load_from_checkpoint)
    assert "if adapter_subdirs:" in source
    assert "for subdir_name in adapter_subdirs:" in source


def test_transformers_divides_each_loss_by_the_accumulation() -> None:
    """rloo_kit.train.trainer undoes it in row_weight."""
    source = inspect.getsource(Trainer.training_step)
    assert "loss = loss / self.current_gradient_accumulation_steps" in source


def test_the_fused_head_scores_no_token_that_is_masked() -> None:
    """rloo_kit.train.packing trims columns; what is masked within them must cost nothing."""
    source = inspect.getsource(trl.trainer.utils.add_fused_lm_head)
    assert "mask = labels != -100" in source
    assert "hidden_states[mask]" in source


def test_a_custom_loop_is_given_what_generate_prepared() -> None:
    """rloo_kit.policy.sampling.decode is called in place of the loop, with warpers, cache and stopping criteria."""
    source = inspect.getsource(GenerationMixin.generate)
    assert "decoding_method = custom_generate" in source
    for given in (
        "logits_processor=prepared_logits_processor",
        "stopping_criteria=prepared_stopping_criteria",
    ):
        assert given in source


def test_the_hook_for_gradients_comes_before_the_optimizer_step() -> None:
    source = inspect.getsource(Trainer)
    assert source.index("on_pre_optimizer_step") < source.index("self.optimizer.step()")
