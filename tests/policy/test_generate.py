"""Sampling has the distribution of transformers: with less work, in slices, and after memory ran out."""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from rloo_kit.errors import NonFiniteError
from rloo_kit.policy import dequantize_for_sampling, generate
from rloo_kit.policy.generate import BLOCK, SlicedGenerate, decode, draw


def assert_follows(counts: torch.Tensor, probabilities: torch.Tensor) -> None:
    """Check that counts of independent draws fit the probabilities, and that nothing impossible was drawn."""
    assert counts[probabilities == 0].sum() == 0
    expected = probabilities.double() * counts.sum()
    common = expected >= 5
    statistic = ((counts - expected)[common] ** 2 / expected[common]).sum().item()
    # The 0.9999 quantile of chi-square, Wilson and Hilferty's approximation.
    freedom = max(1, int(common.sum()) - 1)
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize("vocabulary", [2 * BLOCK, 5 * BLOCK + 2, 151_936])
def test_each_uniform_number_gives_its_own_quantile_the_smallest_and_largest_too(vocabulary, monkeypatch):
    """Half of the mass is in the last block, and none in the first entries."""
    monkeypatch.setattr(generate, "DRAWN_AT_ONCE", 2 * BLOCK)
    numbers = torch.cat([torch.arange(64).add(0.5) / 64, torch.tensor([0.0, 1.0])]).double()
    monkeypatch.setattr(torch, "rand", lambda *shape, **how: numbers.view(-1, 1))
    scores = torch.randn(vocabulary)
    scores[-BLOCK:] += scores.logsumexp(0) - scores[-BLOCK:].logsumexp(0)
    scores[:3], scores[-5:] = -torch.inf, -torch.inf
    drawn = draw(scores.expand(len(numbers), -1))
    chances = scores.double().softmax(0)
    edges, slack = chances.cumsum(0), 1e-6  # the blocks are summed in float32
    assert (chances[drawn] > 0).all()
    assert (edges[drawn] > numbers - slack).all()
    assert (torch.where(drawn > 0, edges[drawn - 1], 0.0) <= numbers + slack).all()


@pytest.mark.parametrize("bad", [[0.0, torch.nan], [0.0, torch.inf], [-torch.inf, -torch.inf]])
def test_scores_that_are_no_distribution_are_an_error(bad):
    with pytest.raises(NonFiniteError, match=r"(?s)logits are not finite.*1 of 2 completions"):
        draw(torch.tensor([[0.0, 0.0], bad]))


# A policy so small that every completion can be enumerated.
WORDS, EOS, NOTHING = 7, 3, 6  # NOTHING is the pad, which the policy may also sample


