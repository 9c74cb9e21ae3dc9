"""A release outside the range of pyproject.toml is warned of once, with the test that would say more."""

import importlib.metadata
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from rloo_kit.session import versions

ROOT = Path(__file__).resolve().parents[2]
DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What is installed, to be changed; the kit is, as pyproject.toml is now."""
    found = dict(versions.TESTED)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: [*DEPENDENCIES, "trl==0; extra == 'x'"])
    monkeypatch.setattr(versions, "version_of", found.__getitem__)
    versions.warn_once.cache_clear()
    yield found
    versions.warn_once.cache_clear()


def test_every_package_has_a_range_and_what_the_tests_ran_on_is_within(installed: dict[str, str]) -> None:
    assert versions.ranges().keys() == versions.TESTED.keys()
    assert versions.outside() == {}


def test_a_release_outside_is_warned_of_once_with_what_to_do(installed: dict[str, str]) -> None:
    installed["torch"] = "2.15.0+cu130"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        versions.warn_once()
        versions.warn_once()
    (one,) = told
    assert f"torch 2.15.0+cu130 is outside {versions.ranges()['torch']}" in str(one.message)
    assert str(one.message).endswith("pytest tests/contract")
