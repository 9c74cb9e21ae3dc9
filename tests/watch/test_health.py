"""Episodes, the callback that reports them, the report afterwards, and what rewards say that they judge."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trl

import rewards
import rloo_kit
from rloo_kit.errors import ConfigError
from rloo_kit.watch import health
from rloo_kit.watch.log import WINDOW, Entry, Log, rounds
from tests.watch.logs import KNOWN, from_step, history, symptoms, terms, trl_config

CUT = {"completions__clipped_ratio": 0.6}
FORM_ALONE = {"reward": 0.95, "reward_std": 0.2, **terms(neat=(0.95, 0.2), right=(0.0, 0.0))}

# --- episodes ---------------------------------------------------------------------------------------------


def test_an_episode_lasts_while_the_symptom_does_and_a_new_one_begins_after_a_pause() -> None:
    cut = [*[0.0] * 5, *[0.6] * 10, *[0.0] * 20, *[0.6] * 10]
    entries = history(len(cut), completions__clipped_ratio=lambda step: cut[step - 1])
    first, second = health.episodes(Log(rounds(entries), KNOWN)).found
    assert first.symptom == second.symptom == "truncation"
    assert 6 <= first.last_step < second.first_step + WINDOW
    assert first.last_step >= 15
    assert second.last_step == len(cut)


def test_a_symptom_that_flickers_is_one_episode() -> None:
    entries = history(40, completions__clipped_ratio=lambda step: 0.0 if step % 10 == 0 else 0.5)
    assert symptoms(entries) == ["truncation"]


# --- the callback -----------------------------------------------------------------------------------------


def play(entries: list[Entry], callback: health.HealthCallback, main: bool = True, seen: int = 0) -> Any:
    """Give a log to a callback as a Trainer does, entry by entry, until it stops the run; some before it began."""
    args = trl_config()
    state = SimpleNamespace(log_history=entries[:seen], is_world_process_zero=main)
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    callback.on_train_begin(args, state, control)
    for entry in entries[seen:]:
        state.log_history = [*state.log_history, entry]
        callback.on_log(args, state, control, logs=entry)
        if control.should_training_stop:
            break
    return SimpleNamespace(last=state.log_history[-1], control=control)


def test_it_speaks_once_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    play(history(20, **CUT), health.HealthCallback())
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(
        "unhealthy: truncation: 60% of the completions cut at 32 tokens (steps 1-3). Likely: "
    )
    assert "Change first: max_completion_length" in line


@pytest.mark.parametrize(
    ("entries", "seen", "why"),
    [
        (history(30), 0, "the run is healthy"),
        (history(20, **CUT), 10, "a resumed run has reported it before"),
    ],
)
def test_it_is_silent_where_there_is_nothing_new(
    entries: list[Entry], seen: int, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    play(entries, health.HealthCallback(), seen=seen)
    assert capfd.readouterr() == ("", ""), why


def test_it_does_not_print_what_the_trainer_has_reported_unless_it_stops_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for wanted, printed in (("warn", False), ("stop", True)):
        play(history(20, **CUT), health.HealthCallback(wanted, lambda: ["truncation"]))
        assert ("unhealthy" in capsys.readouterr().out) is printed


def test_only_the_main_process_prints_and_every_process_stops(capsys: pytest.CaptureFixture[str]) -> None:
    ran = play(history(20, **CUT), health.HealthCallback("stop"), main=False)
    assert capsys.readouterr().out == ""
    assert ran.control.should_training_stop


def test_stop_ends_the_run_and_saves_it_unless_its_weights_are_not_finite() -> None:
    ran = play(history(20, **CUT), health.HealthCallback("stop"))
    assert (ran.last["step"], ran.control.should_training_stop, ran.control.should_save) == (3, True, True)
    ran = play(history(20, entropy=from_step(8, 0.3, math.nan)), health.HealthCallback("stop"))
    assert (ran.last["step"], ran.control.should_training_stop, ran.control.should_save) == (8, True, False)


def test_a_function_gets_the_findings_of_a_report_instead_of_the_print(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found: list[health.Finding] = []
    entries = history(40, completions__clipped_ratio=from_step(20, 0.0, 0.7), kl=from_step(30, 0.0, 4.0))
    play(entries, health.HealthCallback(found.append))
    assert [one.symptom for one in found] == symptoms(entries) == ["truncation", "KL explosion"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("value", ["shout", 3])
def test_another_value_of_on_unhealthy_is_refused_where_it_was_given(value: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"(?s)must be \"warn\", \"stop\" or a function.*HealthCallback\(on_un"
    ):
        health.HealthCallback(value)
    with pytest.raises(ConfigError, match=r"RLOOConfig\(on_unhealthy="):
        health.checked(value, "RLOOConfig")
    for choice in ("warn", "stop", print):
        assert health.checked(choice, "RLOOConfig") is choice


# --- what rewards judge -----------------------------------------------------------------------------------


def right(completions: Any, answer: Any, **kwargs: Any) -> list[float]:
    return [
        float(rloo_kit.tasks.answer_of(text) == gold) for text, gold in zip(completions, answer, strict=True)
    ]


def judging(what: str) -> Any:
    def reward(completions: Any, **kwargs: Any) -> list[float]:
        return [0.0 for _ in completions]

    reward.judges = what  # type: ignore[attr-defined]
    return reward


ANSWER, FORM = rewards.answer_reward(), rewards.thinking_reward()


@pytest.mark.parametrize(
    ("reward", "judges"),
    [
        (right, None),
        (judging("length"), "length"),
        (functools.partial(judging("form"), extra=1), "form"),
        (torch.nn.Linear(1, 1), None),
        (ANSWER, "answer"),
        (FORM, "form"),
        (rewards.sentence_reward(), "form"),
        (rewards.repetition_reward(), "form"),
        (rewards.length_reward(), "length"),
        (rewards.overlong_reward(64, 16), "length"),
        (rewards.thought_then_answer(), "form"),
        (rewards.thought_then_answer(correct=ANSWER), "answer"),
        (rewards.guarded(judging("length")), "length"),
        (
            rewards.cached(rewards.only_for(rewards.scaled(rewards.clipped(ANSWER), 2.0), kind="sum")),
            "answer",
        ),
        (rewards.weighted([FORM, rewards.sentence_reward()]), "form"),
        (rewards.weighted([ANSWER, FORM]), None),
        (rewards.gated(by=ANSWER, reward=FORM), "answer"),
        (rewards.gated(by=FORM, reward=rewards.length_reward()), None),
    ],
)
def test_a_reward_says_what_it_judges_and_a_wrapper_passes_it_on_where_it_is_one_thing(
    reward: Any, judges: str | None
) -> None:
    assert health.judged_by([reward], ["name"]) == ({"name": judges} if judges else {})


def test_a_misspelt_judges_is_refused_before_training() -> None:
    with pytest.raises(ValueError, match=r"(?s)must be answer, form or length.*'reward', judges 'anser'"):
        rewards.guarded(judging("anser"))


def test_what_rewards_judge_is_taken_from_the_trainer_or_from_a_mapping_and_from_no_name() -> None:
    entries, judges = history(30, **FORM_ALONE), {"right": "answer", "neat": "form"}
    state = SimpleNamespace(log_history=entries)
    args = trl_config(output_dir=None)
    funcs = {"reward_funcs": [judging("form"), judging("answer")], "reward_func_names": ["neat", "right"]}
    for report, why in (
        (rloo_kit.diagnose(entries, judges), "a log with a mapping"),
        (rloo_kit.diagnose(SimpleNamespace(state=state, args=args, **funcs)), "a trainer's functions say it"),
        (rloo_kit.diagnose(SimpleNamespace(state=state, args=args), judges), "a trainer with a mapping"),
    ):
        assert [one.symptom for one in report.findings] == ["format without answers"], why
    seen: list[health.Finding] = []
    play(entries, health.HealthCallback(seen.append, judges=judges))
    assert [one.symptom for one in seen] == ["format without answers"]
    assert rloo_kit.diagnose(entries).healthy, "without judges the rules that need them are silent"


@pytest.mark.parametrize(("name", "what"), [("rihgt", "answer"), ("right", "anser")])
def test_a_mapping_that_fits_no_reward_of_the_log_is_refused(name: str, what: Any) -> None:
    with pytest.raises(ConfigError, match="the log has neat, right"):
        rloo_kit.diagnose(history(10, **FORM_ALONE), {name: what})


# --- the report -------------------------------------------------------------------------------------------


def test_a_healthy_report_says_so_with_figures() -> None:
    from IPython.core.formatters import DisplayFormatter

    report = rloo_kit.diagnose(history(30))
    assert report.healthy
    assert str(report).startswith("healthy: nothing found, steps 1 to 30")
    assert report.figures["completions/clipped_ratio"] == (0.03, 0.03)
    assert DisplayFormatter().format(report)[0]["text/plain"] == str(report), "as a cell's value too"


def test_a_report_has_each_episode_with_cause_and_setting_whichever_way_the_log_is_given(
    tmp_path: Path,
) -> None:
    entries = history(30, **CUT)
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": entries}))
    reports = {str(rloo_kit.diagnose(one)) for one in (entries, tmp_path, tmp_path / "trainer_state.json")}
    (text,) = reports
    assert text.startswith("1 finding, steps 1 to 30\n  truncation, steps 1 to 30")
    for label in ("evidence", "likely cause", "change first"):
        assert label in text


def test_a_log_without_a_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="no training step to diagnose"):
        rloo_kit.diagnose([{"train_runtime": 1.0}])


# --- real runs --------------------------------------------------------------------------------------------


def test_a_run_whose_completions_are_cut_stops_with_a_checkpoint(stopped_run: Any) -> None:
    trainer = stopped_run.trainer
    stopped = trainer.state.global_step
    assert 3 <= stopped < 6
    assert (Path(trainer.args.output_dir) / f"checkpoint-{stopped}" / "adapter_model.safetensors").is_file()
    assert "unhealthy: truncation" in stopped_run.printed
    assert [one.symptom for one in rloo_kit.diagnose(trainer).findings] == ["truncation"]


def test_an_infinite_reward_in_plain_trl_is_found_and_a_bounded_one_is_not(
    fresh_policy: Any, task: Any, tmp_path: Path
) -> None:
    """The kit's own trainer refuses it before it reaches a weight."""

    def logarithm(completions: Any, answer: Any, **kwargs: Any) -> list[float]:
        return [math.log(score) if score else -math.inf for score in right(completions, answer)]

    def bounded(completions: Any, answer: Any, **kwargs: Any) -> list[float]:
        return [max(score, -10.0) for score in logarithm(completions, answer)]

    found = []
    for reward in (bounded, logarithm):
        seen: list[health.Finding] = []
        trainer = trl.RLOOTrainer(
            model=fresh_policy.model,
            processing_class=fresh_policy.tokenizer,
            reward_funcs=reward,
            args=trl.RLOOConfig(
                output_dir=str(tmp_path),
                num_generations=2,
                per_device_train_batch_size=4,
                max_completion_length=8,
                max_steps=1,
                logging_steps=1,
                save_strategy="no",
                bf16=False,
                disable_tqdm=True,
            ),
            train_dataset=task.train,
            callbacks=[health.HealthCallback(seen.append)],
        )
        trainer.train()
        fresh_policy.model.delete_adapter("ref")  # else a second trainer on this model fails
        found.append([one.symptom for one in seen])
    assert found == [[], ["non-finite figures"]]
