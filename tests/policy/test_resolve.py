"""Names, folders and hub ids: what they resolve to, and what the error says where they do not exist."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from rloo_kit.errors import PolicyNotFoundError
from rloo_kit.models import CATALOGUE
from rloo_kit.policy import resolve as names
from rloo_kit.policy.bundled import TINY

ELSEWHERE = "/home/somebody/.cache/rloo-kit/tiny-qwen3-0123456789ab"


def resolve(name: str | Path) -> names.Source:
    return names.resolve(name, four_bit=True, token=None)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``online(answer)``: a hub that answers what the function does, or raises the error."""

    def answer(model_info: Any) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub, "model_info", Mock(side_effect=model_info))

    return answer


def test_a_wrong_name_gets_the_nearest_and_an_empty_folder_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PolicyNotFoundError, match="did you mean qwen3-4b-thinking"):
        resolve("qwen3-4b-thinkin")
    with pytest.raises(PolicyNotFoundError, match=r"no config\.json"):
        resolve(tmp_path)


@pytest.mark.parametrize(
    "name", ["{}/run/checkpoint-25", "./adaptor", "~/adaptor", "my runs/adaptor", Path("a/b")], ids=str
)
def test_a_path_that_is_no_hub_id_is_a_missing_folder(name: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "adapter").mkdir()
    name = name.format(tmp_path) if isinstance(name, str) else name
    with pytest.raises(PolicyNotFoundError, match=rf"there is no folder '{name}'") as caught:
        resolve(name)
    assert f"{tmp_path} holds adapter." in str(caught.value)


@pytest.mark.parametrize("name", ["out/adaptor", "adaptor"])
def test_where_the_hub_has_no_such_repository_the_folders_of_that_place_are_named(
    name: str, online: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    online(httpx.ConnectError("no route"))
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path / "out" / "adapter", tmp_path / "adapter"):
        folder.mkdir(parents=True)
    with pytest.raises(PolicyNotFoundError, match="holds adapter"):
        resolve(name)


def test_a_folder_in_the_users_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "config.json").touch()
    assert resolve("~/adapter").path == str(tmp_path / "adapter")


@pytest.fixture
def cached(tmp_path: Path) -> Any:
    """``cached(revision)``: a cache of its own, with a model of that revision and of no other."""

    def fill(revision: str) -> Path:
        repository = tmp_path / "cache" / "models--somebody--model"
        for file, text in ((f"refs/{revision}", "0" * 40), (f"snapshots/{'0' * 40}/config.json", "{}")):
            (repository / file).parent.mkdir(parents=True, exist_ok=True)
            (repository / file).write_text(text)
        return repository.parent

    return fill


