"""Informative sampling: what a prompt's completions have earned says how often it comes again."""

import itertools
import json
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rloo_kit.errors import ConfigError
from rloo_kit.train.prompts import FORGET, InformativeSampler, PromptHistory, alive_chance
from tests.conftest import as_loaded
from tests.policy.test_sampling import assert_follows

# --- alive_chance -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "k"), [({"0": 3, "1": 1}, 4), ({"1": 8}, 8), ({"0": 1.5, "0.2": 2, "1": 4.25}, 3)]
)
def test_it_is_the_mean_over_the_distributions_that_the_counts_leave_open(
    counts: dict[str, float], k: int
) -> None:
    torch.manual_seed(0)
    posterior = torch.distributions.Dirichlet(torch.tensor([*counts.values(), 0.0]).double() + 0.5)
    alive = 1 - posterior.sample((200_000,)).pow(k).sum(1)
    assert alive_chance(counts, k) == pytest.approx(
        alive.mean().item(), abs=4 * alive.std().item() / math.sqrt(2e5)
    )


def test_a_prompt_that_was_never_seen_is_taken_to_be_alive() -> None:
    assert alive_chance({}, 8) == 1.0


@given(st.dictionaries(st.text(max_size=3), st.floats(0.01, 1e6), max_size=12), st.integers(2, 64))
def test_it_is_a_chance_and_never_quite_zero(counts: dict[str, float], k: int) -> None:
    assert 0 < alive_chance(counts, k) <= 1


# --- PromptHistory ----------------------------------------------------------------------------------------

NAN = math.nan


def weights(history: PromptHistory, prompts: int = 4) -> list[float]:
    return history.weights(prompts, before=history.batches).tolist()


def test_a_prompt_weighs_by_its_own_rewards() -> None:
    history = PromptHistory(k=4)
    history.record([2, 0], torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0]]))
    assert weights(history) == [
        alive_chance({"0": 2, "1": 2}, 4),
        1.0,
        alive_chance({"1": 4}, 4),
        1.0,
    ]


@pytest.mark.parametrize(
    ("group", "counts", "why"),
    [
        ([1.0, NAN, 1.0, 0.0], {"1": 2, "0": 1}, "what was not scored does not count"),
        ([0.1 + 0.2, 0.3, 0.3, 0.3], {"0.3": 4}, "rounding makes no difference"),
        ([0.0, -0.0, 0.0, 0.0], {"0": 4}, "a negative zero is zero"),
        ([NAN] * 4, {"unscored": 4}, "a group that nothing scored is dead"),
    ],
)
def test_a_group_is_counted_by_value(group: list[float], counts: dict[str, float], why: str) -> None:
    history = PromptHistory(k=4)
    history.record([0], torch.tensor([group]))
    assert weights(history, 1) == [alive_chance(counts, 4)], why


def test_earlier_counts_fade_each_time_a_prompt_is_seen_again() -> None:
    history = PromptHistory(k=2)
    for reward in (0.0, 0.0, 1.0):
        history.record([0], torch.full((1, 2), reward))
    faded = {"0": (2 * FORGET + 2) * FORGET, "1": 2}
    assert weights(history)[0] == alive_chance(faded, 2)


@pytest.mark.parametrize(("k", "settles"), [(2, 0.15), (8, 0.18)])
def test_a_prompt_that_is_always_dead_settles_where_the_docstring_says(k: int, settles: float) -> None:
    history = PromptHistory(k)
    for _ in range(40):
        history.record([0], torch.zeros(1, k))
    assert weights(history)[0] == pytest.approx(settles, abs=0.005)


def test_what_is_younger_than_asked_for_is_not_used() -> None:
    whole, cut = PromptHistory(k=2), PromptHistory(k=2)
    for batch in range(6):
        rewards = torch.tensor([[0.0, float(batch % 2)]])
        whole.record([batch % 3], rewards)
        if batch < 4:
            cut.record([batch % 3], rewards)
    assert whole.weights(3, before=4).tolist() == weights(cut, 3)
    assert whole.weights(3, before=6).tolist() != weights(cut, 3), "and is used when its time has come"


groups = st.lists(
    st.tuples(
        st.integers(0, 4), st.lists(st.sampled_from([0.0, 0.25, 1.0, 1 / 3, NAN]), min_size=3, max_size=3)
    ),
    min_size=1,
    max_size=4,
)


