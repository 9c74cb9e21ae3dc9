"""What the kit relies on in unsloth 2026.10.9, so that an upgrade fails here first, with an explanation."""

import rloo_kit  # isort: skip - unsloth first

import inspect
import json
from pathlib import Path

import pytest
import unsloth
from unsloth import FastLanguageModel

# What unsloth's generated config sets on a GPU, and TRL's own default: the reason for RLOOConfig's defaults.
CHANGED_ON_A_GPU = {
    "per_device_train_batch_size": 4,
    "learning_rate": 5e-05,
    "warmup_steps": 0.1,
    "optim": "adamw_8bit",
    "weight_decay": 0.001,
    "gradient_accumulation_steps": 2,
    "torch_empty_cache_steps": 250,
    "logging_steps": 1,
    **dict.fromkeys(("bf16", "logging_nan_inf_filter", "include_num_input_tokens_seen"), False),
    "per_device_eval_batch_size": 4,
    "eval_accumulation_steps": 2,
    "seed": 3407,
    "num_generations": 8,
    "generation_kwargs": {},
}

GPU_PATH = """
import dataclasses, inspect, json
import unsloth, trl, torch, torch.nn.attention
stock = {item.name: item.default for item in dataclasses.fields(trl.RLOOConfig)}
unsloth.models.rl._patch_trl_rl_trainers_impl("rloo_trainer")
given = inspect.signature(trl.RLOOConfig.__init__).parameters
found = {
    "changed": {name: p.default for name, p in given.items() if name in stock and p.default != stock[name]},
    "arguments": sorted(inspect.signature(trl.RLOOTrainer.__init__).parameters),
    "name": trl.RLOOTrainer.__name__,
}

from unsloth.models import llama
found["generate"] = inspect.getsource(llama.unsloth_fast_generate)

from unsloth.models._attn_mask_compat import _prepare_4d_causal_attention_mask_for_sdpa
from unsloth.utils import attention_dispatch as dispatch

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
# torch's flash attention packs bfloat16 by what the processor has, and fails where ATEN_CPU_CAPABILITY allows less.
with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
    differs = (attended(additive(right)) - attended(None)).abs().amax((2, 3))
found["mask"] = {"read": float(differs[right.bool()].max()), "unread": float(differs[~right.bool()].max())}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def gpu_path(script, tmp_path_factory):
    """Facts about unsloth's GPU path, which its own switch UNSLOTH_ALLOW_CPU imports without a GPU."""
    folder = str(tmp_path_factory.mktemp("compiled"))
    printed = script(GPU_PATH, UNSLOTH_ALLOW_CPU="1", UNSLOTH_COMPILE_LOCATION=folder).stdout
    return json.loads(printed.splitlines()[-1])


def test_ours_sets_what_the_generated_config_changes_and_passes_known_arguments(gpu_path):
    assert gpu_path["changed"] == CHANGED_ON_A_GPU
    ours = set(rloo_kit.RLOOConfig.__annotations__) | {"bf16"}  # settled by rloo_kit.train.config
    assert set(CHANGED_ON_A_GPU) <= ours, "a notebook would mean two things"
    # rloo_kit.train.check_trainer_args._check_model knows the class by its name.
    assert gpu_path["name"].startswith("Unsloth")
    ours = {"model", "reward_funcs", "args", "train_dataset", "processing_class", "peft_config"}
    assert ours <= set(gpu_path["arguments"])


def test_the_mask_changes_nothing_that_is_read_where_padding_is_on_the_right_alone(gpu_path):
    """So the trainer leaves the mask out where all prompts have the same length."""
    assert gpu_path["mask"]["read"] == 0, "hidden by causal attention"
    assert gpu_path["mask"]["unread"] > 0, "the padding's own rows"


def test_a_generate_that_fails_on_a_gpu_leaves_the_model_sampling_and_its_buffers_where_they_are(gpu_path):
    """So ``rloo_kit.policy.generate`` restores both before a smaller slice.  If this fails, that may be needless."""
    source, end = gpu_path["generate"], 0
    restored = ("_decode_graphs.release_for_training(self)", "FastLlamaModel.for_training(")
    for line in ("FastLlamaModel.for_inference(self)", "finally:", "end_generation()", *restored):
        end = source.index(line, end)
    assert all(source.count(line) == 1 for line in restored), "not where an error passes"


