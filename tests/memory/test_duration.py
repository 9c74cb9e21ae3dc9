"""The range of a run's seconds: where there is one, what moves it, and how it is shown."""

import dataclasses
from types import SimpleNamespace

import pytest

import rloo_kit
from rloo_kit.memory import duration, hardware
from rloo_kit.memory.hardware import Device
from rloo_kit.memory.plan import batch_sizes
from rloo_kit.memory.plan_settings import Settings
from rloo_kit.memory.policy_tensors import Model

LONG = SimpleNamespace(max_completion_length=1024, max_steps=200)
ENDLESS = 1e30


def test_a_gpus_speed_is_found_by_its_names():
    for name, gigabytes in {"NVIDIA GeForce RTX 3060": 360, "Tesla T4": 320, "NVIDIA GeForce RTX 4060 Ti": 288}.items():
        assert (hardware.speed_of(Device(name, 11 * 2**30)) or (0,))[0] == gigabytes * 1e9


def test_without_a_known_gpu_there_is_no_range():
    on_cpu, unknown = Device("this CPU", 2**36, on_gpu=False), Device("NVIDIA H100", 2**36)
    for device, said in (
        (on_cpu, "activations are counted as on a GPU"),
        (unknown, "time: not estimated, this GPU's bandwidth is not known"),
    ):
        planned = rloo_kit.plan("qwen3-1.7b", LONG, device)
        assert planned.seconds == {}
        assert said in str(planned).splitlines()


def test_a_policy_of_one_weight_by_hand():
    """One layer of 7 weights and a head of 1, both in 16 bit, no LoRA: one prompt token, three sampled tokens."""
    shape = rloo_kit.Checkpoint("one", "one", 1, 1, 1, 1, 1, 1, True, "never", 1)
    model, one = Model(shape, 14, 2, ()), {**batch_sizes(1, 1, 1), "num_generations": 1}
    settings = Settings(prompt_tokens=1, max_completion_length=3, beta=0.0, four_bit=False, **one)  # type: ignore[arg-type]

    def step(bandwidth: float, peak: float, iterations: int = 1) -> duration.Range:
        used = dataclasses.replace(settings, num_iterations=iterations)
        return duration.Seconds(model, used, bandwidth, peak, four_bit_rows=1, in_16_bit=False).step()

    # A pass reads 7 weights and the head, 2 bytes each: prefill, forward, recomputation and backward.  Two further
    # tokens read the same and, on average, 1 + 3 / 2 cached tokens of 4 bytes.
    assert step(1.0, ENDLESS)[0] == pytest.approx(4 * (14 + 2) + 2 * (14 + 2 + 2.5 * 4))
    # Used twice, a batch is sampled half as often, and every other update has an extra pass.
    assert step(1.0, ENDLESS, 2)[0] == pytest.approx((3 + 1 / 2 + 1 / 2) * (14 + 2) + (14 + 2 + 2.5 * 4))
    # Two operations per weight and token, and four per token attended to.
    prompt, token = 1 * (14 + 4) + 2, 14 + 2 + 4 * 2.5
    update = 3 * (4 * (14 + 4 * 4) + 3 * 2)
    assert step(ENDLESS, 1.0)[0] == pytest.approx(prompt + 2 * token + update)
    kernels = 50 + 2 * 38 + 3 * 50
    assert step(ENDLESS, ENDLESS) == pytest.approx([kernels * each for each in duration.LAUNCH_SECONDS])


def test_the_one_step_that_was_timed_is_within_its_range():
    """benchmarks/results/gpu: 8 x 256 tokens on an H100 (3.35 TB/s, 989 TFLOP/s) took 3.8 and 5.0 s; docs/cards.md."""
    own = SimpleNamespace(max_completion_length=256, **batch_sizes(8, 8, 8), num_generations=8)
    of = rloo_kit.plan("qwen3-4b", own, "80GB", prompt_tokens=256)
    low, high = duration.Seconds(of.model, of.settings, 3.35e12, 989e12, four_bit_rows=4, in_16_bit=False).step()
    assert (round(low, 1), round(high, 1)) == (1.9, 5.9)


def planned(evaluate: dict[str, object] | None = None, eval_rows: int = 0, **config: object) -> rloo_kit.Plan:
    asked = SimpleNamespace(**config)
    return rloo_kit.plan("qwen3-4b", asked, "rtx 4070", evaluate=evaluate, eval_rows=eval_rows)  # type: ignore[arg-type]


def test_of_weights_in_16_bit_a_token_reads_two_bytes_each():
    """With 4-bit weights a token reads them, then writes and reads the 16-bit weights made from them."""
    planned = rloo_kit.plan("qwen3-4b", SimpleNamespace(max_completion_length=11, **batch_sizes(20, 20, 20)), "24GB")
    model, weights = planned.model, planned.model.checkpoint.linear_parameters
    asked = model, planned.settings, 1.0, ENDLESS
    products, made, held = (duration.Seconds(*asked, *how).step()[0] for how in ((20, True), (19, False), (19, True)))
    assert made - held == pytest.approx(10 * (model.linear_bytes + 2 * weights))
    assert held - products == pytest.approx(10 * (2 * weights - model.linear_bytes))


def test_a_run_is_loading_evaluations_and_steps():
    during = {"eval_strategy": "steps", "eval_steps": 50, "num_generations_eval": 2}
    seconds = planned({"n": 100}, 30, max_steps=200, **during).seconds
    assert list(seconds) == ["load", "a step", "evaluations", "in all"]
    before_and_after = planned({"n": 100}, max_steps=200).seconds["evaluations"]
    while_it_trains = planned(None, 30, max_steps=200, **during).seconds["evaluations"]
    for end in (0, 1):
        assert seconds["evaluations"][end] == pytest.approx(before_and_after[end] + while_it_trains[end])
        whole = seconds["load"][end] + 200 * seconds["a step"][end] + seconds["evaluations"][end]
        assert seconds["in all"][end] == pytest.approx(whole)
    assert list(planned().seconds) == ["load", "a step"], "the data decides how many steps there are"
    for uncounted in (planned(max_steps=200, **during), planned({}, max_steps=200)):
        assert "evaluations of unknown size are not counted" in str(uncounted)


def test_an_evaluation_takes_longer_with_more_problems_longer_completions_and_more_often():
    def measured(**asked: object) -> tuple[float, float]:
        return planned({"max_new_tokens": 256, **asked}, max_steps=1).seconds["evaluations"]

    base = measured(n=100)
    assert measured(n=300)[0] > 2 * base[0]
    assert measured(n=100, samples=3) == measured(n=300)
    assert measured(n=65, batch_size=64) == measured(n=128, batch_size=64), "two rounds"
    assert measured(n=100, samples=None, max_new_tokens=None) == measured(n=100, max_new_tokens=512)
    assert measured(n=100, max_new_tokens=512)[0] > 1.9 * base[0]
    roomy = measured(n=100, room=4)
    assert roomy[0] < 1.5 * base[0], "at best nothing is cut, but fewer are sampled at once"
    assert roomy[1] > 3 * base[1], "and at worst all of it"
