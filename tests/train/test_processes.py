"""Two processes make the update that one makes with the same global batch."""

from pathlib import Path
from typing import Any

import pytest
import torch

RUN = """
import os, random, socket, sys
import rloo_kit
policy = rloo_kit.load_policy("tiny", seed=0)
import torch
from transformers import TrainerCallback

task = rloo_kit.tasks.addition(n_train=64, n_held_out=32, seed=0)
K = 4

class Fixed(rloo_kit.RLOOTrainer):
    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        '''The same completions on any process: by prompt, and by place in the group.'''
        made = []
        for index, ids in enumerate(prompt_ids):
            rng = random.Random(f"{list(ids)} {index % K}")
            made.append([rng.randrange(15, 25) for _ in range(rng.randrange(1, 8))] + [151645])
        return made

def reward(completion_ids, problem, **kwargs):
    # One prompt in three pays all completions the same; a few are not scored.
    return [0.5 if sum(map(ord, p)) % 3 == 0 else None if len(ids) == 3 else sum(ids) % 97 / 97
            for ids, p in zip(completion_ids, problem)]

class Keep(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        named = {n.removeprefix("module."): p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        self.gradient = named

def gradient(folder, batch, name, **settings):
    config = rloo_kit.RLOOConfig(
        output_dir=folder, num_generations=K, per_device_train_batch_size=batch, gradient_accumulation_steps=2,
        max_steps=1, learning_rate=0.0, max_completion_length=8, save_strategy="no", seed=7, use_cpu=True,
        max_grad_norm=0.0, ddp_find_unused_parameters=False, **settings)
    keep = Keep()
    trainer = Fixed(model=policy, reward_funcs=reward, args=config, train_dataset=task.train, callbacks=[keep])
    generator = torch.Generator().manual_seed(1)
    for key, parameter in sorted(trainer.model.named_parameters()):
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
            if "lora_B" in key:
                parameter.data.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    trainer.train()
    log = next(entry for entry in trainer.state.log_history if "reward" in entry)
    if trainer.accelerator.is_main_process:
        assert trainer.accelerator.num_processes == 8 // batch
        shown = {metric: log[metric] for metric in ("reward", "zero_variance_groups", "entropy", "kl") if metric in log}
        torch.save({"gradient": keep.gradient, **shown}, f"{folder}/{name}.pt")

def batch_mean(rewards):
    return rewards - rewards.nanmean()

SETTINGS = {
    **{who: {"advantage_estimator": who, "beta": 0.05} for who in ("rloo", "dr_grpo", "reinforce")},
    "grpo": {"advantage_estimator": "grpo", "beta": 0.05, "kl_placement": "loss"},
    "own": {"advantage_estimator": batch_mean, "beta": 0.0},
    "live rows only": {"beta": 0.0},
    "live groups only": {"beta": 0.05, "skip_zero_variance_groups": True},
    "token-mean": {"beta": 0.05, "kl_placement": "loss", "loss_aggregation": "token-mean"},
    "seq-mean-token-mean": {"beta": 0.05, "kl_estimator": "k3", "loss_aggregation": "seq-mean-token-mean"},
    "seq-mean-token-sum-norm": {
        "beta": 0.05, "kl_placement": "loss", "kl_estimator": "k3", "loss_aggregation": "seq-mean-token-sum-norm",
        "skip_zero_variance_groups": True, "mask_truncated_completions": True},
}
def start(folder, rank, processes, port):  # a process of its own, as torchrun would start it
    process = os.fork()
    if not process:
        if processes > 1:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes),
                           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        for name, settings in SETTINGS.items():
            gradient(folder, 8 // processes, name, **settings)
        os._exit(0)
    return process

for folder, processes in ((sys.argv[1], 1), (sys.argv[2], 2)):
    with socket.socket() as free:  # taken at once, so that another program hardly gets it
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [start(folder, rank, processes, port) for rank in range(processes)]
    assert [os.waitpid(one, 0)[1] for one in started] == [0] * processes
"""
NAMES = ["rloo", "grpo", "dr_grpo", "reinforce", "own", "live rows only", "live groups only"]
NAMES += ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@pytest.fixture(scope="module")
def runs(script: Any, tmp_path_factory: Any) -> dict[int, Path]:
    """Folders with the gradients that one process found and those that two found."""
    folders = {processes: tmp_path_factory.mktemp(f"processes{processes}") for processes in (1, 2)}
    script(RUN, *map(str, folders.values()), ACCELERATE_USE_CPU="true")
    return folders


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_find_the_gradient_of_one(runs: dict[int, Path], name: str) -> None:
    alone, shared = (torch.load(runs[processes] / f"{name}.pt", weights_only=True) for processes in (1, 2))
    assert alone["gradient"].keys() == shared["gradient"].keys()
    one, two = (torch.cat([g.flatten() for g in run["gradient"].values()]) for run in (alone, shared))
    assert one.norm() > 0
    assert (one - two).norm() <= 1e-5 * one.norm()
    assert 0 < alone["zero_variance_groups"] == shared["zero_variance_groups"] < 1
    assert {"reward", "entropy"} <= alone.keys() == shared.keys()
    for metric in alone.keys() - {"gradient"}:
        assert alone[metric] == pytest.approx(shared[metric], rel=1e-4, abs=1e-6), metric