def test_the_loader_takes_what_load_policy_passes_and_the_name_for_bfloat16_exists():
    loads = "model_name max_seq_length load_in_4bit use_gradient_checkpointing"
    adds = "r lora_alpha lora_dropout target_modules use_gradient_checkpointing random_state"
    for function, passed in {FastLanguageModel.from_pretrained: loads, FastLanguageModel.get_peft_model: adds}.items():
        assert set(passed.split()) <= set(inspect.signature(function).parameters)
    assert isinstance(unsloth.is_bfloat16_supported(), bool)


def test_a_policy_knows_its_length_and_both_modes(policy):
    assert isinstance(policy.model.max_seq_length, int), "data_checks.check_lengths asks for it"
    policy.model.for_inference()
    assert not policy.model.training
    policy.model.for_training()
    assert policy.model.training


LINES = (
    # Why rloo_kit.policy.policy.complete removes max_length.
    ("unsloth_zoo/tokenizer_utils.py", "model.generation_config.update(max_length"),
    # Why train.trainer.in_its_precision has no effect on a GPU: unsloth removes TRL's cast of the LoRA to bfloat16.
    ("unsloth/models/rl.py", '"if _is_quantized_model:",\n        "if False:",'),
    # Why UNSLOTH_BLOCK_COMPILE=0 leaves layers uncompiled (session/import_order.py).
    ("unsloth/models/_block_compile.py", 'os.environ.get("UNSLOTH_BLOCK_COMPILE", "1") != "0"'),
    # Why UNSLOTH_BNB_GEMM_4BIT=1 (session/import_order.py): products with few rows read 4-bit weights directly.
    ("unsloth/kernels/utils.py", 'os.environ.get("UNSLOTH_BNB_GEMM_4BIT") == "1"'),
    ("unsloth/kernels/utils.py", "_BNB_GEMM_4BIT_MAX_ROWS = 16"),
    ("unsloth/kernels/utils.py", "_BNB_GEMM_4BIT_ARCHS = {(7, 5)}"),
    ("unsloth/kernels/utils.py", "_GEMV_ROWS_BY_ARCH = {(7, 5): 4, (8, 0): 2, (8, 9): 4, (12, 0): 4}"),
    ("bitsandbytes/backends/cuda/ops.py", "def _gemm_4bit_use_custom_cuda(device_index, dtype, M, N, K):"),
    # The switch that policy.generate.decode_graphs turns on, so that evaluations sample as fast as a trainer.
    ("unsloth/models/llama.py", "graphs = _decode_graphs.enabled()"),
    ("unsloth/models/_decode_graphs.py", "def release_for_training(model):"),
    # Why policy.generate.head_in_one_product exists: lm_head is given a slice.
    ("unsloth/models/llama.py", "down = fast_linear_forward(self.down_proj, gate, out = up[:, :, :hd])"),
    ("unsloth/models/llama.py", "logits = self.lm_head(hidden_states.to(dtype))"),
    ("unsloth/models/llama.py", 'kwargs["cache_implementation"] = "dynamic"'),
    # Why benchmarks/gpu/plain.py takes autocast's rounding for a policy in float32: Unsloth switches it on.
    ("unsloth/models/rl.py", "args.bf16 = use_bf16_amp"),
    # Why benchmarks/gpu/plain.py stays in training mode: otherwise a CPU with AVX512-BF16 packs the weights.
    ("bitsandbytes/nn/modules.py", "and not self.training\n"),
    ("bitsandbytes/autograd/_functions.py", "result = F.gemv_4bit(A, B, out=out, state=quant_state)"),
)


@pytest.mark.parametrize(("file", "line"), LINES)
def test_lines_that_the_kit_answers_to_are_there(file, line):
    packages = Path(unsloth.__file__).parent.parent
    assert line in (packages / file).read_text()
