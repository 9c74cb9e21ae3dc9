"""What the kit relies on in unsloth 2026.10.9, so that an upgrade fails here first, in words."""

from __future__ import annotations

import rloo_kit  # isort: skip - unsloth first

import inspect
import json
from pathlib import Path
from typing import Any

import unsloth
from unsloth import FastLanguageModel

# What unsloth's generated config sets on a GPU, beside TRL's own default: the reason for RLOOConfig's defaults.
CHANGED_ON_A_GPU = {
    "per_device_train_batch_size": 4,
    "learning_rate": 5e-05,
    "warmup_steps": 0.1,
    "optim": "adamw_8bit",
    "weight_decay": 0.001,
    "gradient_accumulation_steps": 2,
    "bf16": False,
    "torch_empty_cache_steps": 250,
    "logging_steps": 1,
    "logging_nan_inf_filter": False,
    "include_num_input_tokens_seen": False,
    "per_device_eval_batch_size": 4,
    "eval_accumulation_steps": 2,
    "seed": 3407,
    "num_generations": 8,
    "generation_kwargs": {},
}

CHANGES = """
import os, sys
os.environ["UNSLOTH_ALLOW_CPU"] = "1"
os.environ["UNSLOTH_COMPILE_LOCATION"] = sys.argv[1]
import dataclasses, inspect, json
import unsloth, trl
stock = {item.name: item.default for item in dataclasses.fields(trl.RLOOConfig)}
unsloth.models.rl._patch_trl_rl_trainers_impl("rloo_trainer")
given = inspect.signature(trl.RLOOConfig.__init__).parameters
changed = {name: p.default for name, p in given.items() if name in stock and p.default != stock[name]}
trainer = inspect.signature(trl.RLOOTrainer.__init__).parameters
print(json.dumps([changed, sorted(trainer), trl.RLOOTrainer.__name__]))
"""


def test_the_defaults_that_the_generated_config_changes_are_all_set_by_ours(
    script: Any, tmp_path: Path
) -> None:
    changed, arguments, name = json.loads(script(CHANGES, str(tmp_path)).stdout.splitlines()[-1])
    assert changed == CHANGED_ON_A_GPU
    settled_otherwise = {"bf16"}  # rloo_kit.train.config._precision
    ours = set(rloo_kit.RLOOConfig.__annotations__)
    assert set(changed) <= ours | settled_otherwise, "a notebook would mean two things"
    assert name.startswith("Unsloth"), (
        "rloo_kit.train.trainer._check_model knows the generated class by its name"
    )
    assert {"model", "reward_funcs", "args", "train_dataset", "processing_class", "peft_config"} <= set(
        arguments
    )


def test_the_loader_takes_what_load_policy_passes() -> None:
    loading = inspect.signature(FastLanguageModel.from_pretrained).parameters
    assert {"model_name", "max_seq_length", "load_in_4bit", "use_gradient_checkpointing"} <= set(loading)
    adapting = inspect.signature(FastLanguageModel.get_peft_model).parameters
    assert {
        "r",
        "lora_alpha",
        "lora_dropout",
        "target_modules",
        "use_gradient_checkpointing",
        "random_state",
    } <= set(adapting)


def test_a_policy_knows_its_length_and_both_modes(policy: Any) -> None:
    assert isinstance(policy.model.max_seq_length, int), "guards.check_lengths asks for it"
    policy.model.for_inference()
    assert not policy.model.training
    policy.model.for_training()
    assert policy.model.training


def test_the_name_for_bfloat16_exists_on_this_device_too() -> None:
    assert isinstance(unsloth.is_bfloat16_supported(), bool)


MASKED = """
import os, sys
os.environ["UNSLOTH_ALLOW_CPU"] = "1"
os.environ["UNSLOTH_COMPILE_LOCATION"] = sys.argv[1]
import json
import unsloth, torch
from unsloth.models._attn_mask_compat import _prepare_4d_causal_attention_mask_for_sdpa
from unsloth.utils import attention_dispatch as dispatch
from rloo_kit.memory.meter import TensorGauge

ROWS, LONG, HEADS, WIDTH = 3, 256, 4, 8
draw = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(ROWS, HEADS, LONG, WIDTH, generator=draw).bfloat16() for _ in range(3))

def attended(mask):
    config = dispatch.AttentionConfig(
        backend=dispatch.SDPA, n_kv_heads=HEADS, n_groups=1,
        flash_dense_kwargs={"causal": True}, flash_varlen_kwargs={})
    context = dispatch.AttentionContext(
        bsz=ROWS, q_len=LONG, kv_seq_len=LONG, n_heads=HEADS, head_dim=WIDTH, requires_grad=True, seq_info=None,
        training=True, attention_mask=mask, causal_mask=None, prefix_seg_info=None)
    return dispatch.run_attention(config=config, context=context, Q=q, K=k, V=v)

def additive(padded):
    states = torch.zeros(ROWS, LONG, HEADS * WIDTH, dtype=torch.bfloat16)
    return _prepare_4d_causal_attention_mask_for_sdpa(padded, (ROWS, LONG), states, 0, sliding_window=None)

right = torch.ones(ROWS, LONG, dtype=torch.long)
right[:, -7:] = 0
right[0, -50:] = 0
differs = (attended(additive(right)) - attended(None)).abs().amax((2, 3))

left = torch.ones(ROWS, LONG, dtype=torch.long)
left[0, :5] = 0
mask = additive(left)
torch.nn.functional.scaled_dot_product_attention = lambda q, *args, **kwargs: q
gauge = TensorGauge([q, k, v])
with gauge:
    attended(mask)
beside = gauge.peak_bytes - gauge.live_bytes
pairs = ROWS * LONG * LONG
print(json.dumps([mask.nbytes / pairs, beside / pairs,
                  float(differs[right.bool()].max()), float(differs[~right.bool()].max())]))
"""


def test_the_mask_is_four_bytes_a_pair_of_tokens_and_says_nothing_where_no_prompt_is_padded(
    script: Any, tmp_path: Path
) -> None:
    """Which ``footprint.Step.mask`` plans, and which lets the trainer drop it where all prompts are of one length."""
    additive, beside, read, unread = json.loads(script(MASKED, str(tmp_path)).stdout.splitlines()[-1])
    assert additive == 2
    assert 1.9 < beside < 2.1, "two bool copies"
    assert read == 0, "padding on the right is hidden by causal attention"
    assert unread > 0, "the padding's own rows, which are never read"
