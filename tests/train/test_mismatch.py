"""What vLLM sampled with and what is trained: weights by hand and by TRL's own loss, and what is logged of them."""

import itertools
import math
from collections.abc import Callable
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trl
from accelerate import Accelerator

import rloo_kit
from rloo_kit.errors import ConfigError
from rloo_kit.train import losses, mismatch
from rloo_kit.train.own import Own
from tests.conftest import random_rewards
from tests.train.test_grpo import PLAIN, trls_loss
from tests.train.test_update import (
    EPSILON,
    EPSILON_HIGH,
    GROUPS,
    HOW,
    LIMIT,
    TOKENS,
    K,
    Played,
    mean_loss,
    on_paper,
    play,
    written,
)

__all__ = ["on_paper", "play", "written"]  # fixtures

LOW, HIGH = 0.7, 1.3
NAN = math.nan


def by_hand(trained: list[list[float]], sampled: list[list[float]], mode: str) -> list[list[float]]:
    """The weight of each token that counts, one by one; a completion's stands at each of its tokens."""

    def bounded(ratio: float) -> float:
        if "truncate" in mode:
            return min(max(ratio, LOW), HIGH)
        return ratio if LOW <= ratio <= HIGH else 0.0

    found = []
    for here, there in zip(trained, sampled, strict=True):
        ratios = [1.0 if m != m else math.exp(p - m) for p, m in zip(here, there, strict=True)]
        found.append([bounded(r if "token" in mode else math.prod(ratios)) for r in ratios])
    return found


@pytest.mark.parametrize("mode", mismatch.MODES)
def test_the_weights_are_those_worked_out_by_hand(mode: str) -> None:
    trained = [[-1.0, -2.0, -0.5], [-1.6, -1.0, -1.0], [-0.1, -0.2, -3.0], [-1.0, -2.0, -3.0]]
    sampled = [[-1.1, -1.9, -0.9], [-1.0, -1.0, -1.0], [-0.6, -0.9, -2.0], [-1.2, NAN, -3.0]]
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 1]])
    log_ratio = mismatch.log_ratios(torch.tensor(trained), torch.tensor(sampled), mask)
    found = mismatch.weights(log_ratio, mode, LOW, HIGH)
    cut = [row[:2] if i == 2 else row for i, row in enumerate(trained)]
    expected = by_hand(cut, [row[: len(one)] for row, one in zip(sampled, cut, strict=True)], mode)
    reached = {LOW, HIGH} if "truncate" in mode else {0.0}
    assert reached < {value for row in expected for value in row}, "the test reaches both bounds"
    for row, values in enumerate(expected):
        mine = found[row, : len(values)] if found.ndim == 2 else found[row].expand(len(values))
        torch.testing.assert_close(mine, torch.tensor(values))


def test_without_bounds_nothing_is_cut() -> None:
    log_ratio = torch.tensor([[3.0, 2.0], [-9.0, 0.0]])
    assert (
        mismatch.weights(log_ratio, "sequence_mask", None, None).tolist() == log_ratio.sum(1).exp().tolist()
    )
    assert mismatch.weights(log_ratio, "token_mask", None, 8.0).tolist()[0][0] == 0.0


# --- the gradient -----------------------------------------------------------------------------------------


