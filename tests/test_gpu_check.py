"""``make gpu-check``: what has not run has not passed, and what costs a worker costs nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import (
    device,
    learn,
    memory,
    prefill,
    report,
    shapes,
    smaller,
    speed,
    update,
    variants,
    workload,
)
from benchmarks.gpu.checks import Check, Figure, Found, Place, at_least, at_most, holds, ordered, seen
from benchmarks.gpu.report import FAILED, MEASURED, MISSED, NOT_RUN, PASSED, Outcome
from benchmarks.gpu.runner import Worker, environment, run_all
from benchmarks.gpu.worker import load_parts
from rloo_kit.catalogue import CATALOGUE
from rloo_kit.memory.footprint import Settings
from rloo_kit.memory.hardware import device_of
from rloo_kit.memory.planning import Plan, model_of

ROOT = Path(__file__).resolve().parent.parent


def nothing(place: Place) -> Found:
    return Found([])


def a_check(name: str, **options: Any) -> Check:
    return Check(name, nothing, **{"seconds": 10.0, "takes": 1.0, "rank": 0, **options})


class Time:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class FakeWorker:
    """Takes the seconds that the table says, answers with a figure, and keeps a diary."""

    def __init__(self, time: Time, answers: dict[str, dict[str, Any]], diary: list[str]) -> None:
        self.time, self.answers, self.diary, self.is_new = time, answers, diary, True
        diary.append("start")

    def run(self, name: str, seconds: float) -> dict[str, Any]:
        self.is_new = False
        answer = {
            "figures": [{"name": "works", "value": 1.0, "low": 1.0}],
            "seconds": 5.0,
            **self.answers.get(name, {}),
        }
        answer["seconds"] = min(answer["seconds"], seconds)
        self.time.seconds += answer["seconds"]
        self.diary.append(f"{name} {seconds:.0f}")
        return answer

    def close(self) -> None:
        self.diary.append("close")


def outcomes_of(
    checks: list[Check],
    budget: float = 1000,
    is_rehearsal: bool = False,
    card_gib: float = 80,
    **answers: dict[str, Any],
) -> tuple[dict[str, Outcome], list[str]]:
    time, diary = Time(), []  # type: ignore[var-annotated]
    found = run_all(
        checks, budget, lambda check: FakeWorker(time, answers, diary), is_rehearsal, card_gib, time
    )
    return {outcome.name: outcome for outcome in found}, diary


# --- order and budget -------------------------------------------------------------------------------------


def test_checks_run_by_worth_those_of_one_process_side_by_side_and_what_they_need_before_them() -> None:
    checks = [
        a_check("late", rank=2),
        a_check("kit 1", rank=1),
        a_check("other", rank=1, home="other"),
        a_check("kit 2", rank=1, needs=("shape", "reference")),
        a_check("shape", rank=3),
        a_check("reference", rank=3, home="cpu"),
    ]
    order = ["reference", "kit 1", "shape", "kit 2", "other", "late"]
    assert [one.name for one in ordered(checks)] == order
    assert [one.name for one in ordered(checks, ["kit 2"])] == ["reference", "shape", "kit 2"]
    assert ordered(checks, ["no such"]) == []


def test_a_process_is_shared_until_another_is_asked_for() -> None:
    checks = [
        a_check("a"),
        a_check("b"),
        a_check("c", home="cpu"),
        a_check("d", variables={"X": "1"}, home="cpu"),
    ]
    _, diary = outcomes_of(checks)
    assert [entry.split()[0] for entry in diary] == [
        "start", "a", "b", "close", "start", "c", "close", "start", "d", "close"
    ]  # fmt: skip


def test_what_the_budget_does_not_reach_is_not_run_and_has_not_passed() -> None:
    checks = [a_check("a"), a_check("b", takes=6.0), a_check("c", takes=1.0)]
    found, diary = outcomes_of(checks, budget=10)
    assert {name: outcome.status for name, outcome in found.items()} == {
        "a": PASSED,
        "b": NOT_RUN,
        "c": PASSED,
    }
    assert "5 s of the budget were left" in found["b"].note
    assert diary[-2] == "c 5", "never longer than what is left, whatever its own limit"


def test_a_check_that_the_budgets_end_cuts_off_is_not_run_and_one_that_its_own_limit_cuts_off_has_failed() -> (
    None
):
    late = {"error": "killed", "is_late": True, "seconds": 99.0}
    found, _ = outcomes_of([a_check("slow")], budget=8, slow=late)
    assert found["slow"].status == NOT_RUN
    found, _ = outcomes_of([a_check("slow", seconds=3.0)], slow=late)
    assert found["slow"].status == FAILED


def test_after_an_error_the_next_check_gets_a_fresh_process() -> None:
    found, diary = outcomes_of([a_check("a"), a_check("b")], a={"error": "RuntimeError: no"})
    assert (found["a"].status, found["a"].note, found["b"].status) == (FAILED, "RuntimeError: no", PASSED)
    assert [entry.split()[0] for entry in diary] == ["start", "a", "close", "start", "b", "close"]


def test_what_needs_a_check_that_raised_is_not_run() -> None:
    found, _ = outcomes_of([a_check("a"), a_check("b", needs=("a",))], a={"error": "no"})
    assert (found["b"].status, found["b"].note) == (NOT_RUN, "needs a")


def test_a_rehearsal_leaves_out_what_only_a_gpu_can_do() -> None:
    found, _ = outcomes_of([a_check("a", is_rehearsed=False)], is_rehearsal=True)
    assert (found["a"].status, found["a"].note) == (NOT_RUN, "needs CUDA")


def test_what_a_small_card_cannot_hold_is_not_run() -> None:
    found, _ = outcomes_of([a_check("a", card_gib=9)], card_gib=7.7)
    assert (found["a"].status, found["a"].note) == (NOT_RUN, "needs a card of 9 GiB")


# --- real processes ---------------------------------------------------------------------------------------

PROGRAM = """
import json, os, sys, time
for line in sys.stdin:
    name, file = json.loads(line)
    if name == "crash":
        print("the last thing it said", flush=True)
        os._exit(3)
    if name == "hang":
        time.sleep(100)
    with open(file + ".part", "w") as out:
        json.dump({"figures": [{"name": "token", "value": float("HF_TOKEN" in os.environ)}], "seconds": 0.1}, out)
    os.replace(file + ".part", file)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Check], Worker]]:
    """Starts workers that talk as the real one does, without its stack."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    workers = []

    def make(check: Check) -> Worker:
        workers.append(Worker(check, tmp_path, False, tmp_path / "log.txt", (sys.executable, str(program))))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


def test_a_process_that_crashes_fails_its_check_with_its_last_line_and_no_other(start: Any) -> None:
    found = list(run_all([a_check("crash"), a_check("fine")], 100, start))
    assert [outcome.status for outcome in found] == [FAILED, MEASURED]
    assert found[0].note == "the process ended with 3: the last thing it said"


def test_a_process_that_hangs_is_killed_at_its_limit(start: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("benchmarks.gpu.runner.START_SECONDS", 0.5)
    found = list(run_all([a_check("hang", seconds=0.5), a_check("fine")], 100, start))
    assert [outcome.status for outcome in found] == [FAILED, MEASURED]
    assert found[0].note == "killed after 1 s"


def test_workers_are_offline_and_know_no_token(start: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    (outcome,) = run_all([a_check("fine")], 100, start)
    assert outcome.figures[0].value == 0.0
    found = environment({"EXTRA": "1"}, {"HF_TOKEN": "x", "PYTHONPATH": "/carried", "HOME": "/h"})
    assert {**found, "HF_HUB_OFFLINE": "1", "EXTRA": "1", "HOME": "/h"} == found
    assert found["PYTHONPATH"].endswith("/carried")
    assert "HF_TOKEN" not in found


# --- results ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figures", "status"),
    [
        ([], MEASURED),
        ([seen("a", 1)], MEASURED),
        ([seen("a", 1), at_most("b", 1, 1)], PASSED),
        ([at_most("b", 1.01, 1)], FAILED),
        ([at_least("b", float("nan"), 1)], FAILED),
        ([at_most("b", float("nan"), 1)], FAILED),
        ([holds("c", False)], FAILED),
        ([Figure("g", 0.5, low=0.9, is_goal=True), holds("c", True)], MISSED),
        ([Figure("g", 0.5, low=0.9, is_goal=True), holds("c", False)], FAILED),
    ],
)
def test_a_status_is_that_of_the_figures(figures: list[Figure], status: str) -> None:
    assert report.verdict(figures) == status


MACHINE = {"device": "NVIDIA H100 80GB HBM3", "driver": "580", "kit": "abc123"}
RECORDED = (
    Outcome("memory/one", FAILED, (at_most("ratio", 0.93, 1), at_most("worst | ratio", 1.2, 1)), seconds=7.0),
    Outcome("speed/two", MEASURED, (seen("completions", 3.14159, "/s"),)),
    Outcome("correct/three", PASSED, (holds("it holds", True),)),
    Outcome("tune/four", NOT_RUN, note="3 s of the budget were left"),
    Outcome("tune/five", FAILED, note="ValueError: no such switch"),
)


def test_the_short_table_names_the_figure_that_decided() -> None:
    assert report.rows(RECORDED)[1:] == [
        ["memory/one", FAILED, "worst | ratio: 1.2", "at most 1"],
        ["speed/two", MEASURED, "completions: 3.142 /s", ""],
        ["correct/three", PASSED, "it holds: yes", "yes"],
        ["tune/four", NOT_RUN, "3 s of the budget were left", ""],
        ["tune/five", FAILED, "ValueError: no such switch", ""],
    ]
    assert report.text(RECORDED, "t").splitlines()[-1] == "1 passed, 2 FAILED, 1 measured, 1 not run"


def test_the_markdown_has_every_figure_the_machine_and_the_command() -> None:
    text = report.markdown(RECORDED, MACHINE, "python -m benchmarks.gpu")
    assert text.startswith("# NVIDIA H100 80GB HBM3\n")
    for part in ("- driver: 580", "`python -m benchmarks.gpu`", "| ratio | 0.93 | at most 1 |"):
        assert part in text
    rows = [line.replace("\\|", "") for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {7}
    assert "rehearsal" not in text
    assert "says anything about a GPU" in report.markdown(RECORDED, {"device": "rehearsal on a CPU"}, "x")


def test_results_are_on_disk_after_each_check_and_a_later_command_adds_to_them(tmp_path: Path) -> None:
    keeper = command.Keeper(tmp_path, MACHINE, "first")
    for outcome in RECORDED[:2]:
        keeper.add(outcome)  # and here the command is killed
    again = command.Keeper(tmp_path, {**MACHINE, "kit": "def456"}, "second")
    again.add(RECORDED[2])
    again.add(Outcome("memory/one", NOT_RUN))
    again.add(Outcome("speed/two", PASSED, (holds("better", True),)))
    data = json.loads((tmp_path / "results.json").read_text())
    found = {one["name"]: (one["status"], one["commit"]) for one in data["outcomes"]}
    assert found == {
        "memory/one": (FAILED, "abc123"),
        "speed/two": (PASSED, "def456"),
        "correct/three": (PASSED, "def456"),
    }
    assert "FAILED (abc123)" in (tmp_path / "results.md").read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["results.json", "results.md"]


def test_results_of_several_commands_go_into_one_folder(tmp_path: Path, capsys: Any) -> None:
    for number, outcomes in enumerate((RECORDED[:3], RECORDED[3:])):
        keeper = command.Keeper(tmp_path / str(number), {**MACHINE, "kit": f"commit {number}"}, "x")
        for outcome in outcomes:
            keeper.add(outcome)
    files = [tmp_path / str(number) / "results.json" for number in range(2)]
    assert command.collect(files, tmp_path / "all") == 0
    data = json.loads((tmp_path / "all" / "results.json").read_text())
    names = {outcome.name for outcome in RECORDED} | {"speed/goal, 256 tokens", "speed/goal, 1024 tokens"}
    assert {one["name"] for one in data["outcomes"]} == names
    assert {one["commit"] for one in data["outcomes"] if one["name"] == "memory/one"} == {"commit 0"}
    assert "1 passed, 2 FAILED, 1 measured, 3 not run" in capsys.readouterr().out


def test_without_a_gpu_it_says_so_and_fails() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert re.search(r"no GPU here.*--rehearse", done.stdout, re.DOTALL)


# --- the list ---------------------------------------------------------------------------------------------

CHECKS = load_parts()


def test_every_need_is_a_check_and_a_budget_of_nine_minutes_begins_with_every_part() -> None:
    assert {need for one in CHECKS.values() for need in one.needs} <= CHECKS.keys()
    assert all(0 < one.takes < one.seconds for one in CHECKS.values())
    assert command.BUDGET_SECONDS < 540
    spent, parts = 0.0, set()
    for one in ordered(CHECKS.values()):
        spent += one.takes
        if spent < command.BUDGET_SECONDS:
            parts.add(one.name.split("/")[0])
    assert parts >= {"correct", "memory", "speed", "hygiene"}


def test_the_memory_cases_cover_sizes_group_sizes_and_lengths() -> None:
    cases = memory.CASES
    assert len({case.name for case in cases}) == len(cases) >= 12
    assert {case.shape for case in cases} == set(shapes.NAMES)
    assert {case.k for case in cases} == {2, 4, 8, 16}
    assert {case.tokens for case in cases} == {128, 256, 512, 1024, 2048}
    assert all(case.k * case.groups % case.micro == 0 for case in cases)
    assert set(smaller.CAPS) == {8, 12, 16, 24}
    in_parts = [case for case in cases if case.micro % case.k]
    assert 0 < len(in_parts) < len(cases), "with a pass of its own for the KL term, and without"


def test_the_plan_says_that_the_shapes_on_the_capped_cards_can_fit() -> None:
    for gigabytes, name in smaller.CAPS.items():
        settings = Settings(256, smaller.CAP_TOKENS, 4, 4, 4, 1)
        plan = Plan.of(model_of(CATALOGUE[name], 16, True), settings, device_of(f"{gigabytes}GB"))
        assert plan.fits == "fits", plan.summary


@pytest.mark.parametrize("name", shapes.NAMES)
def test_a_shape_is_the_catalogues_to_the_last_weight(name: str) -> None:
    card = CATALOGUE[name]
    model = shapes.skeleton(card)
    named = dict(model.named_parameters())
    assert sum(p.numel() for p in named.values()) == card.parameters
    assert all(p.is_meta for p in named.values())
    projections = [p for key, p in named.items() if "_proj." in key]
    assert sum(p.numel() for p in projections) == card.linear_parameters
    assert len(projections) == 7 * card.layers
    planned = model_of(card, lora_rank=16, four_bit=False)
    assert planned.linear_bytes == sum(2 * p.numel() for p in projections)
    assert planned.linear_bytes + planned.rest_bytes == 2 * card.parameters


def test_a_matrix_is_quantised_to_the_bytes_that_the_plan_counts() -> None:
    import torch

    from rloo_kit.catalogue import CODE_BOOK_BYTES, nf4_bytes

    weight = torch.randn(192, 64, dtype=torch.bfloat16)
    parts = shapes.quantised("layer.weight", weight)
    described = parts.pop("layer.weight.quant_state.bitsandbytes__nf4")  # JSON, which only a file holds
    offset = 4
    assert described.numel() < 1000
    assert sum(p.numel() * p.element_size() for p in parts.values()) + offset == nf4_bytes(192 * 64)
    assert (
        sum(4 * parts[f"layer.weight.{key}"].numel() for key in ("quant_map", "nested_quant_map"))
        == CODE_BOOK_BYTES
    )


def test_the_bound_of_decoding_is_what_a_step_has_to_read() -> None:
    card = CATALOGUE["tiny"]  # hidden 64, 3 layers, 2 heads and 1 KV head of 32, ffn 192
    weights = 3 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 192 * 64)
    lora = 3 * 2 * ((64 + 64) + 2 * (32 + 64) + (64 + 64) + 2 * (192 + 64) + (64 + 192))
    head = 151936 * 64
    cache = 2 * 3 * 32 * (10 + 4)  # keys and values of 3 layers, 10 + 8 / 2 tokens
    found = speed.bytes_per_step(card, 5, 10, 8, lora_rank=2, four_bit=False)
    assert found == 2 * (weights + lora + head + 5 * cache)


def test_the_goals_compare_the_kit_with_the_usual_recipe_and_are_not_run_without_either() -> None:
    def ran(name: str, completions: float, peak: float) -> Outcome:
        figures = (
            seen("completions", completions),
            seen("peak held by torch", peak),
            seen("tokens while sampling", 50),
        )
        return Outcome(f"speed/256 tokens, {name}", MEASURED, figures)

    bound = Outcome("speed/bandwidth", MEASURED, (seen("bound of decoding, 256 tokens", 200),))
    twice, long = speed.goals([ran("TRL under unsloth", 1.0, 8.0), ran("kit", 2.5, 7.0), bound])
    assert (twice.status, [figure.value for figure in twice.figures]) == (PASSED, [2.5, 0.875, 0.25])
    assert long.status == NOT_RUN
    missed, _ = speed.goals([ran("TRL under unsloth", 1.0, 8.0), ran("kit", 1.5, 7.0)])
    assert missed.status == MISSED


def test_the_settings_that_are_compared_with_the_cpu_name_each_estimator_and_both_short_cuts() -> None:
    named = [settings.get("advantage_estimator", "rloo") for settings in update.SETTINGS.values()]
    assert set(named) == {"rloo", "grpo", "dr_grpo", "reinforce"}
    assert {one for pair in update.ALIKE for one in pair} <= update.SETTINGS.keys()


def test_the_quickstart_is_changed_in_two_lines_and_no_more() -> None:
    source = learn.NOTEBOOK.read_text()
    book = learn.offline_notebook(source, "/elsewhere")
    code = [cell.source for cell in book.cells if cell.cell_type == "code"]
    before = [cell["source"] for cell in json.loads(source)["cells"] if cell["cell_type"] == "code"]
    changed = [
        line
        for now, then in zip(code, map("".join, before), strict=True)
        for line, old in zip(now.splitlines(), then.splitlines(), strict=True)
        if line != old
    ]
    assert ["/elsewhere" in line for line in changed].count(True) == len(changed) - 2 == 2
    assert all(
        any(text.split(":")[0] in cell for cell in code)
        for text in ("held-out accuracy rose by", "same completions")
    )
    with pytest.raises(ValueError, match="stands in 0 cells"):
        learn.offline_notebook(source, "x", (("no such line", ""),))


def test_full_completions_come_after_a_short_first_step() -> None:
    class Trainer:
        generation_config = type("Generation", (), {})()

    lengths, trainer = workload.full_length(100, warm_up=16), Trainer()
    lengths.begin(trainer)
    assert trainer.generation_config.max_new_tokens == 16
    assert trainer.generation_config.eos_token_id == [CATALOGUE["qwen3-4b"].vocabulary]
    lengths.on_step_end(None, None, None)
    assert trainer.generation_config.max_new_tokens == 100


SMI = r"""#!/bin/sh
case "$*" in
  *compute-apps*) echo "11, 734"; echo "22, [N/A]";;
  *memory.used*-i\ 0*) echo 1234;;
  *) exit 9;;
