"""What the kit relies on in TRL 1.15 and transformers 5.17, so that an upgrade fails here first, with an explanation.

Each test names the module that relies on the fact.  Facts are read from TRL's own class, even where unsloth replaces
it.
"""

import rloo_kit  # noqa: F401  # isort: skip - unsloth first

import hashlib
import inspect

import pytest
import trl.trainer.rloo_trainer
import trl.trainer.utils
from transformers import GenerationMixin, Trainer, TrainingArguments

from rewards.trl_interface import TRL_KEYWORDS
from rloo_kit.train import config
from rloo_kit.train.trainer import RLOOTrainer
from rloo_kit.watch import callbacks

Stock = trl.trainer.rloo_trainer.RLOOTrainer
Utils = trl.trainer.utils

# The first 12 digits of the SHA-256 of a method's code, signature included.
OVERRIDDEN = {
    "_get_train_sampler": "aca83cba9c7a",
    "_generate_single_turn": "5db487adbcdb",
    "_generate_and_score_completions": "626f8151befc",
    "_get_per_token_logps_and_entropies": "dd08ff17cae7",
    "_calculate_rewards": "debce8d0bc83",
    "_prepare_inputs": "1d3ae280df01",
    "log": "19e101d9efa8",
    "_compute_loss": "f3523b2026dc",
    "training_step": "04bf1003a79a",
    "_save_checkpoint": "6899a9d5b674",
}
# Methods of transformers that TRL inherits: how a run is saved and resumed.
RESUMING = {
    "_maybe_log_save_evaluate": "068f29bd532e",
    "_get_output_dir": "e0a60ec91cf6",
    "_push_from_checkpoint": "06d230c57503",
    "save_model": "3fece47109de",
    "create_model_card": "f34b8df559c7",
    "_save_rng_state": "b284b716e509",
    "_load_rng_state": "6787e15ed5d4",
    "_load_from_checkpoint": "3ceae24659dd",
    "_load_optimizer_and_scheduler": "574f91b51261",
    "evaluate": "3cfa04eb9ee9",
}
PINNED = {
    **{(Stock, name): digits for name, digits in OVERRIDDEN.items()},
    **{(Trainer, name): digits for name, digits in RESUMING.items()},
    # Not overridden, but the overrides rely on how TRL shuffles a generation batch and orders prompts.
    (Stock, "_generate"): "b8fffc35aae3",
    (Stock, "_tokenize_prompts"): "3176f24bb39a",
    (Utils, "shuffle_sequence_dict"): "9360e298941a",
    (Utils, "RepeatSampler"): "72b4c5fad94e",
}


@pytest.mark.parametrize(("owner", "name"), PINNED, ids=[name for _, name in PINNED])
def test_the_code_that_the_trainer_was_written_against_is_unchanged(owner, name):
    lines = inspect.getsource(inspect.unwrap(getattr(owner, name))).splitlines()
    code = [line for line in lines if line.strip() and not line.strip().startswith("#")]
    assert hashlib.sha256("\n".join(code).encode()).hexdigest()[:12] == PINNED[owner, name], (
        f"{name}, of TRL or transformers, is not what rloo_kit.train.trainer was written against. Read its diff, check "
        "the override's docstring against it, run tests/train/test_trainer.py, and put the new fingerprint here."
    )


def test_every_override_of_a_method_of_theirs_is_pinned_and_the_trainers_arguments_are_known():
    classes = [one for one in RLOOTrainer.__mro__ if one.__module__.startswith("rloo_kit.")]
    ours = {name for one in classes for name, value in vars(one).items() if inspect.isfunction(value)}
    assert (ours & set(vars(Stock))) - {"__init__"} == set(OVERRIDDEN)
    assert (ours & set(vars(Trainer))) - set(vars(Stock)) == {*RESUMING, "train"}
    theirs, own = (list(inspect.signature(one.__init__).parameters) for one in (Stock, RLOOTrainer))
    assert [*theirs, "kwargs"] == own


