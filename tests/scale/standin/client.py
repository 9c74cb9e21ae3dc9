"""The kit's trainer with a vLLM server: three steps, each sync compared, and a reward that breaks in the fourth.

``client.py FOLDER PORT GROUP_PORT``.
"""

import hashlib
import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import rloo_kit

policy = rloo_kit.load_policy("tiny", seed=0, load_in_4bit=False, dtype="float32")

import torch  # noqa: E402
from trl.generation import vllm_client, vllm_generation  # noqa: E402

folder, port, group_port = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
syncs: list[dict[str, object]] = []


def hashed(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().float().contiguous().numpy().tobytes()).hexdigest()


def init_communicator(self, device: object = 0) -> None:
    """TRL's, without its refusal of a device that NCCL does not have."""
    info = {"master_address": "127.0.0.1", "master_port": self.group_port, "rank_offset": 1}
    info |= {"world_size": self.get_world_size() + 1, "packed": True}
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(
            self._post, f"{self.base_url}/init_weight_transfer_engine", json={"init_info": info}
        )
        self.communicator = vllm_client.open_trainer_endpoint(info)
        joined.result()


def merged() -> dict[str, str]:
    """What a server must have, by layer: the base's weight and the adapter's change to it."""
    found = {}
    for name, module in policy.model.get_base_model().named_modules():
        if hasattr(module, "get_delta_weight"):
            found[f"{name}.weight"] = hashed(module.base_layer.weight + module.get_delta_weight("default"))
    return found


def compared(self) -> None:
    expected = merged()
    sync_weights(self)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/hashes") as answer:
        held = json.load(answer)
    others = {n: hashed(p) for n, p in policy.model.get_base_model().named_parameters() if "lora_" not in n}
    expected |= {name: value for name, value in others.items() if ".base_layer" not in name}
    different = [name for name in held.keys() | expected.keys() if held.get(name) != expected.get(name)]
    syncs.append({"tensors": len(held), "different": different, "merged": len(merged())})


vllm_client.VLLMClient.init_communicator = init_communicator
sync_weights = vllm_generation.VLLMGeneration.sync_weights
vllm_generation.VLLMGeneration.sync_weights = compared

task = rloo_kit.tasks.addition(n_train=32, n_held_out=8, seed=0)


def reward(completion_ids, trainer_state, **kwargs):
    if trainer_state.global_step == 3:
        return [float("inf")] * len(completion_ids)
    return [sum(ids) % 97 / 97 for ids in completion_ids]


config = rloo_kit.RLOOConfig(
    output_dir=str(folder / "run"), num_generations=4, per_device_train_batch_size=8, gradient_accumulation_steps=1,
    max_steps=5, learning_rate=1e-3, max_completion_length=16, save_strategy="no", seed=7, logging_steps=1,
    report_to="none", use_vllm=True, vllm_mode="server", vllm_server_base_url=f"http://127.0.0.1:{port}",
    vllm_group_port=group_port, vllm_server_timeout=60,
)  # fmt: skip
trainer = rloo_kit.RLOOTrainer(model=policy, reward_funcs=reward, args=config, train_dataset=task.train)
stopped = ""
try:
    trainer.train()
except ValueError as error:
    stopped = f"{type(error).__name__}: {error}"
steps = [entry for entry in trainer.state.log_history if "reward" in entry]
(folder / "told.json").write_text(json.dumps({"syncs": syncs, "steps": steps, "stopped": stopped}))