esac
"""


def test_nvidia_smi_is_asked_where_nvml_has_no_binding(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert device.used_bytes() == 1234 * 2**20
    assert [device.listed_bytes(pid) for pid in (11, 22, 33)] == [734 * 2**20, None, None]
    assert device.smi("driver_version") is None


def test_half_of_the_groups_are_dead() -> None:
    assert workload.HalfDead(2)([""] * 8) == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]


# --- once, for real ---------------------------------------------------------------------------------------


def test_a_rehearsal_makes_a_shape_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.gpu",
            "--rehearse",
            "--only",
            "shape/qwen3-0.6b",
            "--out",
            str(tmp_path),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, (
        done.stdout + done.stderr[-1000:] + (tmp_path / "log.txt").read_text()[-2000:]
    )
    data = json.loads((tmp_path / "results.json").read_text())
    assert [one["status"] for one in data["outcomes"]] == [PASSED]
    assert data["machine"]["device"] == "rehearsal on a CPU"
    assert not list(tmp_path.glob("gpu-check-*")), "nothing is left behind"


@pytest.fixture(scope="module")
def place(tmp_path_factory: Any) -> Iterator[Place]:
    """A rehearsal's, with one shape made."""
    found = Place(tmp_path_factory.mktemp("gpu"), is_rehearsal=True)
    (found.scratch / "shapes").mkdir()
    shapes.make("qwen3-4b", found)
    yield found
    shapes.forget()


