"""An upload to the hub, without a hub: what is asked of its client, and what is said where it refuses."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from rloo_kit.catalogue import CATALOGUE
from rloo_kit.errors import PolicyNotFoundError
from rloo_kit.hidden import hide
from rloo_kit.policy import export


def test_an_upload_makes_the_repository_and_a_refusal_says_what_to_do_without_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Api:
        def __init__(self, token: str | None) -> None:
            asked.append(token)

        def create_repo(self, name: str, **how: Any) -> Any:
            asked.append((name, how))
            return SimpleNamespace(repo_id=name)

        def upload_folder(self, **how: Any) -> None:
            asked.append(how["folder_path"])

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    export.upload(tmp_path, "me/policy", private=True, token="my-token")
    assert asked == ["my-token", ("me/policy", {"private": True, "exist_ok": True}), tmp_path]

    def refuse(*args: Any, **how: Any) -> None:
        error: Any = RuntimeError("403 for my-token")
        error.response = SimpleNamespace(status_code=403)
        raise error

    hide("a test", "my-token")
    monkeypatch.setattr(Api, "create_repo", refuse)
    with pytest.raises(PolicyNotFoundError, match=r"refuses the upload[\s\S]*HF_TOKEN") as caught:
        export.upload(tmp_path, "me/policy", private=None, token="my-token")
    assert "my-token" not in str(caught.value)


def test_an_uploaded_adapter_names_no_place_of_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({"base_model_name_or_path": str(tmp_path), "r": 16}))
    export.without_own_paths(tmp_path, CATALOGUE["tiny"])
    assert json.loads(file.read_text()) == {"base_model_name_or_path": "tiny", "r": 16}