@given(st.lists(groups, min_size=1, max_size=8), st.integers(0, 8), st.integers(0, 8))
@settings(deadline=None)
def test_a_history_comes_back_from_the_file_as_it_was(batches: Any, saved: int, used: int) -> None:
    """Saved after ``saved`` batches, ``used`` of them settled; from then on both histories go on alike."""

    def note(history: PromptHistory, batch: Any) -> None:
        history.record([row for row, _ in batch], torch.tensor([rewards for _, rewards in batch]))

    saved = min(saved, len(batches))
    history, other = PromptHistory(k=3), PromptHistory(k=3)
    for batch in batches[:saved]:
        note(history, batch)
    history.weights(5, before=min(used, saved))
    other.restore(json.loads(json.dumps(history.state(), sort_keys=True)), history.batches)
    for batch in batches[saved:]:
        note(history, batch)
        note(other, batch)
    assert other.batches == history.batches
    for before in range(used, len(batches) + 1):
        torch.testing.assert_close(other.weights(5, before), history.weights(5, before), rtol=1e-12, atol=0)


# --- InformativeSampler -----------------------------------------------------------------------------------


def sampler(history: Any = None, **settings: Any) -> InformativeSampler:
    shape = {"prompts": 10, "per_batch": 3, "repeats": 2, "lag": 2, "seed": 0}
    return InformativeSampler(history or PromptHistory(k=4), **{**shape, **settings})


def weighing(*weights: float, k: int = 1) -> Any:
    """A history that gives these weights."""
    return SimpleNamespace(k=k, weights=lambda prompts, before: torch.tensor(weights).double())


@pytest.mark.parametrize(
    ("prompts", "per_batch", "k", "repeats"),
    [(10, 3, 4, 2), (8, 2, 4, 1), (3, 3, 2, 4), (7, 1, 8, 1), (5, 4, 2, 6)],
)
def test_an_epoch_has_the_length_and_the_blocks_of_trls_sampler(
    prompts: int, per_batch: int, k: int, repeats: int
) -> None:
    from trl.trainer.utils import RepeatSampler

    theirs = RepeatSampler(range(prompts), mini_repeat_count=k, batch_size=per_batch, repeat_count=repeats)
    ours = sampler(PromptHistory(k), prompts=prompts, per_batch=per_batch, repeats=repeats)

    def shape(rows: list[int]) -> list[tuple[int, int]]:
        """Runs of one row: which of its block's rows it is, and how long."""
        runs = [(row, len(list(run))) for row, run in itertools.groupby(rows)]
        blocks = [runs[i : i + per_batch] for i in range(0, len(runs), per_batch)]
        return [(block.index((row, n)), n) for block in blocks for row, n in block]

    if per_batch > 1:
        assert shape(list(ours)) == shape(list(theirs))
    assert len(ours) == len(theirs) == len(list(ours))
    block = per_batch * k
    for start in range(0, len(ours), block * repeats):
        batch = list(ours)[start : start + block * repeats]
        assert batch == batch[:block] * repeats, "the generation batch is handed out again"
        assert len(set(batch)) == per_batch, "its prompts are distinct"
        assert all(0 <= row < prompts for row in batch)


def test_each_epoch_has_prompts_of_its_own() -> None:
    first, second = sampler(), sampler()
    second.set_epoch(1)
    assert list(first) != list(second)
    first.set_epoch(1)
    assert list(first) == list(second)


def test_a_batch_is_drawn_by_what_was_scored_before_it_was_fetched() -> None:
    asked: list[int] = []

    def weights(prompts: int, before: int) -> torch.Tensor:
        asked.append(before)
        return torch.ones(prompts)

    drawing = sampler(SimpleNamespace(k=4, weights=weights), lag=2)
    list(drawing)
    drawing.set_epoch(2)
    list(drawing)
    assert asked == [-1, 0, 1, 5, 6, 7], "batches 0, 1, 2 and 6, 7, 8, each two behind"


def draws(weights: list[float], per_batch: int, batches: int) -> list[tuple[int, ...]]:
    drawing = sampler(weighing(*weights), prompts=len(weights), per_batch=per_batch, repeats=1)
    return [tuple(drawing._draw(batch)) for batch in range(batches)]


def test_a_prompt_comes_in_proportion_to_its_weight() -> None:
    weights = [0.1, 1.0, 0.4, 0.1, 0.9]
    counts = Counter(row for (row,) in draws(weights, per_batch=1, batches=20_000))
    assert_follows(torch.tensor([counts[i] for i in range(5)]), torch.tensor(weights) / sum(weights))
    assert min(counts.values()) > 500, "none starves"