def test_a_case_of_memory_is_compared_with_its_plan_by_phase(place: Place) -> None:
    case = memory.CASES[1]  # micro-batches that do not hold whole groups
    found = memory.measure(case, place)
    ratios = {figure.name: figure.value for figure in found.figures}
    for phase in ("generate", "log-probs", "train", "optimizer"):
        assert 0.8 < ratios[f"tensors in {phase}, measured / planned"] < 1.1
    assert all(figure.holds for figure in found.figures)
    assert {row["name"] for row in found.details["compared"]} >= {"weights", "LoRA", "peak in train"}


@pytest.mark.filterwarnings("ignore:.*were cut:UserWarning")
def test_running_out_of_memory_is_explained_and_the_process_goes_on(place: Place) -> None:
    found = smaller.on_a_smaller_card(8, Place(place.scratch, True))
    assert [figure.name for figure in found.figures if not figure.holds] == []
    assert "can't allocate memory" in found.details["fails"]


def test_a_timed_run_has_its_full_length_in_its_phases(place: Place) -> None:
    found = speed.run(speed.TRAINERS["kit"], 256, place)
    named = {figure.name: figure for figure in found.figures}
    assert found.details["tokens"] == 8 * workload.REHEARSAL_TOKENS
    assert {"generate", "loss forward", "backward", "rest"} <= named.keys()
    assert named["completions"].value == pytest.approx(8 / named["a step"].value)


