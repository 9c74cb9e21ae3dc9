"""What a step asks of a GPU: the counter, the formulas beside the committed count, and the switches that were
chosen."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bitsandbytes
import pytest
import torch

import rloo_kit
from benchmarks.pretended.counter import Counter
from benchmarks.pretended.launched import LAUNCHED
from benchmarks.pretended.work import Work
from rloo_kit.memory.traffic import Traffic

ROOT = Path(__file__).resolve().parent.parent
COUNTED = json.loads((ROOT / "benchmarks" / "results" / "traffic.json").read_text())
ON_THE_GPU_PATH = {"PYTHONPATH": f"{ROOT}:{ROOT / '.triton'}"}
needs_triton = pytest.mark.skipif(
    not (ROOT / ".triton").is_dir(), reason="Triton is not beside the environment"
)


def counted(run: Any, cache_bytes: float = 0) -> Work:
    with Counter("cpu", cache_bytes) as counter:
        run()
    return counter.work


a, b, half = torch.zeros(3, 5), torch.zeros(5, 7), torch.zeros(4, 6, dtype=torch.float16)
rows, shared = torch.zeros(3, 1, 5), torch.zeros(5, 7).expand(3, 5, 7)


@pytest.mark.parametrize(
    ("what", "run", "read", "written", "flops"),
    [
        ("a product", lambda: a @ b, 4 * (15 + 35), 4 * 21, 2 * 3 * 5 * 7),
        ("added in place", lambda: half.add_(half + 1), 2 * 24 * 3, 2 * 24 * 2, 2 * 24),
        ("a product added in place", lambda: torch.zeros(3, 7).addmm_(a, b), 4 * 71, 4 * 42, 210 + 21),
        ("a copy to another type", lambda: half.float(), 2 * 24, 4 * 24, 24),
        ("views are free", lambda: a.t()[1:].unsqueeze(0).expand(9, -1, -1), 0, 0, 0),
        ("a row repeated is read once", lambda: a[:1].expand(8, 5) + 1.0, 4 * 5, 4 * 40, 40),
        ("rows of a table", lambda: b[torch.tensor([1, 1])], 4 * 14 + 16, 4 * 14, 14),
        ("an out= is only written", lambda: torch.mm(a, b, out=torch.empty(3, 7)), 4 * 50, 4 * 21, 210),
    ],
)  # fmt: skip
def test_an_operator_is_counted_by_what_it_reads_writes_and_computes(
    what: str, run: Any, read: int, written: int, flops: int
) -> None:
    found = counted(run)
    assert (found.read, found.written, found.flops) == (read, written, flops), what


@pytest.mark.parametrize(("cache_bytes", "times"), [(1000, 1), (100, 3)])
def test_a_factor_that_a_batch_shares_is_read_again_unless_the_cache_holds_it(
    cache_bytes: int, times: int
) -> None:
    assert counted(lambda: torch.bmm(rows, shared), cache_bytes).read == 4 * (15 + 35 * times)


def test_torch_multiplies_a_slice_of_a_wider_buffer_row_by_row_and_its_copy_at_once() -> None:
    """The reason for ``head_in_one_product``: rows as unsloth's decoding leaves them, seen in this torch."""
    rows_apart = torch.zeros(3, 9)[:, :5].view(3, 1, 5)
    for given, product in ((rows_apart, "aten.bmm"), (rows_apart.contiguous(), "aten.mm")):
        with Counter("cpu") as counter:
            torch.nn.functional.linear(given, b.t())
        assert product in counter.kernels


