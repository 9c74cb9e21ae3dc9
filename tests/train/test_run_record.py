"""The model cards of a run: in its folder, in its checkpoints, and in what the policy saves afterwards."""

import json
from pathlib import Path

from datasets import Dataset

import rloo_kit
from rloo_kit.train import run_record
from tests.conftest import random_rewards, right_after_thought

TOLD = (
    "- method: RLOO (Ahmadian et al. 2024, arXiv 2402.14740)\n",
    "- advantage estimator: rloo\n",
    "- updates: 1 of 1\n",
    "- completions of a prompt: 2\n",
    "- completions of an update: 4\n",
    "- name: tasks.addition(n_train=64, n_held_out=32, seed=0), train\n",
    "- prompts: 64\n",
    "- right_after_thought: 1\n",
    "- random_rewards: 0.5\n",
    "- learning_rate: 0.001\n",
    "- kl_estimator: k3\n",
    "- LoRA rank: 16\n",
    "Licence of the base: apache-2.0",
    f"rloo-kit {rloo_kit.__version__}",
)


def test_the_cards_of_a_run_its_checkpoints_and_its_policy_say_how_it_was_trained(make_trainer, policy, task, tmp_path):
    settings = {"reward_weights": [1.0, 0.5], "learning_rate": 1e-3, "kl_estimator": "k3"}
    settings |= {"save_strategy": "steps", "save_steps": 1}
    trainer = make_trainer([right_after_thought, random_rewards], **settings)
    trainer.train()
    trainer.save_model(str(tmp_path / "by the trainer"))
    folders = [tmp_path / "run", tmp_path / "run" / "checkpoint-1", policy.save(tmp_path / "adapter")]
    for folder in (*folders, tmp_path / "by the trainer"):
        card = (folder / "README.md").read_text()
        assert [fact for fact in TOLD if fact not in card] == [], folder
        assert f"- fingerprint: {run_record.data(task.train)['fingerprint']}\n" in card
        assert not [private for private in (tmp_path, Path.home()) if str(private) in card]
    written = {path.name for path in folders[0].iterdir() if not path.name.startswith("_")}
    assert written == {"checkpoint-1", "trainer_state.json", "README.md"}, "the hub gets nothing else"
    rloo_kit.load_policy(folders[1])


def test_of_a_file_the_name_is_told_and_not_where_it_is(tmp_path):
    file = tmp_path / "problems.jsonl"
    rows = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(20)]
    file.write_text("\n".join(map(json.dumps, rows)))
    task = rloo_kit.tasks.from_file(file)
    told = run_record.data(task.train)
    assert "problems.jsonl" in str(told["name"])
    assert str(tmp_path) not in str(told)
    by_hand, fewer = run_record.data(Dataset.from_list(rows)), run_record.data(Dataset.from_list(rows[1:]))
    assert (by_hand["name"], by_hand["prompts"]) == ("made by hand", 20)
    assert by_hand["fingerprint"] != fewer["fingerprint"]
    stream = Dataset.from_list(rows).to_iterable_dataset()
    assert run_record.data(stream) == {"name": "made by hand", "prompts": "a stream"}
