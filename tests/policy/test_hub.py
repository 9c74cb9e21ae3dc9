"""The hub, by a stand-in on loopback: downloads, the cache, refusals.

The code that loads is the real one; the weights are the tiny policy's, under other names.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants, file_download, hf_api
from huggingface_hub.utils import _http

import rloo_kit
from rloo_kit.errors import PolicyNotFoundError
from rloo_kit.policy.bundled import TINY
from rloo_kit.policy.policy import Policy
from tests.policy import hub as stand_in
from tests.policy.hub import Hub, Repository

REPOSITORY = "unsloth/Qwen3-0.6B-unsloth-bnb-4bit"  # of qwen3-0.6b
WEIGHTS = "model.safetensors"
NAME = "somebody/policy"
TOKEN = "no-pattern-knows-this-token"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """The stand-in in the hub's place, with an empty cache, qwen3-0.6b, and a user's token set."""
    with stand_in.serving() as found:
        monkeypatch.setattr(constants, "ENDPOINT", found.address)
        template = found.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(hf_api.api, "endpoint", found.address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        for module in (_http, file_download):  # they wait a second, then longer, before they ask again
            monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda seconds: None))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        found.valid = {TOKEN}
        found.repositories[REPOSITORY] = Repository.of(TINY.checkpoint())
        yield found
        huggingface_hub.close_session()


def downloads(hub: Hub) -> int:
    return sum(one.method == "GET" and one.path.endswith(f"/{WEIGHTS}") for one in hub.log)


def offline(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    hub.log.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def logits(policy: Policy) -> Any:
    with torch.no_grad():
        return policy.model(torch.tensor([[10, 11, 12]])).logits


def test_a_first_download_shows_its_progress_then_the_cache_is_enough_online_and_offline(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TQDM_POSITION", "-1")  # the hub's library: bars without a terminal, too
    policy = rloo_kit.load_policy("qwen3-0.6b")
    said = capsys.readouterr()
    assert "model.safetensors: 100%" in said.err
    assert "Loading weights" not in said.err
    assert downloads(hub) == 1
    assert policy.checkpoint.name == "qwen3-0.6b"
    assert torch.equal(logits(policy), logits(rloo_kit.load_policy("qwen3-0.6b")))
    assert downloads(hub) == 1
    offline(monkeypatch, hub)
    rloo_kit.load_policy("qwen3-0.6b")
    assert hub.log == []
    assert TOKEN not in said.out + said.err + "".join(capsys.readouterr())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "gated": ({"gated": True, "token": False}, r"is restricted[\s\S]*look at http://127[\s\S]*HF_TOKEN"),
    "a wrong token": ({"token": "hf_" + "w" * 30}, r"Invalid credentials"),
    "private": ({"private": True}, r"Repository Not Found[\s\S]*did you mean[\s\S]*HF_TOKEN"),
    "another revision": ({"revision": "v2"}, r"Revision Not Found"),
}
"""Case -> how the repository behaves and what load_policy is given, and what of the hub's own words the error has."""


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_hub_refuses_is_the_kits_error_in_three_lines_without_the_token(case: str, hub: Hub) -> None:
    how, says = REFUSED[case]
    given = {name: how[name] for name in ("token", "revision") if name in how}
    repository = Repository.of(TINY.checkpoint())
    for name in how.keys() - given.keys():
        setattr(repository, name, how[name])
    hub.repositories[NAME] = repository
    with pytest.raises(PolicyNotFoundError, match=says) as raised:
        rloo_kit.load_policy(NAME, **given)
    text = str(raised.value)
    assert len(text.splitlines()) == 3
    assert "load_policy" in raised.value.where
    assert TOKEN not in text
    assert "w" * 30 not in text


def test_a_token_that_was_let_in_reads_a_gated_repository_and_a_private_one(hub: Hub) -> None:
    hub.members = {TOKEN}
    hub.repositories[NAME] = Repository.of(TINY.checkpoint(), gated=True, private=True)
    rloo_kit.load_policy(NAME)
    assert {one.token for one in hub.log} == {TOKEN}


def test_an_adapter_over_a_base_of_the_hub_brings_its_base_and_is_checked_before(
    hub: Hub, tmp_path: Path
) -> None:
    stored = Repository.of(rloo_kit.load_policy("qwen3-0.6b").save(tmp_path / "adapter"))
    hub.repositories["me/adapter"] = stored
    assert rloo_kit.load_policy("me/adapter").checkpoint.name == "qwen3-0.6b"
    shutil.rmtree(constants.HF_HUB_CACHE)
    del hub.repositories[REPOSITORY]
    with pytest.raises(PolicyNotFoundError, match=f"{REPOSITORY} cannot be loaded: 404"):
        rloo_kit.load_policy("me/adapter")
    stored.files["adapter_model.safetensors"] = b"version https://git-lfs.github.com/spec/v1"
    with pytest.raises(PolicyNotFoundError, match="weights cannot be read"):
        rloo_kit.load_policy("me/adapter")
