"""The update equals that of plain TRL, whatever work the kit skips on the way."""

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import trl
from peft import LoraConfig, get_peft_model
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, TrainerCallback

import rloo_kit
from rloo_kit.memory.plan_settings import settings_of
from rloo_kit.policy import onednn_linear
from rloo_kit.train import cpu_logprobs
from tests.conftest import as_loaded


class Gradients(TrainerCallback):
    """Keeps the gradient of each optimizer step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.steps.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})


def some_dead(completion_ids: Any, problem: Any, **kwargs: Any) -> list[float | None]:
    """Pay all completions of half of the prompts the same; a few of the others' are not scored."""
    pays = []
    for ids, text in zip(completion_ids, problem, strict=True):
        alive = sum(map(ord, text)) % 2
        pays.append(0.5 if not alive else None if sum(ids) % 7 == 0 else (sum(ids) % 97) / 97)
    return pays


COMMON: dict[str, Any] = {
    **{"num_generations": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
    **{"max_steps": 1, "max_completion_length": 12, "learning_rate": 1e-3, "bf16": False, "seed": 5},
    **{"logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True},
}


def one_run(
    ours: bool, loaded: Any, task: Any, folder: Path, grpo: bool = False, **settings: Any
) -> tuple[Any, list[dict[str, torch.Tensor]]]:
    """Train a policy that has left its reference, in float32, so that differences are not lost to bfloat16.

    With ``grpo``, TRL's trainer is its GRPOTrainer, and ours gets that trainer's configuration by ``from_grpo``.
    """
    given = {"output_dir": str(folder), **COMMON, **settings}
    own = {"fast_sampling": False}  # multinomial draws the same completions as plain TRL
    make: type = trl.GRPOTrainer if grpo else trl.RLOOTrainer
    if ours:
        make = rloo_kit.RLOOTrainer
        theirs = rloo_kit.RLOOConfig.from_grpo(trl.GRPOConfig(**given), **own) if grpo else None
        config = theirs or rloo_kit.RLOOConfig(**own | given)
    else:
        config = (trl.GRPOConfig if grpo else trl.RLOOConfig)(**given)
    policy, seen = as_loaded(loaded), Gradients()
    trained = {"model": policy.model, "processing_class": policy.tokenizer, "train_dataset": task.train}
    trainer = make(reward_funcs=some_dead, args=config, callbacks=[seen], **trained)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in trainer.model.named_parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.bfloat16().float()  # plain TRL has rounded its own
            if "lora_B" in name:
                parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator)
    # With TRL's head: ours in tiles rounds differently, and test_cpu_logprobs compares it with float64.
    products = nullcontext() if ours else mock.patch.object(onednn_linear, "by_onednn", return_value=False)
    with mock.patch.object(cpu_logprobs, "is_exact", return_value=False), products:
        trainer.train()
    return trainer, seen.steps


def assert_same_gradients(expected: list[dict[str, torch.Tensor]], found: list[dict[str, torch.Tensor]]) -> None:
    """Compare each step's gradients, all weights in one vector."""
    for step, (theirs, mine) in enumerate(zip(expected, found, strict=True)):
        assert theirs.keys() == mine.keys()
        flat = [torch.cat([side[name].flatten() for name in theirs]) for side in (theirs, mine)]
        assert flat[0].norm() > 0
        assert (flat[0] - flat[1]).norm() <= 1e-5 * flat[0].norm(), f"step {step + 1}"


RUNS: dict[str, tuple[Any, Any]] = {}
"""Plain TRL's runs, which several cases share."""

SGD = {"optim": "sgd", "learning_rate": 0.1}
SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "beta 0": ({"beta": 0.0}, {}),
    "beta 0, two passes over everything": ({"beta": 0.0}, {"single_pass": False, "skip_zero_variance_groups": False}),
    "KL in the reward": ({"beta": 0.05}, {}),
    "groups larger than a micro-batch": (
        {"beta": 0.05, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 8},
        {},
    ),
    "two generation batches a step": ({"beta": 0.05, "steps_per_generation": 1}, {}),
    "two steps on one generation batch": (
        # Adam would divide rounding by rounding where a gradient is nearly 0.
        {"beta": 0.0, "gradient_accumulation_steps": 1, "steps_per_generation": 2, "max_steps": 2, **SGD},
        {},
    ),
    "two iterations, with KL, clipped on both sides": (
        {"beta": 0.05, "num_iterations": 2, "max_steps": 2, "epsilon": 0.01, "epsilon_high": 0.02},
        {},
    ),
    "whitened": ({"beta": 0.0, "normalize_advantages": True}, {}),
    "whitened, with KL": ({"beta": 0.05, "normalize_advantages": True}, {}),
    "clipped rewards": ({"beta": 0.0, "reward_clip_range": (0.2, 0.6)}, {}),
    "cut completions masked": ({"beta": 0.05, "mask_truncated_completions": True}, {}),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.filterwarnings("ignore:.*were cut:UserWarning")
def test_the_update_is_that_of_stock_trl(name, loaded_once, task, tmp_path):
    settings, own = SAME[name]
    if str(settings) not in RUNS:
        RUNS[str(settings)] = one_run(False, loaded_once, task, tmp_path / "stock", **settings)
    expected, gradients = RUNS[str(settings)]
    trainer, ours = one_run(True, loaded_once, task, tmp_path, **settings, **own)

    assert_same_gradients(gradients, ours)
    logs = [[entry for entry in run.state.log_history if "grad_norm" in entry] for run in (expected, trainer)]
    metrics = {"reward", "reward_std", "rewards/some_dead/mean", "completions/mean_length", "num_tokens"}
    if trainer.beta or own.get("skip_zero_variance_groups") is False:  # else these shares are of fewer rows than TRL's
        metrics |= {f"clip_ratio/{share}" for share in ("low_mean", "high_mean", "region_mean")}
    for theirs, mine in zip(*logs, strict=True):
        for metric in metrics:
            assert mine.get(metric) == pytest.approx(theirs.get(metric), abs=1e-6), metric
    if name.endswith("clipped on both sides"):
        assert all(logs[1][-1][f"clip_ratio/{side}_mean"] > 0 for side in ("low", "high")), "the test clips"
    dead = [(entry["zero_variance_groups"], entry["frac_reward_zero_std"]) for entry in logs[1] if "reward" in entry]
    assert any(min(shares) > 0 for shares in dead), "the test has zero-variance groups, which no KL term hides"

    shown = list(expected._logs["advantages"])
    assert list(trainer._logs["advantages"]) == pytest.approx(shown, abs=1e-5)
    assert any(shown)


def test_a_mixture_of_experts_is_balanced_as_in_stock_trl(loaded_once, task, tmp_path):
    tokenizer = loaded_once[0].tokenizer
    sizes = {"hidden_size": 32, "moe_intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 16}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "num_experts": 4, "num_experts_per_tok": 2}
    base = Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=max(tokenizer.get_vocab().values()) + 1, **sizes))
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    lora = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    moe = (SimpleNamespace(model=model, tokenizer=tokenizer), lora)
    settings = {"beta": 0.0, "gradient_accumulation_steps": 2, "router_aux_loss_coef": 10.0}
    settings |= {"gradient_checkpointing": False}  # otherwise no pass would reuse the prompts' cache
    stock, gradients = one_run(False, moe, task, tmp_path / "stock", **settings)
    trainer, ours = one_run(True, moe, task, tmp_path, skip_zero_variance_groups=False, **settings)
    assert_same_gradients(gradients, ours)
    assert trainer.state.log_history[0]["aux_loss"] == pytest.approx(stock.state.log_history[0]["aux_loss"])


