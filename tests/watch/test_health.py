"""Episodes, the callback that reports them, the report afterwards, and what rewards declare that they judge."""

import functools
import math
from pathlib import Path

import pytest
import torch
import trl

import rewards
import rloo_kit
from rloo_kit.errors import ConfigError
from rloo_kit.watch import callbacks
from rloo_kit.watch.read_run import judged_by
from rloo_kit.watch.statistics import WINDOW, Log, rounds
from rloo_kit.watch.symptoms import Episodes
from tests.conftest import SMALL, WHOLE
from tests.watch.logs import KNOWN, from_step, history, play, symptoms, terms, trainer_of

CUT = {"completions__clipped_ratio": 0.6}
FORM_ALONE = {"reward": 0.95, "reward_std": 0.2, **terms(neat=(0.95, 0.2), right=(0.0, 0.0))}


def test_an_episode_lasts_while_the_symptom_does_though_it_flickers_and_ends_with_a_pause():
    flickers = history(40, completions__clipped_ratio=lambda step: 0.0 if step % 10 == 0 else 0.5)
    assert symptoms(flickers) == ["truncation"]
    cut = [*[0.0] * 5, *[0.6] * 10, *[0.0] * 20, *[0.6] * 10]
    entries = history(45, completions__clipped_ratio=lambda step: cut[step - 1])
    first, second = Episodes(Log(rounds(entries), KNOWN)).findings
    assert first.symptom == second.symptom == "truncation"
    assert 15 <= first.last_step < second.first_step + WINDOW
    assert second.last_step == 45


def test_it_speaks_once_in_one_line_and_not_where_there_is_nothing_new(capsys):
    play(callbacks.HealthCallback(), history(20, **CUT))
    (line,) = capsys.readouterr().out.splitlines()
    start = "unhealthy: truncation: 60% of the completions cut at 32 tokens (steps 1-3). Likely: "
    assert line.startswith(start)
    assert "Change first: max_completion_length" in line
    play(callbacks.HealthCallback(), history(30))
    play(callbacks.HealthCallback(), history(20, **CUT), seen=10)  # a resumed run, which has already reported it
    assert capsys.readouterr() == ("", "")


def test_stop_ends_the_run_in_every_process_is_printed_by_one_and_saves_finite_weights(capsys):
    for main in (True, False):
        ran = play(callbacks.HealthCallback("stop"), history(20, **CUT), main)
        assert ran == (3, True, True)
        assert ("unhealthy" in capsys.readouterr().out) is main
    ran = play(callbacks.HealthCallback("stop"), history(20, entropy=from_step(8, 0.3, math.nan)))
    assert ran == (8, True, False), "weights that are not finite"


def test_a_function_gets_the_findings_of_a_report_instead_of_the_print(capsys):
    findings = []
    entries = history(40, completions__clipped_ratio=from_step(20, 0.0, 0.7), kl=from_step(30, 0.0, 4.0))
    play(callbacks.HealthCallback(findings.append), entries)
    assert [finding.symptom for finding in findings] == symptoms(entries) == ["truncation", "KL explosion"]
    assert capsys.readouterr().out == ""
    with pytest.raises(ConfigError, match=r'(?s)"warn", "stop" or a function.*HealthCallback\(on_un'):
        callbacks.HealthCallback("shout")


def right(completions, answer, **kwargs):
    return WHOLE(completions=completions, answer=answer)


def judging(what):
    def reward(completions, **kwargs):
        return [0.0 for _ in completions]

    reward.judges = what
    return reward


ANSWER, FORM, LENGTH = rewards.answer_reward(), rewards.thinking_reward(), rewards.length_reward()
WRAPPED = rewards.cached(rewards.only_for(rewards.scaled(rewards.clipped(ANSWER), 2.0), kind="sum"))
PARTIAL = functools.partial(judging("form"), extra=1)
JUDGED = {
    "answer": [WRAPPED, rewards.gated(by=ANSWER, reward=FORM)],
    "form": [PARTIAL, rewards.thought_then_answer(), rewards.weighted([FORM, rewards.sentence_reward()])],
    "length": [LENGTH, rewards.guarded(judging("length"))],
    None: [right, torch.nn.Linear(1, 1), rewards.weighted([ANSWER, FORM]), rewards.gated(FORM, LENGTH)],
}


