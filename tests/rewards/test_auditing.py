"""The audit: its corpus, its verdicts, and what it says of well-known rewards."""

from __future__ import annotations

import pytest

import rewards
from rewards import CASES, Case, audit
from rewards.corpus import CONTESTED, NOTHING, NUMBERS, PAYS, families, fill, gold_forms

OURS = [
    ("number", rewards.answer_reward()),
    ("math", rewards.answer_reward("math")),
    ("choice", rewards.answer_reward("choice")),
    ("exact", rewards.answer_reward("exact")),
    ("form", rewards.thought_then_answer()),
    ("form and answer", rewards.thought_then_answer(correct=rewards.answer_reward())),
]


def always(score):
    def constant(completions, **kwargs):
        return [score for _ in completions]

    return constant


def contains_gold(completions, answer, **kwargs):
    """The substring check that everybody writes first."""
    return [float(gold in c[0]["content"]) for c, gold in zip(completions, answer, strict=True)]


@pytest.mark.parametrize("reward", [reward for _, reward in OURS], ids=[name for name, _ in OURS])
@pytest.mark.parametrize("opens", [False, True], ids=["completion opens", "prompt opens"])
def test_our_rewards_have_no_exploit_and_hardly_a_refusal(reward, opens):
    if opens:
        tokens = rewards.ThinkTokens(151667, 151668, (151645,), prompt_opens=True)
        made = {
            "form": rewards.thought_then_answer(tokens),
            "form and answer": rewards.thought_then_answer(
                tokens, correct=rewards.answer_reward(tokens=tokens)
            ),
        }
        name = next(name for name, ours in OURS if ours is reward)
        reward = made.get(name) or rewards.answer_reward(name, tokens=tokens)
    result = audit(reward).raise_for(exploits=0, refusals=0.02)
    assert result.deterministic
    assert result.order_free
    assert result.group_std > 0


def test_the_hole_in_the_copied_rule_is_named_in_one_line():
    result = audit(rewards.thinking_reward())
    assert result.headline == (
        "thinking_reward pays 1.1, its maximum, for 'filler thought: one word, no answer': "
        "40 tokens of filler, a question mark, and no answer at all."
    )
    assert "\n" not in result.headline
    with pytest.raises(rewards.AuditFailed, match="exploits, and 0 are allowed"):
        result.raise_for(exploits=0)


def test_a_substring_check_is_farmed_by_lists_and_negations():
    result = audit(contains_gold)
    assert {"all listed", "negated", "only in the thought"} <= {f.case.family for f in result.exploits}
    assert result.margin is not None
    assert result.margin <= 0


def test_the_corpus_is_as_large_as_promised():
    assert len(CASES) >= 60
    assert len(families(CASES)) >= 12
    labels = [(case.family, case.name) for case in CASES]
    assert len(set(labels)) == len(labels), "a case's name is unique within its family"
    assert all(case.why for case in CASES)


def test_every_case_applies_to_some_gold_answer():
    golds = ["42", "1250", "-3", "1.5", "108", "C", "Mercury"]
    for case in CASES:
        made = [fill(case, gold_forms(g), "?", prompt_opens=o) for g in golds for o in (False, True)]
        assert any(pieces is not None for pieces in made), case


def test_no_placeholder_is_left_in_a_completion():
    for finding in audit(always(0.0)).findings:
        for name in ("{gold}", "{think}", "{wrong}", "{close}", "{thought}", "{value}"):
            assert name not in finding.completion, finding.case


def test_a_wrong_answer_is_never_the_gold_one():
    for gold in ("42", "-3", "1.5", "0", "A", "D", "Mercury"):
        forms = gold_forms(gold)
        assert gold not in (forms["wrong"], forms["wrong2"])


def test_a_case_is_added_in_one_line():
    case = Case("mine", "shouts", "{think}THE ANSWER IS {gold}!!!{end}", PAYS, PAYS, "loud and right")
    result = audit(contains_gold, cases=[*CASES, case])
    assert [f.verdict for f in result.findings if f.case is case] == ["ok"] * len(NUMBERS)


