"""The benchmarks' bookkeeping: seconds go to one phase each, and a run that does not arrive is not hidden."""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import runs
import step
import student
import time_to_accuracy
from phases import PHASES, Meter, PhaseClock, Spent, peak_bytes, reset_peak
from phases import Step as Update
from runs import VARIANTS, Evaluated, Result, Reward, Spec
from time_to_accuracy import Pair

from rloo_kit.evaluation.intervals import Interval


class Time:
    """Two clocks that stand still unless told; wall time runs twice as fast as CPU time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds

    def __call__(self) -> Spent:
        return Spent(self.seconds, 2 * self.seconds)


class FakeTrainer:
    """TRL's methods, each taking a known time; what a step needs and no more."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.accelerator = SimpleNamespace(
            device=torch.device("cpu"),
            backward=lambda loss: time.pass_by(16),
            unwrap_model=lambda model: model,
        )
        self.optimizer = SimpleNamespace(step=lambda: time.pass_by(32))
        self.model = SimpleNamespace(_adapters_disabled=False, active_adapter="default")

    def _generate_single_turn(self, prompt_ids: Any, *args: Any) -> list[list[int]]:
        self.time.pass_by(1)
        return [[7, 8, 9], [7]]

    def _get_per_token_logps_and_entropies(self, model: Any, seconds: float) -> None:
        self.time.pass_by(seconds)

    @contextlib.contextmanager
    def base_model(self) -> Iterator[None]:
        self.model._adapters_disabled = True
        yield
        self.model._adapters_disabled = False

    def step(self) -> None:
        self.time.pass_by(64)
        self._generate_single_turn([[1], [1]], None, {})
        with torch.no_grad():
            self._get_per_token_logps_and_entropies(self.model, 2)
            with self.base_model():
                self._get_per_token_logps_and_entropies(self.model, 4)
        self._get_per_token_logps_and_entropies(self.model, 8)
        self.accelerator.backward(None)
        self.optimizer.step()


SECONDS = dict(zip(("generate", "old", "reference", "loss forward", "backward", "optimizer", "rest"),
                   (1, 2, 4, 8, 16, 32, 64), strict=True))  # fmt: skip


def metered() -> tuple[FakeTrainer, Meter, Time]:
    time = Time()
    trainer = FakeTrainer(time)
    return trainer, Meter(trainer, PhaseClock(now=time)), time