# --- every estimator, KL term and aggregation, on a fixed batch -----------------------------------------------

GROUPS, K, TOKENS, LIMIT = 2, 4, 5, 7
EPSILON, EPSILON_HIGH, BETA = 0.2, 0.28, 0.3


@pytest.fixture(scope="module")
def written() -> dict[str, torch.Tensor]:
    """A fixed batch: log-probabilities, lengths and rewards of two groups of four; the last one is not scored."""
    drawn = -torch.rand(3, GROUPS * K, TOKENS, generator=torch.Generator().manual_seed(0))
    return {
        **dict(zip(("sampled", "now", "reference"), drawn, strict=True)),
        "lengths": torch.tensor([5, 1, 3, 4, 2, 5, 3, 1]),
        "rewards": torch.tensor([1.0, 0.0, 0.5, 0.0, 0.2, 0.9, 0.9, torch.nan]),
    }


def by_hand(written, now, sampled, settings, rows=range(GROUPS * K)):
    """Return the loss of an update on these completions, one by one and token by token."""
    lengths, rewards = written["lengths"].tolist(), written["rewards"].tolist()

    def kl(log_policy: torch.Tensor, row: int, t: int) -> torch.Tensor:
        x = log_policy[row, t] - written["reference"][row, t]
        return {"k1": x, "k2": x * x / 2, "k3": torch.exp(-x) - 1 + x}[settings["kl_estimator"]]

    paid = []
    for row, reward in enumerate(rewards):
        penalty = sum(float(kl(sampled, row, t)) for t in range(lengths[row]))
        paid.append(reward - BETA * penalty if settings["kl_placement"] == "reward" else reward)

    def advantage(row: int) -> float:
        first = row // K * K
        group = [paid[i] for i in range(first, first + K) if paid[i] == paid[i]]
        every = [reward for reward in paid if reward == reward]
        if paid[row] != paid[row]:
            return 0.0
        mean = sum(group) / len(group)
        std = (sum((reward - mean) ** 2 for reward in group) / (len(group) - 1)) ** 0.5
        return {
            "rloo": paid[row] - (sum(group) - paid[row]) / (len(group) - 1),
            "grpo": (paid[row] - mean) / (std + 1e-4),
            "dr_grpo": paid[row] - mean,
            "reinforce": paid[row] - sum(every) / len(every),
        }[settings["advantage_estimator"]]

    def surrogate(ratio: torch.Tensor, a: float) -> torch.Tensor:
        clipped = min(max(float(ratio.detach()), 1 - EPSILON), 1 + EPSILON_HIGH)
        return -ratio * a if float(ratio.detach()) * a <= clipped * a else torch.tensor(-clipped * a)

    how = settings["loss_aggregation"]
    total = torch.tensor(0.0)
    for row in rows:
        length = lengths[row]
        steps = [now[row, t] - sampled[row, t] for t in range(length)]
        if how == "seq-mean-token-sum":
            loss = surrogate(torch.exp(sum(steps)), advantage(row))
        else:
            loss = sum(surrogate(torch.exp(step), advantage(row)) for step in steps)
        if settings["kl_placement"] == "loss":
            loss = loss + BETA * sum(kl(now, row, t) for t in range(length))
        shared_by = {
            "seq-mean-token-sum": len(rows),
            "seq-mean-token-mean": len(rows) * length,
            "token-mean": sum(lengths[i] for i in rows),
            "seq-mean-token-sum-norm": len(rows) * LIMIT,
        }
        total = total + loss / shared_by[how]
    return total


