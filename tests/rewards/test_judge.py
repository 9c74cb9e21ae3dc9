"""Reward models and rubrics as rewards."""

import asyncio
import pickle

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import rewards
from rewards import Criterion, reward_model, rubric_reward
from rloo_kit.policy.bundled import TINY

PROMPT_OPENS = rewards.ThinkTokens(151667, 151668, prompt_opens=True)
CRITERIA = [Criterion("brief", "The answer is brief.", 3.0), Criterion("polite", "The answer is polite.")]


def judge(prompt, completion, description):
    if "polite" in description:
        return 1.0 if "please" in completion else 0.0
    return 1 / len(completion.split())


def test_a_rubric_is_the_weighted_mean_of_its_marks_and_logs_each():
    logged = {}
    reward = rubric_reward(CRITERIA, judge)
    scores = reward(prompts=["?"] * 2, completions=["yes please", "yes"], log_metric=logged.__setitem__)
    assert scores == [pytest.approx((3 * 0.5 + 1) / 4), pytest.approx(3 / 4)]
    assert logged == {"rubric_reward/brief": 0.75, "rubric_reward/polite": 0.5}

    def silent(prompt, completion, description):
        return None if completion == "?" or "polite" in description else 0.5

    reward = rubric_reward({"brief": "brief", "polite": "polite"}, silent)
    assert reward(prompts=["", ""], completions=["a", "?"]) == [0.5, None], "without an opinion"


OPEN, CLOSE, EOS = 151667, 151668, 151645
IDS: dict[str, list[int]] = {
    "<think>so it is</think>\n42": [OPEN, 5, 6, CLOSE, 7, EOS],
    "so it is</think>42": [5, 6, CLOSE, 7, EOS],  # the prompt has opened it
    "<think>a typed </think> then </think>42": [OPEN, 5, 6, 8, CLOSE, 7, EOS],
    "42": [7, EOS],
    "<think>it goes on": [OPEN, 5, 6],
    "<think>no answer</think>": [OPEN, 5, 6, CLOSE, EOS],
}
JUDGED = {  # of these texts, None where the judge is not asked
    "thought": ["so it is", "so it is", "a typed", None, None, "no answer"],
    "answer": ["42", "42", "42", "42", None, None],
    "both": list(IDS),
}


@pytest.mark.parametrize(("known", "chat"), [("ids", True), ("text", False)])
@pytest.mark.parametrize("aim", JUDGED)
def test_the_judge_is_shown_the_thought_the_answer_or_both(aim, chat, known):
    rows = [row for row in zip(IDS.items(), JUDGED[aim], strict=True) if known == "ids" or 8 not in row[0][1]]
    asked, several = [], [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    note = lambda prompt, text, *_: asked.append((prompt, text)) or 1.0  # noqa: E731
    reward = rubric_reward({"clear": "clear"}, note, aim=aim)
    completions = [[{"role": "assistant", "content": text}] if chat else text for (text, _), _ in rows]
    ids = [ids for (_, ids), _ in rows] if known == "ids" else None
    scores = reward(prompts=[several] * len(rows), completions=completions, completion_ids=ids)
    assert scores == [float(shown is not None) for _, shown in rows]
    assert asked == [("user: ?\n\nassistant: !", shown) for _, shown in rows if shown is not None]


def test_an_async_judge_is_asked_about_everything_at_once_and_after_a_failure_nothing_more():
    running, most, asked, one_at_a_time = 0, 0, [], asyncio.Semaphore(1)

    async def slow(prompt, completion, description):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return 0.5

    async def fails(prompt, completion, description):
        async with one_at_a_time:
            asked.append(completion)
            await asyncio.sleep(0)
            raise ConnectionError("port 8000")

    reward = rubric_reward(CRITERIA, slow)
    assert rewards.trl_interface.is_async(reward)
    assert asyncio.run(reward(prompts=["?"] * 3, completions=["a"] * 3)) == [0.5] * 3
    assert most == 6
    texts = list("abcdefghijkl")
    with pytest.raises(ConnectionError):
        rewards.clipped(rubric_reward({"brief": "brief"}, fails))(prompts=texts, completions=texts)
    assert rewards.clipped(reward)(prompts=["?"], completions=["a"]) == [0.5]
    assert len(asked) < 4


@pytest.mark.parametrize("mark", [1.5, float("nan"), "0.5"])
def test_a_mark_outside_0_to_1_is_refused_by_criterion_and_sample(mark):
    reward = rubric_reward({"brief": "brief"}, lambda *question: mark)
    with pytest.raises(rewards.RewardValueError, match="'brief' is not a number from 0 to 1") as caught:
        reward(prompts=["?"], completions=["a"])
    assert caught.value.sample == 0


@pytest.mark.parametrize("criteria", [{}, ["brief"], [Criterion("a", "x", 0.0)], [Criterion("a", "x")] * 2])
def test_a_bad_rubric_is_refused(criteria):
    with pytest.raises(ValueError, match=r"different names and positive weights\.\n.*rubric_reward\([\[{]"):
        rubric_reward(criteria, judge)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A reward model, the bundled policy with one output, saved as TRL's RewardTrainer saves one."""
    torch.manual_seed(0)
    path, source = str(tmp_path_factory.mktemp("models") / "tiny-reward"), TINY.checkpoint()
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=1, dtype="float32")
    model.save_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.chat_template = "{% for m in messages %} {{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(path)
    return path


