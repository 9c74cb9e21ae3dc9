"""release(): what it drops, what it keeps, and what it prints."""

import gc
import re
import sys
import weakref
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from rloo_kit.session.output import MIB
from rloo_kit.session.release import Released, release

from .conftest import run_kernel


@pytest.fixture(autouse=True)
def only_this_test() -> None:
    """Hide earlier tests' objects from the garbage collector for good."""
    gc.collect()
    gc.freeze()


TRAINED = """
import logging, warnings
warnings.simplefilter("ignore"); logging.disable()
from transformers import Trainer, TrainingArguments  # before rloo_kit, which would bring unsloth: 8 s
import rloo_kit, torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.lin = torch.nn.Embedding(1024, 1024), torch.nn.Linear(1024, 1024, bias=False)
    def forward(self, x, labels=None):
        return {"loss": self.lin(self.emb(x)).square().mean()}
def train():
    args = TrainingArguments(FOLDER, max_steps=1, report_to=[], disable_tqdm=True, use_cpu=True,
                             save_strategy="no", per_device_train_batch_size=2)
    data = [{"x": torch.tensor(i), "labels": torch.tensor(0)} for i in range(8)]
    trainer = Trainer(model=Model(), args=args, train_dataset=data)
    trainer.train()
    return trainer
"""


@pytest.mark.usefixtures("jupyter")
def test_after_a_real_training_run_in_a_notebook_nothing_of_the_model_is_left(tmp_path):
    """8 MiB of weights and 16 MiB of Adam's moments, held by names, Out, a traceback and a list."""
    with run_kernel() as (_, run):
        run(TRAINED.replace("FOLDER", repr(str(tmp_path))))
        run("trainer = train()")
        assert "Model" in run("model = trainer.model; model")
        assert "Embedding" in run("[model.emb]")
        assert run("def fail(m): 1 / 0\nfail(trainer.model)") == "ZeroDivisionError"
        run("keeper = [trainer]")
        assert run("rloo_kit.release()") == "Released 24 MiB; <1 MiB still held."
        assert run("[n for n in ('trainer', 'model', 'keeper') if n in globals()]") == "['keeper']"
        assert run("rloo_kit.release()") == "Released 0 MiB; <1 MiB still held."
        assert run("keeper[0].state.global_step") == "1"
        assert run("_") == "1"  # IPython still numbers and keeps outputs


def four_mib() -> torch.nn.Linear:
    return torch.nn.Linear(1024, 1024, bias=False)


Policy = SimpleNamespace


def test_without_holders_every_name_of_a_model_goes_and_nothing_else():
    optimizer = torch.optim.SGD(four_mib().parameters())
    goes = {"model": four_mib(), "policy": Policy(model=four_mib()), "optimizer": optimizer}
    goes |= {"schedule": torch.optim.lr_scheduler.ConstantLR(optimizer)}
    stays = {"answer": 42, "nothing": None, "torch": torch, "Linear": torch.nn.Linear, "make": four_mib}
    stays |= {"batch": torch.zeros(3), "text": "x", "of_text": Policy(model="a name"), "rows": [1, 2]}
    namespace = goes | stays
    release(namespace=namespace)
    assert namespace.keys() == stays.keys()


def test_with_holders_only_their_names_and_those_of_their_parts_go():
    """A holder without a model removes no name."""
    policy, other = Policy(model=torch.nn.Sequential(four_mib())), Policy(model=four_mib())
    nothing = [None, 42, "x", torch, torch.nn.Linear, len]
    stays = {"other": other, **{f"name{i}": value for i, value in enumerate(nothing)}}
    goes = {"policy": policy, "again": policy, "model": policy.model, "layer": policy.model[0]}
    namespace = stays | goes
    release(policy, *nothing, namespace=namespace)
    assert namespace == stays


def test_an_error_that_is_being_handled_or_was_shown_last_lets_go_of_its_variables():
    def fail(size: int) -> None:
        activations = torch.ones(size, MIB // 4)
        raise MemoryError(len(activations))

    def wrap() -> None:
        try:
            fail(4)
        except MemoryError as error:
            more = torch.ones(2, MIB // 4)
            raise RuntimeError(len(more)) from error

    try:
        wrap()
    except RuntimeError as error:
        assert release(namespace={}).freed_bytes == 6 * MIB
        sys.last_value = error
    release(namespace={})
    assert sys.last_value is None


class Odd:
    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)


def test_odd_things_are_passed_over():
    freed = SimpleNamespace(accelerator=SimpleNamespace(free_memory=lambda: 1 / 0))
    things = (Odd(), freed, MagicMock(), torch.zeros(2, device="meta"), torch.zeros(2, 2).to_sparse())
    odd = {f"odd_{number}": thing for number, thing in enumerate(things)}
    namespace = odd | {"model": four_mib()}
    assert release(namespace=namespace).freed_bytes == 4 * MIB
    assert namespace.keys() == odd.keys()
    release(*things, namespace=odd)


def test_bitsandbytes_forgets_the_embeddings_of_what_is_released_and_keeps_others():
    bitsandbytes = pytest.importorskip("bitsandbytes")
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    manager.initialize()
    model, other = torch.nn.Sequential(torch.nn.Embedding(1024, 1024)), torch.nn.Embedding(2, 2)
    for embedding in (model[0], other):  # as transformers' Trainer does for an 8-bit optimizer
        manager.register_module_override(embedding, "weight", {"optim_bits": 32})
    del embedding
    namespace = {"model": model}
    del model
    result = release(namespace["model"], namespace=namespace)
    assert result.freed_bytes == 4 * MIB
    assert [triple[0] for triple in manager.module_weight_config_triple] == [other]
    manager.initialize()


def named(result: Released) -> dict[str, int]:
    """Return MiB by holder, without line numbers."""
    return {re.sub(r", line \d+", "", who): held // MIB for who, held in result.holders if held >= MIB}


def test_a_storage_counts_once_and_a_gradient_counts():
    namespace = {"model": four_mib()}
    namespace["view"] = namespace["model"].weight.detach()[:10]
    namespace["model"].weight.sum().backward()
    first = release(namespace=namespace)
    assert first.freed_bytes == 4 * MIB  # the gradient; the weight lives on in its view
    assert named(first)["view (name in the notebook)"] == 4
    namespace.clear()
    assert first.held_bytes - release(namespace=namespace).held_bytes == 4 * MIB


def test_what_still_holds_a_model_is_named_and_looking_at_it_does_not_hold_it():
    model = four_mib()
    holders = named(release(namespace={"kept": {"in": model}, "free": [1, 2]}))
    function = test_what_still_holds_a_model_is_named_and_looking_at_it_does_not_hold_it.__name__
    assert holders["kept (name in the notebook)"] == holders[f"model (variable of {function}())"] == 4
    assert "free (name in the notebook)" not in holders
    gone_model = weakref.ref(model)
    del model
    assert gone_model() is None
