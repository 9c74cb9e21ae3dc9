"""load_policy(thinking=...): set once, and applied wherever a prompt is rendered."""

from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import rewards
import rloo_kit
from rewards.factory_calls import made_by
from rloo_kit.errors import ConfigError
from rloo_kit.models import CATALOGUE
from rloo_kit.policy.thinking import Budget, set_thinking
from rloo_kit.train import microbatches
from rloo_kit.train.losses import policy_loss
from tests.conftest import SMALL

QUESTION = [{"role": "user", "content": "What is 1 + 1?"}]
CLOSED = [151667, 271, 151668, 271]  # <think>, an empty line, </think>, an empty line


@pytest.fixture(scope="module")
def off() -> rloo_kit.Policy:
    return rloo_kit.load_policy("tiny", thinking=False)


LIMIT = 5  # tokens of a thought


@pytest.fixture(scope="module")
def budgeted() -> rloo_kit.Policy:
    return rloo_kit.load_policy("tiny", thinking=LIMIT, seed=0)


def test_every_part_of_the_kit_renders_them_so(off, tmp_path, monkeypatch):
    seen: list[list[int]] = []
    generate = off.model.generate

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        ids = kwargs.get("input_ids", args[0] if args else None)
        seen.extend(row.tolist() for row in ids)
        return generate(*args, **kwargs)

    monkeypatch.setattr(off.model, "generate", watched)
    task = rloo_kit.tasks.addition(n_train=8, n_held_out=2)
    config = rloo_kit.RLOOConfig(str(tmp_path), **{**SMALL, "max_steps": 1, "max_completion_length": 2})
    rloo_kit.RLOOTrainer(off, task.correct, config, task.train).train()
    rloo_kit.evaluate(off, task, max_new_tokens=2)
    assert seen
    assert all(row[-4:] == CLOSED for row in seen)
    assert not rewards.ThinkTokens.from_tokenizer(off.tokenizer).prompt_opens


@pytest.mark.parametrize(("name", "thinking"), [("off", False), ("budgeted", LIMIT)])
def test_what_is_saved_keeps_it_for_the_kit_and_for_transformers_alone(name, thinking, request, tmp_path):
    policy = request.getfixturevalue(name)
    adapter, merged = policy.save(tmp_path / "adapter"), policy.save_merged(tmp_path / "merged")
    cards = [(folder / "README.md").read_text() for folder in (adapter, merged)]
    assert all(f"(thinking=...): {thinking}: " in card for card in cards)
    alone = AutoTokenizer.from_pretrained(merged)
    ids = alone.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert ids == policy.tokenize([QUESTION])[0]
    assert rloo_kit.load_policy(merged, load_in_4bit=False).thinking == thinking
    again = rloo_kit.load_policy(adapter)
    assert (again.thinking, made_by(again.model).arguments["thinking"]) == (thinking, thinking)
    assert rloo_kit.load_policy(adapter, thinking=True).thinking is True
    assert rloo_kit.load_policy(adapter, thinking=9).thinking == 9


def test_all_else_is_rendered_as_before(off, budgeted, policy):
    answered = [*QUESTION, {"role": "assistant", "content": "<think>\n1\n</think>\n\n2"}]
    texts = [one.tokenizer.apply_chat_template(answered, tokenize=False) for one in (policy, off, budgeted)]
    assert texts == [texts[0]] * 3
    assert budgeted.tokenize([QUESTION]) == policy.tokenize([QUESTION])
    assert [one.thinking for one in (policy, off, budgeted)] == [True, False, LIMIT]


def test_a_call_that_asks_it_to_think_and_an_engine_without_its_budget_are_refused(off, budgeted, make_trainer):
    with pytest.raises(ConfigError, match=r"the policy itself samples[\s\S]*leave out use_vllm"):
        make_trainer(model=budgeted, use_transformers_continuous_batching=True)
    thinks: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
    with pytest.raises(ConfigError, match="loaded with thinking off"):
        off.generate([QUESTION], **thinks)
    with pytest.raises(ConfigError, match="loaded with thinking off"):
        make_trainer(model=off, **thinks)


@pytest.mark.parametrize(
    ("name", "thinking", "todo"),
    [("qwen3-4b-thinking", False, "qwen3-4b-instruct"), ("qwen3-4b-instruct", 512, "qwen3-1.7b")],
)
def test_a_checkpoint_that_always_or_never_thinks_says_so(name, thinking, todo, policy):
    before = policy.tokenizer.chat_template
    with pytest.raises(ConfigError, match=rf"{CATALOGUE[name].thinks} thinks[\s\S]*{todo}"):
        set_thinking(policy.tokenizer, CATALOGUE[name], thinking)
    set_thinking(policy.tokenizer, CATALOGUE["qwen3-4b-instruct"], False)
    assert policy.tokenizer.chat_template == before


def test_a_budget_that_leaves_no_room_for_an_answer_is_warned_of(budgeted, make_trainer):
    with pytest.warns(UserWarning, match=f"budget of {LIMIT} tokens leaves no room for an answer in {LIMIT}"):
        make_trainer(model=budgeted, max_completion_length=LIMIT)


# --- a budget ---------------------------------------------------------------------------------------------

OPEN, CLOSE, EOS = 151667, 151668, 151645


