"""SIGTERM and SIGINT: the last finished step is saved, whenever the signal arrives."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

import rloo_kit
from rloo_kit.train import checkpoints, resume
from rloo_kit.train.checkpoints import fault, newest_whole
from rloo_kit.train.stop_signals import Stops, Terminated
from tests.conftest import random_rewards
from tests.train.weights import same, steps, trained

SETTINGS = {"save_strategy": "steps", "save_steps": 9, "max_steps": 4, "reward_funcs": random_rewards}
SETTINGS |= {"learning_rate": 1e-2}

pytestmark = pytest.mark.usefixtures("interruptible")


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def during(trainer: Any, method: str, step: int) -> None:
    """Send SIGTERM once within a method, after ``step`` steps."""
    original, sent = getattr(trainer, method), []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if trainer.state.global_step == step and not sent:
            sent.append(step)
            send()
        return original(*args, **kwargs)

    setattr(trainer, method, interrupted)


@pytest.mark.parametrize("method", ["_generate_single_turn", "_compute_loss"])
def test_a_step_in_progress_is_dropped_and_taken_again(make_trainer, tmp_path, method):
    trainer = make_trainer(model=rloo_kit.load_policy("tiny", seed=0), **SETTINGS)
    kept: list[Any] = []
    during(trainer, method, step=2)
    ended, trainer.remember = trainer.remember, lambda: (ended(), kept.append(trained(trainer.model)))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated) as stopped:
        trainer.train()
    assert stopped.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert newest_whole(tmp_path / "run")[0] == tmp_path / "run" / "checkpoint-2"
    assert same(kept[-1], trained(trainer.model)), "of the last whole step"
    resumed = make_trainer(**SETTINGS)
    resumed.train(resume_from_checkpoint=True)
    assert [entry["step"] for entry in steps(resumed)] == [1, 2, 3, 4]


def test_a_stop_within_a_generation_batch_goes_on_with_its_rest(make_trainer):
    """Three steps share a batch, and the second is stopped: resumed, it and the third use the same completions."""
    sampled: list[int] = []

    def counts(completions: Any, trainer_state: Any, **kwargs: Any) -> list[float]:
        sampled.append(trainer_state.global_step)
        return random_rewards(completions, **kwargs)

    settings = {**SETTINGS, "reward_funcs": counts, "num_iterations": 3, "gradient_accumulation_steps": 2}
    settings |= {"per_device_train_batch_size": 2, "max_steps": 5}
    trainer = make_trainer(**settings)
    during(trainer, "_compute_loss", step=1)
    with pytest.raises(Terminated):
        trainer.train()
    make_trainer(**settings).train(resume_from_checkpoint=True)
    assert sampled == [0, 3]


def test_while_saving_a_signal_waits_and_another_one_too(make_trainer, tmp_path, monkeypatch):
    sealed: list[str] = []

    def seal(folder: Path, told: Any) -> None:
        assert not (tmp_path / "run" / folder.name).exists(), "it is nowhere under its name before it is sealed"
        send()
        send()
        original(folder, told)
        sealed.append(folder.name)

    original = checkpoints.seal
    monkeypatch.setattr(checkpoints, "seal", seal)
    with pytest.raises(Terminated):
        make_trainer(**{**SETTINGS, "save_steps": 2}).train()
    assert sealed == ["checkpoint-2"], "it is not written twice"
    assert fault(tmp_path / "run" / "checkpoint-2") == ""


def test_an_update_that_a_second_stop_cuts_in_two_is_not_saved(make_trainer, tmp_path, capsys):
    class Twice(TrainerCallback):
        def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                send(signal.SIGINT)
                send(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        make_trainer(callbacks=[Twice()], **SETTINGS).train()
    assert newest_whole(tmp_path / "run")[0] is None
    assert "there is no finished step to save" in capsys.readouterr().out


def test_a_signal_that_is_ignored_stays_ignored():
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Stops().listening():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, ignored)


def test_the_stop_button_shows_one_line_in_ipython_and_stays_keyboard_interrupt_in_a_script(
    make_trainer, capsys, monkeypatch, tmp_path
):
    def stopping(completions: Any, trainer_state: Any, **kwargs: Any) -> list[float]:
        if trainer_state.global_step == 1:
            send(signal.SIGINT)
        return random_rewards(completions, **kwargs)

    trainer = make_trainer(**{**SETTINGS, "reward_funcs": stopping})
    place = tmp_path / "run" / "checkpoint-1"
    line = f"stopped: step 1 of 4 is saved in {place}; train(resume_from_checkpoint=True) goes on"
    with pytest.raises(KeyboardInterrupt) as stopped:
        trainer.train()
    assert stopped.type is KeyboardInterrupt, "Python ends a script with SIGINT's status for no subclass"
    assert capsys.readouterr().out.endswith(f"{line}\n")
    monkeypatch.setattr(resume, "running_shell", lambda: "a shell")
    with pytest.raises(KeyboardInterrupt) as shown:
        trainer.train()
    assert shown.value._render_traceback_() == [line]  # what IPython shows instead of a traceback


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork has the handlers of its parent")
def test_a_fork_of_a_run_that_is_terminated_saves_nothing(tmp_path):
    stops = Stops()
    with stops.listening():
        stops.held = True
        if not (process := os.fork()):
            send()
            (tmp_path / "unwound").touch()
            os._exit(0)
        _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 143
    assert not (tmp_path / "unwound").exists()
