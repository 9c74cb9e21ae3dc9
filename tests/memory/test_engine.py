"""vLLM's share in the plan: by unsloth's fast_inference, by TRL's colocate, in standby, and where it is too small."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trl

import rloo_kit
from rloo_kit.memory import engine
from rloo_kit.memory.footprint import CACHE, DECODING, VLLM, Step
from rloo_kit.session.show import GIB

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


def test_a_share_that_holds_no_completion_does_not_fit_whatever_is_free() -> None:
    found = plan(model="qwen3-8b", card="t4", fast_inference=True, gpu_memory_utilization=0.3)
    assert found.peak_bytes < found.device.usable_bytes
    assert found.fits == "does not fit"
    assert "too small for vLLM to start" in found.summary
    assert "give it more (gpu_memory_utilization)" in str(found)
    assert "qwen3-4b" in str(found.changes[0]), "the largest whose weights the share holds"
    enough = plan(model="qwen3-8b", card="t4", fast_inference=True, gpu_memory_utilization=0.5)
    tokens = (enough.device.usable_bytes // 2 - Step(enough.model, enough.settings).weights) // (
        2 * 36 * 8 * 128 * 2
    )
    assert (enough.fits, enough.engine_tokens) == ("fits", tokens), "36 layers, 8 heads of 128, 2 bytes"


def test_seconds_are_not_estimated_with_vllm() -> None:
    assert plan().seconds_per_step is not None
    found = plan(fast_inference=True)
    assert found.seconds_per_step is None
    assert "vLLM samples" in str(found)


def test_a_loaded_engine_says_itself_what_it_was_given() -> None:
    given = SimpleNamespace(
        model_config=SimpleNamespace(enable_sleep_mode=True),
        cache_config=SimpleNamespace(gpu_memory_utilization=0.62),
    )
    model = SimpleNamespace(vllm_engine=SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=given)))
    assert engine.of(1000, None, model) == engine.Engine(620, shares_weights=True, standby=True)
    bare = SimpleNamespace(vllm_engine=SimpleNamespace())
    assert engine.of(1000, None, bare) == engine.Engine(500, shares_weights=True, standby=False)


@pytest.mark.parametrize("card", ["8GB", "t4", "rtx 3090", "48GB"])
def test_a_larger_card_gives_standby_a_larger_share(card: str) -> None:
    found = engine.standby_share(rloo_kit.plan("qwen3-0.6b", card=card).device.usable_bytes)
    assert 0.71 < found < 0.88


def source_of(package: str, file: str) -> str:
    """Of code that does not import without a GPU."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / file).read_text(encoding="utf-8")


def test_shares_are_those_of_unsloths_and_trls_sources() -> None:
    source = source_of("unsloth_zoo", "vllm_utils.py")
    newer = (
        source.partition("# vLLM standby")[2]
        .partition("Lowered tiers")[2]
        .partition("if unsloth_vllm_standby and")[0]
    )
    for least, share in engine.STANDBY_SHARES[:-1]:
        assert f"ten_percent >= {least / 10:.1f}: standby_target_gpu_util = {share}" in newer
    assert f"else: standby_target_gpu_util = {engine.STANDBY_SHARES[-1][1]}" in newer
    assert f"standby_target_gpu_util *= {engine.STANDBY_FACTOR}" in newer
    loader = source_of("unsloth", "models/loader.py").partition("class FastLanguageModel")[2]
    assert f"gpu_memory_utilization = {engine.FAST_INFERENCE_SHARE}," in loader.partition("\n    ):")[0]
    fields = trl.trainer.rloo_config.RLOOConfig.__dataclass_fields__
    assert fields["vllm_gpu_memory_utilization"].default == engine.COLOCATE_SHARE
    assert fields["vllm_mode"].default == "colocate"