def test_a_matrix_made_of_four_bits_reads_half_a_byte_a_weight_and_its_scales() -> None:
    packed, state = bitsandbytes.functional.quantize_4bit(torch.randn(64, 64), quant_type="nf4", blocksize=64)
    given = (packed, state.absmax, 64, "nf4", [64, 64], torch.float16)
    found = counted(lambda: torch.ops.bitsandbytes.dequantize_4bit(*given))
    assert (found.read, found.written, found.kernels) == (64 * 64 // 2 + 4 * 64, 2 * 64 * 64, 1)
    names = ("W_ptr", "absmax_ptr", "code2_ptr", "absmax2_ptr", "lut_ptr", "out_ptr", "offset_ptr")
    empty = [torch.zeros(n, dtype=torch.uint8) for n in (2048, 64)] + [torch.zeros(n) for n in (256, 1, 16)]
    launch = dict(zip(names, [*empty, torch.zeros(64, 64).half(), torch.zeros(99)], strict=True))
    found = LAUNCHED["_nf4_dequant_kernel"](launch)
    assert (found.read, found.written) == (2048 + 64 + 4 * (256 + 1 + 16), 2 * 64 * 64), (
        "Unsloth's own kernel"
    )


# --- the formulas -------------------------------------------------------------------------------------------

SHARE = 0.10
"""How far a phase's formula may be from the count, in bytes and in operations."""
STEPS = [(shape, case) for shape, found in COUNTED["rtx 3090"].items() for case in found["steps"]]


@pytest.mark.parametrize(("shape", "case"), STEPS)
def test_the_formulas_that_plan_uses_agree_with_the_count(shape: str, case: str) -> None:
    k, length = (int(word) for word in case.replace(",", "").split() if word.isdigit())
    given = {"num_generations": k, "per_device_train_batch_size": k, "max_completion_length": length}
    config = SimpleNamespace(
        **given, gradient_accumulation_steps=max(1, 8 // k), beta=0.05, single_pass=True, fast_sampling=True
    )
    plan = rloo_kit.plan(shape, config, "rtx 3090", prompt_tokens=256)
    trace = COUNTED["rtx 3090"][shape]["steps"][case]["kit"]
    for phase, load in Traffic(plan.model, plan.settings).phases().items():
        found, completions = trace[phase], plan.settings.sampled_rows
        if phase != "optimizer":
            assert load.flops / completions == pytest.approx(found["flops"], rel=SHARE), phase
        if phase != "optimizer" or plan.settings.optimizer == "adamw_torch_fused":
            moved = load.bytes / completions
            assert moved == pytest.approx(found["read"] + found["written"], rel=SHARE), phase


def test_the_kit_moves_at_most_half_of_the_usual_recipes_bytes() -> None:
    for shape, case in STEPS:
        made = COUNTED["rtx 3090"][shape]["steps"][case]
        usual, kit = (
            sum(work["read"] + work["written"] for work in made[how].values()) for how in ("usual", "kit")
        )
        assert kit <= usual / 2, (shape, case)


def test_a_token_step_of_the_trace_is_a_line_in_the_caches_length() -> None:
    assert COUNTED["rtx 3090"]["qwen3-1.7b"]["line / trace at 768"] == pytest.approx(1, rel=1e-3)


# --- the switches, on Unsloth's GPU path ---------------------------------------------------------------------

TRACED = """
from benchmarks import pretended
pretended.start("rtx 3090", target="meta")
import contextlib, json
from benchmarks.pretended import shapes
from benchmarks.pretended.passes import Passes, switched, whole
from rloo_kit.policy.sampling import head_in_one_product
passes = Passes("rtx 3090")
policy = shapes.load("tiny")
passes.of(policy)
found = {}
for name, variables, one in (("neither", {}, False), ("both", {"UNSLOTH_BNB_GEMM_4BIT": "1"}, True)):
    in_order = head_in_one_product(policy.model) if one else contextlib.nullcontext()
    with switched(variables), in_order:
        token = passes.generate(8, 64)[1]
    found[name] = [whole(token).bytes, token.get("aten.bmm") is not None, "bitsandbytes.gemm_4bit" in token]
print(json.dumps(found))
"""


@needs_triton
@pytest.mark.long
@pytest.mark.training
def test_with_both_switches_a_token_reads_each_weight_once_in_four_bits(script: Any) -> None:
    found = json.loads(script(TRACED, **ON_THE_GPU_PATH).stdout.splitlines()[-1])
    plan = rloo_kit.plan("tiny", SimpleNamespace(num_generations=8), "rtx 3090", prompt_tokens=64)
    assert [flags for _, *flags in found.values()] == [[True, False], [False, True]]
    assert found["both"][0] == pytest.approx(Traffic(plan.model, plan.settings).token(65).bytes, rel=SHARE)
    assert found["neither"][0] > 3 * found["both"][0]


GREEDY = """
from benchmarks import pretended
pretended.start("rtx 3090")
import contextlib, json
import rloo_kit, bitsandbytes, torch
policy = rloo_kit.load_policy("tiny", seed=0)
from benchmarks.pretended.passes import switched
from rloo_kit.policy import sampling
calls, products = [], []
fused, product = bitsandbytes.matmul_4bit, torch.nn.functional.linear
bitsandbytes.matmul_4bit = lambda *args, **kwargs: calls.append(1) or fused(*args, **kwargs)
head = policy.model.get_output_embeddings()
head.register_forward_hook(lambda module, given, out: products.append(given[0].is_contiguous()))
prompts = [[{"role": "user", "content": f"What is {n} + {n + 3}?"}] for n in (1, 13)]
found, one = {}, sampling.head_in_one_product
for name, variable, in_order in (("neither", "0", False), ("both", "1", True)):
    sampling.head_in_one_product = one if in_order else lambda model: contextlib.nullcontext()
    calls.clear(), products.clear()
    with switched({"UNSLOTH_BNB_GEMM_4BIT": variable}):
        made = policy.generate(prompts, greedy=True, max_new_tokens=4)
    found[name] = [[list(c.ids) for c in made], bool(calls), all(products)]
print(json.dumps(found))
"""


@needs_triton
@pytest.mark.training
def test_with_and_without_the_switches_the_most_probable_tokens_are_the_same(script: Any) -> None:
    """By bitsandbytes' operator for the CPU: Unsloth's way to it, and not the GPU's kernel."""
    found = json.loads(script(GREEDY, **ON_THE_GPU_PATH).stdout.splitlines()[-1])
    assert found["both"][0] == found["neither"][0]
    assert [found[name][1:] for name in ("neither", "both")] == [[False, False], [True, True]]
