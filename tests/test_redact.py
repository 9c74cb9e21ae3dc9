"""Text that looks like a secret is recognised with its kind, and ordinary code is not taken for one."""

import random
import string

import pytest

from rloo_kit.redact import INSTEAD, LOOKS_SECRET, shown, without_hidden
from tests.conftest import ROOT

WORD, UPPER = string.ascii_letters + string.digits, string.ascii_uppercase + string.digits


def drawn(characters: str, length: int) -> str:
    """Make a secret here, so that no scanner finds one in this file."""
    rng = random.Random(length)
    return "".join(rng.choice(characters) for _ in range(length))


KINDS = {
    "Hugging Face": f'x = "hf_{drawn(WORD, 34)}"',
    "OpenAI": f'Client("sk-{drawn(WORD, 20)}T3Blbk{drawn(WORD, 22)}")',
    "Anthropic": f'Client("sk-ant-api03-{drawn(WORD, 60)}-{drawn(WORD, 20)}")',
    "OpenRouter": f'Client("sk-or-v1-{drawn(string.hexdigits, 64)}")',
    "Groq": f'Client("gsk_{drawn(WORD, 52)}")',
    "Google": f'x = "AIza{drawn(WORD, 35)}"',
    "AWS id": f'x = "AKIA{drawn(UPPER, 16)}"',
    "AWS key": f'aws_secret_access_key = "{drawn(WORD, 40)}"',
    "GitHub": f'x = "ghp_{drawn(WORD, 36)}"',
    "GitHub fine-grained": f'x = "github_pat_{drawn(WORD, 22)}_{drawn(WORD, 59)}"',
    "GitLab": f'x = "glpat-{drawn(WORD, 20)}"',
    "Slack": f'x = "xoxb-{drawn(string.digits, 12)}-{drawn(WORD, 24)}"',
    "Slack hook": f'post("https://hooks.slack.com/services/T{drawn(UPPER, 8)}/B1/{drawn(WORD, 24)}")',
    "Discord hook": f'post("https://discord.com/api/webhooks/{drawn(string.digits, 18)}/{drawn(WORD, 68)}")',
    "Stripe": f'x = "sk_live_{drawn(WORD, 24)}"',
    "SendGrid": f'x = "SG.{drawn(WORD, 22)}.{drawn(WORD, 43)}"',
    "npm": f'x = "npm_{drawn(WORD, 36)}"',
    "PyPI": f'x = "pypi-AgEIcHlwaS5vcmc{drawn(WORD, 70)}"',
    "JWT": f'x = "eyJ{drawn(WORD, 20)}.eyJ{drawn(WORD, 40)}.{drawn(WORD, 43)}"',
    "RSA key": 'x = """-----BEGIN RSA PRIVATE ' + 'KEY-----\nMIIE"""',
    "bearer header": f'{{"Authorization": "Bearer {drawn(WORD, 32)}"}}',
    "basic header": '{"Authorization": "Basic dXNlcjpwYXNzd29yZA=="}',
    "bearer elsewhere": f'auth = "Bearer {drawn(WORD, 20)}"',
    "key header": f'{{"X-API-Key": "{drawn(WORD, 24)}"}}',
    "apikey in an address": f'url = "https://judge.example/score?apikey={drawn(WORD, 20)}"',
    "token in an address": f'url = "https://judge.example/score?access_token={drawn(WORD, 20)}&x=1"',
    "user and password": 'url = "https://me:hunter22@judge.example/score"',
    "password": 'password = "hunter-hunter"',
    "key assigned": 'api_key = "judge-4711-abcd"',
    "key argument": 'OpenAI(base_url=url, api_key="local-abcdef")',
    "variable": f'os.environ["JUDGE_TOKEN"] = "{drawn(WORD, 24)}"',
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_is_known_by_its_kind_and_its_value_is_not_shown(kind):
    text = without_hidden(KINDS[kind])
    assert INSTEAD in text
    rest = text.replace(INSTEAD, "")
    assert without_hidden(rest) == rest, "all of it is left out"


def test_a_setting_with_a_secrets_name_is_not_shown_and_a_long_value_is_cut():
    assert shown("hub_token", "x") == INSTEAD
    assert shown("max_new_tokens", 5) == "5"
    assert shown("name", "y" * 100) == "'" + "y" * 56 + "..."


HONEST = (
    'headers = {"Authorization": f"Bearer {os.environ[\'JUDGE_KEY\']}"}',
    'url = f"https://judge.example/score?apikey={key}&model=judge"',
    'client = OpenAI(api_key=os.environ["OPENAI_API_KEY"])',
    'scores = sorted(rows, key="completion_length")',
    'eos_token = "<|im_end|>"; end_token = "</think>"; token = "Answer:"',
    "Basic arithmetic, bearer of news, the secret: think first",
    'keys = {"answer": "42", "question": "What is 123456 + 7?"}',
    'MODEL = "Qwen/Qwen3-4B-Thinking-2507"; REVISION = "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567"',
)


@pytest.mark.parametrize("text", HONEST)
def test_honest_code_is_shown_as_it_is(text):
    assert without_hidden(text) == text


def test_no_line_of_a_reward_or_an_example_of_the_kits_own_is_taken_for_a_secret():
    files = [*ROOT.glob("rewards/*.py"), *ROOT.glob("docs/**/*.*"), *ROOT.glob("configs/*.yaml")]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(lines) > 1000
    assert [line for line in lines if LOOKS_SECRET.search(line)] == []
