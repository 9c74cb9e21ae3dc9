"""The hub, by a stand-in on loopback: downloads, the cache, refusals, broken connections, uploads.

The code that loads is the real one; the weights are the tiny policy's, under other names.
"""

import contextlib
import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
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
from rloo_kit.policy import hub as the_hub
from rloo_kit.policy import tiny
from rloo_kit.policy.policy import Policy
from tests.conftest import CLEAN_ENVIRONMENT
from tests.policy import hub as stand_in
from tests.policy.hub import Hub, Repository

REPOSITORY = "unsloth/Qwen3-0.6B-unsloth-bnb-4bit"  # of qwen3-0.6b
WEIGHTS = "model.safetensors"
NAME = "somebody/policy"
TOKEN = "no-pattern-knows-this-token"


def weights() -> int:
    """Bytes of the tiny policy's."""
    return (tiny.checkpoint() / WEIGHTS).stat().st_size


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
        for module in (
            _http,
            file_download,
        ):  # they wait a second, and longer each time, before they ask again
            monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda seconds: None))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        found.valid = {TOKEN}
        found.repositories[REPOSITORY] = Repository.of(tiny.checkpoint())
        yield found
        huggingface_hub.close_session()


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
    assert [one.sent for one in hub.downloads(WEIGHTS)] == [weights()]
    assert policy.checkpoint.name == "qwen3-0.6b"
    assert torch.equal(logits(policy), logits(rloo_kit.load_policy("qwen3-0.6b")))
    assert len(hub.downloads(WEIGHTS)) == 1
    offline(monkeypatch, hub)
    rloo_kit.load_policy("qwen3-0.6b")
    assert hub.log == []
    assert TOKEN not in said.out + said.err + "".join(capsys.readouterr())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "gated, no token": (
        {"gated": True, "token": False},
        r"is gated\.[\s\S]*accept its terms at http://127[\s\S]*HF_TOKEN",
    ),
    "gated, not let in": ({"gated": True}, r"has not been let in[\s\S]*wait to be let in"),
    "a wrong token": ({"token": "hf_" + "w" * 30}, r"does not know the token[\s\S]*settings/tokens"),
    "private": ({"private": True}, r"no repository 'somebody/policy' that you may read[\s\S]*HF_TOKEN"),
    "no weights": (
        {"missing": (WEIGHTS,)},
        r"file named pytorch_model.bin or model.safetensors[\s\S]*see which",
    ),
    "a GGUF alone": ({"files": {"policy.gguf": b"GGUF"}}, r"neither a checkpoint nor an adapter"),
    "another revision": ({"revision": "v2"}, r"no such revision[\s\S]*leave revision out"),
    "a failing hub": ({"broken": ("config.json",)}, r"the hub fails: it answers 500[\s\S]*try again later"),
    "a failing store": ({"broken": (WEIGHTS,)}, r"cannot be loaded[\s\S]*try later"),
    "a reset": ({"cuts": {WEIGHTS: [(9, "reset")]}}, r"broke off: .*reset[\s\S]*call it again"),
}
"""Case -> how the repository behaves and what load_policy is given, and what the error says."""


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_hub_refuses_is_the_kits_error_in_three_lines_without_the_token(case: str, hub: Hub) -> None:
    how, says = REFUSED[case]
    given = {name: how[name] for name in ("token", "revision") if name in how}
    repository = Repository.of(tiny.checkpoint())
    for name in how.keys() - given.keys():
        setattr(repository, name, how[name])
    for file in repository.missing:
        del repository.files[file]
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
    hub.repositories[NAME] = Repository.of(tiny.checkpoint(), gated=True, private=True)
    rloo_kit.load_policy(NAME)
    assert {one.token for one in hub.log} == {TOKEN}


@pytest.mark.parametrize(
    ("how", "sizes"), [("closed", [2**20, 2**21]), pytest.param("silent", [2**20], marks=pytest.mark.long)]
)
def test_a_download_that_breaks_goes_on_where_it_broke(
    how: Any, sizes: list[int], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 4)
    monkeypatch.setattr(
        constants, "DOWNLOAD_CHUNK_SIZE", 2**20
    )  # what is kept of a broken one is whole chunks
    hub.repositories[REPOSITORY].cuts = {WEIGHTS: [(size, how) for size in sizes]}
    rloo_kit.load_policy("qwen3-0.6b")
    found = [(one.start, one.sent) for one in hub.downloads(WEIGHTS)]
    assert found[:-1] == [(sum(sizes[:index]), size) for index, size in enumerate(sizes)]
    assert found[-1] == (sum(sizes), weights() - sum(sizes)), "no byte is fetched twice"
    cached = huggingface_hub.try_to_load_from_cache(REPOSITORY, WEIGHTS)
    assert Path(str(cached)).read_bytes() == (tiny.checkpoint() / WEIGHTS).read_bytes()