class TestPhases:
    def test_each_second_of_a_step_is_in_the_phase_that_spent_it(self) -> None:
        trainer, meter, _ = metered()
        meter.begin()
        trainer.step()
        meter.end_step()
        assert {name: meter.steps[0].spent[name].cpu_seconds for name in PHASES} == SECONDS
        assert {name: meter.steps[0].spent[name].wall_seconds / 2 for name in PHASES} == SECONDS
        assert meter.steps[0].total == Spent(127, 254)

    def test_a_step_has_its_own_seconds_and_tokens_and_not_those_of_the_one_before(self) -> None:
        trainer, meter, _ = metered()
        meter.begin()
        for _ in range(2):
            trainer.step()
            meter.end_step()
        assert [item.tokens for item in meter.steps] == [4, 4]
        assert [item.total.cpu_seconds for item in meter.steps] == [127, 127]
        assert meter.clock.total.cpu_seconds == 254

    @pytest.mark.parametrize("adapter", ["ref", "default"])
    def test_the_copied_adapter_is_the_reference_and_the_trained_one_is_not(self, adapter: str) -> None:
        trainer, meter, _ = metered()
        meter.begin()
        trainer.model.active_adapter = adapter
        with torch.no_grad():
            trainer._get_per_token_logps_and_entropies(trainer.model, 3)
        meter.end_step()
        spent = meter.steps[0].spent
        assert spent["reference" if adapter == "ref" else "old"].cpu_seconds == 3

    def test_a_reference_that_is_a_model_of_its_own_is_known(self) -> None:
        trainer, meter, _ = metered()
        trainer.ref_model = SimpleNamespace()
        meter.begin()
        with torch.no_grad():
            trainer._get_per_token_logps_and_entropies(trainer.ref_model, 3)
        meter.end_step()
        assert meter.steps[0].spent["reference"].cpu_seconds == 3

    def test_what_happens_before_the_start_and_while_the_clock_stands_is_nobodys(self) -> None:
        trainer, meter, time = metered()
        trainer._generate_single_turn([])
        meter.begin()
        trainer._generate_single_turn([])
        with meter.paused():
            time.pass_by(1000)
            trainer._get_per_token_logps_and_entropies(trainer.model, 1000)
        time.pass_by(5)
        meter.end_step()
        assert meter.steps[0].total.cpu_seconds == 1 + 5

    def test_of_phases_inside_each_other_the_inner_one_is_charged(self) -> None:
        time = Time()
        clock = PhaseClock(now=time)
        clock.start()
        with clock.phase("loss forward"):
            time.pass_by(1)
            with clock.phase("generate"):
                time.pass_by(2)
            time.pass_by(4)
        clock.pause()
        assert clock.spent["loss forward"].cpu_seconds == 5
        assert clock.spent["generate"].cpu_seconds == 2

    def test_a_phase_that_fails_keeps_its_seconds_and_ends(self) -> None:
        time = Time()
        clock = PhaseClock(now=time)
        clock.start()

        def fail() -> None:
            time.pass_by(3)
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"), clock.phase("backward"):
            fail()
        time.pass_by(1)
        clock.pause()
        assert (clock.spent["backward"].cpu_seconds, clock.spent["rest"].cpu_seconds) == (3, 1)

    def test_the_device_is_waited_for_before_each_reading(self) -> None:
        time, order = Time(), []
        clock = PhaseClock(
            now=lambda: order.append("read") or time(), synchronize=lambda: order.append("wait")
        )
        clock.start()
        with clock.phase("generate"):
            pass
        assert order == ["wait", "read"] * 3

    def test_the_peak_is_that_since_the_reset(self) -> None:
        # Pages straight from the system: malloc may hand out memory that the process has held all along.
        block = mmap.mmap(-1, size := 64 * 2**20)
        held = reset_peak("cpu")
        for page in range(0, size, mmap.PAGESIZE):
            block[page] = 1
        assert peak_bytes("cpu") - held > 0.9 * size
        block.close()
        if Path("/proc/self/clear_refs").exists():
            assert reset_peak("cpu") < held + 32 * 2**20


class TestRuns:
    def test_the_reward_is_the_quickstarts_and_counts_groups_without_spread(self) -> None:
        reward = Reward(lambda completion: completion[0]["content"][-2:], k=2)
        texts = ["</think>42", "42", "</think>43", "</think></think>42", "</think>42", "</think>42"]
        completions = [[{"role": "assistant", "content": text}] for text in texts]
        assert reward(completions, answer=["42"] * 6) == [1.0, 0.0, 0.2, 0.0, 1.0, 1.0]
        assert (reward.dead, reward.means) == ([1 / 3], [pytest.approx(3.2 / 6)])

    def test_a_result_survives_its_file(self) -> None:
        result = run_of("kit", [(0, 0.5), (3, 0.9)], seconds=1.25)
        assert Result.from_json(json.loads(json.dumps(result.to_json()))) == result

    def test_a_run_that_was_measured_is_not_measured_again(self, tmp_path: Path, monkeypatch: Any) -> None:
        calls = []
        result = run_of("kit", [(0, 0.5)])

        def start(command: list[str], **_: Any) -> Any:
            calls.append(command)
            Path(command[-1]).write_text(json.dumps(result.to_json()))
            return SimpleNamespace(returncode=0)

        monkeypatch.setattr(runs, "OUT", tmp_path)
        monkeypatch.setattr(runs.subprocess, "run", start)
        assert [runs.measure(result.spec) for _ in range(2)] == [result, result]
        assert len(calls) == 1
        runs.measure(result.spec, fresh=True)
        runs.measure(Spec("kit", repeat=1))
        assert len(calls) == 3

    def test_a_run_that_fails_says_what_it_said_and_leaves_no_result(
        self, tmp_path: Path, monkeypatch: Any
    ) -> None:
        def start(command: list[str], stdout: Any, **_: Any) -> Any:
            stdout.write("ValueError: no such thing")
            stdout.flush()
            return SimpleNamespace(returncode=1)

        monkeypatch.setattr(runs, "OUT", tmp_path)
        monkeypatch.setattr(runs.subprocess, "run", start)
        with pytest.raises(RuntimeError, match="no such thing"):
            runs.measure(Spec("kit"))
        assert not list(tmp_path.glob("*.json"))

    def test_settings_switches_and_sources_each_make_another_result(self, monkeypatch: Any) -> None:
        names = {runs.digest(Spec("kit")), runs.digest(Spec("stock")), runs.digest(Spec("kit", seed=1))}
        monkeypatch.setitem(VARIANTS, "kit", runs.Variant({"beta": 0.1}))
        names.add(runs.digest(Spec("kit")))
        assert len(names) == 4


