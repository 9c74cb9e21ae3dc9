"""Tasks of reasoning-gym: split by problem, graded by the kit's reader of numbers or by the generator's own rule."""

import json
import pickle
import sys
from types import SimpleNamespace

import pytest

from rewards import instruction
from rloo_kit import tasks
from rloo_kit.errors import ConfigError, VersionError
from rloo_kit.models import CATALOGUE

SMALL = {"n_train": 20, "n_held_out": 5}
EASY = {"max_terms": 2, "max_digits": 2}


def test_without_the_package_the_error_has_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(VersionError, match="pip install reasoning-gym=="):
        tasks.reasoning_gym("chain_sum")


@pytest.fixture(scope="module")
def package():
    """The package, which the extra of the same name installs; its import takes seconds."""
    return pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")


@pytest.mark.usefixtures("package")
class TestReasoningGym:
    def test_problems_are_split_by_their_text_and_drawn_by_the_seed(self):
        one, same, other = (tasks.reasoning_gym("chain_sum", EASY, seed=seed, **SMALL) for seed in (0, 0, 1))
        assert one.train["problem"] == same.train["problem"] != other.train["problem"]
        assert len(set(one.train["problem"])) == 20
        assert not set(one.train["problem"]) & set(other.held_out["problem"])
        expression = one.train["problem"][0].partition(": ")[2].rstrip(" =")
        assert one.train["answer"][0] == str(eval(expression))
        assert len(expression.split()) == 3
        assert one.description.endswith(f"chain_sum with {json.dumps(EASY)}, graded by answer_reward")

    def test_word_problems_have_numbers_and_ask_in_the_policys_form(self):
        policy = SimpleNamespace(checkpoint=CATALOGUE["qwen3-4b"])
        task = tasks.reasoning_gym("gsm_symbolic", policy=policy, **SMALL)
        row = task.train[0]
        assert row["prompt"][0]["content"] == f"{row['problem']} {instruction('boxed')}"
        said = [rf"So \boxed{{{row['answer']}}}.", row["answer"]]
        assert task.correct(completions=said, answer=[row["answer"]] * 2) == [1.0, 0.0]

    def test_other_answers_are_graded_by_the_generators_own_rule_and_its_full_score_alone(self):
        task = tasks.reasoning_gym("spell_backward", **SMALL)
        row = task.train[0]
        right = row["answer"]
        said = [f"<answer>{right}</answer>.", right, f"<answer>{right[:-1]}</answer>", "<answer></answer>"]
        columns = {"answer": [right] * 4, "entry": [row["entry"]] * 4}
        correct = pickle.loads(pickle.dumps(task.correct))
        assert correct(completions=said, **columns) == [1.0, 0.0, 0.0, 0.0]
        assert row["prompt"][0]["content"].endswith(instruction("<answer>"))
        assert task.description.endswith("graded by the generator's own rule")

    def test_a_generator_or_a_setting_that_does_not_exist_is_named(self):
        with pytest.raises(ConfigError, match="not registered"):
            tasks.reasoning_gym("gsm_symbolicc")
        with pytest.raises(ConfigError, match="must be positive"):
            tasks.reasoning_gym("chain_sum", {"min_terms": 0})
