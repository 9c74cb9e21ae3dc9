"""The catalogue's arithmetic, against transformers' own models on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rloo_kit.catalogue import (
    CATALOGUE,
    Card,
    card_from_config,
    find,
    largest_that_fits,
    nearest,
    thinks_by_template,
    training_bytes,
)

GIB = 2**30


def _config_of(card: Card) -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=card.vocabulary,
        hidden_size=card.hidden_size,
        intermediate_size=card.ffn_size,
        num_hidden_layers=card.layers,
        num_attention_heads=card.heads,
        num_key_value_heads=card.kv_heads,
        head_dim=card.head_dim,
        tie_word_embeddings=card.tied,
    )


@pytest.mark.parametrize("card", CATALOGUE.values(), ids=lambda card: card.name)
def test_the_parameter_count_is_that_of_the_model(card: Card) -> None:
    from transformers import Qwen3ForCausalLM

    with torch.device("meta"):
        model = Qwen3ForCausalLM(_config_of(card))
    assert sum(p.numel() for p in model.parameters()) == card.parameters


@pytest.mark.parametrize(
    ("name", "billions"),  # as the checkpoints' pages say
    [("qwen3-0.6b", 0.6), ("qwen3-1.7b", 1.7), ("qwen3-4b", 4.0), ("qwen3-8b", 8.2), ("qwen3-14b", 14.8)],
)
def test_the_sizes_are_the_published_ones(name: str, billions: float) -> None:
    assert CATALOGUE[name].parameters / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    "alias",
    ["qwen3-4b-thinking", "Qwen/Qwen3-4B-Thinking-2507", "unsloth/Qwen3-4B-Thinking-2507-unsloth-bnb-4bit"],
)
def test_any_name_of_a_checkpoint_finds_its_card(alias: str) -> None:
    card = find(alias)
    assert card is not None
    assert card.name == "qwen3-4b-thinking"


def test_a_name_of_something_else_finds_none_but_has_neighbours() -> None:
    assert find("meta-llama/Llama-3.2-1B") is None
    assert nearest("qwen3-8")[0] == "qwen3-8b"


@pytest.mark.parametrize(
    ("free_gib", "name"), [(2, "qwen3-0.6b"), (7.5, "qwen3-4b"), (11.5, "qwen3-8b"), (23, "qwen3-14b")]
)
def test_the_largest_that_fits_leaves_room_to_train(free_gib: float, name: str) -> None:
    card = largest_that_fits(int(free_gib * GIB))
    assert card.name == name
    if free_gib > 4:
        assert training_bytes(card) <= free_gib * GIB


def test_16_bit_weights_take_two_bytes_each() -> None:
    card = CATALOGUE["qwen3-1.7b"]
    assert card.weight_bytes(four_bit=False) == 2 * card.parameters


def test_a_card_is_read_off_an_unknown_checkpoint() -> None:
    known = CATALOGUE["qwen3-0.6b"]
    card = card_from_config("mine", _config_of(known), "{% if enable_thinking %}")
    assert card.parameters == known.parameters
    assert (card.name, card.thinks) == ("mine", "by choice")


@pytest.mark.parametrize(
    ("template", "thinks"),
    [
        ("{{- '<|im_start|>assistant\\n<think>\\n' }}", "always"),
        ("{%- if enable_thinking is defined %}", "by choice"),
        ("{{- '<|im_start|>assistant\\n' }}", "never"),
    ],
)
def test_the_template_tells_whether_a_policy_thinks(template: str, thinks: str) -> None:
    assert thinks_by_template(template) == thinks