def test_a_cache_of_its_own_and_a_revision_are_looked_for_before_the_hub_is_asked(
    cached: Any, online: Any, monkeypatch: Any
) -> None:
    online(AssertionError("the hub was asked"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder = cached("v2")
    there = {"revision": "v2", "cache_dir": folder}
    found = names.resolve("somebody/model", None, None, **there)
    assert found == names.Source("somebody/model", None, "somebody/model")
    for elsewhere in ({"cache_dir": folder}, {**there, "revision": "v3"}, {"revision": "v2"}):
        with pytest.raises(PolicyNotFoundError, match=r"cannot be reached[\s\S]*prepare\(offline=False\)"):
            names.resolve("somebody/model", None, None, **elsewhere)


def test_the_hub_is_asked_for_the_revision_and_says_whether_it_is_an_adapter(
    online: Any, tmp_path: Path
) -> None:
    for file in ("config.json", names.ADAPTER_CONFIG):
        found = SimpleNamespace(siblings=[SimpleNamespace(rfilename=file)])
        online(lambda *args, found=found, **kwargs: found)
        assert names.check_hub("somebody/else", None, revision="v2", cache_dir=tmp_path) is (
            file != "config.json"
        )
        asked: Any = huggingface_hub.model_info
        assert asked.call_args.kwargs["revision"] == "v2"


def test_the_base_of_an_adapter_is_looked_for_in_the_same_cache_but_not_by_the_adapters_revision(
    cached: Any, adapter: Any, online: Any, policy: Any, monkeypatch: Any
) -> None:
    online(AssertionError("the hub was asked"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    place = {"revision": "of the adapter", "cache_dir": cached("main")}
    config = next(place["cache_dir"].rglob("config.json"))
    config.write_bytes((TINY.checkpoint() / "config.json").read_bytes())
    trained = policy.model.config.max_position_embeddings
    assert names.trained_length(resolve(adapter("somebody/model")), place) == trained


def test_a_hub_that_connects_and_never_answers_fails_after_its_time(online: Any, monkeypatch: Any) -> None:
    answer = threading.Event()
    monkeypatch.setattr(names, "HUB_SECONDS", 0.2)
    online(lambda *args, **kwargs: answer.wait(60))
    with pytest.raises(PolicyNotFoundError, match="cannot be reached"):
        resolve("somebody/something")
    answer.set()


def test_a_network_error_is_a_hub_that_cannot_be_reached_and_another_error_is_raised(online: Any) -> None:
    for error in (httpx.ConnectError("refused"), TimeoutError(), errors.OfflineModeIsEnabled("offline")):
        online(error)
        with pytest.raises(PolicyNotFoundError, match="cannot be reached"):
            resolve("somebody/something")
    online(KeyError("a fault of its own"))
    with pytest.raises(KeyError):
        resolve("somebody/something")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
@pytest.mark.parametrize("file", ["config.json", "adapter_config.json"])
def test_a_configuration_in_another_encoding_is_named(tmp_path: Path, file: str, encoding: str) -> None:
    (tmp_path / file).write_text("{}", encoding=encoding)
    with pytest.raises(PolicyNotFoundError, match=f"{file} is not a JSON object in UTF-8"):
        names.trained_length(resolve(tmp_path), {})


@pytest.fixture
def adapter(policy: Any, tmp_path: Path) -> Any:
    """``adapter(base)``: the tiny policy's adapter, saved over that base."""

    def save(base: str) -> Path:
        folder: Path = policy.save(tmp_path / "adapter")
        file = folder / names.ADAPTER_CONFIG
        file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": base}))
        return folder

    return save


def test_an_adapter_of_the_tiny_policy_loads_on_another_machine(adapter: Any) -> None:
    folder = adapter(ELSEWHERE)
    (folder / "optimizer.pt").touch()
    found = resolve(folder)
    assert found == names.Source(str(folder), CATALOGUE["tiny"], str(TINY.checkpoint()), is_adapter=True)
    with names.portable(found) as copy:
        config = json.loads((Path(copy) / names.ADAPTER_CONFIG).read_text())
        assert config["base_model_name_or_path"] == str(TINY.checkpoint())
        kept = {file.name for file in Path(copy).iterdir()}
        assert {file.name for file in folder.iterdir()} - kept == {"optimizer.pt"}
    assert not Path(copy).exists()


def test_an_adapter_whose_base_is_gone_says_which_and_where_it_is_named(adapter: Any) -> None:
    with pytest.raises(PolicyNotFoundError, match=r"no folder '/gone/base'[\s\S]*base_model_name_or_path"):
        names.trained_length(resolve(adapter("/gone/base")), {})


def test_a_base_is_named_so_that_it_is_found_later(tmp_path: Path, monkeypatch: Any) -> None:
    snapshot = tmp_path / "models--unsloth--Qwen3-4B" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert names.lasting_name(str(snapshot)) == "unsloth/Qwen3-4B", "of the hub's cache, which may be cleaned"
    assert names.lasting_name("mine") == str(tmp_path / "mine"), "whole, wherever a later cell works"
    assert names.lasting_name("owner/name") == "owner/name"
    (snapshot / "config.json").touch()
    assert resolve(snapshot).checkpoint is CATALOGUE["qwen3-4b"]