TEXTS = ("good", "bad b", "c", "good good b c", "bad")
CHAT = {
    "prompts": [[{"role": "user", "content": "a"}]] * 5,
    "completions": [[{"role": "assistant", "content": text}] for text in TEXTS],
}


def test_a_reward_model_scores_as_transformers_does_whatever_the_batch(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        expected = model(**tokenizer(" a good", return_tensors="pt")).logits.item()
    together = rewards.guarded(reward_model(folder, batch_size=2, device="cpu"))(**CHAT)
    assert together == pytest.approx(reward_model(folder, batch_size=1, device="cpu")(**CHAT), abs=1e-5)
    assert len(set(together)) == 5
    assert together[0] == pytest.approx(expected, abs=1e-5)
    tokenizer.pad_token = None  # then the model's is taken
    loaded = reward_model(model, tokenizer)(**CHAT)
    assert loaded == pytest.approx(together, abs=1e-5), "a loaded model and its tokenizer"
    plain = reward_model(folder, device="cpu")(prompts=[" a "], completions=["good"])
    assert plain == [pytest.approx(expected, abs=1e-5)]


def test_a_reward_model_pickles_without_its_weights_and_the_thought_can_be_hidden_from_it(folder):
    reward = reward_model(folder, device="cpu", with_thought=False)
    scores, data = reward(**CHAT), pickle.dumps(reward)
    assert len(data) < 2000
    again = pickle.loads(data)
    assert again.__name__ == "tiny-reward"
    assert again(**CHAT) == pytest.approx(scores)
    completions = [[{"role": "assistant", "content": f"<think> {t} </think> good"}] for t in ("a", "bad bad")]
    first, second = reward(prompts=CHAT["prompts"][:2], completions=completions)
    assert first == second
    opened = reward_model(folder, device="cpu", with_thought=False, tokens=PROMPT_OPENS)
    parsed = [[{"role": "assistant", "reasoning_content": "a", "content": "good"}]]
    assert opened(prompts=CHAT["prompts"][:1], completions=parsed) == [pytest.approx(first)]


def test_what_is_no_reward_model_of_one_output_with_a_tokenizer_is_refused(folder, tmp_path):
    AutoModelForSequenceClassification.from_pretrained(folder).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"no words(.|\n)*tokenizer="):
        reward_model(str(tmp_path), device="cpu")(**CHAT)
    two = AutoModelForSequenceClassification.from_pretrained(TINY.checkpoint(), num_labels=2)
    two.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has one output, and this one has 2"):
        reward_model(str(tmp_path), device="cpu")(**CHAT)
    with pytest.raises(ValueError, match="not a reward model"):
        reward_model(42)
