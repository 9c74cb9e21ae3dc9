"""Length, sentences, and TRL's own overlong and repetition rewards."""

import pytest

import rewards
from rewards.text import completion_text, prompt_text, question


def test_the_starter_rule_counts_words_and_the_full_stop():
    paid = {"one two three.": 1.0, "one two three": 0.5, "one.": 0.5, "one two three four five six.": 0.5}
    paid |= {"one": 0.0, "": 0.0, "one two three. \n": 1.0}
    assert rewards.length_reward((2, 5))(completions=list(paid)) == list(paid.values())


def test_whole_sentences_are_paid():
    whole = ["It is so.", "Is it? It is!", 'He said "so."', "好。", "What?!"]
    broken = ["It is 4.2", "It is so", "It is so. And", ""]
    chats = [[{"role": "assistant", "content": text}] for text in whole + broken]
    for completions in (whole + broken, chats):
        assert rewards.sentence_reward()(completions=completions) == [1.0] * 5 + [0.0] * 4


def test_overlong_and_repetition_are_trls_own():
    pytest.importorskip("trl")
    overlong = rewards.overlong_reward(100, 20)
    assert overlong(completion_ids=[[1] * 80, [1] * 90, [1] * 101]) == [0.0, -0.5, -1.0]
    assert type(overlong).__module__.startswith("trl.")
    assert rewards.repetition_reward(2)(completion_ids=[[1, 2, 3, 4], [5] * 5]) == [0.0, -0.75]


def messages(*turns):
    return [{"role": role, "content": content} for role, content in turns]


# a completion, and its text
COMPLETIONS = [
    ("a", "a"),
    (messages(("assistant", "a")), "a"),
    (messages(("assistant", "x"), ("tool", "y"), ("assistant", "a")), "a"),
    (messages(("assistant", None)), ""),  # as in a message with a tool call
    ([], ""),
]
SYSTEM, ASKED = ("system", "Be brief."), ("user", "What is 1+1?")
TURNS = [SYSTEM, ASKED, ("assistant", "2"), ("user", "Why is it so?")]
IMAGE = {"type": "image", "text": None}  # as Arrow stores it
# a prompt, all its text, its question
PROMPTS = [
    ("a", "a", "a"),
    (messages(SYSTEM, ASKED), "What is 1+1?", "What is 1+1?"),
    (messages(SYSTEM), "Be brief.", "Be brief."),
    (messages(*TURNS), "user: What is 1+1?\n\nassistant: 2\n\nuser: Why is it so?", "Why is it so?"),
    (messages(("user", [IMAGE, {"type": "text", "text": "a"}])), "a", "a"),
    ([], "", ""),
]


def test_every_form_of_completion_and_of_prompt_has_a_text():
    for completion, text in COMPLETIONS:
        assert completion_text(completion) == text
    for prompt, text, asked in PROMPTS:
        assert (prompt_text(prompt), question(prompt)) == (text, asked)
    moved = [{"role": "assistant", "reasoning_content": "hm", "content": "a"}]
    assert completion_text(moved, thought=True) == "<think>hm</think>a", "a parser has moved it aside"
    with pytest.raises(TypeError, match="str or a list of messages"):
        completion_text(7)