def run_of(
    variant: str,
    accuracies: list[tuple[int, float]],
    seconds: float = 1.0,
    tokens: int = 100,
    steps: int | None = None,
    **settings: Any,
) -> Result:
    """A run whose steps all take the same time: ``accuracies`` are (step, accuracy)."""
    steps = steps if steps is not None else accuracies[-1][0]
    spent = {**dict.fromkeys(PHASES, Spent()), "generate": Spent(seconds, 2 * seconds)}
    return Result(
        spec=Spec(variant, **{"target": 0.85, "steps": steps, "evaluate_every": 3, **settings}),
        steps=(Update(spent, tokens),) * steps,
        evaluated=tuple(
            Evaluated(at, at * tokens, Spent(at * seconds, 2 * at * seconds), accuracy)
            for at, accuracy in accuracies
        ),
        dead=(0.0,) * steps,
        rewards=(0.5,) * steps,
        start_bytes=1,
        peak_bytes=2**30,
        load=1.0,
        machine={"device": "CPU", "cpu": "one", "threads": "1", "versions": "torch 1"},
    )


ARRIVES = [(0, 0.5), (3, 0.84), (6, 0.85), (9, 0.8)]
NEVER = [(0, 0.5), (3, 0.6), (6, 0.7), (9, 0.8)]


