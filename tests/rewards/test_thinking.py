"""The boundary by token id, and the rewards for the form of a thought."""

import dataclasses

import numpy as np
import pytest

import rewards
from rewards import QWEN3, ThinkTokens, split_thinking, thinking_reward, thought_then_answer
from rewards.thinking import split_text

O, C, E = 151667, 151668, 151645  # noqa: E741 - open, close, end: the columns of the table below
PROMPTED = dataclasses.replace(QWEN3, prompt_opens=True)

#       why: ids -> thinking, answer, n_open, n_close
SPLITS = {
    "both markers in the completion": ([O, 1, 2, C, 3, E], [1, 2], [3, E], 1, 1),
    "opened in the prompt, as Thinking-2507 does": ([1, 2, C, 3, E], [1, 2], [3, E], 0, 1),
    "empty block in the prompt: all of it is the answer": ([3, 4, E], [], [3, 4, E], 0, 0),
    "never closed, because it was truncated": ([O, 1, 2], [1, 2], [], 1, 0),
    "closed twice: the first is the boundary": ([O, 1, C, 2, C, 3], [1], [2, C, 3], 1, 2),
    "</think> in ordinary tokens is not a boundary": ([O, 27, 14, 27963, 29], [27, 14, 27963, 29], [], 1, 0),
}


@pytest.mark.parametrize(("ids", "thinking", "answer", "n_open", "n_close"), SPLITS.values(), ids=SPLITS)
def test_the_first_closing_token_divides_thought_from_answer(ids, thinking, answer, n_open, n_close):
    expected = rewards.Thought(thinking, answer, n_open > 0, n_close > 0, n_open, n_close)
    for form in (list, tuple, np.array):
        assert split_thinking(form(ids), QWEN3) == expected


def test_a_thought_that_the_prompt_opened_and_never_ended_has_no_answer_and_other_than_ids_are_refused():
    thought = split_thinking([1, 2], PROMPTED)
    assert (thought.thinking, thought.answer) == ([1, 2], [])
    torch = pytest.importorskip("torch")
    assert split_thinking(torch.tensor([O, 1, C, 2])) == split_thinking([O, 1, C, 2])
    for wrong in ("<think>a</think>", 7, np.ones((2, 2))):
        with pytest.raises(TypeError, match=rf"one flat sequence of ints\.\n.*{type(wrong).__name__}"):
            split_thinking(wrong)


class FakeTokenizer:
    """Enough of transformers' interface."""

    eos_token_id = 9

    def __init__(self, table, template=None):
        self.table, self.chat_template = table, template

    def encode(self, text, add_special_tokens=True):
        return self.table[text]

    def decode(self, ids, skip_special_tokens=False):
        return {7: "<think>", 8: "</think>"}.get(ids[0], "?")

    def apply_chat_template(self, messages, tokenize=True, add_generation_prompt=False, enable_thinking=True):
        return self.chat_template + ("" if enable_thinking else "<think></think>")


# a chat template, what is passed to it, whether it opens a thought
TEMPLATES = [
    (None, {}, False),
    ("user: ?<think>", {}, True),  # Thinking-2507
    ("user: ?", {}, False),  # hybrid
    ("user: ?", {"enable_thinking": False}, False),  # hybrid, with an empty block
]


@pytest.mark.parametrize(("template", "options", "prompt_opens"), TEMPLATES)
def test_the_tokenizer_gives_the_markers_and_its_template_who_opens(template, options, prompt_opens):
    tokens = ThinkTokens.from_tokenizer(FakeTokenizer({"<think>": [7], "</think>": [8]}, template), **options)
    assert (tokens.open_id, tokens.close_id, tokens.eos_ids) == (7, 8, (9,))
    assert tokens.prompt_opens is prompt_opens


NOT_ONE = [([1, 2, 3], [8], "3 tokens"), ([], [8], "0 tokens"), ([7], [0], "decodes them differently")]


@pytest.mark.parametrize(("opens", "closes", "says"), NOT_ONE)
def test_a_tokenizer_without_the_markers_is_refused(opens, closes, says):
    with pytest.raises(ValueError, match=rf"(?s)not exactly one token.*{says}.*What to do"):
        ThinkTokens.from_tokenizer(FakeTokenizer({"<think>": opens, "</think>": closes}))


def test_a_tokenizer_of_the_tokenizers_library_works():
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    with pytest.raises(ValueError, match="not exactly one token"):
        ThinkTokens.from_tokenizer(tokenizer)
    tokenizer.add_tokens(["<think>", "</think>"])
    assert ThinkTokens.from_tokenizer(tokenizer) == ThinkTokens(2, 3)
    assert ThinkTokens(151667, 151668) == QWEN3, "they name the same two ids"


