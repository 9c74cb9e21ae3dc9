"""Logs that something else has written: read as far as they go, or refused with the entry's number."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rloo_kit.watch.reading import entries_of

import rloo_kit
from rloo_kit.errors import ConfigError
from rloo_kit.watch import arguments
from tests.watch.logs import history

CUT = {"completions__clipped_ratio": 0.6}


def test_entries_without_a_step_with_figures_as_text_and_with_null_are_read() -> None:
    plain = history(30, **CUT)
    for changed in (
        [{name: value for name, value in entry.items() if name != "step"} for entry in plain],
        [{name: str(value) for name, value in entry.items()} for entry in plain],
        [{**entry, "kl": None, "note": "warm", "tags": ["a"], "judge": "null"} for entry in plain],
    ):
        report = rloo_kit.diagnose(changed)
        assert [one.symptom for one in report.findings] == ["truncation"]
        assert (report.first_step, report.last_step) == (1, 30)
    assert rloo_kit.plot([{"reward": "0.5"}, {"reward": "nan"}]) is not None


def test_what_is_no_figure_is_refused_with_the_entrys_number_in_three_lines() -> None:
    good = history(4)
    for bad, said in (
        ({"step": 3, "reward": "high"}, "reward is 'high' and no number"),
        ({"step": 3, "reward": [0.5]}, r"reward is \[0.5\] and no number"),
        ({"step": math.nan, "reward": 0.5}, "its step is nan"),
        (
            {"step": 3, "reward": 0.5, "completions/clipped_ratio": "x" * 100},
            r"clipped_ratio is 'x+\.\.\. and no",
        ),
        (7, "an entry is int and no mapping"),
        (None, "an entry is NoneType"),
    ):
        with pytest.raises(ConfigError, match=rf"(?s){said}.*diagnose, entry 3\.") as refused:
            rloo_kit.diagnose([*good[:2], bad, *good[3:]])  # type: ignore[list-item]
        assert len(str(refused.value).splitlines()) == 3


@pytest.mark.parametrize("content", ['{"log_history": {}}', '{"log_history": "x"}', '{"log_history": null}'])
def test_a_history_that_is_no_list_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(ConfigError, match=r"a log history is a list of entries"):
        rloo_kit.diagnose(tmp_path)


def test_figures_too_large_for_a_float_are_infinite_and_earlier_names_are_todays() -> None:
    old = {"rewards/right": 0.5, "completion_length": 20, "clip_ratio": 0.1}
    (entry,) = entries_of([{"reward": 10**400, **old}], "here")
    assert entry == {
        "reward": math.inf,
        "rewards/right/mean": 0.5,
        "completions/mean_length": 20.0,
        "clip_ratio/region_mean": 0.1,
        "step": 1,
    }


# --- settings beside a log --------------------------------------------------------------------------------


def stored(folder: Path, found: object) -> Path:
    """A training_args.bin as torch.save writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / arguments.NAME, "w") as archive:
        archive.writestr("training_args/data.pkl", pickle.dumps(found))
    return folder


SETTINGS = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2, "num_generations": 8}


def test_batch_and_k_are_read_from_what_lies_beside_the_log(tmp_path: Path) -> None:
    """30 % cut is more than a fifth of 32 completions a step, and may be chance of the 8 that are assumed else."""
    entries = history(12, dead_groups=None, completions__clipped_ratio=lambda step: (0.2, 0.4)[step % 2])
    checkpoint = tmp_path / "checkpoint-12"
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 12, "log_history": entries}))
    assert rloo_kit.diagnose(tmp_path).healthy
    import trl

    config = trl.RLOOConfig(str(tmp_path), bf16=False, **{**SETTINGS, "per_device_train_batch_size": 128})
    import torch

    torch.save(config, checkpoint / arguments.NAME)
    for source in (tmp_path, checkpoint, checkpoint / "trainer_state.json"):
        assert [one.symptom for one in rloo_kit.diagnose(source).findings] == ["truncation"], source


class Harmful:
    """Unpickled, it writes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_nothing_in_the_file_is_run(tmp_path: Path) -> None:
    place = tmp_path / "made"
    config = SimpleNamespace(
        **SETTINGS, generation_batch_size=64, steps_per_generation=2, bad=Harmful(str(place))
    )
    found = arguments.beside(stored(tmp_path / "run", config))
    assert (found.num_generations, found.world_size) == (8, 2)
    assert not hasattr(found, "bad")
    assert not place.exists()


@pytest.mark.parametrize("content", [b"", b"not a zip", None])
def test_a_file_that_is_cut_off_or_of_another_trainer_tells_nothing(
    content: bytes | None, tmp_path: Path
) -> None:
    if content is None:
        stored(tmp_path, {"num_generations": 8})
        assert arguments.beside(stored(tmp_path, SimpleNamespace(num_generations=0))) is None
    else:
        (tmp_path / arguments.NAME).write_bytes(content)
    assert arguments.beside(tmp_path) is None
    cut = io.BytesIO()
    with zipfile.ZipFile(cut, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(SETTINGS)[:-20])
    (tmp_path / arguments.NAME).write_bytes(cut.getvalue())
    assert arguments.beside(tmp_path) is None