def test_a_reward_and_a_wrapper_of_one_thing_say_what_they_judge():
    for judges, functions in JUDGED.items():
        for place, reward in enumerate(functions):
            assert judged_by([reward], ["name"]) == ({"name": judges} if judges else {}), (judges, place)
    assert judged_by([judging("form"), right]) == {"reward": "form"}, "by their own names"
    with pytest.raises(ValueError, match=r"(?s)must be answer, form or length.*judges 'anser'"):
        rewards.guarded(judging("anser"))


def test_what_rewards_judge_is_taken_from_the_trainer_or_from_a_mapping_and_from_no_name():
    entries, judges = history(30, **FORM_ALONE), {"right": "answer", "neat": "form"}
    funcs = {"reward_funcs": [judging("form"), judging("answer")], "reward_func_names": ["neat", "right"]}
    reports = [
        rloo_kit.diagnose(entries, judges),
        rloo_kit.diagnose(trainer_of(entries, **funcs)),
        rloo_kit.diagnose(trainer_of(entries), judges),
    ]
    live = []
    play(callbacks.HealthCallback(live.append, judges=judges), entries)
    for findings in (*(report.findings for report in reports), live):
        assert [finding.symptom for finding in findings] == ["format without answers"]
    assert rloo_kit.diagnose(entries).healthy, "without judges the rules that need them are silent"
    for misspelt in ({"rihgt": "answer"}, {"right": "anser"}):
        with pytest.raises(ConfigError, match="the log has neat, right"):
            rloo_kit.diagnose(entries, misspelt)


def test_a_report_has_each_episode_with_cause_and_setting_else_figures_and_whether_it_was_too_short_to_tell():
    from IPython.core.formatters import DisplayFormatter

    text = str(rloo_kit.diagnose(history(30, **CUT)))
    assert text.startswith("1 finding, steps 1 to 30\n  truncation, steps 1 to 30")
    assert all(label in text for label in ("evidence", "likely cause", "change first"))
    report = rloo_kit.diagnose(history(30))
    assert str(report).startswith("healthy: nothing found, steps 1 to 30")
    assert report.figures["completions/clipped_ratio"] == (0.03, 0.03)
    assert DisplayFormatter().format(report)[0]["text/plain"] == str(report), "as a cell's value too"
    few = rloo_kit.diagnose(history(3, frac_reward_zero_std=1.0, reward_std=0.0))
    assert str(few).startswith("nothing learned, and too few steps to say why")
    with pytest.raises(ConfigError, match="no training step to diagnose"):
        rloo_kit.diagnose([{"train_runtime": 1.0}])


def test_a_run_whose_completions_are_cut_stops_with_a_checkpoint(stopped_run):
    trainer = stopped_run.trainer
    stopped = trainer.state.global_step
    assert 3 <= stopped < 6
    assert (Path(trainer.args.output_dir) / f"checkpoint-{stopped}" / "adapter_model.safetensors").is_file()
    assert "unhealthy: truncation" in stopped_run.printed
    assert [finding.symptom for finding in rloo_kit.diagnose(trainer).findings] == ["truncation"]


def test_an_infinite_reward_in_plain_trl_is_found(fresh_policy, task, tmp_path):
    """The kit's own trainer refuses it before it reaches a weight."""
    findings = []
    trl.RLOOTrainer(
        model=fresh_policy.model,
        processing_class=fresh_policy.tokenizer,
        reward_funcs=lambda **given: [0.0 if score else -math.inf for score in right(**given)],
        args=trl.RLOOConfig(str(tmp_path), **SMALL, logging_steps=1, bf16=False, disable_tqdm=True),
        train_dataset=task.train,
        callbacks=[callbacks.HealthCallback(findings.append)],
    ).train()
    assert [finding.symptom for finding in findings] == ["non-finite rewards"]


def test_where_every_completion_is_cut_and_masked_no_weight_moves_and_it_is_said(fresh_policy, make_trainer, capsys):
    """Their rewards differ, but masked completions teach nothing."""
    cut = {"max_completion_length": 2, "mask_truncated_completions": True, "max_steps": 3, "learning_rate": 0.1}
    every_second = lambda completions, **kwargs: [float(i % 2) for i in range(len(completions))]  # noqa: E731
    trainer = make_trainer(every_second, model=fresh_policy, beta=0.05, **cut)
    before = {name: p.clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    trainer.train()
    assert "unhealthy: truncation: 100% of the completions cut at 2 tokens" in capsys.readouterr().out
    assert all(torch.equal(trainer.model.get_parameter(name), value) for name, value in before.items())
    logged = [entry["zero_variance_groups"] for entry in trainer.state.log_history if "zero_variance_groups" in entry]
    assert logged == [1.0] * 3
