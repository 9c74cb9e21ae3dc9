"""Several processes and vLLM: what a launch asked for is what runs, and weights are what their readers take them for.

accelerate, DeepSpeed, TRL and unsloth do the work; here is where they would go on in silence with something else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset

from rloo_kit.errors import ConfigError, DatasetError
from rloo_kit.memory.hardware import sleeps
from rloo_kit.session import multi_process
from rloo_kit.train import run_record

if TYPE_CHECKING:
    import torch
    import trl
    from accelerate import Accelerator


def check_launch(accelerator: Accelerator, args: trl.RLOOConfig, dataset: Dataset | IterableDataset) -> None:
    """Works around: accelerate falls back in silence to fewer processes or to DDP, and each process is sent the same
    row numbers, whatever its rows are.

    Raises:
        ConfigError: the launch asked for something else than there is.
        DatasetError: the processes have different rows.
    """
    state, wanted = accelerator.state, multi_process.asked(args.deepspeed, args.fsdp)
    kind, on_cpu = str(state.distributed_type.value), accelerator.device.type == "cpu"
    if error := multi_process.downgrade(wanted, state.num_processes, kind, on_cpu=on_cpu):
        raise error
    if state.num_processes > 1 and isinstance(dataset, Dataset):
        check_same(gather_object([run_record.rows(dataset)]))


def check_same(digests: list[str]) -> None:
    """Refuse processes, by rank, whose datasets differ."""
    for rank, one in enumerate(digests):
        if one != digests[0]:
            what = "the processes have different rows, and would score one prompt's completions as another's"
            where = f"RLOOTrainer(train_dataset=...), processes 0 and {rank} of {len(digests)}"
            todo = "make it of a fixed seed, and at a fixed level: tasks.arithmetic(level=2, seed=0)"
            raise DatasetError(what, where=where, todo=todo)


def check_vllm(args: trl.RLOOConfig, model: torch.nn.Module) -> None:
    """Works around: TRL sends a 4-bit policy's packed bytes as its weights; and unsloth switches ``use_vllm`` on for a
    policy of ``fast_inference``, and aligns the rest for GRPO alone (2026.10.9, models/rl.py): TRL would never wake an
    engine in standby, nor put it to sleep.

    Raises:
        ConfigError: vLLM would be sent packed weights, or the policy's own engine cannot be used.
    """
    engine = getattr(model, "vllm_engine", None)
    if engine is not None and (args.fsdp or (args.use_vllm and args.vllm_mode == "server")):
        raise ConfigError(
            "the policy samples with unsloth's vLLM, beside which neither a server nor FSDP2 is a choice",
            where=f"load_policy(fast_inference=True), RLOOConfig(vllm_mode={args.vllm_mode!r}, fsdp={args.fsdp!r})",
            todo="load_policy(..., fast_inference=False), or remove the other",
        )
    if engine is not None:
        args.use_vllm, args.vllm_mode = True, "colocate"
        args.vllm_enable_sleep_mode = sleeps(engine)
    elif args.use_vllm and (packed := [n for n, p in model.named_parameters() if hasattr(p, "quant_state")]):
        raise ConfigError(
            f"vLLM would be sent packed bytes of 4-bit weights, {len(packed)} tensors, and sample from them",
            where=f"RLOOConfig(use_vllm=True, vllm_mode={args.vllm_mode!r}), first {packed[0]}",
            todo="load_policy(..., load_in_4bit=False), or remove use_vllm",
        )


@contextlib.contextmanager
def in_its_precision(model: torch.nn.Module | str) -> Iterator[None]:
    """Works around: TRL's trainer turns what is trained of a quantised model to bfloat16 when it is made: eight bits of
    mantissa hold no change below 1 part in 256, and a step of learning rate 1e-5 is a thousandth of most weights.
    (On a GPU unsloth takes those lines out, models/rl.py.  A model that is only named is TRL's to load.)"""
    weights = () if isinstance(model, str) else model.parameters()
    trained = [(weight, weight.data) for weight in weights if weight.requires_grad]
    try:
        yield
    finally:
        for weight, exact in trained:
            if weight.dtype != exact.dtype:
                weight.data = exact.to(weight.device)


def as_at_the_start(reference: torch.nn.Module | None, model: torch.nn.Module) -> None:
    """Works around: without PEFT TRL loads the reference by the model's name, in float32, whatever the policy's weights
    and precision are by then.  With PEFT there is none."""
    if reference is None:
        return
    # By parameter: a cast of the whole module would round the rotary embedding's frequencies, too.
    for kept, trained in zip(reference.parameters(), model.parameters(), strict=True):
        kept.data = trained.detach().clone().to(kept.device)
