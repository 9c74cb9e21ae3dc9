"""GPUs by name, this machine's memory, and the share that vLLM takes."""

from types import SimpleNamespace

import psutil
import pytest
import torch

import rloo_kit
from rloo_kit.errors import ConfigError
from rloo_kit.memory import hardware
from rloo_kit.memory.hardware import Device, device_of
from rloo_kit.session.output import GIB, MIB
from tests.memory.conftest import fake_cuda


@pytest.mark.parametrize(
    ("name", "mib"), [("rtx 3060 12GB", 12288), ("NVIDIA GeForce RTX 4090", 24564), ("4090", 24564), ("24 GiB", 24576)]
)
def test_a_card_is_known_by_its_names_and_bytes_are_taken_as_they_are(name, mib):
    assert device_of(name).usable_bytes == mib * MIB - hardware.RESERVED_BYTES
    assert device_of(mib * MIB).usable_bytes == mib * MIB
    with pytest.raises(ConfigError, match="write '12GB'"):
        device_of(12)


@pytest.mark.parametrize(
    ("reserved", "fraction", "usable", "why"),
    [
        (0, 1.0, 6.5, "nothing is loaded but the context, which a plan counts"),
        (1, 1.0, 7.5, "what torch holds is the run's own"),
        (1, 0.5, 4.5, "the process is limited to half of the card"),
    ],
)
def test_this_machines_card_has_what_is_free_and_what_the_process_holds(monkeypatch, reserved, fraction, usable, why):
    fake_cuda(monkeypatch, memory_reserved=reserved * GIB, get_per_process_memory_fraction=fraction)
    assert device_of() == Device("a fake card", int(usable * GIB), is_here=True), why


def test_without_a_gpu_the_machines_own_memory_counts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=GIB))
    monkeypatch.setattr(psutil, "Process", lambda: process)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=5 * GIB))
    assert device_of() == Device("this CPU", 6 * GIB, on_gpu=False)


def test_a_model_is_where_it_computes_and_not_where_its_embedding_lies():
    """unsloth's ``offload_embedding`` keeps the first parameter in the computer's memory."""
    model = torch.nn.Sequential(torch.nn.Embedding(4, 2), torch.nn.Linear(2, 2, device="meta"))
    assert hardware.where_computed(model).type == "meta"
    assert hardware.where_computed(model[0]).type == "cpu"


def test_the_plan_says_that_it_does_not_count_vllm():
    planned = rloo_kit.plan("qwen3-4b", SimpleNamespace(use_vllm=True), "rtx 3090")
    assert "generate" not in planned.phases
    assert "vLLM samples: what it takes of this GPU is not counted" in str(planned)
    assert "time: not estimated, vLLM samples" in str(planned)