def test_over_all_that_vllm_may_sample_the_weighed_gradient_is_that_of_the_trained_policys_reward() -> None:
    """Two tokens of three, in groups of two: every pair of completions, by its probability under vLLM."""
    generator = torch.Generator().manual_seed(0)
    first, then = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3,), (3, 3)))
    theta = torch.cat([first, then.flatten()]).requires_grad_()
    other = theta.detach() + 0.4 * torch.randn(12, generator=generator, dtype=torch.float64)
    rewards = torch.rand(9, generator=generator, dtype=torch.float64)
    completions = list(itertools.product(range(3), range(3)))

    def log_probs(logits: torch.Tensor) -> torch.Tensor:
        starts, nexts = logits[:3].log_softmax(0), logits[3:].view(3, 3).log_softmax(1)
        return torch.stack([torch.stack([starts[a], nexts[a, b]]) for a, b in completions])

    def expected_update(weighed: bool) -> torch.Tensor:
        pairs = torch.tensor(list(itertools.product(range(9), range(9))))
        sampled = log_probs(other)
        chance = sampled.sum(1).exp()[pairs].prod(1)
        update = torch.zeros(())
        for mine, baseline in (pairs.T, pairs.T.flip(0)):
            logps, mask = log_probs(theta)[mine], torch.ones(len(pairs), 2)
            ratio = mismatch.log_ratios(logps.detach(), sampled[mine], mask)
            weights = mismatch.weights(ratio, "sequence_mask", None, None) if weighed else None
            advantages = rewards[mine] - rewards[baseline]
            clip = (0.8, 1.2)
            paid, _ = losses.policy_loss(
                logps, logps.detach(), advantages, mask, "completion", clip, weights=weights
            )
            update = update + (chance * paid).sum() / 2
        return torch.autograd.grad(update, theta)[0]

    (true,) = torch.autograd.grad(-(log_probs(theta).sum(1).exp() * rewards).sum(), theta)
    torch.testing.assert_close(expected_update(weighed=True), true)
    assert (expected_update(weighed=False) - true).norm() > 0.1 * true.norm(), "the test needs the weights"


CORRECTED = {
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_clip_min": LOW,
    "vllm_importance_sampling_clip_max": HIGH,
}
LEVELS = ("token", "sequence")