class TestTimeToAccuracy:
    def test_the_first_evaluation_at_or_above_the_target_counts_even_if_a_later_one_falls(self) -> None:
        run = run_of("kit", ARRIVES, seconds=2)
        assert time_to_accuracy.seconds_to_target(run, "cpu_seconds") == 12
        assert time_to_accuracy.seconds_to_target(run, "wall_seconds") == 24

    def test_a_run_that_never_arrives_takes_forever(self) -> None:
        assert time_to_accuracy.seconds_to_target(run_of("kit", NEVER), "cpu_seconds") == math.inf

    @pytest.mark.parametrize(
        ("stock", "kit", "ratio", "why"),
        [
            (ARRIVES, ARRIVES, 0.25, "both arrive at step 6, and the kit's step takes a quarter"),
            (NEVER, ARRIVES, 6 * 1 / (9 * 4), "stock counts with its 9 steps: the true ratio is smaller"),
            (ARRIVES, NEVER, math.inf, "nothing bounds what the kit would have needed"),
            (NEVER, NEVER, math.inf, "nor here"),
        ],
    )
    def test_a_run_that_does_not_arrive_counts_against_the_kit(
        self, stock: Any, kit: Any, ratio: float, why: str
    ) -> None:
        pair = Pair(run_of("stock", stock, seconds=4), run_of("kit", kit))
        assert time_to_accuracy.time_ratios([pair], "cpu_seconds") == [pytest.approx(ratio)], why

    def test_the_ratio_is_a_geometric_mean_and_its_interval_holds_it(self) -> None:
        found = time_to_accuracy.geometric_mean([0.125, 0.25, 0.5])
        assert found.value == pytest.approx(0.25)
        # By hand: the logarithms to base 2 are -3, -2, -1 with deviation 1; t of 2 degrees of freedom is 4.303.
        assert found.low == pytest.approx(0.25 / 2 ** (4.303 / 3**0.5), rel=1e-3)
        assert found.high == pytest.approx(0.25 * 2 ** (4.303 / 3**0.5), rel=1e-3)

    def test_seeds_that_agree_leave_no_interval(self) -> None:
        assert (
            time_to_accuracy.spelled([0.25] * 5, "cpu_seconds") == "0.25 CPU seconds (no interval: no spread)"
        )

    def test_one_endless_run_of_the_kit_makes_the_ratio_endless_and_nothing_bounds_it(self) -> None:
        assert time_to_accuracy.spelled([0.25, math.inf]) == "inf [0.00, inf]"

    def test_between_evaluations_the_accuracy_is_on_a_straight_line(self) -> None:
        run = run_of("kit", [(0, 0.5), (3, 0.8), (6, 0.7)])
        points = [time_to_accuracy.accuracy_at(run, tokens) for tokens in (0, 100, 300, 450, 600)]
        assert points == pytest.approx([0.5, 0.6, 0.8, 0.75, 0.7])
        with pytest.raises(ValueError, match="601 tokens"):
            time_to_accuracy.accuracy_at(run, 601)

    def test_tokens_are_compared_up_to_where_every_run_has_been_and_not_beyond_the_common_steps(self) -> None:
        long = run_of("stock", [(0, 0.5), (3, 0.6), (6, 0.7), (9, 0.9)], tokens=100, steps=6)
        short = run_of("kit", [(0, 0.5), (3, 0.8), (6, 0.9)], tokens=90, steps=6)
        assert time_to_accuracy.common_tokens([Pair(long, long), Pair(long, short)]) == 540
        assert time_to_accuracy.common_tokens([Pair(long, long)]) == 600

    @pytest.mark.parametrize(
        ("low", "high", "words"),
        [
            (-0.20, -0.10, "worse"),
            (-0.04, -0.01, "worse"),
            (-0.20, 0.10, "not shown"),
            (-0.051, 0.30, "not shown"),
            (-0.049, 0.30, "not worse by more than 0.05"),
            (0.01, 0.10, "better"),
            (math.nan, math.nan, "not shown"),
        ],
    )
    def test_no_worse_is_claimed_only_where_the_interval_ends_within_the_margin(
        self, low: float, high: float, words: str
    ) -> None:
        assert time_to_accuracy.verdict(Interval((low + high) / 2, low, high)) == words

    def test_the_difference_at_equal_tokens_is_taken_seed_by_seed(self) -> None:
        # Seeds differ by 0.4, trainers by 0.02 on each: intervals of the means overlap, that of the gap is narrow.
        pairs = [
            Pair(
                *(
                    run_of(name, [(0, level), (9, level + gap)])
                    for name, gap in (("stock", 0.0), ("kit", more))
                )
            )
            for level, more in ((0.3, 0.019), (0.5, 0.021), (0.7, 0.020))
        ]
        line = time_to_accuracy.equal_tokens_table(pairs)[-1]
        # Deviation 0.001, over the root of 3, times 4.303: 0.0025.
        assert line == "| 900 | 0.500 | 0.520 | +0.020 [+0.018, +0.022] | better |"

    def test_the_stored_table_is_what_the_stored_runs_give(self) -> None:
        text = (runs.RESULTS / "time_to_accuracy.md").read_text()
        command = text.split("`")[1]
        assert "time_to_accuracy.py" in command
        assert time_to_accuracy.report(time_to_accuracy.stored(), command) == text

    def test_the_report_has_the_line_and_names_every_run_that_did_not_arrive(self) -> None:
        pairs = [
            Pair(run_of("stock", ARRIVES, seconds=4), run_of("kit", ARRIVES)),
            Pair(run_of("stock", NEVER, seconds=4, seed=1), run_of("kit", ARRIVES, seed=1)),
        ]
        text = time_to_accuracy.report(pairs, "python benchmarks/time_to_accuracy.py")
        # 1/4 and 1/6: the logarithms are 0.405 apart; 12.71, t of 1 degree of freedom, times half of that is 2.576.
        assert "\nratio kit/stock: 0.20 CPU seconds [0.02, 2.68], 0.20 wall seconds [0.02, 2.68]\n" in text
        assert "1 of stock's runs" in text
        assert "| 1 | stock | not reached | not reached | over 9 | over 900 | 36.0 | 0.800 | 1.00 |" in text
        assert "| 0 | kit | 6.0 | 12.0 | 6 | 600 | 9.0 | 0.800 | 1.00 |" in text
        assert "| generate | 4.000 | 1.000 | 0.25 | 100% | 8.000 | 2.000 |" in text

    def test_the_picture_has_each_seed_and_both_medians(self) -> None:
        pairs = [Pair(run_of("stock", ARRIVES, 4), run_of("kit", NEVER)) for _ in range(3)]
        lines = time_to_accuracy.picture(pairs).axes[0].get_lines()
        assert len(lines) == 2 * (3 + 1) + 1


