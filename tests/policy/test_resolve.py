"""Names, folders and hub ids: what they resolve to, and the error if they do not exist."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils import filter_repo_objects

import rloo_kit
from rewards.factory_calls import made_by
from rloo_kit.errors import PolicyNotFoundError
from rloo_kit.models import CATALOGUE, lasting_name
from rloo_kit.policy import resolve as names
from rloo_kit.policy import save
from rloo_kit.policy.bundled import TINY

ELSEWHERE = "/home/somebody/.cache/rloo-kit/tiny-qwen3-0123456789ab"


def resolve(name: str | Path, **place: Any) -> names.Source:
    return names.resolve(name, four_bit=True, **place)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``online(answer)``: a hub that answers by this function, or raises this error; returns the mock."""

    def answer(model_info: Any) -> Mock:
        mock = Mock(side_effect=model_info)
        monkeypatch.setattr(huggingface_hub, "model_info", mock)
        return mock

    return answer


def holding(file: str) -> Any:
    """Return a hub whose repositories have that file."""
    return lambda *args, **kwargs: SimpleNamespace(siblings=[SimpleNamespace(rfilename=file)])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("qwen3-4b-thinkin", "did you mean qwen3-4b-thinking"),
        ("./adaptor", r"no folder './adaptor'"),
        (Path("out/b"), "no folder 'out/b'"),
        ("out/adaptor", "out/adaptor is not a folder.*cannot be reached"),
        ("out", r"no config\.json"),
        ("out/runs/adaptr", "did you mean out/runs/adapter"),
        ("out/checkpont-2", "did you mean out/checkpoint-2"),
    ],
)
def test_a_wrong_name_says_what_it_was_taken_for(name, says, online, tmp_path, monkeypatch):
    online(httpx.ConnectError("no route"))
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/adapter", "checkpoint-2"):
        (tmp_path / "out" / folder).mkdir(parents=True)
    with pytest.raises(PolicyNotFoundError, match=says) as caught:
        resolve(name)
    assert len(str(caught.value).splitlines()) == 3


def test_a_catalogue_name_is_not_an_empty_folder_and_its_case_does_not_matter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert resolve("tiny") == resolve("Tiny") == names.Source(path := str(TINY.checkpoint()), CATALOGUE["tiny"], path)
    assert rloo_kit.plan("tiny").model.checkpoint == CATALOGUE["tiny"]
    assert made_by(rloo_kit.load_policy("tiny").model).arguments["name"] == "tiny", "for export"
    (tmp_path / "tiny/config.json").write_text("{}")
    assert resolve("tiny").path == "tiny", "the folder"


def test_the_cache_is_looked_into_before_the_hub_is_asked(online, tmp_path):
    online(errors.OfflineModeIsEnabled("offline"))
    for file, text in (("refs/v2", "0" * 40), (f"snapshots/{'0' * 40}/config.json", "{}")):
        place = tmp_path / "models--somebody--model" / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    there = {"revision": "v2", "cache_dir": tmp_path}
    assert resolve("somebody/model", **there) == names.Source("somebody/model", None, "somebody/model")
    for elsewhere in ({"cache_dir": there["cache_dir"]}, {**there, "revision": "v3"}, {"revision": "v2"}):
        with pytest.raises(PolicyNotFoundError, match=r"cannot be reached[\s\S]*prepare\(offline=False\)"):
            resolve("somebody/model", **elsewhere)


def test_a_hub_that_does_not_answer_cannot_be_reached_and_another_error_is_raised(online, monkeypatch):
    answer = threading.Event()
    monkeypatch.setattr(names, "HUB_SECONDS", 0.2)
    for fault in (httpx.ConnectError("refused"), TimeoutError(), lambda *args, **kwargs: answer.wait(60)):
        online(fault)
        with pytest.raises(PolicyNotFoundError, match="cannot be reached"):
            resolve("somebody/something")
    answer.set()
    monkeypatch.setattr(names, "HUB_SECONDS", 60.0)
    online(KeyError("a fault of its own"))
    with pytest.raises(KeyError):
        resolve("somebody/something")


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_the_hub_refuses_is_said_in_its_words_in_three_lines(wrapped):
    """Also if transformers wraps it in its own OSError."""
    response = httpx.Response(403, request=httpx.Request("GET", "http://x"))
    fault = errors.GatedRepoError("Access is\nrestricted", response=response)
    error = OSError("a long text of transformers'")
    error.__cause__ = fault
    says = r"Access is restricted[\s\S]*HF_TOKEN in \.env"
    with pytest.raises(PolicyNotFoundError, match=says) as raised, names.hub_explained("somebody/model"):
        raise error if wrapped else fault
    assert len(str(raised.value).splitlines()) == 3


def test_an_adapter_on_the_hub_is_fetched_without_its_run(adapter, online, monkeypatch):
    online(holding("config.json"))
    assert not resolve("somebody/else").is_adapter
    hub = online(holding(names.ADAPTER_CONFIG))
    fetch = Mock(return_value=str(adapter(ELSEWHERE)))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    found = resolve("me/adapter", revision="v2")
    assert (found.is_adapter, found.checkpoint, found.path) == (True, CATALOGUE["tiny"], fetch.return_value)
    asked = fetch.call_args.kwargs
    assert asked["revision"] == hub.call_args.kwargs["revision"] == "v2"
    wanted = ["adapter_model.safetensors", "tokenizer.json"]
    files = [*wanted, "optimizer.pt", "checkpoint-5/adapter_config.json"]
    patterns = {name: asked[name] for name in ("allow_patterns", "ignore_patterns")}
    assert list(filter_repo_objects(files, **patterns)) == wanted


@pytest.fixture
def adapter(policy: Any, tmp_path: Path) -> Any:
    """``adapter(base)``: the tiny policy's adapter, saved as an adapter of that base."""

    def save(base: str) -> Path:
        folder: Path = policy.save(tmp_path / "adapter")
        file = folder / names.ADAPTER_CONFIG
        file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": base}))
        return folder

    return save


def test_an_adapter_of_the_tiny_policy_loads_on_another_machine(adapter):
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


def test_an_adapter_of_a_hub_id_is_not_put_on_the_bundled_weights_which_are_others(adapter):
    hub_id = CATALOGUE["smollm2-135m"].repository
    assert resolve(adapter(hub_id)).base == hub_id
    assert save.sixteen_bit_base(CATALOGUE["smollm2-135m"], hub_id) == hub_id


@pytest.mark.parametrize("base", ["/gone/base", ""])
def test_an_adapter_whose_base_is_gone_says_which_and_where_it_is_named(base, adapter):
    with pytest.raises(PolicyNotFoundError, match=rf"no folder '{base}'[\s\S]*base_model_name_or_path"):
        resolve(adapter(base))


def test_a_base_is_named_so_that_it_is_found_later(tmp_path, monkeypatch):
    snapshot = tmp_path / "models--unsloth--Qwen3-4B" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert lasting_name(str(snapshot)) == "unsloth/Qwen3-4B", "of the hub's cache, which may be cleaned"
    assert lasting_name("mine") == str(tmp_path / "mine"), "whole, wherever a later cell works"
    assert lasting_name("owner/name") == "owner/name"
    assert lasting_name("") == "", "of a model made by hand"
    (snapshot / "config.json").touch()
    assert resolve(snapshot).checkpoint is CATALOGUE["qwen3-4b"]
