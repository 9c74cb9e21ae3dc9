"""The range of seconds of a step: where there is one, what moves it, and how it is shown."""

import dataclasses
from types import SimpleNamespace

import pytest

import rloo_kit
from rloo_kit.memory import hardware, seconds
from rloo_kit.memory.hardware import Device
from rloo_kit.memory.traffic import Traffic

LONG = SimpleNamespace(max_completion_length=1024, max_steps=200)


@pytest.mark.parametrize(
    ("name", "bandwidth"),
    [
        ("NVIDIA GeForce RTX 3060", 360e9),
        ("rtx 3060 12gb", 360e9),
        ("Tesla T4", 320e9),
        ("rtx 4060 ti 16gb", 288e9),
        ("NVIDIA GeForce RTX 4060", 272e9),
    ],
)
def test_a_gpus_speed_is_found_by_its_names(name: str, bandwidth: float) -> None:
    found = hardware.speed_of(Device(name, 0))
    assert found is not None
    assert found[0] == bandwidth


def test_every_card_with_a_speed_is_one_whose_memory_is_known() -> None:
    assert set(hardware.CARD_SPEED) <= set(hardware.CARD_MIB)


@pytest.mark.parametrize(
    "card", [Device("this CPU", 2**36, on_gpu=False), "8GB", Device("NVIDIA H100", 2**36)]
)
def test_without_a_known_gpu_there_is_no_range(card: str | Device) -> None:
    planned = rloo_kit.plan("qwen3-1.7b", LONG, card)
    assert planned.seconds_per_step is None
    said = "seconds: not estimated, this GPU's bandwidth is not known" in str(planned)
    assert said is planned.device.on_gpu, "a CPU's plan says nothing of seconds"


def test_the_range_is_shown_for_a_step_and_the_run_and_said_to_be_counted() -> None:
    planned = rloo_kit.plan("qwen3-4b", LONG, "rtx 3090")
    low, high = planned.seconds_per_step or (0, 0)
    assert 0 < low < high
    line = f"a step takes {seconds.shown(low)} to {seconds.shown(high)}, 200 steps {seconds.shown(200 * low)} to "
    for text in (str(planned), planned._repr_html_()):
        assert line in text
        assert "an estimate, counted and not timed" in text


def test_at_best_a_step_is_bound_by_bytes_or_by_operations_and_else_by_launches() -> None:
    planned = rloo_kit.plan("qwen3-4b", LONG, "rtx 3090")
    traffic = Traffic(planned.model, planned.settings)
    loads = traffic.phases().values()
    endless, moved = 1e30, sum(load.bytes for load in loads)
    assert seconds.of_step(traffic, (1e12, endless))[0] == pytest.approx(moved / 1e12)
    assert seconds.of_step(traffic, (endless, 1e12))[0] == pytest.approx(sum(n.flops for n in loads) / 1e12)
    launches = sum(load.kernels for load in loads) * seconds.LAUNCH_SECONDS
    assert seconds.of_step(traffic, (endless, endless)) == pytest.approx((0, launches))


def test_what_saves_work_saves_bytes() -> None:
    planned = rloo_kit.plan("qwen3-4b", SimpleNamespace(num_generations=8), "rtx 3090")

    def moved(**changed: object) -> float:
        settings = dataclasses.replace(planned.settings, **changed)  # type: ignore[arg-type]
        phases = Traffic(planned.model, settings).phases()
        return sum(load.bytes for load in phases.values()) / (settings.micro_rows * settings.accumulation)

    assert moved(beta=0.0, single_pass=True) < moved(single_pass=True) <= moved(single_pass=False)
    assert moved(generation_rows=16, num_generations=16, accumulation=4) < moved(), (
        "a weight serves more rows"
    )
    assert moved(generation_rows=32, num_generations=32, accumulation=8) > 2 * moved(
        generation_rows=16, num_generations=16, accumulation=4
    ), "each matrix is made in 16 bit"
    assert moved(num_generations=4) > moved(), "prompts of unlike length are masked"
    assert moved(iterations=2, single_pass=False) < moved(single_pass=False)
