"""The trainer over the class that unsloth generates for GPUs, on a CPU and in a process of its own."""

from pathlib import Path
from typing import Any

GENERATED = """
import os, sys
os.environ["UNSLOTH_ALLOW_CPU"] = "1"  # unsloth's own switch: its GPU path, tested without one
os.environ["UNSLOTH_COMPILE_LOCATION"] = sys.argv[1]
import unsloth, unsloth_zoo.cpu.ops
unsloth.models.rl._patch_trl_rl_trainers_impl("rloo_trainer")
unsloth_zoo.cpu.ops.patch_trl_fused_lm_head()  # TRL's own kernel is Triton

import rloo_kit, rloo_kit.policy.bundled, transformers, trl
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
import torch

assert trl.RLOOTrainer.__name__ == "UnslothRLOOTrainer", trl.RLOOTrainer
assert trl.RLOOTrainer in rloo_kit.RLOOTrainer.__mro__
folder = rloo_kit.policy.bundled.TINY.checkpoint()
tokenizer = AutoTokenizer.from_pretrained(folder)
task = rloo_kit.tasks.addition(n_train=64, n_held_out=32)

def policy():
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))

def score(completions, completion_ids, **kwargs):
    return [(sum(ids) % 97) / 97 for ids in completion_ids]

def config(**settings):
    small = dict(
        output_dir=sys.argv[2], num_generations=4, per_device_train_batch_size=8, gradient_accumulation_steps=1,
        max_steps=2, max_completion_length=4, learning_rate=1e-2, save_strategy="no", use_cpu=True,
        bf16=False, fp16=False)
    return rloo_kit.RLOOConfig(**{**small, **settings})

def train(model, eval=False, **settings):
    trainer = rloo_kit.RLOOTrainer(model=model, processing_class=tokenizer, reward_funcs=score,
                                   args=config(**settings), train_dataset=task.train,
                                   eval_dataset=task.held_out.select(range(4)) if eval else None)
    trainer.train()
    return trainer

def logged(**settings):
    log = train(policy(), beta=0.0, **settings).state.log_history
    return [(entry["reward"], entry["grad_norm"]) for entry in log if "reward" in entry]

assert len(logged()) == 2
assert logged() == logged(single_pass=False), "a single pass equals two"

def after_one_step(rows, accumulation):  # the gradient's norm and the weights
    trained = policy()
    norm = train(trained, beta=0.05, single_pass=False, max_steps=1, per_device_train_batch_size=rows,
                 gradient_accumulation_steps=accumulation).state.log_history[0]["grad_norm"]
    return torch.cat([torch.tensor([norm]), *(p.detach().flatten() for p in trained.parameters() if p.requires_grad)])

# As unsloth does when it loads a model on a GPU: what divides by the accumulation is then its own.
unsloth.models._utils.patch_gradient_accumulation_fix(transformers.Trainer)
assert transformers.Trainer.training_step.__name__ == "_unsloth_training_step"
torch.testing.assert_close(after_one_step(2, 4), after_one_step(8, 1), rtol=1e-4, atol=1e-6)
# On a GPU unsloth ends every sampling in training mode, in an evaluation too.
import trl.trainer.rloo_trainer as module
from contextlib import contextmanager
unwrap = module.unwrap_model_for_generation
@contextmanager
def leaves_it_training(model, *args, **kwargs):
    with unwrap(model, *args, **kwargs) as unwrapped:
        yield unwrapped
    model.train()
for found in list(sys.modules.values()):
    if vars(found).get("unwrap_model_for_generation") is unwrap:
        found.unwrap_model_for_generation = leaves_it_training
model = policy()
train(model, beta=0.0)
again = train(model, beta=0.05, eval=True)  # the same policy
assert again.state.global_step == 2
assert "eval_reward" in again.evaluate()

def made(**given):
    return rloo_kit.RLOOTrainer(**{"model": model, "processing_class": tokenizer, "reward_funcs": score,
                                   "args": config(), "train_dataset": task.train, **given})

made(optimizers=(None, None))
for refused in ({"model": "tiny"}, {"peft_config": LoraConfig()}):
    try:
        made(**refused)
    except rloo_kit.errors.ConfigError:
        continue
    raise AssertionError(f"{refused} was taken")
default = rloo_kit.RLOOConfig(use_cpu=True, bf16=False, fp16=False)
assert (default.learning_rate, default.optim.value, default.seed) == (1e-5, "adamw_torch_fused", 42)
"""


def test_the_trainer_runs_over_the_class_that_gpu_users_get(script: Any, tmp_path: Path) -> None:
    script(GENERATED, str(tmp_path / "compiled"), str(tmp_path / "run"))
