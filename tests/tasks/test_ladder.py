"""What the tasks promise: a split by problem, answers as asserted, a level that can be learned from."""

from __future__ import annotations

import rloo_kit  # isort: skip  # first, so that unsloth is imported before transformers

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from rloo_kit import tasks
from rloo_kit.errors import ConfigError, DatasetError


def operands_of(dataset: Any) -> set[frozenset[int]]:
    return {frozenset(int(n) for n in problem.split(" + ")) for problem in dataset["problem"]}


# --- the split


def test_no_addition_crosses_the_split_in_either_order() -> None:
    task = tasks.addition(2033, 467)
    assert not operands_of(task.train) & operands_of(task.held_out)


def test_held_out_stays_held_out_whatever_the_seed() -> None:
    held_out = set().union(*(operands_of(tasks.addition(seed=seed).held_out) for seed in range(5)))
    for seed in range(5):
        assert not operands_of(tasks.addition(seed=seed).train) & held_out


@pytest.mark.parametrize("level", tasks.LEVELS)
def test_no_problem_of_any_level_crosses_the_split_in_any_order_of_its_operands(level: int) -> None:
    train = tasks.problems_of(level, None, held_out=False, seed=0)
    held_out = tasks.problems_of(level, None, held_out=True, seed=1)
    assert not {tuple(sorted(p.operands)) for p in train} & {tuple(sorted(p.operands)) for p in held_out}


@pytest.mark.parametrize("level", tasks.LEVELS)
def test_answers_are_what_python_computes_from_the_expression(level: int) -> None:
    for problem in tasks.problems_of(level, 50, held_out=False, seed=0):
        assert problem.answer == eval(problem.expression)


def test_a_task_has_the_columns_that_trainer_and_rewards_read() -> None:
    row = tasks.addition(8, 8).train[0]
    a, b = (int(n) for n in row["problem"].split(" + "))
    assert row["prompt"] == [{"role": "user", "content": f"What is {a} + {b}?"}]
    assert row["answer"] == str(a + b)
    assert set(row) == {"prompt", "answer", "problem"}


def test_a_seed_fixes_the_draw_and_another_changes_it() -> None:
    draws = [tasks.addition(50, 50, seed=seed).train["problem"][:] for seed in (3, 3, 4)]
    assert draws[0] == draws[1] != draws[2]


def test_no_problem_comes_twice() -> None:
    problems = tasks.addition(2033, 467).train["problem"][:]
    assert len(set(problems)) == len(problems) == 2033


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"n_held_out": 468}, "only 467 held_out"),
        ({"n_train": 2034}, "only 2033 train"),
        ({"n_train": 0}, "at least 1"),
        ({"n_held_out": -5}, "n_held_out=-5"),
    ],
)
def test_a_size_that_cannot_be_had_is_an_error_that_says_which(sizes: dict[str, int], words: str) -> None:
    with pytest.raises(DatasetError, match=words):
        tasks.addition(**sizes)


# --- reading an answer


@pytest.mark.parametrize(
    ("completion", "answer", "why"),
    [
        ("<think>\n7+5=12\n1+2+1=4\n</think>\n\n42", "42", "the plain case"),
        ("42", "42", "no thought is needed"),
        ("</think>\n\n42", "42", "the template opened the thought"),
        ("<think>\n\n</think>\n\n42", "42", "an empty thought"),
        ("<think>\nis it 41?\n</think>\n\n17 + 25 = 42.", "42", "a sentence that ends in a full stop"),
        ("<think>a</think> 1 <think>b</think> 2", "2", "the last thought counts"),
        ("17 + 25 = **42**", "42", "Markdown"),
        ("$\\boxed{42}$, which is 17 + 25", "42", "a box wins over what follows"),
        ("The answer is 42, since 17 + 25 is.", "42", "a stated answer wins over what follows"),
        ("1,234,567", "1234567", "thousands"),
        ("$1{,}234\\,567$", "1234567", "thousands in LaTeX"),
        ("it is 3,4", "4", "a comma that parts no thousands"),
        ("17 - 25 = -8", "-8", "a negative number"),
        ("17 - 25 = \u22128", "-8", "the mathematical minus"),
        ("it is 50-8", "8", "a minus between numbers is no sign"),
        ("42.0", "42", "an empty fraction"),
        ("0.125", "0.125", "a fraction"),
        ("007", "7", "leading zeros"),
        ("<think>\n42", None, "the thought never closed"),
        ("<think>a</think> 42 <think>", None, "a thought opened again and never closed"),
        ("<think>\n42\n</think>\n\n", None, "nothing after the thought"),
        ("forty-two", None, "no number"),
        ("\\boxed{x}", None, "a box without a number asserts none"),
        ("", None, "nothing"),
        ("9" * 5000, "9" * 5000, "longer than Python turns into an int"),
    ],
)
def test_the_answer_is_the_number_asserted_after_the_thought(
    completion: str, answer: str | None, why: str
) -> None:
    assert tasks.answer_of(completion) == answer, why
    assert tasks.answer_of([{"role": "assistant", "content": completion}]) == answer, why


