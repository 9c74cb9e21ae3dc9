"""A release outside the range of pyproject.toml is warned of once, with the test that would say more."""

import importlib.metadata
import tomllib
import warnings

import pytest

from rloo_kit.session import versions
from tests.conftest import ROOT

DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


def test_a_release_outside_its_range_is_warned_of_once_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = dict(versions.TESTED)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: [*DEPENDENCIES, "trl==0; extra == 'x'"])
    monkeypatch.setattr(versions, "version_of", installed.__getitem__)
    versions.warn_once.cache_clear()
    assert versions.outside() == {}, "what the tests ran on is within"
    installed |= dict.fromkeys(installed, "0.0.1")
    assert versions.outside().keys() == versions.TESTED.keys(), "every package has a range"
    installed |= {**versions.TESTED, "torch": "2.15.0+cu130"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        versions.warn_once()
        versions.warn_once()
    (text,) = (str(warning.message) for warning in caught)
    assert text.startswith("torch 2.15.0+cu130 is outside ")
    assert text.endswith("pytest tests/contract")
