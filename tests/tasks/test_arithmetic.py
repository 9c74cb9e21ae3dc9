"""Arithmetic and sums in words: a split by problem, right answers, and a level that can be learned from."""

import re
from types import SimpleNamespace

import pytest

from rewards import instruction
from rloo_kit import tasks
from rloo_kit.errors import ConfigError, DatasetError
from rloo_kit.models import CATALOGUE
from rloo_kit.tasks.arithmetic import PassRate, level_near_half, problems_of


@pytest.mark.parametrize("level", tasks.LEVELS)
def test_answers_are_right_and_no_problem_crosses_the_split_in_any_order_of_its_operands(level):
    """For any seed; at level 1 these are all the problems that exist."""
    everything = level == 1
    train = problems_of(level, 2033 if everything else 300, held_out=False, seed=0)
    held_out = problems_of(level, 467 if everything else 100, held_out=True, seed=1)
    operands = [{tuple(sorted(p.text.split()[::2], key=int)) for p in side} for side in (train, held_out)]
    assert not operands[0] & operands[1]
    assert len({p.text for p in train}) == len(train), "no problem comes twice"
    assert all(problem.answer == str(eval(problem.text)) for problem in train[:100])
    assert train != problems_of(level, len(train), held_out=False, seed=2), "another seed, another draw"


def test_a_size_or_a_level_that_cannot_be_had_is_an_error_that_says_which_there_are():
    for sizes, says in (((2034, 1), "only 2033 train"), ((1, 468), "only 467 held_out"), ((1, 0), "at least 1")):
        with pytest.raises(DatasetError, match=says):
            tasks.addition(*sizes)
    with pytest.raises(ConfigError, match="n_train"):
        tasks.addition(n_train="5")
    for level in ("hard", "auto"):  # these need a policy
        with pytest.raises(ConfigError, match=rf"level={level!r}[\s\S]*from 1 to 7"):
            tasks.arithmetic(level)


FORMS = [(None, "auto", ""), ("tiny", "whole", ""), ("qwen3-4b", "boxed", instruction("boxed"))]


@pytest.mark.parametrize(("name", "form", "asks"), FORMS)
def test_a_task_asks_for_the_form_that_it_grades(name, form, asks):
    policy = None if name is None else SimpleNamespace(checkpoint=CATALOGUE[name])
    task = tasks.arithmetic(2, policy, n_train=4, n_held_out=4)
    assert task.correct.form == form
    for row in [*task.train, *task.held_out]:
        (message,) = row["prompt"]
        assert message["content"] == f"What is {row['problem']}? {asks}".rstrip()
        assert set(row) == {"prompt", "answer", "problem"}
    asked = tasks.arithmetic(2, form="####", n_train=4, n_held_out=4)
    assert asked.correct(completions=["#### 5", "5"], answer=["5", "5"]) == [1.0, 0.0]
    assert instruction("####") in asked.train[0]["prompt"][0]["content"]


def test_a_thought_that_the_prompt_opens_and_that_never_ends_is_no_answer():
    policy = SimpleNamespace(checkpoint=CATALOGUE["qwen3-4b-thinking"])
    task = tasks.arithmetic(2, policy, n_train=4, n_held_out=4)
    texts = [r"so \boxed{5}", r"so</think>\boxed{5}"]
    graded = task.correct(completions=texts, completion_ids=[[7, 8], [7, 151668, 8]], answer=["5", "5"])
    assert graded == [0.0, 1.0]


@pytest.mark.parametrize("half_at", [1, 4, 7])
def test_auto_takes_the_level_nearest_one_half_of_three_measured(half_at, capsys):
    asked = []

    def measure(level):
        asked.append(level)
        return PassRate(level, 16 if level == half_at else 32 * (level < half_at), 0, 32)

    assert level_near_half(measure) == half_at
    assert len(asked) <= 3
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0] for line in lines] == [f"level {level}" for level in asked]
    assert last.startswith(f"level {half_at} is taken")


def test_a_level_is_measured_as_in_training_and_a_truncated_completion_is_not_right():
    asked = []

    def generate(prompts, **how):
        """Answer correctly, but never end."""
        asked.append(how)
        questions = [prompt[0]["content"].removeprefix("What is ").partition("?")[0] for prompt in prompts]
        return [SimpleNamespace(text=str(eval(question)), ids=(1,), finished=False) for question in questions]

    policy = SimpleNamespace(checkpoint=CATALOGUE["smollm2-135m"], generate=generate)
    off = {"enable_thinking": False}
    with pytest.warns(UserWarning, match="raise max_new_tokens"):
        tasks.arithmetic(policy=policy, n_train=8, n_held_out=8, chat_template_kwargs=off)
    assert {how["temperature"] for how in asked} == {0.6}
    assert all(how["chat_template_kwargs"] == off for how in asked)
    with pytest.warns(UserWarning, match="take another policy"):
        assert level_near_half(lambda level: PassRate(level, 0, 0, 32)) == 1


def test_auto_finds_the_tiny_policy_a_level_that_it_solves_sometimes(policy):
    options = {"n_train": 8, "n_held_out": 8, "n_prompts": 8}
    assert tasks.arithmetic(policy=policy, max_new_tokens=24, **options).level == 1


def sum_in(row):
    """Return the operands and the answer, which identify a sum in any wording."""
    a, b = sorted(int(number) for number in re.findall(r"\d+", row["problem"]))
    return a, b, int(row["answer"])


def test_the_answer_of_a_sum_in_words_is_that_of_the_question():
    task = tasks.word_sums(seed=3)
    for row in task.train:
        a, b, answer = sum_in(row)
        more = re.search(r"more|in all|altogether|together", row["problem"])
        less = re.search(r"left|still|lost|missing", row["problem"])
        assert bool(more) != bool(less), row["problem"]
        assert answer == (a + b if more else b - a), row["problem"]

    said = ["Tom has 7 + 5 = 12 apples now.", "12", "#### 12", "Tom has 13 apples.", "12 or 13", "7 + 5"]
    assert task.correct(completions=said, answer=["12"] * 6) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]


def test_no_sum_in_words_is_on_both_sides_in_any_wording_or_seed(monkeypatch):
    task, other = tasks.word_sums(seed=3), tasks.word_sums(seed=4)
    assert not {sum_in(row) for row in task.train} & {sum_in(row) for row in other.held_out}
    assert len(set(task.train["problem"])) == 1000
    assert len(set(task.held_out["problem"])) == 200
    assert task.train["problem"] != other.train["problem"]
    monkeypatch.setattr("rloo_kit.tasks.task.EXHAUSTED", 2000)
    with pytest.raises(DatasetError, match=r"only \d+ held_out word problems with numbers up to 4"):
        tasks.word_sums(largest=4, n_held_out=10**5)