def test_the_other_prompts_of_a_batch_are_drawn_in_proportion_among_those_left() -> None:
    weights = [0.1, 1.0, 0.4, 0.7]
    counts = Counter(draws(weights, per_batch=2, batches=20_000))
    total = sum(weights)
    expected = {
        (i, j): weights[i] / total * weights[j] / (total - weights[i])
        for i, j in itertools.permutations(range(4), 2)
    }
    assert set(counts) <= set(expected)
    assert_follows(torch.tensor([counts[pair] for pair in expected]), torch.tensor(list(expected.values())))


# --- the trainer ------------------------------------------------------------------------------------------


class Pays:
    """Every completion of half of the prompts is paid; of the others every second one.

    Keeps what each call has seen: the prompts of the groups, and the names of its arguments.
    """

    __name__ = "pays"

    def __init__(self, k: int) -> None:
        self.k = k
        self.prompts: list[list[str]] = []
        self.names: set[str] = set()

    def __call__(self, prompts: Any, completion_ids: Any, dead: Any, **kwargs: Any) -> list[float]:
        self.prompts.append([prompt[-1]["content"] for prompt in prompts[:: self.k]])
        self.names |= set(kwargs)
        return [1.0 if flat else float(index % 2) for index, flat in enumerate(dead)]

    def seen(self) -> Counter[str]:
        return Counter(itertools.chain(*self.prompts))


@pytest.fixture(scope="module")
def eight(task: Any) -> Any:
    """Eight prompts, every second one dead."""
    return task.train.select(range(8)).add_column("dead", [row % 2 == 0 for row in range(8)])


