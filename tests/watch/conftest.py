"""One real run for all watch tests: cut at 4 tokens, stopped for that, and drawn live."""

import contextlib
import io
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

import rloo_kit
from rloo_kit.watch import callbacks
from tests.conftest import SMALL, right_after_thought


class Notebook:
    """A notebook that keeps the pictures shown in it, with a clock that moves only by calls of ``second``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.pictures: list[Any] = []
        self.displayed: list[dict[str, Any]] = []
        monkeypatch.setattr(callbacks.output, "in_notebook", lambda: True)
        monkeypatch.setattr("IPython.display.display", self.display)
        monkeypatch.setattr(callbacks.time, "monotonic", lambda: self.now)

    def display(self, shown: Any, **how: Any) -> SimpleNamespace:
        self.displayed.append(how)
        return SimpleNamespace(update=self.show)

    def show(self, shown: Any, raw: bool) -> None:
        self.pictures.append(shown["image/png"])

    def second(self) -> None:
        self.now += 1


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    return Notebook(monkeypatch)


@pytest.fixture(scope="session")
def stopped_run(task: Any, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """``trainer``, what it ``printed``, and the ``pictures`` shown."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as monkeypatch:
        notebook = Notebook(monkeypatch)
        settings = {**SMALL, "max_steps": 6, "max_completion_length": 4, "on_unhealthy": "stop"}
        config = rloo_kit.RLOOConfig(str(tmp_path_factory.mktemp("run")), **settings)
        policy = rloo_kit.load_policy("tiny", seed=0)
        trainer = rloo_kit.RLOOTrainer(policy, right_after_thought, config, task.train)
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it also warns that completions are cut
            trainer.train()
    shown = {"pictures": notebook.pictures, "displayed": notebook.displayed}
    return SimpleNamespace(trainer=trainer, printed=printed.getvalue(), **shown)
