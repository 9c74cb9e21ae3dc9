"""The range of seconds of a step: where there is one, what moves it, and how it is shown."""

import dataclasses
from types import SimpleNamespace

import pytest

import rloo_kit
from rloo_kit.memory import duration, hardware, plan_inputs
from rloo_kit.memory.hardware import Device

LONG = SimpleNamespace(max_completion_length=1024, max_steps=200)
ENDLESS = 1e30


@pytest.mark.parametrize(
    ("name", "bandwidth"),
    [
        ("NVIDIA GeForce RTX 3060", 360e9),
        ("Tesla T4", 320e9),
        ("NVIDIA GeForce RTX 4060 Ti", 288e9),
    ],
)
def test_a_gpus_speed_is_found_by_its_names(name: str, bandwidth: float) -> None:
    assert (hardware.speed_of(Device(name, 11 * 2**30)) or (0,))[0] == bandwidth


@pytest.mark.parametrize(
    ("card", "fast_inference", "said"),
    [
        (Device("this CPU", 2**36, on_gpu=False), False, ""),
        ("8GB", False, "time: not estimated, this GPU's bandwidth is not known"),
        (Device("NVIDIA H100", 2**36), False, "time: not estimated, this GPU's bandwidth is not known"),
        ("rtx 3090", True, "time: not estimated, vLLM samples"),
    ],
)
def test_without_a_known_gpu_or_with_vllm_there_is_no_range(
    card: str | Device, fast_inference: bool, said: str
) -> None:
    planned = rloo_kit.plan("qwen3-1.7b", LONG, card, fast_inference=fast_inference)
    assert planned.seconds == {}
    assert [note for note in planned.notes if note.startswith("time")] == [said] * bool(said)


def test_a_policy_of_one_weight_by_hand() -> None:
    """One layer of 7 weights in 16 bit, a head of 1 in 4 bytes, no LoRA: one prompt token, three sampled ones."""
    shape = rloo_kit.Checkpoint("one", "one", 1, 1, 1, 1, 1, 1, True, "never", 1)
    model = plan_inputs.Model(shape, 14, 2, ())
    settings = plan_inputs.Settings(
        prompt_tokens=1,
        completion_tokens=3,
        num_generations=1,
        micro_rows=1,
        batch_rows=1,
        accumulation=1,
        beta=0.0,
        four_bit=False,
    )
    # A pass reads 7 weights and the head, 2 bytes each: the prompt's, forward, again and backward.  Two more tokens
    # read them too, and 1 + 3 / 2 cached tokens of 4 bytes.
    bytes_moved = 4 * (14 + 2) + 2 * (14 + 2 + 2.5 * 4)
    assert duration.Speed(model, settings, 1.0, ENDLESS).step()[0] == pytest.approx(bytes_moved)
    # Two operations a weight and token, four a token that one looks at.
    prompt, token = 1 * (14 + 4) + 2, 14 + 2 + 4 * 2.5
    update = 3 * (4 * (14 + 4 * 4) + 3 * 2)
    assert duration.Speed(model, settings, ENDLESS, 1.0).step()[0] == pytest.approx(
        prompt + 2 * token + update
    )
    kernels = 50 + 2 * 38 + 3 * 50
    assert duration.Speed(model, settings, ENDLESS, ENDLESS).step() == pytest.approx(
        (0, kernels * duration.LAUNCH_SECONDS)
    )


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"beta": 0.0}, {}),
        ({"beta": 0.0}, {"beta": 0.0, "single_pass": False}),
        ({"generation_rows": 16}, {"generation_rows": 8}),
        ({"num_generations": 16}, {"num_generations": 8}),
        ({"iterations": 2, "single_pass": False}, {"single_pass": False}),
    ],
    ids=["no reference", "one pass", "more rows a weight", "one prompt, no mask", "a batch used twice"],
)
def test_what_saves_work_saves_seconds(less: dict[str, object], more: dict[str, object]) -> None:
    planned = rloo_kit.plan("qwen3-4b", SimpleNamespace(gradient_accumulation_steps=4), "rtx 3090")
    rows = {"num_generations": 16, "generation_rows": 16, "batch_rows": 16}
    base = dataclasses.replace(planned.settings, **rows, single_pass=True)

    def at_best(given: dict[str, object]) -> float:
        settings = dataclasses.replace(base, **given)  # type: ignore[arg-type]
        return duration.Speed(planned.model, settings, 936e9, 71e12).step()[0]

    assert at_best(less) < at_best(more)


def planned(evaluate: dict[str, object] | None = None, eval_rows: int = 0, **config: object) -> rloo_kit.Plan:
    return rloo_kit.plan(
        "qwen3-4b", SimpleNamespace(**config), "rtx 4070", evaluate=evaluate, eval_rows=eval_rows
    )


def test_an_evening_is_loading_evaluations_and_steps() -> None:
    during = {"eval_strategy": "steps", "eval_steps": 50, "num_generations_eval": 2}
    found = planned({"n": 100}, 30, max_steps=200, **during).seconds
    measured, while_it_trains = (
        "2 evaluations of 100 completions, before and after",
        "4 evaluations of 60 completions, while it trains",
    )
    assert list(found) == ["load", "a step", measured, while_it_trains, "200 steps", "in all"]
    for end in (0, 1):
        assert found["200 steps"][end] == pytest.approx(200 * found["a step"][end])
        parts = ("load", measured, while_it_trains, "200 steps")
        assert found["in all"][end] == pytest.approx(sum(found[part][end] for part in parts))
    assert list(planned().seconds) == ["load", "a step"], "the data decides how many steps there are"
    assert list(planned({}, max_steps=-1).seconds) == ["load", "a step"]
    for uncounted in (planned(max_steps=200, **during), planned({}, max_steps=200)):
        assert "evaluations of unknown size are not counted" in str(uncounted)


def test_an_evaluation_takes_longer_with_more_problems_longer_completions_and_more_often() -> None:
    def measured(**asked: object) -> tuple[float, float]:
        (found,) = (
            range_ for part, range_ in planned(asked, max_steps=1).seconds.items() if "before" in part
        )
        return found

    base = measured(n=100, max_new_tokens=256)
    assert measured(n=300, max_new_tokens=256)[0] > 2 * base[0]
    assert measured(n=100, samples=3, max_new_tokens=256) == measured(n=300, max_new_tokens=256)
    assert measured(n=100, max_new_tokens=512)[0] > 1.9 * base[0]
    roomy = measured(n=100, max_new_tokens=256, room=4)
    assert roomy[0] < 1.5 * base[0], "at best nothing is cut, but fewer are sampled at once"
    assert roomy[1] > 3 * base[1], "and at worst all of it"
    assert planned(max_steps=100, eval_strategy="steps", eval_steps=0.25).settings.eval_times == 4