def test_a_reward_gets_the_keywords_that_guarded_expects_and_the_progress_lines_metrics_are_logged(make_trainer):
    seen: dict[str, list] = {}

    def reward(**kwargs: list) -> list[float]:
        seen.update(kwargs)
        return [0.0] * len(kwargs["completions"])

    trainer = make_trainer(reward_funcs=reward, beta=0.05)
    trainer.train()
    assert set(seen) == {*TRL_KEYWORDS, "answer", "problem"}
    assert all(type(token) is int for row in seen["completion_ids"] for token in row)
    logged = set(next(entry for entry in trainer.state.log_history if "reward" in entry))
    shown = {metric for _, metric, _, _ in callbacks.COLUMNS}
    also = {"grad_norm", "entropy", "frac_reward_zero_std", "num_tokens", "clip_ratio/region_mean"}
    assert shown | also <= logged


NOT_PUSHED = 'ignore_patterns=["_*", f"{PREFIX_CHECKPOINT_DIR}-*"]'
LINES = {
    # Overridden because resuming ignores an adapter that has subfolders beside it.  If this fails, the override can go.
    Trainer._load_from_checkpoint: ("if adapter_subdirs:", "for subdir_name in adapter_subdirs:"),
    # rloo_kit.train.trainer undoes this: the trained weights of a quantised model turn to bfloat16.
    Stock.__init__: ("if _is_quantized_model:", "param.data = param.data.to(torch.bfloat16)"),
    # rloo_kit.train.microbatches undoes this in row_weight.
    Trainer.training_step: ("loss = loss / self.current_gradient_accumulation_steps",),
    # rloo_kit.train.checkpoints writes all these files aside, and seals the checkpoint after the last one.
    Trainer._save_checkpoint: ("self.save_model", "_save_optimizer_and", "_save_rng", "TRAINER_STATE_NAME"),
    # The kit's own files in a run's folder begin with "_", so that they are not pushed to the hub.
    Trainer.push_to_hub: ("folder_path=self.args.output_dir", NOT_PUSHED),
    Trainer._push_from_checkpoint: ("folder_path=output_dir", NOT_PUSHED),
    # rloo_kit.train.finite_gradients reads gradients in that hook.
    Trainer: ("on_pre_optimizer_step", "self.optimizer.step()"),
    # rloo_kit.train.microbatches trims columns: masked tokens that remain must cost nothing.  And cpu_logprobs passes
    # labels that are shifted already, and a cache that must reach the backbone.
    Utils.add_fused_lm_head: (
        "backbone_attr)(*args, **kwargs)",
        "labels = shift_labels",
        "mask = labels != -100",
        "hidden_states[mask]",
    ),
    # The kit replaces generate in this method; all rows arrive as one left-padded batch.
    Stock._generate_single_turn: ('padding_side="left"', "unwrapped_model.generate(", "generation_config="),
    # rloo_kit.policy.generate.decode replaces the loop, with warpers, cache and stopping criteria.
    GenerationMixin.generate: (
        "decoding_method = custom_generate",
        "logits_processor=prepared_logits_processor",
        "stopping_criteria=prepared_stopping_criteria",
    ),
}


@pytest.mark.parametrize("code", LINES, ids=lambda code: code.__name__)
def test_lines_that_the_kit_relies_on_are_there_in_this_order(code):
    source, end = inspect.getsource(code), 0
    for line in LINES[code]:
        end = source.index(line, end)


def test_transformers_takes_a_variable_for_the_precision_where_none_is_set(monkeypatch, tmp_path):
    """So rloo_kit.train.config removes the variable meanwhile: a CPU would compute in bfloat16 under autocast."""
    monkeypatch.setenv(config.PRECISION, "bf16")
    plain = TrainingArguments(str(tmp_path), bf16=False, fp16=False, report_to="none")
    assert plain.mixed_precision == "bf16"
    assert '"mixed_precision": self.args.mixed_precision' in inspect.getsource(Trainer)
