"""A reward model as a reward."""

import pickle

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import rewards
from rewards import reward_model
from rloo_kit.policy.bundled import TINY

PROMPT_OPENS = rewards.ThinkTokens(151667, 151668, prompt_opens=True)


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
    tokenizer.pad_token = None  # then the model's pad token is used
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