@pytest.fixture(scope="module")
def small() -> Any:
    """A Qwen3 of 7 tokens with random weights, its logits spread so that no token is sure."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "head_dim": 8}
    counts = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen3Config(vocab_size=WORDS, tie_word_embeddings=False, **sizes, **counts)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Qwen3ForCausalLM(config).eval().float()
        for parameter in model.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.6)
    return model


def complete(model: Any, prompts: list[list[int]], **how: Any) -> torch.Tensor:
    """Return sequences (rows, prompt + completion) by generate."""
    how = {"eos_token_id": EOS, "pad_token_id": NOTHING, "do_sample": True, "top_k": 0, **how}
    missing = [max(map(len, prompts)) - len(prompt) for prompt in prompts]
    ids = torch.tensor([[NOTHING] * n + prompt for n, prompt in zip(missing, prompts, strict=True)])
    mask = torch.tensor([[0] * n + [1] * len(prompt) for n, prompt in zip(missing, prompts, strict=True)])
    with torch.no_grad():
        return model.generate(input_ids=ids, attention_mask=mask, **how)


PROMPTS = [[1, 2, 5, 0, 4], [2], [4, 4, 1]]


def chance_of_each(model: Any, prompt: list[int], length: int) -> dict[tuple[int, ...], float]:
    """Return the probability of each completion of up to ``length`` tokens, by the model without a cache."""
    chances: dict[tuple[int, ...], float] = {}
    open_ones: dict[tuple[int, ...], float] = {(): 1.0}
    for step in range(length):
        starts, open_ones = open_ones, {}
        with torch.no_grad():
            ids = torch.tensor([[*prompt, *start] for start in starts])
            following = model(input_ids=ids).logits[:, -1].double().softmax(1)
        for (start, chance), row in zip(starts.items(), following.tolist(), strict=True):
            for token, next_chance in enumerate(row):
                ended = token == EOS or step + 1 == length
                (chances if ended else open_ones)[(*start, token)] = chance * next_chance
    return chances


def test_whole_completions_come_as_often_as_the_policy_says(small):
    """Prompts and completions have mixed lengths: each of the 259 completions has its own probability."""
    torch.manual_seed(0)
    length, rows, times = 3, 500, 16
    seen: list[Counter[tuple[int, ...]]] = [Counter() for _ in PROMPTS]
    for _ in range(times):
        output = complete(small, PROMPTS * rows, max_new_tokens=length, custom_generate=decode)
        for index, row in enumerate(output[:, 5:].tolist()):
            end = row.index(EOS) + 1 if EOS in row else length
            assert row[end:] == [NOTHING] * (length - end), "padded on the right"
            seen[index % len(PROMPTS)][tuple(row[:end])] += 1
    for prompt, counts in zip(PROMPTS, seen, strict=True):
        chances = chance_of_each(small, prompt, length)
        assert set(counts) <= set(chances)
        assert_follows(torch.tensor([counts[c] for c in chances]), torch.tensor([*chances.values()]))


def test_the_settings_of_sampling_change_the_scores_as_in_transformers(small, monkeypatch):
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(generate, "draw", lambda scores: seen.append(scores) or scores.argmax(-1))
    settings = {"temperature": 1.3, "top_k": 5, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 0.7}
    returned = {"output_scores": True, "return_dict_in_generate": True}
    for how in (*({name: value} for name, value in settings.items()), settings):
        complete(small, PROMPTS, max_new_tokens=1, custom_generate=decode, **how)
        theirs: Any = complete(small, PROMPTS, max_new_tokens=1, **returned, **how)
        assert torch.equal(seen[-1], theirs.scores[0]), how


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"eos_token_id": [0, 1, 2, 3]}, "several tokens end a completion, rows end at different ones"),
        ({"eos_token_id": list(range(WORDS))}, "all end at once"),
        ({"eos_token_id": None}, "none ever ends"),
        ({"min_new_tokens": 4}, "none may end before"),
        ({"repetition_penalty": 1.5}, "earlier tokens weigh, also after rows have gone"),
        ({"pad_token_id": EOS}, "padded with the token that ends"),
        ({"num_return_sequences": 3, "do_sample": True, "top_k": 1}, "a prompt's rows share its pass"),
        ({"use_cache": False, "disable_compile": True}, "no cache to drop rows from"),
        ({"cache_implementation": "static", "disable_compile": True}, "a cache that cannot drop rows"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_greedy_search_is_that_of_transformers_token_for_token(small, how, why):
    generator = torch.Generator().manual_seed(4)
    lengths = [*range(1, 7)] * 4
    prompts = [torch.randint(0, WORDS, (length,), generator=generator).tolist() for length in lengths]
    settings = {"max_new_tokens": 12, "do_sample": False} | how
    expected = complete(small, prompts, **settings)
    assert torch.equal(complete(small, prompts, custom_generate=decode, **settings), expected), why


def test_a_prompt_is_computed_once_and_a_row_that_has_ended_not_again(small):
    torch.manual_seed(0)
    rows: list[int] = []

    def count(_module: Any, _args: Any, kwargs: Any) -> None:
        rows.append(len(kwargs["input_ids"]))

    hook = small.register_forward_pre_hook(count, with_kwargs=True)
    output = complete(small, PROMPTS * 5, max_new_tokens=8, custom_generate=decode)
    hook.remove()
    lengths = [row.index(EOS) + 1 if EOS in row else 8 for row in output[:, 5:].tolist()]
    going = [sum(length > step for length in lengths) for step in range(1, max(lengths))]
    assert rows == [len(PROMPTS), *going]
    assert len(set(lengths)) > 2, "the test has completions of several lengths"


@pytest.mark.parametrize(
    ("settings", "ours"), [({"top_k": 20}, True), ({"generation_kwargs": {"suppress_tokens": [7]}}, False)]
)
def test_the_trainer_uses_this_decoding_but_with_further_settings(make_trainer, monkeypatch, settings, ours):
    calls = []
    monkeypatch.setattr(generate, "decode", lambda *args, **how: calls.append(how) or decode(*args, **how))
    make_trainer(**settings)._generate_single_turn([[17, 18], [19]] * 2, None, {})
    assert bool(calls) is ours


# --- slices -----------------------------------------------------------------------------------------------


class Short:
    """Gives each row its own last token three times; runs out of memory with more than ``room`` rows.  A failure leaves
    it in inference mode, like unsloth's model on a GPU."""

    def __init__(self, room: int, error: Exception) -> None:
        self.room, self.error, self.training = room, error, True
        self.sizes: list[tuple[int, int]] = []

    def for_training(self) -> None:
        self.training = True

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        self.sizes.append(tuple(input_ids.shape))
        assert attention_mask[:, -1].all(), "padded on the left"
        if len(input_ids) > self.room:
            self.training = False
            raise self.error
        return torch.cat([input_ids, input_ids[:, -1:].expand(-1, 3)], 1)


