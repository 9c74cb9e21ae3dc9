"""A CPU in bfloat16, where the user asks for it: load, train, evaluate, resume, save and reload, in one process."""

import json
from typing import Any

import pytest

RUN = """
import json, sys
import rloo_kit

env = rloo_kit.prepare(dotenv=None, offline=True)
import torch
policy = rloo_kit.load_policy("tiny", max_seq_length=128)
task = rloo_kit.tasks.addition(n_train=16, n_held_out=8)

def variety(completion_ids, **columns):
    return [len(set(ids)) / 8 for ids in completion_ids]

def train(steps, **how):
    config = rloo_kit.RLOOConfig(
        output_dir=sys.argv[1], max_steps=steps, save_strategy="steps", save_steps=2, learning_rate=1e-3, beta=0.05,
        per_device_train_batch_size=4, gradient_accumulation_steps=1, num_generations=2, max_completion_length=8)
    trainer = rloo_kit.RLOOTrainer(model=policy, reward_funcs=[variety], args=config, train_dataset=task.train)
    trained = []
    step = trainer.training_step
    trainer.training_step = lambda *args: trained.append(trainer.state.global_step) or step(*args)
    trainer.train(**how)
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    return {"after": trained, "rewards": rewards}

def adapter(policy):
    return {name: p.detach().clone() for name, p in policy.model.named_parameters() if "default" in name}

before = adapter(policy)
first = train(2)
evaluation = rloo_kit.evaluate(policy, task, n=1, max_new_tokens=8)
resumed = train(3, resume_from_checkpoint=True)
after = adapter(policy)
reloaded = adapter(rloo_kit.load_policy(policy.save(sys.argv[1] + "/adapter"), max_seq_length=128))
print("RECORD", json.dumps({
    "screen": str(env),
    "dtype": [str(policy.model.dtype), env.bf16],
    "first": first,
    "resumed": resumed,
    "evaluation": str(evaluation),
    "finite": all(bool(weight.isfinite().all()) for weight in after.values()),
    "changed": any(not torch.equal(before[name], after[name]) for name in after),
    "reloaded": after.keys() == reloaded.keys() and all(torch.equal(after[n], reloaded[n]) for n in after),
}))
"""


@pytest.fixture(scope="module")
def record(script: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    done = script(RUN, str(tmp_path_factory.mktemp("bfloat16")), UNSLOTH_CPU_BF16="1")
    return json.loads(done.stdout.split("RECORD ")[-1])


def test_a_cpu_in_bfloat16_loads_trains_resumes_evaluates_saves_and_reloads(record: Any) -> None:
    assert record["dtype"] == ["torch.bfloat16", True]
    assert "computes in bfloat16\n" in record["screen"]
    assert record["first"]["after"] == [0, 1]
    assert record["resumed"]["after"] == [2]
    assert len(record["resumed"]["rewards"]) == 3
    assert all(0 < reward <= 1 for reward in record["resumed"]["rewards"])
    assert record["changed"]
    assert record["finite"]
    assert "nan" not in record["evaluation"].lower()
    assert record["reloaded"], "the saved adapter reads back bit for bit"