def test_after_a_download_that_was_given_up_only_the_missing_files_are_fetched(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = hub.repositories[REPOSITORY]
    repository.cuts = {WEIGHTS: [(9, "reset")]}
    with pytest.raises(PolicyNotFoundError, match="broke off"):
        rloo_kit.load_policy("qwen3-0.6b")
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(PolicyNotFoundError, match=r"cannot be loaded[\s\S]*prepare\(offline=False\)"):
            rloo_kit.load_policy("qwen3-0.6b")
    hub.seconds = 0.05  # a slow one
    rloo_kit.load_policy("qwen3-0.6b")
    assert len(hub.downloads("config.json")) == 1


def test_a_hub_that_is_too_slow_is_not_waited_for(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(the_hub, "HUB_SECONDS", 0.1)
    hub.seconds = 0.3
    with pytest.raises(PolicyNotFoundError, match=r"cannot be reached[\s\S]*offline mode is off"):
        rloo_kit.load_policy("qwen3-1.7b")


IN_A_TERMINAL = """
import os, sys
import rloo_kit
rloo_kit.prepare()
print(rloo_kit.load_policy("qwen3-0.6b").checkpoint)
"""


@pytest.mark.long
def test_in_a_process_of_its_own_the_address_is_hf_endpoint_and_the_second_start_needs_no_network(
    tmp_path: Path,
) -> None:
    (tmp_path / ".env").write_text(f"HF_TOKEN={TOKEN}\n")
    with stand_in.serving() as hub:
        hub.valid = {TOKEN}
        hub.repositories[REPOSITORY] = Repository.of(tiny.checkpoint())
        settings = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0"}
        said = in_a_terminal(tmp_path, **settings)
        assert "qwen3-0.6b: 0.60 B parameters" in said
        assert "model.safetensors: 100%" in said
        assert {one.token for one in hub.log if "/resolve/" in one.path} == {TOKEN}
        hub.log.clear()
        again = in_a_terminal(tmp_path, **{**settings, "HF_HUB_OFFLINE": "1"})
        assert "qwen3-0.6b: 0.60 B parameters" in again
        assert hub.log == []
    assert TOKEN not in said + again


def in_a_terminal(folder: Path, **settings: str) -> str:
    """What a user sees of a script in a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 120, 0, 0))  # bars need a width
    environment = {**CLEAN_ENVIRONMENT, "OMP_NUM_THREADS": "1", **settings}
    how: Any = {"cwd": folder, "env": environment, "stdout": theirs, "stderr": theirs, "stdin": theirs}
    with subprocess.Popen([sys.executable, "-c", IN_A_TERMINAL], **how) as process:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # at its end, on Linux
            while part := os.read(ours, 4096):
                said += part
    os.close(ours)
    assert process.returncode == 0, said.decode()
    return said.decode()


# --- uploads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merged", [False, True])
def test_what_is_pushed_is_read_back_by_its_name(
    merged: bool, hub: Hub, policy: Policy, tmp_path: Path
) -> None:
    hub.writers = hub.members = {TOKEN}
    for name, weight in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.02)
    assert policy.push_to_hub("me/policy", merged=merged, private=True) == f"{hub.address}/me/policy"
    stored = hub.repositories["me/policy"]
    assert stored.private
    assert b"rloo-kit" in stored.files["README.md"]
    assert str(Path.home()).encode() not in b"".join(stored.files.values())
    again = rloo_kit.load_policy("me/policy", load_in_4bit=not merged)
    if merged:
        assert again.has_lora
        assert stored.files[WEIGHTS] == (policy.save_merged(tmp_path / "merged") / WEIGHTS).read_bytes()
    else:
        assert torch.equal(logits(again), logits(policy))


def test_an_adapter_over_a_base_of_the_hub_brings_its_base_and_is_checked_before(hub: Hub) -> None:
    hub.writers = {TOKEN}
    rloo_kit.load_policy("qwen3-0.6b").push_to_hub("me/adapter")
    stored = hub.repositories["me/adapter"]
    assert rloo_kit.load_policy("me/adapter").checkpoint.name == "qwen3-0.6b"
    shutil.rmtree(constants.HF_HUB_CACHE)
    del hub.repositories[REPOSITORY]
    with pytest.raises(PolicyNotFoundError, match=f"no repository '{REPOSITORY}'"):
        rloo_kit.load_policy("me/adapter")
    stored.files["adapter_model.safetensors"] = b"version https://git-lfs.github.com/spec/v1"
    with pytest.raises(PolicyNotFoundError, match="weights cannot be read"):
        rloo_kit.load_policy("me/adapter")


def test_an_upload_that_is_refused_says_what_to_do_and_not_the_token(hub: Hub, policy: Policy) -> None:
    with pytest.raises(PolicyNotFoundError, match=r"refuses the upload[\s\S]*may write: HF_TOKEN") as raised:
        policy.push_to_hub("me/policy")
    assert TOKEN not in str(raised.value)
    assert len(str(raised.value).splitlines()) == 3
