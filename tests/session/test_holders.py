"""The search behind `release`: bytes counted once, and a name for what still holds a model."""

import re
import weakref

import pytest

from rloo_kit.session.release import Released, release
from rloo_kit.session.show import MIB

from .test_release import four_mib

pytestmark = pytest.mark.usefixtures("only_this_test")


def named(result: Released) -> dict[str, int]:
    """MiB by holder, without line numbers."""
    return {re.sub(r", line \d+", "", who): held // MIB for who, held in result.holders if held >= MIB}


def test_a_storage_counts_once_and_a_gradient_counts() -> None:
    namespace = {"model": four_mib()}
    namespace["view"] = namespace["model"].weight.detach()[:10]
    namespace["model"].weight.sum().backward()
    first = release(namespace=namespace)
    assert first.freed_bytes == 4 * MIB  # the gradient: the weight lives on in its view
    assert named(first)["view (name in the notebook)"] == 4
    namespace.clear()
    second = release(namespace=namespace)
    assert first.held_bytes - second.held_bytes == 4 * MIB
    assert "view (name in the notebook)" not in named(second)


def test_what_still_holds_a_model_is_named() -> None:
    model = four_mib()

    def closure() -> object:
        return model

    found = named(release(namespace={"generate": closure, "kept": {"in": (model,)}, "free": [1, 2]}))
    assert {who for who, mib in found.items() if mib == 4} >= {
        "generate (name in the notebook)",
        "kept (name in the notebook)",
        "model (variable of test_what_still_holds_a_model_is_named())",
    }
    assert "free (name in the notebook)" not in found


def test_looking_at_a_functions_variables_does_not_hold_them() -> None:
    model = four_mib()
    assert any(who.startswith("model (") for who in named(release(namespace={})))
    gone_model = weakref.ref(model)
    del model
    assert gone_model() is None
