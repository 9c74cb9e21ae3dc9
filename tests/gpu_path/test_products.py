"""Products with one token per row, as the kit has Unsloth decode: lm_head in one, and 4-bit weights directly."""

import json

import pytest

from tests.conftest import ROOT

GREEDY = """
from benchmarks import pretended
pretended.start("rtx 3090")
import contextlib, json, os
import rloo_kit, bitsandbytes, torch
policy = rloo_kit.load_policy("tiny", seed=0)
import unsloth.kernels.utils as kernels
from rloo_kit.policy import policy as module
calls, products = [], []
fused, product = bitsandbytes.matmul_4bit, torch.nn.functional.linear
bitsandbytes.matmul_4bit = lambda *args, **kwargs: calls.append(1) or fused(*args, **kwargs)
head = policy.model.get_output_embeddings()
head.register_forward_hook(lambda module, given, out: products.append(given[0].is_contiguous()))
prompts = [[{"role": "user", "content": f"What is {n} + {n + 3}?"}] for n in (1, 13)]
found, one = {}, module.head_in_one_product
for name, variable, in_order in (("neither", "0", False), ("both", "1", True)):
    module.head_in_one_product = one if in_order else lambda model: contextlib.nullcontext()
    calls.clear(), products.clear()
    # Read anew, as if it had been set before unsloth was imported.
    os.environ["UNSLOTH_BNB_GEMM_4BIT"] = variable
    kernels._BNB_GEMM_4BIT_DEVICE.clear()
    kernels._BNB_GEMM_4BIT, kernels._BNB_GEMM_4BIT_DTYPES = None, (torch.float16,)
    made = policy.generate(prompts, greedy=True, max_new_tokens=4)
    found[name] = [[list(c.ids) for c in made], bool(calls), all(products)]
made, dequantize = [], kernels.fast_dequantize
def counted(weight, state=None, *args, **how):
    made.append(1) if state is not None else None
    return dequantize(weight, state, *args, **how)
kernels.fast_dequantize = counted
own = [(layer, layer._parameters.get("weight")) for layer in policy.model.modules()]
quantised = [(layer, weight) for layer, weight in own if getattr(weight, "quant_state", None) is not None]
os.environ["UNSLOTH_BNB_GEMM_4BIT"] = "0"
kernels._BNB_GEMM_4BIT_DEVICE.clear()
kernels._BNB_GEMM_4BIT = None
for name, fits in (("made", False), ("held", True)):
    module.dequantize_for_sampling.bytes_in_16_bit = lambda model: 1 if fits else 0
    made.clear()
    ids = [list(c.ids) for c in policy.generate(prompts, n=3, greedy=True, max_new_tokens=4)]
    found[name] = [ids, len(made) / len(quantised), all(layer.weight is weight for layer, weight in quantised)]
partial = rloo_kit.load_policy("tiny", seed=0, target_modules=["q_proj", "v_proj"])
found["partial"] = []
for fits in (False, True):
    module.dequantize_for_sampling.bytes_in_16_bit = lambda model: 1 if fits else 0
    found["partial"].append([list(c.ids) for c in partial.generate(prompts, n=3, greedy=True, max_new_tokens=4)])
try:
    with module.dequantize_for_sampling.in_16_bit(policy.model):
        found["whole"] = {layer._parameters["weight"].dtype for layer, _ in quantised} == {policy.model.dtype}
        raise KeyboardInterrupt
except KeyboardInterrupt:
    found["put back"] = all(layer.weight is weight for layer, weight in quantised)
policy.tokenizer.chat_template = "{#- thinking_budget=2 -#}" + policy.tokenizer.chat_template
from unsloth.models import _decode_graphs
by_graphs = []
head.register_forward_hook(lambda *given: by_graphs.append(_decode_graphs.enabled()))
found["budget"] = [list(c.ids[:4]) for c in policy.generate(prompts, greedy=True, max_new_tokens=6)]
found["by graphs"] = [all(by_graphs), _decode_graphs.enabled()]
print(json.dumps(found))
"""


@pytest.mark.training
@pytest.mark.skipif(not (ROOT / ".triton").is_dir(), reason="make test puts Triton into .triton, on Linux")
def test_with_and_without_the_switches_the_most_probable_tokens_are_the_same(script):
    """Runs bitsandbytes' operator for the CPU: this tests Unsloth's path to it, not the GPU's kernel."""
    found = json.loads(script(GREEDY, PYTHONPATH=f"{ROOT}:{ROOT / '.triton'}").stdout.splitlines()[-1])
    assert found["both"][0] == found["neither"][0]
    assert [found[name][1:] for name in ("neither", "both")] == [[False, False], [True, True]]
    for free, budgeted in zip(found["neither"][0], found["budget"], strict=True):
        assert budgeted == [*free[:3], 151668], "unsloth's generate closes the thought after two tokens"
        assert free[0] == 151667 != free[3] - 1
    assert found["by graphs"] == [True, False]
    assert found["partial"][0] == found["partial"][1], "layers without a LoRA go through bitsandbytes' own module"
    assert found["whole"], "in the policy's own type"
    assert found["put back"], "whatever ends it"
    assert found["held"][0] == found["made"][0]
    # Matrices are made at the prompt and after each of three tokens, or once if they are held.
    assert [found[name][1:] for name in ("made", "held")] == [[4, True], [1, True]], "matrices made in 16 bit, of each"
