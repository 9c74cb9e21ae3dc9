"""Length, sentences, and TRL's own overlong and repetition rewards."""

import pytest

import rewards
from rewards.text import completion_text, prompt_text, question

LENGTHS = [
    ("one two three.", 1.0, "long enough, full stop"),
    ("one two three", 0.5, "no full stop"),
    ("one.", 0.5, "too short"),
    ("one two three four five six.", 0.5, "too long"),
    ("one", 0.0, "neither"),
    ("", 0.0, "nothing"),
    ("one two three. \n", 1.0, "white space after the full stop"),
]


@pytest.mark.parametrize(("text", "score", "why"), LENGTHS)
def test_the_seed_rule_counts_words_and_the_full_stop(text, score, why):
    assert rewards.length_reward((2, 5))(completions=[text]) == [score], why


SENTENCES = [
    ("It is so.", 1.0, "one"),
    ("Is it? It is!", 1.0, "two"),
    ("It is 4.2", 0.0, "a decimal point ends nothing"),
    ("It is so", 0.0, "breaks off"),
    ("It is so. And", 0.0, "breaks off after a whole one"),
    ('He said "so."', 1.0, "a quote after the mark"),
    ("好。", 1.0, "Chinese"),
    ("What?!", 1.0, "two marks, one end"),
    ("", 0.0, "nothing"),
]


@pytest.mark.parametrize(("text", "score", "why"), SENTENCES)
def test_whole_sentences_are_paid(text, score, why):
    chat = [{"role": "assistant", "content": text}]
    assert rewards.sentence_reward()(completions=[text, chat]) == [score, score], why


def test_the_number_of_sentences_can_be_bounded_and_bad_settings_are_refused():
    texts = ["A.", "A. B.", "A. B. C.", "A. B. C. D.", "What?! No."]
    assert rewards.sentence_reward(2, 3)(completions=texts) == [0.0, 1.0, 1.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="fewest words"):
        rewards.length_reward((5, 2))
    with pytest.raises(ValueError, match="fewest"):
        rewards.sentence_reward(3, 1)
    with pytest.raises(ValueError, match="soft must lie"):
        rewards.overlong_reward(10, 20)
    with pytest.raises(ValueError, match="ngram must be"):
        rewards.repetition_reward(0)


def test_overlong_and_repetition_are_trls_own():
    pytest.importorskip("trl")
    overlong = rewards.overlong_reward(100, 20)
    assert overlong(completion_ids=[[1] * 80, [1] * 90, [1] * 101]) == [0.0, -0.5, -1.0]
    assert type(overlong).__module__.startswith("trl.")
    repetition = rewards.repetition_reward(2)
    assert repetition(completion_ids=[[1, 2, 3, 4], [5] * 5]) == [0.0, -0.75]


COMPLETIONS = {
    "text": ("a", "a"),
    "one message": ([{"role": "assistant", "content": "a"}], "a"),
    "after a tool call": ([{"role": "assistant", "content": "x"}, {"role": "tool", "content": "y"},
                           {"role": "assistant", "content": "a"}], "a"),
    "content in parts": ([{"role": "assistant", "content": [{"type": "text", "text": "a"}]}], "a"),
    "no content, as beside a tool call": ([{"role": "assistant", "content": None}], ""),
    "no message": ([], ""),
}  # fmt: skip


@pytest.mark.parametrize(("completion", "text"), COMPLETIONS.values(), ids=COMPLETIONS)
def test_every_form_of_completion_has_a_text(completion, text):
    assert completion_text(completion) == text


SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "What is 1+1?"}
TURNS = [ASKED, {"role": "assistant", "content": "2"}, {"role": "user", "content": "Why is it so?"}]
IMAGE = {"type": "image", "text": None}  # as Arrow gives it
# a prompt, all its text, what it asks
PROMPTS = {
    "text": ("a", "a", "a"),
    "one message": ([ASKED], "What is 1+1?", "What is 1+1?"),
    "after the system's": ([SYSTEM, ASKED], "What is 1+1?", "What is 1+1?"),
    "the system's alone": ([SYSTEM], "Be brief.", "Be brief."),
    "several turns": ([SYSTEM, *TURNS], "user: What is 1+1?\n\nassistant: 2\n\nuser: Why is it so?", "Why is it so?"),
    "an answer begun": (TURNS[:2], "user: What is 1+1?\n\nassistant: 2", "What is 1+1?"),
    "an image beside the text": (
        [{"role": "user", "content": [IMAGE, {"type": "text", "text": "a"}]}], "a", "a"
    ),
    "no message": ([], "", ""),
}  # fmt: skip


@pytest.mark.parametrize(("prompt", "text", "asked"), PROMPTS.values(), ids=PROMPTS)
def test_a_prompt_is_all_that_was_said_and_its_question_the_users_last(prompt, text, asked):
    assert (prompt_text(prompt), question(prompt)) == (text, asked)


def test_a_thought_moved_aside_by_a_parser_can_be_put_back_and_a_number_is_no_completion():
    message = [{"role": "assistant", "reasoning_content": "hm", "content": "a"}]
    texts = [completion_text(message), completion_text(message, thought=True)]
    assert texts == ["a", "<think>hm</think>a"]
    with pytest.raises(TypeError, match="str or a list of messages"):
        completion_text(7)