RAN_OUT = torch.OutOfMemoryError("CUDA out of memory.")
LONG, SHORT = [1, 2, 3], [4]


def sampled(model: Short, prompts: list[list[int]], at_once: int, **how: Any) -> tuple[torch.Tensor, SlicedGenerate]:
    width = max(map(len, prompts))
    ids = torch.tensor([[NOTHING] * (width - len(prompt)) + prompt for prompt in prompts])
    sliced = SlicedGenerate(model, at_once, NOTHING, fast=False, **how)
    return sliced(input_ids=ids, attention_mask=(ids != NOTHING).long())[:, width:], sliced


def test_where_memory_runs_out_a_slice_is_halved_for_good_and_sampled_anew():
    model = Short(3, RAN_OUT)
    completions, sliced = sampled(model, [SHORT] * 8 + [LONG] * 4, at_once=12)
    assert completions.tolist() == [[4] * 3] * 8 + [[3] * 3] * 4, "each row has its own"
    assert (sliced.at_once, model.training) == (3, True)
    assert model.sizes == [(12, 3), (6, 3), (3, 3), (3, 3), (3, 1), (3, 1)], "rows and width, the longest first"


def test_weights_in_16_bit_go_before_rows_do(monkeypatch):
    model, held = Short(10, RAN_OUT), list[int]()

    @contextmanager
    def in_16_bit(of: Short) -> Iterator[None]:
        held.append(len(of.sizes))
        yield

    monkeypatch.setattr(dequantize_for_sampling, "in_16_bit", in_16_bit)
    completions, sliced = sampled(model, [SHORT] * 20, at_once=20, in_16_bit=True)
    assert completions.tolist() == [[4] * 3] * 20
    assert [rows for rows, _ in model.sizes] == [20, 20, 10, 10]
    assert (held, sliced.in_16_bit) == ([0], False), "in the first attempt alone"


def test_one_row_that_does_not_fit_is_the_error_itself_and_another_error_passes_at_once():
    for error, sizes in ((RAN_OUT, [4, 2, 1]), (RuntimeError("shapes differ"), [4])):
        model = Short(0, error)
        with pytest.raises(RuntimeError) as caught:
            sampled(model, [SHORT] * 4, at_once=4)
        assert caught.value is error
        assert [rows for rows, _ in model.sizes] == sizes