class TestStudent:
    @pytest.mark.parametrize(
        ("freedom", "quantile"),
        # Fisher & Yates 1963, table III; also Abramowitz & Stegun 1964, table 26.10.
        [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (7, 2.365), (8, 2.306), (19, 2.093), (120, 1.980)],
    )
    def test_the_quantile_is_the_tables(self, freedom: int, quantile: float) -> None:
        assert student.t_975(freedom) == pytest.approx(quantile, abs=5e-4)

    def test_of_8_values_the_interval_covers_the_mean_about_95_times_in_100(self) -> None:
        rng, covered = random.Random(0), 0
        for _ in range(4000):
            found = student.student([rng.gauss(1.0, 2.0) for _ in range(8)])
            covered += found.low <= 1.0 <= found.high
        assert 0.94 <= covered / 4000 <= 0.96  # the percentile bootstrap: 0.89

    def test_one_value_has_no_interval(self) -> None:
        assert str(student.student([0.5])) == "0.500 (no interval: no spread)"


class TestStep:
    def test_the_first_step_is_left_out(self) -> None:
        run = run_of("kit", [(0, 0.5)], steps=3)
        slow = Update({name: Spent(100, 100) for name in PHASES}, 1)
        warmed = Result(**{**vars(run), "steps": (slow, *run.steps[1:])})
        assert step.per_step(warmed) == Spent(1.0, 2.0)
        assert step.per_step(warmed, "generate") == Spent(1.0, 2.0)

    def test_the_table_compares_each_trainer_with_stock_and_with_the_kit(self) -> None:
        results = [
            run_of(name, [(0, 0.5)], seconds, steps=3, repeat=repeat)
            for repeat in range(2)
            for name, seconds in (("stock", 4.0), ("kit", 1.0), ("no-single-pass", 1.5))
        ]
        text = step.report(results, "python benchmarks/step.py")
        assert "| no-single-pass | 1.50 [1.50, 1.50] | 0.38 | 1.50 | 3.00 [3.00, 3.00] | 0.38 |" in text
        assert "| kit | 1.000 | 0.000 |" in text

    def test_without_stock_there_is_no_ratio_to_it(self) -> None:
        text = step.report([run_of("kit", [(0, 0.5)], steps=2)], "python benchmarks/step.py")
        assert "| kit | 1.00 [1.00, 1.00] | - | 1.00 |" in text