@pytest.mark.parametrize("mode", mismatch.MODES)
@pytest.mark.parametrize("loss_aggregation", HOW)
def test_equal_log_probabilities_leave_the_update_as_it_is_to_the_bit(
    play: Callable[..., Played], written: Any, loss_aggregation: str, mode: str
) -> None:
    found = []
    for vllm in (None, written["sampled"]):
        now = written["now"].clone().requires_grad_()
        settings = {"loss_aggregation": loss_aggregation, "single_pass": False, **CORRECTED}
        settings["vllm_importance_sampling_mode"] = mode
        torch.manual_seed(0)
        loss = mean_loss(play(now, vllm=vllm, **settings))
        found.append((loss, *torch.autograd.grad(loss, now)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def off_by(written: Any) -> torch.Tensor:
    """vLLM's log-probabilities, off by up to 0.5 in either direction."""
    generator = torch.Generator().manual_seed(3)
    shape = written["sampled"].shape
    shift: torch.Tensor = written["sampled"] + torch.rand(shape, generator=generator) - 0.5
    return shift


def weights_of(written: Any, trained: torch.Tensor, vllm: torch.Tensor, mode: str) -> torch.Tensor:
    """By hand, (rows, tokens), 0 where a completion has ended."""
    lengths = written["lengths"].tolist()
    rows = [[table[i, :n].tolist() for i, n in enumerate(lengths)] for table in (trained, vllm)]
    found = torch.zeros(GROUPS * K, TOKENS)
    for row, values in enumerate(by_hand(*rows, mode)):
        found[row, : len(values)] = torch.tensor(values)
    return found


@pytest.mark.parametrize("mode", mismatch.MODES)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_weighed_loss_and_gradient_are_those_of_trls_grpo_trainer(
    play: Callable[..., Played],
    on_paper: Any,
    written: Any,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    level: str,
    loss_type: str,
) -> None:
    how = {"loss_type": loss_type, "importance_sampling_level": level, "beta": 0.1, "use_vllm": True}
    how |= {"epsilon": EPSILON, "epsilon_high": EPSILON_HIGH, "num_generations": K}
    config = trl.GRPOConfig(
        **PLAIN, **how, **CORRECTED, vllm_importance_sampling_mode=mode, max_completion_length=LIMIT
    )
    now, vllm = written["now"].clone().requires_grad_(), off_by(written)
    weights = weights_of(written, written["sampled"], vllm, mode)
    expected = trls_loss(written, now, config, weights if "token" in mode else weights[:, :1])
    (expected_gradient,) = torch.autograd.grad(expected, now)

    ours = rloo_kit.RLOOConfig.from_grpo(config)
    Accelerator(cpu=True)  # a configuration that is made takes the state away that trainers share
    monkeypatch.setattr(on_paper, "beta", ours.beta)
    loss = mean_loss(play(now, vllm=vllm, **asdict(Own.of(ours)) | {"single_pass": False}))
    (gradient,) = torch.autograd.grad(loss, now)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("single_pass", [True, False])
@pytest.mark.parametrize("mode", mismatch.MODES)
def test_a_completions_or_a_tokens_gradient_is_weighed_in_rloos_own_loss(
    play: Callable[..., Played], written: Any, mode: str, single_pass: bool
) -> None:
    vllm = off_by(written)
    gradients = []
    for correction in (False, True):
        now = written["sampled"].clone().requires_grad_()  # on policy
        settings = {**CORRECTED, "vllm_importance_sampling_mode": mode, "single_pass": single_pass}
        settings["vllm_importance_sampling_correction"] = correction
        loss = mean_loss(play(now, vllm=vllm, **settings))
        gradients += torch.autograd.grad(loss, now)
    plain, weighed = gradients
    torch.testing.assert_close(weighed, plain * weights_of(written, written["sampled"], vllm, mode))
    assert plain.abs().sum() > 0


# --- what is logged ---------------------------------------------------------------------------------------


def test_a_known_mismatch_is_what_the_log_says(
    play: Callable[..., Played], on_paper: Any, written: Any
) -> None:
    logged = on_paper._metrics["train"]
    logged.clear()
    on_paper._token_means.clear()
    vllm = written["sampled"] - 0.25
    vllm[0, 1], vllm[1, 0] = NAN, written["sampled"][1, 0] + 0.75
    how = {"vllm_importance_sampling_mode": "token_truncate", "single_pass": False}
    play(written["now"], vllm=vllm, **CORRECTED, **how)
    tokens = int(written["lengths"].sum()) - 1
    found = {name: values for name, values in logged.items() if name.startswith("sampling/")}
    assert all(len(values) == 1 for values in found.values()), "over the tokens of both micro-batches"
    ((mean,), (least,), (most,)) = (found[f"{mismatch.DIFFERENCE}/{one}"] for one in ("mean", "min", "max"))
    assert mean == pytest.approx((0.25 * (tokens - 1) + 0.75) / tokens)
    assert (least, most) == (pytest.approx(0.25), pytest.approx(0.75))
    ((mean,), (least,), (most,)) = (found[f"{mismatch.RATIO}/{one}"] for one in ("mean", "min", "max"))
    assert mean == pytest.approx((math.exp(0.25) * (tokens - 1) + LOW + 1.0) / (tokens + 1))
    assert (least, most) == (pytest.approx(LOW), pytest.approx(math.exp(0.25)))


def test_the_mismatch_is_logged_without_the_correction_and_nothing_without_vllm(
    play: Callable[..., Played], on_paper: Any, written: Any
) -> None:
    logged = on_paper._metrics["train"]
    logged.clear()
    play(written["now"], single_pass=False)
    assert not [name for name in logged if name.startswith("sampling/")]
    play(written["now"], single_pass=False, vllm=written["sampled"] - 0.25)
    assert {name for name in logged if name.startswith("sampling/")} == {
        f"{mismatch.DIFFERENCE}/{one}" for one in ("mean", "min", "max")
    }


def test_the_names_are_those_of_trls_grpo_trainer() -> None:
    import inspect

    source = inspect.getsource(trl.trainer.grpo_trainer.GRPOTrainer._generate_and_score_completions)
    for name in (f"{mismatch.DIFFERENCE}/mean", f"{mismatch.DIFFERENCE}/max", f"{mismatch.RATIO}/min"):
        assert f'"{name}"' in source
    assert f'output["{mismatch.SAMPLED}"]' in source


# --- from vLLM to the batch -------------------------------------------------------------------------------


class Engine:
    """In place of TRL's VLLMGeneration: the policy's own samples, of known log-probabilities or none."""

    def __init__(self, trainer: Any, gives: bool) -> None:
        self.trainer, self.gives, self.logprobs = trainer, gives, None
        self.asked: list[int | None] = []

    def sync_weights(self) -> None:
        pass

    def generate(self, prompts: Any, **kwargs: Any) -> Any:
        self.asked.append(self.logprobs)
        ids = [[100 + row] * (2 + row % 3) for row in range(len(prompts))]
        if not self.gives:
            return prompts, ids, None, None
        return (
            prompts,
            ids,
            [[[-0.1, -0.5 * (row + 1)] for _ in one] for row, one in enumerate(ids)],
            [[[7, token] for token in one] for one in ids],
        )


def with_engine(make_trainer: Any, gives: bool = True, **settings: Any) -> Any:
    trainer = make_trainer(reward_funcs=random_rewards, **settings)
    trainer.use_vllm, trainer._last_loaded_step = True, -1
    trainer.vllm_generation = Engine(trainer, gives)
    trainer.model.train()
    return trainer


@pytest.mark.filterwarnings("ignore:.*were cut:UserWarning")
def test_what_vllm_says_of_each_token_reaches_the_batch_which_trl_drops(make_trainer: Any) -> None:
    trainer = with_engine(make_trainer)
    rows = [trainer.train_dataset[0]] * 4
    batch = trainer._generate_and_score_completions(rows)
    assert batch[mismatch.SAMPLED].tolist() == [
        [-0.5, -0.5, 0.0, 0.0],
        [-1.0, -1.0, -1.0, 0.0],
        [-1.5] * 4,
        [-2.0, -2.0, 0.0, 0.0],
    ]
    engine = trainer.vllm_generation
    assert (engine.asked, engine.logprobs) == ([0], None)
    assert "generate" not in vars(engine), "TRL's own is back"
    trainer.use_vllm = False
    assert mismatch.SAMPLED not in trainer._generate_and_score_completions(rows), (
        "without vLLM nothing changes"
    )


@pytest.mark.filterwarnings("ignore:.*were cut:UserWarning")
def test_a_server_without_log_probabilities_is_refused_only_where_they_are_needed(make_trainer: Any) -> None:
    rows = 4
    trainer = with_engine(make_trainer, gives=False)
    batch = trainer._generate_and_score_completions([trainer.train_dataset[0]] * rows)
    assert mismatch.SAMPLED not in batch
    trainer = with_engine(make_trainer, gives=False, vllm_importance_sampling_correction=True)
    with pytest.raises(ConfigError, match="returned no log-probabilities") as caught:
        trainer._generate_and_score_completions([trainer.train_dataset[0]] * rows)
    assert len(str(caught.value).splitlines()) == 3


def test_trls_rloo_trainer_asks_vllm_for_none_and_drops_what_comes() -> None:
    import inspect

    stock = trl.trainer.rloo_trainer.RLOOTrainer
    assert "logprobs=None,  # we don't need logprobs from vLLM in RLOO" in inspect.getsource(stock.__init__)
    assert "_, completion_ids, _, _ = self.vllm_generation.generate(" in inspect.getsource(
        stock._generate_single_turn
    )


# --- settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"clip_min": 2.0, "clip_max": 1.0}, "inverted or empty"),
        ({"correction": True, "mode": "token_truncate", "clip_max": None}, "no bound to truncate"),
        ({"mode": "sequence"}, "sequence_mask"),
        ({"cap": 2.0}, "use vllm_importance_sampling_clip_max"),
        ({"clip_max": 0.0}, "clip_max"),
    ],
)
def test_bounds_that_cannot_be_are_refused_as_trl_refuses_them(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        rloo_kit.RLOOConfig(**{f"vllm_importance_sampling_{name}": value for name, value in given.items()})


def test_it_is_off_by_default_and_the_rest_has_trls_values() -> None:
    ours, trls = Own.of(SimpleNamespace()), trl.GRPOConfig(**PLAIN)  # type: ignore[arg-type]
    assert not ours.vllm_importance_sampling_correction
    for name in ("mode", "clip_max", "clip_min"):
        field = f"vllm_importance_sampling_{name}"
        assert getattr(ours, field) == getattr(trls, field)
