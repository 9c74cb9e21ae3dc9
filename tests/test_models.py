"""The catalogue, against transformers' models on the meta device, bitsandbytes, and the bundled tokenizer."""

import pytest
import torch

from benchmarks.gpu.memory import config_of
from rewards.thinking import CLOSE, OPEN, QWEN3
from rloo_kit import models
from rloo_kit.models import CATALOGUE, EOS_TEXTS, find, nearest, nf4_bytes


@pytest.mark.parametrize("card", CATALOGUE.values(), ids=lambda card: card.name)
def test_parameters_and_projections_are_those_of_the_model(card):
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(card))
    assert sum(p.numel() for p in model.parameters()) == card.parameters
    layer = model.model.layers[0].named_parameters()
    assert {name.split(".")[-2]: tuple(p.shape) for name, p in layer if "_proj" in name} == card.projections
    assert card.weight_bytes(four_bit=False) == 2 * card.parameters
    assert not models.checkpoint_from_config("x", model.config, None).uncounted


def test_the_sizes_are_the_published_ones():
    qwen3 = {"0.6b": 0.6, "1.7b": 1.7, "4b": 4.0, "8b": 8.2, "14b": 14.8}  # billions, from the checkpoints' pages
    published = {f"qwen3-{size}": billions for size, billions in qwen3.items()} | {"smollm2-135m": 0.135}
    for name, billions in published.items():
        assert CATALOGUE[name].parameters / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    "alias", ["qwen3-4b-thinking", "Qwen/Qwen3-4B-Thinking-2507", "unsloth/Qwen3-4B-Thinking-2507-unsloth-bnb-4bit"]
)
def test_any_name_of_a_checkpoint_finds_it_and_that_of_something_else_has_neighbours(alias):
    assert find(alias) is CATALOGUE["qwen3-4b-thinking"]
    assert find("meta-llama/Llama-3.2-1B") is find("None") is None
    assert nearest("qwen3-8")[0] == "qwen3-8b"


@pytest.mark.parametrize("shape", [(256, 64), (257, 64), (33, 1)])
def test_a_4_bit_matrix_takes_the_bytes_that_bitsandbytes_stores(shape):
    """For exactly one block of 256 scales, for one more scale, and for an odd number of weights."""
    from bitsandbytes.functional import quantize_4bit

    packed, state = quantize_4bit(torch.randn(shape), quant_type="nf4", compress_statistics=True)
    stored = [packed, state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code]
    assert nf4_bytes(shape[0] * shape[1]) == sum(tensor.nbytes for tensor in stored)


def test_a_shape_is_read_off_an_unknown_checkpoint():
    known = CATALOGUE["qwen3-0.6b"]
    card = models.checkpoint_from_config("mine", config_of(known), "{% if enable_thinking %}")
    assert (card.name, card.thinks, card.parameters) == ("mine", "by choice", known.parameters)


@pytest.mark.parametrize(
    ("template", "thinks"),
    [
        ("{{- '<|im_start|>assistant\\n<think>\\n' }}", "always"),
        ("{%- if enable_thinking is defined %}", "by choice"),
        ("{{- '<|im_start|>assistant\\n' }}", "never"),
    ],
)
def test_the_template_tells_whether_a_policy_thinks(template, thinks):
    assert models.thinks_by_template(template) == thinks


def test_token_ids_and_texts_are_those_of_the_bundled_tokenizer(policy):
    ids, texts = [*EOS_TEXTS, QWEN3.open_id, QWEN3.close_id], [*EOS_TEXTS.values(), OPEN, CLOSE]
    assert policy.tokenizer.convert_ids_to_tokens(ids) == texts
    assert policy.tokenizer.eos_token == models.END_OF_TURN
    assert set(models.PADS) <= set(policy.tokenizer.get_vocab())