# Where several </think> in the text could be the token, each place is a candidate.
TEXTS = {
    "one marker": ("<think>a</think>b", [O, 1, C, 2], [("a", "b")]),
    "two tokens, two in the text: the first": ("a</think>b</think>c", [1, C, 2, C, 3], [("a", "b</think>c")]),
    "one token, two in the text": ("a</think></think>", [1, C, 3], [("a", "</think>"), ("a</think>", "")]),
    "no token, one typed: no answer": ("<think>a</think>b", [O, 1, 2], [("a</think>b", "")]),
    "nothing opened: another tokenizer's?": ("a</think>b", [1, 2], [("", "a</think>b"), ("a", "b")]),
    "another tokenizer's, never closed": ("<think>a", [1, 2], [("", "<think>a"), ("a", "")]),
    "a second thought": ("a</think>b<think>c</think>", [1, C, 2, O, 3, C], [("a", "b")]),
    "a parser took the thought away": ("b", [O, 1, C, 2], [("", "b")]),
}


@pytest.mark.parametrize(("text", "ids", "expected"), TEXTS.values(), ids=TEXTS)
def test_the_text_is_split_where_the_ids_allow(text, ids, expected):
    assert split_text(text, split_thinking(ids)) == expected


# The copied rule: thinking tokens, a "?" in the thought -> score.
COPIED = [(0, False, 0.3), (9, False, 0.3), (9, True, 0.3), (10, False, 0.7), (10, True, 0.8), (29, True, 0.8),
          (30, False, 1.0), (30, True, 1.1), (500, True, 1.1)]  # fmt: skip


def test_the_copied_rule_is_reproduced():
    texts = ["<think>so", "42", *(f"<think>{'so?' if asks else 'so'}</think>42?" for _, asks, _ in COPIED)]
    ids = [[O, 1], [42], *([O, *range(length), C, 42, E] for length, _, _ in COPIED)]
    scores = thinking_reward()(completions=texts, completion_ids=ids)
    assert scores == pytest.approx([-1.0, -1.0, *(score for _, _, score in COPIED)])


GOOD_IDS = [O, *range(30), C, 42, E]
# Text and ids that break the form.
BROKEN = {
    "no boundary": ("<think>a b", [O, *range(30), E]),
    "two boundaries": ("<think>a</think>b</think>42", [O, *range(30), C, 1, C, 42, E]),
    "opened again in the answer": ("<think>a</think><think>42", [O, *range(30), C, O, 42, E]),
    "opened twice": ("<think><think>a</think>42", [O, O, *range(30), C, 42, E]),
    "no answer": ("<think>a</think>", [O, *range(30), C, E]),
    "a blank answer": ("<think>a</think> \n", [O, *range(30), C, 198, 220, E]),
    "cut off": ("<think>a</think>42 and", [O, *range(30), C, 42, 43]),
    "too short": ("<think>a</think>42", [O, 1, 2, 3, 4, C, 42, E]),
    "one token repeated": ("<think>a a</think>42", [O, *([7] * 60), C, 42, E]),
    "a loop of six": ("<think>a b</think>42", [O, *(list(range(6)) * 10), C, 42, E]),
}


@pytest.mark.parametrize(("text", "ids"), BROKEN.values(), ids=BROKEN)
def test_a_broken_form_earns_nothing_and_a_short_thought_less(text, ids):
    given = {"completions": ["<think>a</think>42", text, "<think>a</think>42"]}
    given["completion_ids"] = [GOOD_IDS, ids, [O, *range(15), C, 42, E]]
    assert thought_then_answer()(**given) == [1.0, 0.0, 0.5]


REFUSED = [
    (lambda: thought_then_answer(ThinkTokens(1, 2)), "which ids end a completion"),
    (lambda: ThinkTokens(5, 5), "two different tokens"),
    (lambda: thinking_reward(bands=[(0, 1.0), (30, 2.0), (10, 3.0)]), "Bands must start at 0"),
]


@pytest.mark.parametrize(("make", "says"), REFUSED)
def test_settings_that_make_no_sense_are_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()


SHOWN = "Light always has one and the same speed however fast one moves"


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_a_thought_copied_from_any_message_of_the_prompt_is_filler(role):
    turns = [("user", "What is 1+1?"), (role, SHOWN), ("user", "Why?")]
    prompt = [{"role": role, "content": text} for role, text in turns]
    own = "Time is slower for a clock that moves past, so both see another now"
    chats = [[{"role": "assistant", "content": f"<think>{text}</think>So"}] for text in (SHOWN, own)]
    ids = [[O, *range(30), C, 9, E]] * 2
    assert thought_then_answer()(prompts=[prompt] * 2, completions=chats, completion_ids=ids) == [0.0, 1.0]