def test_each_prompt_is_prefilled_once_and_its_completions_are_those_of_rows_prefilled_alone(
    policy: Any,
) -> None:
    """Greedy, of prompts of several lengths, padded on the left; the forward passes' rows are counted."""
    from transformers import GenerationConfig

    k, prompts = 3, ["2 + 3", "What is 17 + 28?", "7"]
    texts = policy.tokenizer(prompts, padding=True, return_tensors="pt")
    asked = {name: texts[name].repeat_interleave(k, dim=0) for name in ("input_ids", "attention_mask")}
    config = GenerationConfig(max_new_tokens=6, do_sample=False, pad_token_id=policy.tokenizer.pad_token_id)
    rows: list[tuple[int, int]] = []
    hook = policy.model.get_input_embeddings().register_forward_hook(
        lambda module, given, out: rows.append(tuple(given[0].shape))
    )
    policy.model.for_inference()  # a run that a test before this one made has switched the cache off
    try:
        expected = policy.model.generate(**asked, generation_config=config)
        long = rows[0]
        rows.clear()
        found = prefill.prefilled_once(policy.model.generate, k)(**asked, generation_config=config)
    finally:
        hook.remove()
    assert len({tuple(row) for row in expected[:, -6:].tolist()}) > 1, "three prompts, several answers"
    assert torch.equal(found, expected)
    assert long == (len(prompts) * k, texts["input_ids"].size(1))
    assert rows[:2] == [(len(prompts), long[1]), (len(prompts) * k, 1)]


def test_the_candidate_that_prefills_once_samples_full_completions(place: Place) -> None:
    found = speed.run(variants.CANDIDATES["long prompts, prefilled once"], 256, place)
    assert found.details["tokens"] == 8 * workload.REHEARSAL_TOKENS
