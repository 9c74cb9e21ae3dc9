"""The lines of a run: one width, a space between figures, and one line for each evaluation."""

from types import SimpleNamespace

import pytest

from rloo_kit.watch import callbacks

USUAL = {"reward": 0.5, "reward_std": 0.25, "zero_variance_groups": 1.0, "kl": 0.0123, "step_time": 12.34}
USUAL |= {"completions/mean_length": 18.4, "completions/clipped_ratio": 1.0}
EVALUATION = {"eval_reward": 0.42, "eval_reward_std": 0.31, "eval_runtime": 3.0}
LENGTHS = {"eval_completions/mean_length": 18.4, "eval_completions/clipped_ratio": 0.0}


def test_a_line_has_a_figure_under_each_name_the_time_left_and_a_dash_for_what_is_missing():
    assert callbacks.header() == "     step  reward spread 0-var      kl length  cut s/step    left"
    line = callbacks.line(2, 30, USUAL, 62)
    assert line == "     2/30  +0.500  0.250  100%  0.0123     18 100%   12.3    1:02"
    for seconds, left in ((3725, "1:02:05"), (None, "-")):
        assert callbacks.line(1, 30, {"reward": 0.5}, seconds).split() == ["1/30", "+0.500", *["-"] * 6, left]


@pytest.mark.parametrize(
    ("metric", "value", "shown"),
    [
        ("reward", 102.0, "+102.00"),  # "2/2+102.000" would be unreadable
        ("reward", 1234567.0, "+1e+06"),
        ("reward", float("nan"), "+nan"),
        ("step_time", 123456.0, "123456"),
    ],
)
def test_a_large_figure_gives_up_decimals_and_not_its_blank(metric, value, shown):
    line = callbacks.line(2, 2, {**USUAL, metric: value}, 0)
    assert f" {shown} " in line
    assert len(line) == len(callbacks.header())
    assert len(line.split()) == len(callbacks.header().split())


@pytest.mark.parametrize(
    ("logs", "line"),
    [
        (EVALUATION | LENGTHS, "held out, step 25: reward +0.420, spread 0.310, length 18, 0% cut\n"),
        ({"eval_reward": 0.42, "eval_hard_runtime": 3.0}, "held out (hard), step 25: reward +0.420\n"),
        ({"eval_loss": 0.0}, ""),  # no reward was given
    ],
)
def test_an_evaluation_has_a_line_of_its_own(logs, line, capsys):
    for main, printed in ((True, line), (False, "")):
        state = SimpleNamespace(is_world_process_zero=main, global_step=25, max_steps=100)
        callbacks.ProgressCallback().on_log(None, state, None, logs=logs)
        assert capsys.readouterr().out == printed


def test_an_update_on_earlier_completions_and_the_summary_of_a_run_have_no_line(capsys, monkeypatch):
    callback, now = callbacks.ProgressCallback(), [0.0]
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: now[0])
    state = SimpleNamespace(is_world_process_zero=True, global_step=0, max_steps=4)
    callback.on_train_begin(None, state, None)
    # A step takes thirty seconds with sampling, ten without.
    for state.global_step, now[0], logs in (
        (1, 30.0, USUAL),
        (2, 40.0, {"loss": 0.1}),
        (3, 70.0, USUAL),
        (4, 80.0, {"loss": 0.1}),
    ):
        callback.on_log(None, state, None, logs=logs)
    callback.on_log(None, state, None, logs={"train_loss": 0.1})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(words[0], words[-1]) for words in lines] == [("step", "left"), ("1/4", "1:30"), ("3/4", "0:20")]


def test_a_run_without_progress_says_nothing_and_draws_nothing(make_trainer, capsys):
    """For many runs in one cell; problems are still reported."""
    shown = {callbacks.ProgressCallback, callbacks.LivePlot, callbacks.HealthCallback}
    usual, quiet = make_trainer(), make_trainer(progress=False)
    assert shown <= {*map(type, usual.callback_handler.callbacks)}
    assert shown & {*map(type, quiet.callback_handler.callbacks)} == {callbacks.HealthCallback}
    capsys.readouterr()
    quiet.train()
    assert capsys.readouterr().out == ""
