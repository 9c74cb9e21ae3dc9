"""A .env file: its values are shown nowhere, and one that cannot be read is an error in three parts."""

from __future__ import annotations

import copy
import io
import os
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

import rloo_kit
from rloo_kit import hidden
from rloo_kit.errors import ConfigError
from rloo_kit.session import env_file, environment, imports
from rloo_kit.train import run_record

SECRET = "a-value-of-the-file"


@pytest.fixture(autouse=True)
def nothing_hidden_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden, "_values", {})


def dotenv(folder: Path, content: str | bytes) -> Path:
    file = folder / "some.env"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def test_a_second_prepare_shows_no_value_of_the_file_either(tmp_path: Path, monkeypatch: Any) -> None:
    """The first has set them, so that to the second they are the environment's."""
    file = dotenv(tmp_path, f"HF_HOME={SECRET}\nMINE={SECRET}\n")
    monkeypatch.setenv("MINE", SECRET)
    monkeypatch.setenv("HF_HOME", SECRET)
    monkeypatch.setattr(imports, "read", {name: os.environ.get(name) for name in imports.settings()})
    monkeypatch.setattr(imports, "set_by_kit", {})
    monkeypatch.setattr(imports, "found", dict.fromkeys(imports.settings(), "yours, left as it is"))
    for path in (file, None):
        notes: list[str] = []
        from_file = environment._load_dotenv(path, notes)
        shown = environment._describe(False, "in use", 0, from_file, notes)
        assert SECRET not in str(shown) + repr(shown) + repr(shown.variables)
        assert "HF_HOME=(not shown)\n            from .env" in str(shown)
        assert not any("HF_HOME" in note or SECRET in note for note in notes)


def test_a_value_of_the_file_stays_out_of_errors_and_of_other_variables(tmp_path: Path) -> None:
    env_file.read(dotenv(tmp_path, f"PASSWORD={SECRET}\nON=1\n"))
    error = ConfigError(f"no {SECRET} at 1", where=f"here, {SECRET}/run", todo=f"drop {SECRET}")
    assert SECRET not in str(error) + repr(error) + "".join(vars(error).values())
    assert str(error).startswith("no (not shown) at 1.\nWhere: here, (not shown)/run")
    assert environment._short(f"/cache/{SECRET}") == "/cache/(not shown)"


@pytest.mark.parametrize(
    ("content", "line", "more"),
    [
        (f"A=1\r\nB={SECRET}\r\n".encode("utf-16"), 1, "UTF-16"),
        (f"A=1\nB={SECRET}\n".encode("utf-16-le"), 1, "UTF-16"),
        (f"A=1\n\nB={SECRET}é\n".encode("latin-1"), 3, "not UTF-8 text."),
    ],
    ids=["UTF-16", "UTF-16 without a mark", "Latin-1"],
)
def test_another_encoding_is_named_with_the_line_and_without_the_files_bytes(
    content: bytes, line: int, more: str, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=rf"(?s){more}.*some\.env, line {line}\.\nWhat to do: save it"
    ) as raised:
        env_file.read(dotenv(tmp_path, content))
    told = "".join(traceback.format_exception(raised.value))
    assert "Unicode" not in told
    assert SECRET not in told
    assert len(str(raised.value).splitlines()) == 3


def test_utf_8_is_read_with_a_mark_and_with_accents(tmp_path: Path) -> None:
    assert env_file.read(dotenv(tmp_path, "A=é\nB\n".encode("utf-8-sig"))) == {"A": "é"}


def test_a_file_that_may_not_be_read_and_a_folder_are_errors_in_three_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = dotenv(tmp_path, "A=1\n")

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigError, match=r"cannot be read \(Permission denied\)"):
        env_file.read(file)
    monkeypatch.chdir(tmp_path)
    Path(".env").mkdir()
    for given in (".env", tmp_path / ".env"):
        with pytest.raises(ConfigError, match=r"(?s)folder.*Where.*What to do: name a file") as raised:
            env_file.find(given)
        assert os.fspath(given) in str(raised.value)
    (tmp_path / ".env" / "pyvenv.cfg").touch()
    assert env_file.find(".env") is None, "a virtual environment of that name is in no one's way"


def test_a_config_shows_and_stores_no_token_and_no_value_of_the_file(tmp_path: Path) -> None:
    """As a cell's last line, and in the training_args.bin that a checkpoint has and people publish."""
    import torch

    env_file.read(dotenv(tmp_path, f"WHO={SECRET}\n"))
    token = "hf_" + "y" * 30
    config = rloo_kit.RLOOConfig(str(tmp_path / "run"), hub_token=token, hub_model_id=f"{SECRET}/policy")
    assert config.hub_token == token, "what is asked for is used"
    stored = io.BytesIO()
    torch.save(config, stored)
    for text in (repr(config), str(config), str(stored.getvalue()), str(pickle.dumps(config))):
        assert token not in text
        assert SECRET not in text
    assert "num_generations=4" in repr(config)
    assert pickle.loads(pickle.dumps(config)).num_generations == 4


def test_a_token_in_a_setting_that_is_a_dict_is_not_stored_either_and_a_copy_keeps_it(tmp_path: Path) -> None:
    """TRL loads a reward model that is given by its name with ``model_init_kwargs``."""
    token, given = "hf_" + "y" * 30, {"token": "a-token-of-another-form", "revision": "v2"}
    given |= {"proxies": [{"https": token}]}
    config = rloo_kit.RLOOConfig(str(tmp_path / "run"), model_init_kwargs=given, hub_token=token)
    for text in (str(config.to_dict()), config.to_json_string(), str(pickle.dumps(config))):
        assert token not in text
        assert given["token"] not in text
    assert pickle.loads(pickle.dumps(config)).model_init_kwargs["revision"] == "v2"
    for copied in (copy.copy(config), copy.deepcopy(config)):
        assert (copied.hub_token, copied.model_init_kwargs) == (token, given)
    assert copy.deepcopy(config).model_init_kwargs is not given
    notes: list[str] = []
    assert not {"hub_token", "model_init_kwargs"} & set(run_record.settings_of(config, notes))
    assert len(notes) == 2
