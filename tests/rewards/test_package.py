"""The package as a whole: light, independent, picklable, and usable in TRL's trainers."""

import pickle
import shutil
from pathlib import Path

import pytest
import trl
from datasets import Dataset

import rewards
from tests.conftest import SMALL, python

PACKAGE = Path(rewards.__file__).parent


def test_the_package_works_alone_with_nothing_but_the_standard_library(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "rewards", ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import rewards\n"
        "ids = [[151667, *range(40), 151668, 42, 151645]]\n"
        "print(rewards.answer_reward()(completions=['<think>x</think>42'], completion_ids=ids, answer=['42']))\n"
        "print(len(rewards.audit(rewards.answer_reward('choice'), cases=rewards.CASES[:20]).exploits))\n"
        "try: rewards.overlong_reward(10, 5)\n"
        "except ImportError as error: print('ImportError')\n"
    )
    done = python("-I", "-S", "-c", code, check=False, cwd=tmp_path)
    assert done.stdout.split("\n")[:4] == ["[1.0]", "0", "ImportError", ""], done.stderr


def test_importing_it_imports_nothing_heavy_and_no_module_hides_a_public_name(script):
    heavy = {"torch", "transformers", "trl", "numpy", "math_verify", "datasets", "rloo_kit", "unsloth"}
    assert script(f"import sys, rewards; print({heavy} & {{*sys.modules}})").stdout == "set()\n"
    assert not {module.stem for module in PACKAGE.glob("*.py")} & set(rewards.__all__)


PURE = [
    rewards.thinking_reward(), rewards.thought_then_answer(), rewards.answer_reward(), rewards.length_reward(),
    rewards.sentence_reward(), rewards.cached(rewards.answer_reward()), rewards.guarded(rewards.thinking_reward()),
]  # fmt: skip
EVERY = [*PURE, rewards.reward_model("a/b")]
CALL = {"completions": ["<think>so?</think>It is 42."], "completion_ids": [[151667, 1, 151668, 2, 151645]]}
CALL |= {"answer": ["42"], "kind": ["math"]}


@pytest.mark.parametrize("reward", EVERY, ids=lambda reward: reward.__name__)
def test_every_reward_has_a_name_takes_trls_keywords_and_pickles(reward):
    rewards.check_signature(reward, columns=["answer", "kind"])
    assert "/" not in reward.__name__
    again = pickle.loads(pickle.dumps(reward))
    assert again.__name__ == reward.__name__
    if reward in PURE:
        assert again(**CALL) == reward(**CALL)


@pytest.mark.parametrize("name", ["GRPO", "RLOO"])
def test_the_rewards_run_unchanged_in_trls_trainers_on_text_and_in_chats(name, fresh_policy, tmp_path):
    tokens = rewards.ThinkTokens.from_tokenizer(fresh_policy.tokenizer)
    answer = rewards.answer_reward(tokens=tokens)

    async def judge(completions, **kwargs):
        return [0.5 for _ in completions]

    funcs = [
        rewards.weighted([answer, rewards.thinking_reward(tokens)], [0.8, 0.2], name="mix"),
        rewards.guarded(rewards.thought_then_answer(tokens, correct=answer)),
        rewards.only_for(rewards.cached(rewards.length_reward()), kind="sum"),
        rewards.overlong_reward(8, 4),
        rewards.guarded(judge),
    ]
    rows = [{"prompt": f"{a}+{a}=", "answer": str(2 * a), "kind": "sum" if a % 2 else "other"} for a in range(8)]
    if name == "RLOO":
        rows = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
    trainer = getattr(trl, f"{name}Trainer")(
        model=fresh_policy.model,
        processing_class=fresh_policy.tokenizer,
        args=getattr(trl, f"{name}Config")(str(tmp_path), **SMALL, logging_steps=1, bf16=False),
        reward_funcs=funcs,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()
    (log,) = [log for log in trainer.state.log_history if "reward" in log]
    assert {"mix/thinking_reward", *(f"rewards/{func.__name__}/mean" for func in funcs)} <= set(log)
    assert log["rewards/judge/mean"] == 0.5