@pytest.fixture(scope="module")
def on_paper(task: Any, tmp_path_factory: Any) -> Any:
    """A trainer whose completions and log-probabilities are replaced by the fixed batch."""
    batch = {"num_generations": K, "per_device_train_batch_size": K, "gradient_accumulation_steps": GROUPS}
    clip: dict[str, Any] = {"epsilon": EPSILON, "epsilon_high": EPSILON_HIGH, "beta": BETA}
    folder = str(tmp_path_factory.mktemp("paper"))
    config = rloo_kit.RLOOConfig(output_dir=folder, max_completion_length=LIMIT, **batch, **clip)
    policy = rloo_kit.load_policy("tiny", seed=0)
    trainer = rloo_kit.RLOOTrainer(model=policy, reward_funcs=some_dead, args=config, train_dataset=task.train)
    trainer.model.train()
    return trainer


Played = list[tuple[list[int], torch.Tensor]]
"""The rows and the loss of each micro-batch of a generation batch."""


@pytest.fixture
def play(on_paper: Any, written: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Played]:
    """``play(now, **settings)``: what the trainer computes from the fixed batch."""

    def played(now: torch.Tensor, **settings: Any) -> Played:
        def rollout(examples: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
            mask = (torch.arange(TOKENS) < written["lengths"][:, None]).int()
            rows = torch.arange(GROUPS * K)[:, None]
            batch = {"prompt_ids": rows, "prompt_mask": torch.ones_like(rows), "completion_mask": mask}
            return {**batch, "completion_ids": mask}, written["rewards"].unsqueeze(1)

        def log_probs(self: Any, model: Any, ids: Any, mask: Any, width: int, **kwargs: Any) -> Any:
            sampled = now if torch.is_grad_enabled() else written["sampled"]
            table = written["reference"] if model == "reference" else sampled
            return table[ids[:, 0], :width], torch.zeros(len(ids), width), None

        for name, value in settings.items():
            monkeypatch.setattr(on_paper.args, name, value)
        asked = SimpleNamespace(**vars(on_paper.args) | {"beta": on_paper.beta})
        for name, value in {
            "old_pass": settings_of(asked).old_pass,
            "_rollout": rollout,
            "_step": 0,
            "_reference": lambda: nullcontext("reference"),
        }.items():
            monkeypatch.setattr(on_paper, name, value)
        monkeypatch.setattr(trl.RLOOTrainer, "_get_per_token_logps_and_entropies", log_probs)
        found = []
        for _ in range(GROUPS):
            inputs = on_paper._prepare_inputs([{}] * GROUPS * K)
            loss = on_paper._compute_loss(on_paper.model, inputs)
            found.append((inputs["prompt_ids"].flatten().tolist(), loss))
            on_paper._step += 1
        return found

    return played


HOW = ("seq-mean-token-sum", "seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm")
WHO = ("rloo", "grpo", "dr_grpo", "reinforce")


EVERY = [
    dict(zip(("advantage_estimator", "kl_placement", "kl_estimator", "loss_aggregation"), one, strict=True))
    for one in itertools.product(WHO, ("reward", "loss"), ("k1", "k2", "k3"), HOW)
]


@pytest.mark.parametrize("on_policy", [True, False], ids=["on policy", "off policy"])
@pytest.mark.parametrize("settings", EVERY, ids=lambda settings: ", ".join(settings.values()))
def test_loss_and_gradient_are_those_of_the_formula_written_out(play, written, on_policy, settings):
    sampled = written["sampled"]
    now = (sampled if on_policy else written["now"]).clone().requires_grad_()
    expected = by_hand(written, now, sampled, settings)
    (expected_gradient,) = torch.autograd.grad(expected, now)

    loss = torch.stack([loss for _, loss in play(now, single_pass=on_policy, **settings)]).mean()  # as transformers
    (gradient,) = torch.autograd.grad(loss, now)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("accumulation", [1, GROUPS + 1])
@pytest.mark.parametrize("loss_aggregation", HOW)
def test_an_updates_loss_is_a_mean_over_its_own_rows(play, written, loss_aggregation, accumulation):
    settings = {**EVERY[0], "loss_aggregation": loss_aggregation}
    torch.manual_seed(1)  # TRL shuffles a generation batch; with this seed its halves differ in length
    updates = play(written["now"], gradient_accumulation_steps=accumulation, steps_per_generation=GROUPS, **settings)
    assert sorted(row for rows, _ in updates for row in rows) == list(range(GROUPS * K))
    tokens = [int(written["lengths"][rows].sum()) for rows, _ in updates]
    assert tokens[0] != tokens[1], "the test tells the tokens of one update from half of all"
    for rows, loss in updates:
        torch.testing.assert_close(loss, by_hand(written, written["now"], written["sampled"], settings, rows))
