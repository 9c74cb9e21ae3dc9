"""A library's refusal names the setting that its message is about."""

from collections.abc import Mapping

import pytest

from rloo_kit.errors import ConfigError
from rloo_kit.train.refusals import explained


def where(error: Exception, given: Mapping[str, object]) -> tuple[str, str]:
    """The parts of the message that say where, and what to do."""
    with pytest.raises(ConfigError) as caught, explained("RLOOTrainer", given):
        raise error
    return str(caught.value.where), str(caught.value.todo)


@pytest.mark.parametrize(
    ("said", "culprits"),
    [
        ("bf16 needs another GPU", "bf16=True"),
        ("no such optimizer: adamw-fast.", "optim='adamw_fast'"),
        ("bf160 and adamw-faster are other words", ""),
        ("see https://huggingface.co/docs", ""),
    ],
)
def test_a_setting_is_named_by_its_name_or_by_its_value_as_words_of_their_own(
    said: str, culprits: str
) -> None:
    given = {"bf16": True, "optim": "adamw_fast", "project": "huggingface"}
    assert where(ValueError(said), given) == (f"RLOOTrainer({culprits})", "change what the message names")


def test_a_download_that_fails_names_what_was_to_be_downloaded() -> None:
    given = {"reward_funcs": ["someone/reward-model", len], "model": object()}
    place, todo = where(OSError("cannot connect to https://huggingface.co"), given)
    assert place.startswith("RLOOTrainer(reward_funcs=['someone/reward-model'")
    assert todo == "give the name of a repository that the hub has, or the folder of a model that is here"