def logged(trainer: Any, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


SMALL = {"num_generations": 2, "per_device_train_batch_size": 4, "max_completion_length": 2}


def test_prompts_that_are_always_dead_come_less_often_and_fewer_groups_are_dead(
    make_trainer: Any, eight: Any
) -> None:
    """Uniform: an epoch of 2 steps draws each of 8 prompts once.  Informative: 12 steps, the first 6 to learn."""
    shape = {"num_generations": 4, "per_device_train_batch_size": 16, "max_completion_length": 2}
    uniform = Pays(k=4)
    trainer = make_trainer(reward_funcs=uniform, train_dataset=eight, max_steps=2, **shape)
    trainer.train()
    assert set(uniform.seen().values()) == {1}
    assert sum(logged(trainer, "dead_groups")) / 2 == 0.5

    informed = Pays(k=4)
    trainer = make_trainer(
        reward_funcs=informed, train_dataset=eight, max_steps=12, prompt_sampling="informative", **shape
    )
    trainer.train()
    dead = logged(trainer, "dead_groups")[6:]
    assert sum(dead) / len(dead) < 0.4
    seen = informed.seen()
    dead_draws = sum(seen[row["prompt"][-1]["content"]] for row in eight if row["dead"])
    assert seen.total() - dead_draws > 1.5 * dead_draws
    assert "rloo_kit_row" not in informed.names
    assert "answer" in informed.names, "the other columns are there"


@pytest.mark.parametrize(
    ("steps", "settings", "why"),
    [
        (6, {}, "a generation batch for each step; the second epoch begins at the fifth"),
        (
            6,
            {"gradient_accumulation_steps": 2, "steps_per_generation": 1, "per_device_train_batch_size": 2},
            "two generation batches for each step",
        ),
        (
            8,
            {"gradient_accumulation_steps": 1, "steps_per_generation": 2, "per_device_train_batch_size": 2},
            "a generation batch for two steps",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_that_was_stopped_draws_the_prompts_of_one_that_was_not(
    make_trainer: Any, eight: Any, loaded_once: Any, tmp_path: Path, steps: int, settings: Any, why: str
) -> None:
    def run(folder: str, until: int, resume: bool = False) -> tuple[list[list[str]], list[float]]:
        reward = Pays(k=2)
        arguments = {**SMALL, **settings, "learning_rate": 1e-2, "logging_steps": 1}
        trainer = make_trainer(
            model=as_loaded(loaded_once),
            reward_funcs=reward,
            train_dataset=eight,
            output_dir=str(tmp_path / folder),
            prompt_sampling="informative",
            save_strategy="steps",
            save_steps=until,
            max_steps=until,
            **arguments,
        )
        trainer.train(resume_from_checkpoint=resume)
        return reward.prompts, logged(trainer, "reward")

    prompts, rewards = run("whole", steps)
    first, _ = run("stopped", steps // 2)
    then, resumed_rewards = run("stopped", steps, resume=True)
    assert first + then == prompts, why
    assert resumed_rewards == rewards
    assert len({tuple(batch) for batch in prompts}) > 2


def test_a_batch_that_was_sampled_and_not_trained_on_is_forgotten_and_drawn_again(
    make_trainer: Any, eight: Any, tmp_path: Path
) -> None:
    """Stopped by hand in the loss of the third step of five: its rewards are in the history by then."""

    def trainer_and_reward(folder: str) -> tuple[Any, Pays]:
        reward = Pays(k=2)
        trainer = make_trainer(
            reward_funcs=reward,
            train_dataset=eight,
            output_dir=str(tmp_path / folder),
            prompt_sampling="informative",
            save_strategy="steps",
            save_steps=50,
            max_steps=5,
            **SMALL,
        )
        return trainer, reward

    whole, in_one_go = trainer_and_reward("whole")
    whole.train()
    stopped, before = trainer_and_reward("stopped")
    loss = stopped._compute_loss

    def stop(*args: Any) -> Any:
        if stopped.state.global_step == 2:
            raise KeyboardInterrupt
        return loss(*args)

    stopped._compute_loss = stop
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    resumed, after = trainer_and_reward("stopped")
    resumed.train(resume_from_checkpoint=True)
    assert len(before.prompts) == 3
    assert before.prompts[2] == after.prompts[0]
    assert before.prompts[:2] + after.prompts == in_one_go.prompts
    assert resumed._history.state() == whole._history.state()


@pytest.mark.parametrize(
    ("workers", "settings", "lag", "why"),
    [
        (0, {}, 2, "accelerate draws one batch ahead of the one it gives out"),
        (0, {"gradient_accumulation_steps": 2}, 2, "a step's micro-batches are one generation batch"),
        (
            0,
            {"gradient_accumulation_steps": 2, "steps_per_generation": 1},
            3,
            "a step fetches its two generation batches at once",
        ),
        (2, {}, 6, "two workers, each two ahead"),
        (2, {"gradient_accumulation_steps": 2}, 4, "each generation batch is handed out twice"),
        (2, {"dataloader_prefetch_factor": 1}, 4, "two workers, each one ahead"),
    ],
)
def test_the_lag_covers_what_is_drawn_before_the_first_batch_is_scored(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch, workers: int, settings: Any, lag: int, why: str
) -> None:
    settings = {**SMALL, "prompt_sampling": "informative", "dataloader_num_workers": workers, **settings}
    trainer = make_trainer(**settings)
    assert trainer._get_train_sampler().lag == lag, why

    drawn: list[int] = []
    draw = InformativeSampler._draw
    monkeypatch.setattr(
        InformativeSampler, "_draw", lambda self, batch: drawn.append(batch) or draw(self, batch)
    )
    batches = iter(trainer.get_train_dataloader())
    for _ in range(trainer.args.gradient_accumulation_steps):  # as transformers fetches a step's
        next(batches)
    assert len(drawn) == lag, why


def test_a_run_that_starts_anew_has_forgotten_the_one_before(make_trainer: Any, eight: Any) -> None:
    reward = Pays(k=2)
    trainer = make_trainer(
        reward_funcs=reward, train_dataset=eight, prompt_sampling="informative", max_steps=4, **SMALL
    )
    trainer.train()
    trainer.train()
    assert reward.prompts[4:] == reward.prompts[:4]


@pytest.mark.parametrize(
    ("change", "settings"),
    [
        (lambda dataset: dataset.to_iterable_dataset(), {}),
        (lambda dataset: dataset, {"remove_unused_columns": True}),
    ],
    ids=["a stream", "columns removed"],
)
def test_a_dataset_whose_rows_cannot_be_told_apart_is_refused_in_words(
    make_trainer: Any, eight: Any, change: Any, settings: Any
) -> None:
    with pytest.raises(ConfigError, match=r"(?s)rows can be drawn in any order.*prompt_sampling='uniform'"):
        make_trainer(
            reward_funcs=Pays(k=2),
            train_dataset=change(eight),
            prompt_sampling="informative",
            **SMALL,
            **settings,
        )
