"""Do what a user does with the bundled tiny policy, from the first line to the last; for test_user.py.

Prints a line "== NAME" before each part, and at the end the facts as JSON.
"""

import json
import sys

import rloo_kit

facts: dict[str, object] = {}


def part(name: str) -> None:
    print(f"== {name}", flush=True)
    print(f"== {name}", file=sys.stderr, flush=True)


def right(completions: list[str], completion_ids: list[list[int]], **kwargs: object) -> list[float]:
    return [sum(ids) % 97 / 97 for ids in completion_ids]


part("prepare")
env = rloo_kit.prepare(dotenv=None, offline=True)
facts["device"], facts["bf16"] = env.device, env.bf16

part("load")
policy = rloo_kit.load_policy("tiny")
facts["policy is on"], facts["weights"] = str(policy.device), str(policy.model.dtype)
task = rloo_kit.tasks.addition(n_train=64, n_held_out=4, seed=0)


def trainer_of(policy: rloo_kit.Policy, **settings: object) -> rloo_kit.RLOOTrainer:
    small = {"num_generations": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
    small |= {"max_completion_length": 6, "learning_rate": 1e-3, "beta": 0.05, "save_strategy": "no"}
    small |= {"lr_scheduler_type": "constant"}  # so that a two-step run may be resumed to three
    config = rloo_kit.RLOOConfig(**{"output_dir": sys.argv[1], **small, **settings})
    return rloo_kit.RLOOTrainer(policy, right, config, task.train)


def lora(policy: rloo_kit.Policy) -> list[float]:
    return [float(p.detach().float().norm()) for p in policy.model.parameters() if p.requires_grad]


part("plan")
trainer = trainer_of(policy, max_steps=2, save_strategy="steps", save_steps=1)
plan = rloo_kit.plan(policy, trainer.args, prompt_tokens=40)
facts["fits"], facts["planned for"] = str(plan.fits), plan.device.name
facts["autocast"] = trainer.args.bf16

part("train")
before = lora(policy)
trainer.train()
facts["moved"] = lora(policy) != before
facts["lora"] = sorted({str(p.dtype) for p in policy.model.parameters() if p.requires_grad})
facts["log"] = [entry for entry in trainer.state.log_history if "reward" in entry]

part("resume")
resumed = trainer_of(policy, max_steps=3, save_strategy="steps", save_steps=1)
resumed.train(resume_from_checkpoint=True)
facts["resumed to"] = resumed.state.global_step

part("evaluate while training")  # unsloth leaves training mode on after any sampling on a GPU
facts["measured"] = sorted(resumed.evaluate(task.held_out))
facts["trains on"] = resumed.model.training

part("again, truncated and accumulated")
settings = {"max_steps": 1, "max_completion_length": 2, "mask_truncated_completions": True}
settings |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
again = trainer_of(policy, output_dir=sys.argv[1] + "-2", **settings)
again.train()
facts["again"] = again.state.global_step
facts["dead where all is cut"] = again.state.log_history[0].get("zero_variance_groups")

part("evaluate")
facts["evaluated"] = str(rloo_kit.evaluate(policy, task))

part("save")
prompts = task.held_out["prompt"][:2]
folder = policy.save(sys.argv[1] + "-adapter")
reloaded = rloo_kit.load_policy(folder)
ids = [[one.ids for one in made.generate(prompts, greedy=True, max_new_tokens=6)] for made in (policy, reloaded)]
facts["reloaded"] = ids[0] == ids[1] and lora(policy) == lora(reloaded)

part("release")
del trainer, resumed, again, reloaded, policy, plan
print(rloo_kit.release())
from unsloth_zoo.gradient_checkpointing import CPU_BUFFERS  # noqa: E402

from rloo_kit.session.release import bytes_in_use  # noqa: E402

# A pretended card also counts the buffers of offloaded activations, which lie in the computer's memory.
facts["left, MiB"] = (bytes_in_use() - sum(buffer.nbytes for buffer in CPU_BUFFERS)) / 2**20
print(json.dumps(facts))
