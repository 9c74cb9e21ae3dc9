"""Hardware: GPUs by name, what this machine has, and vLLM's share of it."""

from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

import rloo_kit
from rloo_kit.memory import hardware
from rloo_kit.memory.formulas import CACHE, DECODING, VLLM, Step
from rloo_kit.memory.hardware import Device, device_of
from rloo_kit.session.output import GIB, MIB
from tests.memory.conftest import fake_cuda


@pytest.mark.parametrize(
    ("name", "mib"),
    [("rtx 3060 12GB", 12288), ("NVIDIA GeForce RTX 4090", 24564), ("4090", 24564), ("24 GiB", 24576)],
)
def test_a_card_is_known_by_its_names_and_bytes_are_taken_as_they_are(name: str, mib: int) -> None:
    assert device_of(name).usable_bytes == mib * MIB - hardware.RESERVED_BYTES
    assert device_of(mib * MIB).usable_bytes == mib * MIB


@pytest.mark.parametrize(
    ("reserved", "fraction", "usable", "why"),
    [
        (0, 1.0, 6.5, "nothing is loaded but the context, which a plan counts"),
        (1, 1.0, 7.5, "what torch holds is the run's own"),
        (1, 0.5, 4.5, "the process is limited to half of the card"),
    ],
)
def test_this_machines_card_has_what_is_free_and_what_the_process_holds(
    monkeypatch: pytest.MonkeyPatch, reserved: int, fraction: float, usable: float, why: str
) -> None:
    fake_cuda(monkeypatch, memory_reserved=reserved * GIB, get_per_process_memory_fraction=fraction)
    assert device_of() == Device("a fake card", int(usable * GIB)), why


def test_without_a_gpu_the_machines_own_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=GIB))
    monkeypatch.setattr(psutil, "Process", lambda: process)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=5 * GIB))
    assert device_of() == Device("this CPU", 6 * GIB, on_gpu=False)


def test_a_model_is_where_it_computes_and_not_where_its_embedding_lies() -> None:
    """unsloth's ``offload_embedding`` keeps the first parameter in the computer's memory."""
    model = torch.nn.Sequential(torch.nn.Embedding(4, 2), torch.nn.Linear(2, 2, device="meta"))
    assert hardware.where_computed(model).type == "meta"
    assert hardware.where_computed(model[0]).type == "cpu"


CARD = "rtx 3090"
STANDBY = SimpleNamespace(vllm_enable_sleep_mode=True)
COLOCATE = SimpleNamespace(use_vllm=True, vllm_mode="colocate")


def plan(config: Any = None, model: str = "qwen3-4b", card: str = CARD, **given: Any) -> rloo_kit.Plan:
    return rloo_kit.plan(model, config, card, **given)


def test_fast_inference_takes_its_share_in_every_phase_and_the_trainers_weights_are_in_it() -> None:
    found, plain = plan(fast_inference=True), plan()
    weights, usable = Step(found.model, found.settings).weights, found.device.usable_bytes
    for phase, parts in found.phases.items():
        assert parts[VLLM] + weights == usable // 2, phase
        assert not {CACHE, DECODING} & parts.keys(), "vLLM's cache is in its share"
    assert found.totals["backward"] == plain.totals["backward"] + usable // 2 - weights
    more = plan(fast_inference=True, gpu_memory_utilization=0.6)
    assert more.parts[VLLM] - found.parts[VLLM] == int(0.6 * usable) - usable // 2


def test_in_standby_the_trainer_has_the_memory_to_itself() -> None:
    found, plain = plan(STANDBY, fast_inference=True), plan()
    assert found.phases["generate"][VLLM] > 14 * GIB
    for phase in ("log-probs", "forward", "backward", "optimizer"):
        assert found.totals[phase] == plain.totals[phase]


def test_trls_own_engine_is_a_second_copy_and_a_server_is_elsewhere() -> None:
    settings = {"model": "qwen3-1.7b", "load_in_4bit": False}
    found = plan(COLOCATE, **settings)
    assert found.parts[VLLM] == int(0.3 * found.device.usable_bytes)
    half = SimpleNamespace(**vars(COLOCATE), vllm_gpu_memory_utilization=0.5, vllm_enable_sleep_mode=True)
    slept = plan(half, **settings)
    assert (slept.phases["generate"][VLLM], slept.phases["backward"][VLLM]) == (slept.parts[VLLM], 0)
    for elsewhere in (SimpleNamespace(use_vllm=True, vllm_mode="server"), rloo_kit.RLOOConfig()):
        assert plan(elsewhere, **settings).settings.engine is None