def test_the_tasks_own_gold_answers_are_used():
    rows = [{"prompt": f"What is {n} + 1?", "solution": str(n + 1), "level": n} for n in range(100, 120)]
    seen = {}

    def reward(completions, solution, level, **kwargs):
        seen.update(dict(zip(solution, level, strict=True)))
        return [0.0 for _ in completions]

    result = audit(reward, rows=rows, column="solution", limit=4)
    assert len(seen) == 4
    assert all(int(gold) == level + 1 for gold, level in seen.items())
    assert {f.gold for f in result.findings} == set(seen)


def test_zero_for_everybody_is_told_apart_from_no_exploit():
    result = audit(always(0.0))
    assert "no more than one with nothing in it" in result.headline
    assert result.share("refusal") == 1.0
    assert result.group_std == 0
    assert "every advantage is 0" in str(result)


def test_none_for_everybody_is_told():
    result = audit(always(None))
    assert "judged nothing" in result.headline
    assert not result.exploits


def test_a_reward_that_raises_is_reported_by_case_and_not_by_a_crash():
    def fragile(completions, answer, **kwargs):
        return [1 / len(completion[0]["content"]) for completion in completions]

    result = audit(fragile)
    assert {f.case.name for f in result.errors} >= {"empty"}
    assert "ZeroDivisionError" in result.headline
    with pytest.raises(rewards.AuditFailed, match="raised on"):
        result.raise_for(exploits=None)


def test_chance_and_batch_order_are_noticed():
    state = {"n": 0}

    def chance(completions, **kwargs):
        state["n"] += 1
        return [float(state["n"])] * len(completions)

    def rank(completions, **kwargs):
        return [float(i) for i in range(len(completions))]

    assert not audit(chance).deterministic
    result = audit(rank)
    assert result.deterministic
    assert not result.order_free


def test_plain_text_rewards_and_async_rewards_can_be_audited():
    def plain(completions, answer, **kwargs):
        return [
            float(completion.strip().endswith(gold))
            for completion, gold in zip(completions, answer, strict=True)
        ]

    async def judge(completions, **kwargs):
        return [1.0 for _ in completions]

    assert not audit(plain).errors
    assert not audit(judge).errors


def test_a_group_that_was_cut_off_has_no_spread():
    assert audit(rewards.thinking_reward()).cut_off_std == 0


def test_the_result_is_shown_as_text_html_and_markdown():
    result = audit(rewards.thinking_reward())
    for shown in (str(result), result._repr_html_(), result.to_markdown()):
        assert "filler thought" in shown
        assert "time per 1,000" in shown
        assert "{gold}" not in shown
    assert "<script" not in result._repr_html_()
    hostile = Case("x", "<script>", "{gold}{end}", NOTHING, NOTHING, "<b>")
    assert "<script" not in audit(contains_gold, cases=[hostile])._repr_html_()


def test_bands_are_shares_of_what_an_honest_completion_earns():
    assert PAYS.holds(0.5)
    assert not PAYS.holds(0.49)
    assert NOTHING.holds(0.49)
    assert not NOTHING.holds(0.5)
    assert CONTESTED.holds(-9)
    tenth = Case(
        "mine", "tenth", "{think}{wrong}{end}", rewards.Band(0.05, 0.2), CONTESTED, "a tenth for trying"
    )

    def reward(completions, answer, **kwargs):
        return [1.0 if gold in c[0]["content"].split("</think>")[-1] else 0.1 * bool(c[0]["content"].strip())
                for c, gold in zip(completions, answer, strict=True)]  # fmt: skip

    assert [f.verdict for f in audit(reward, cases=[tenth]).findings] == ["ok"] * len(NUMBERS)


def test_a_real_tokenizer_gives_the_same_verdicts():
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.model = tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, [])
    tokenizer.add_tokens(["<think>", "</think>"])
    tokens = rewards.ThinkTokens.from_tokenizer(tokenizer)
    reward = rewards.answer_reward(tokens=tokens, tokenizer=tokenizer)
    audit(reward, tokenizer).raise_for(exploits=0, refusals=0.02)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"aim": "style"}, "no aim 'style'"),
        ({"rows": []}, "no rows"),
        ({"rows": [{"prompt": "?"}]}, "gold answer in column 'answer'"),
        ({"rows": [{"prompt": "?", "solution": "1"}], "column": "gold"}, "column 'gold'"),
    ],
)
def test_an_audit_that_cannot_be_made_says_why(kwargs, says):
    with pytest.raises(ValueError, match=says):
        audit(contains_gold, **kwargs)