@pytest.mark.parametrize(
    ("prompt", "completion", "forced"),
    [
        ([1], [OPEN, 7, 7, CLOSE, 8], [3]),
        ([1], [OPEN, 7, CLOSE, 8, 8], []),
        ([1, OPEN], [7, 7, CLOSE, 8], [2]),
        ([1, OPEN, 10], [7, CLOSE, 8], [1]),
        ([1, OPEN, EOS, 1], [7, 7, 7, 7], []),
        ([1], [OPEN, 7, 7, CLOSE, OPEN, 7, 7, CLOSE], [3, 7]),
        ([1], [OPEN, 7, OPEN, CLOSE, OPEN], [3]),
    ],
    ids=["of the completion", "closed before", "opened by the prompt", "which has a token of it",
         "named in a user's turn", "each thought has its own", "opened again within itself"],
)  # fmt: skip
def test_the_close_behind_a_full_thought_is_forced(prompt, completion, forced):
    found = Budget(2, rewards.QWEN3).forced(prompt, completion)
    assert found == [index in forced for index in range(len(completion))]


# A policy of four tokens whose completions can all be enumerated: its logits depend on the last two tokens.
SMALL_MARKERS = rewards.ThinkTokens(0, 1, eos_ids=(2,))
LONGEST = 5


def drawn(table: torch.Tensor, ids: list[int]) -> torch.Tensor:
    return table[ids[-2], ids[-1]].log_softmax(0)


def budgeted_process(table: torch.Tensor, budget: Budget, start: list[int]) -> Any:
    """Yield each completion with its probability, through the logits processor as in sampling."""
    open_ones: list[tuple[list[int], torch.Tensor]] = [([], torch.tensor(1.0).double())]
    for step in range(LONGEST):
        following = []
        for done, chance in open_ones:
            ids = [*start, *done]
            scores = budget(torch.tensor([ids]), drawn(table, ids).unsqueeze(0))[0].softmax(0)
            for token in scores.nonzero().flatten().tolist():
                whole = ([*done, token], chance * scores[token])
                if token == 2 or step + 1 == LONGEST:
                    yield whole
                else:
                    following.append(whole)
        open_ones = following


@pytest.mark.parametrize("level", ["completion", "token"])
def test_the_masked_loss_has_the_true_gradient_of_the_budgeted_process(level):
    """The exact gradient is over all completions, each with its own reward."""
    torch.manual_seed(0)
    table = torch.randn(4, 4, 4, dtype=torch.float64)
    table[..., 1:3] -= 2.0  # thoughts are long
    table.requires_grad_()
    budget, start = Budget(2, SMALL_MARKERS), [3, 3]
    completions = list(budgeted_process(table, budget, start))
    chances = torch.stack([chance for _, chance in completions])
    pays = torch.rand(len(completions)).double() + 1
    assert chances.sum().item() == pytest.approx(1)
    (true,) = torch.autograd.grad(chances @ pays, table, retain_graph=True)

    def estimated(masked: bool) -> torch.Tensor:
        logps = torch.zeros(len(completions), LONGEST, dtype=torch.float64)
        mask = torch.zeros_like(logps)
        for row, (ids, _) in enumerate(completions):
            forced = budget.forced(start, ids)
            for at, token in enumerate(ids):
                logps[row, at] = drawn(table, [*start, *ids[:at]])[token]
                mask[row, at] = not (masked and forced[at])
        per_row, _ = policy_loss(logps, logps.detach(), pays, mask, level, (0.8, 1.2))
        return torch.autograd.grad(-(chances.detach() * per_row).sum(), table)[0]

    torch.testing.assert_close(estimated(masked=True), true)
    assert (estimated(masked=False) - true).abs().max() > 0.01, "so the mask is what makes it so"


def thoughts(rows: list[list[int]]) -> list[int]:
    """Return the tokens between <think> and </think> in each row that has a thought."""
    opened = [row for row in rows if OPEN in row]
    return [(row.index(CLOSE) if CLOSE in row else len(row)) - row.index(OPEN) - 1 for row in opened]


@pytest.mark.parametrize("greedy", [True, False])
def test_thoughts_end_at_the_budget(budgeted, greedy):
    rows = [list(one.ids) for one in budgeted.generate([QUESTION], n=8, greedy=greedy, max_new_tokens=16)]
    free = rloo_kit.load_policy("tiny", seed=0).generate([QUESTION], n=8, greedy=greedy, max_new_tokens=16)
    assert max(thoughts(rows)) == LIMIT < max(thoughts([list(one.ids) for one in free]))
    assert all(CLOSE in row for row in rows if OPEN in row)


def test_a_thought_that_goes_on_keeps_its_budget(budgeted):
    (cut,) = budgeted.generate([QUESTION], greedy=True, max_new_tokens=3)
    (whole,) = budgeted.generate([QUESTION], greedy=True, max_new_tokens=13, begun=[cut.ids])
    assert whole == budgeted.generate([QUESTION], greedy=True, max_new_tokens=16)[0]
    assert whole.ids.index(CLOSE) == LIMIT + 1


@pytest.mark.training
@pytest.mark.parametrize("how", [{}, {"fast_sampling": False}, {"beta": 0.05}, {"generation_rows": 3}])
def test_the_update_ignores_what_was_forced(how, budgeted, make_trainer, monkeypatch):
    seen: list[dict[str, torch.Tensor]] = []
    trainer = make_trainer(model=budgeted, max_completion_length=12, max_steps=1, **how)
    inner = trainer._compute_loss
    monkeypatch.setattr(trainer, "_compute_loss", lambda m, batch: seen.append(batch) or inner(m, batch))
    trainer.train()
    some = 0
    for batch in seen:
        rows = (batch[name].tolist() for name in ("completion_ids", "completion_mask"))
        for ids, mask in zip(*rows, strict=True):
            forced = Budget(LIMIT, rewards.QWEN3).forced([1], ids)
            left_out = [not one and any(mask[index:]) for index, one in enumerate(mask)]
            assert left_out == [one and any(mask) for one in forced]
            some += sum(left_out)
        _, attended, width = microbatches.model_inputs(batch)
        assert (attended[:, -width:].diff(dim=1) <= 0).all(), "what follows attends to it"
    assert some