def test_no_message_asserts_nothing() -> None:
    assert tasks.answer_of([]) is None


# --- the ladder


@dataclass
class Said:
    text: str
    finished: bool = True


class Pupil:
    """Answers a level's problems at a given rate, by a generator of its own."""

    def __init__(self, rate_at: Callable[[int], float], finished: bool = True) -> None:
        self.rate_at, self.finished, self.levels_asked = rate_at, finished, []
        self.rng = random.Random(0)

    def generate(self, prompts: Sequence[Any], **settings: Any) -> list[Said]:
        assert settings["temperature"] == 1.0
        answers = {
            problem.prompt[0]["content"]: (level, problem.answer)
            for level in tasks.LEVELS
            for problem in tasks.problems_of(level, 16, held_out=False, seed=0)
        }
        said = []
        for prompt in prompts:
            level, answer = answers[prompt[0]["content"]]
            right = self.rng.random() < self.rate_at(level)
            said.append(Said(str(answer if right else answer + 1), self.finished))
        self.levels_asked.append(level)
        return said


@pytest.mark.parametrize("solved_up_to", range(1, 7))
def test_auto_takes_the_level_nearest_one_half(solved_up_to: int) -> None:
    half_at = solved_up_to + 1
    pupil = Pupil(lambda level: 1.0 if level < half_at else 0.5 if level == half_at else 0.0)
    assert tasks.arithmetic(policy=pupil).level == half_at


def test_auto_measures_at_most_three_of_seven_levels_and_prints_one_line_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pupil = Pupil(lambda level: 1.0 if level < 5 else 0.3)
    tasks.arithmetic("auto", policy=pupil)
    assert len(pupil.levels_asked) <= 3
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0] for line in lines] == [f"level {level}" for level in pupil.levels_asked]


def test_a_policy_that_no_level_suits_is_told_so() -> None:
    with pytest.warns(UserWarning, match="take another policy"):
        assert tasks.arithmetic(policy=Pupil(lambda level: 0.0)).level == 1


def test_a_completion_that_was_cut_off_is_not_right_and_the_warning_names_the_limit() -> None:
    with pytest.warns(UserWarning, match="raise max_new_tokens"):
        tasks.arithmetic(policy=Pupil(lambda level: 1.0, finished=False))


def test_auto_finds_the_tiny_policy_a_level_that_it_solves_sometimes() -> None:
    policy = rloo_kit.load_policy("tiny", max_seq_length=128)
    level = tasks.arithmetic(policy=policy, max_new_tokens=32).level
    fresh = tasks.pass_rate(policy, level, n_prompts=128, n_samples=1, max_new_tokens=32, seed=1)
    assert 0.2 <= fresh.rate <= 0.8, fresh


def test_a_given_level_needs_no_policy() -> None:
    task = tasks.arithmetic(6, n_train=20, n_held_out=10)
    assert (task.level, len(task.train), len(task.held_out)) == (6, 20, 10)
    assert task.description == tasks.LEVELS[6].description


@pytest.mark.parametrize("level", [0, 8, "hard", None, 2.5])
def test_a_level_that_is_none_is_an_error_that_gives_the_range(level: Any) -> None:
    with pytest.raises(ConfigError, match="from 1 to 7"):
        tasks.arithmetic(level)


def test_auto_without_a_policy_is_an_error() -> None:
    with pytest.raises(ConfigError, match="policy=None"):
        tasks.arithmetic()
