"""Hardware: GPUs by name, what this machine has, and vLLM's share of it."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import trl

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
    kept = plain.totals["backward"] - plain.phases["backward"].get(VLLM, 0)
    assert found.totals["backward"] == kept + usable // 2 - weights
    assert VLLM not in plain.parts
    more = plan(fast_inference=True, gpu_memory_utilization=0.6)
    assert more.parts[VLLM] - found.parts[VLLM] == int(0.6 * usable) - usable // 2


def test_in_standby_the_trainer_has_the_memory_to_itself_and_vllm_unsloths_share() -> None:
    found, plain = plan(STANDBY, fast_inference=True, gpu_memory_utilization=0.1), plan()
    assert found.settings.engine is not None
    assert found.settings.engine.share_bytes == int(0.95 * 0.825 * found.device.usable_bytes)
    assert found.phases["generate"][VLLM] > 15 * GIB
    for phase in ("log-probs", "forward", "backward", "optimizer"):
        assert found.totals[phase] == plain.totals[phase]
    assert "standby" in str(found)


def test_trls_own_engine_is_a_second_copy_and_a_server_is_elsewhere() -> None:
    settings = {"load_in_4bit": False}
    found = plan(COLOCATE, "qwen3-1.7b", **settings)
    assert found.parts[VLLM] == int(0.3 * found.device.usable_bytes)
    half = SimpleNamespace(**vars(COLOCATE), vllm_gpu_memory_utilization=0.5, vllm_enable_sleep_mode=True)
    slept = plan(half, "qwen3-1.7b", **settings)
    assert (slept.phases["generate"][VLLM], slept.phases["backward"][VLLM]) == (slept.parts[VLLM], 0)
    for elsewhere in (SimpleNamespace(use_vllm=True, vllm_mode="server"), SimpleNamespace(use_vllm=False)):
        assert plan(elsewhere, "qwen3-1.7b", **settings).phases == plan(None, "qwen3-1.7b", **settings).phases
    assert plan(rloo_kit.RLOOConfig()).settings.engine is None, "never by default"


def test_shares_are_those_of_unsloths_and_trls_sources() -> None:
    def source_of(package: str, file: str) -> str:
        """Of code that does not import without a GPU."""
        origin = importlib.util.find_spec(package).origin
        return (Path(origin).parent / file).read_text(encoding="utf-8")

    source = source_of("unsloth_zoo", "vllm_utils.py").partition("# vLLM standby")[2]
    newer = source.partition("Lowered tiers")[2].partition("if unsloth_vllm_standby and")[0]
    for least, share in hardware.STANDBY_SHARES[:-1]:
        assert f"ten_percent >= {least / 10:.1f}: standby_target_gpu_util = {share}" in newer
    assert f"else: standby_target_gpu_util = {hardware.STANDBY_SHARES[-1][1]}" in newer
    assert f"standby_target_gpu_util *= {hardware.STANDBY_FACTOR}" in newer
    loader = source_of("unsloth", "models/loader.py").partition("class FastLanguageModel")[2]
    assert f"gpu_memory_utilization = {hardware.FAST_INFERENCE_SHARE}," in loader.partition("\n    ):")[0]
    fields = trl.trainer.rloo_config.RLOOConfig.__dataclass_fields__
    assert fields["vllm_gpu_memory_utilization"].default == hardware.COLOCATE_SHARE
