"""The audit: its verdicts, its report, and what it says of well-known rewards."""

import itertools

import pytest

import rewards
from rewards import CASES, FORMS, Case, ThinkTokens, audit
from rewards.corpus import CONTESTED, NOTHING, PAYS, QUESTIONS

PROMPT_OPENS = ThinkTokens(151667, 151668, (151645,), prompt_opens=True)
REPORTED = [case for case in CASES if case.family in ("honest", "nothing", "filler thought", "negated")]


def contains_gold(completions, answer, **kwargs):
    return [float(gold in c[0]["content"]) for c, gold in zip(completions, answer, strict=True)]


@pytest.fixture(scope="module")
def of_copied_rule():
    return audit(rewards.thinking_reward())


OURS = {
    "number": rewards.answer_reward(),
    "math": rewards.answer_reward("math"),
    "choice": rewards.answer_reward("choice"),
    "exact": rewards.answer_reward("exact"),
    "form": rewards.thought_then_answer(),
    "form and answer": rewards.thought_then_answer(correct=rewards.answer_reward()),
    "number, the prompt opens": rewards.answer_reward(tokens=PROMPT_OPENS),
    "form and answer, the prompt opens": rewards.thought_then_answer(
        PROMPT_OPENS, correct=rewards.answer_reward(tokens=PROMPT_OPENS)
    ),
}


@pytest.mark.parametrize("reward", OURS.values(), ids=OURS)
def test_our_rewards_have_no_exploit_and_hardly_a_refusal(reward):
    result = audit(reward).raise_for(exploits=0, refusals=0.02)
    assert (result.deterministic, result.order_free, result.group_std > 0) == (True, True, True)


def test_the_hole_in_the_copied_rule_is_named_in_one_line(of_copied_rule):
    assert of_copied_rule.headline == (
        "thinking_reward pays 1.1, its maximum, for 'filler thought: one word, no answer': "
        "40 tokens of filler, a question mark, and no answer at all."
    )
    assert of_copied_rule.cut_off_std == 0, "a group that was cut off has no spread"
    with pytest.raises(rewards.AuditFailed, match="exploits, and 0 are allowed"):
        of_copied_rule.raise_for(exploits=0)


def test_a_substring_check_is_farmed_by_lists_and_negations_and_a_case_is_added_in_one_line():
    case = Case("mine", "shouts", "{think}THE ANSWER IS {gold}!!!{end}", PAYS, PAYS, "loud and right")
    result = audit(contains_gold, cases=[*CASES, case])
    assert {"all listed", "negated", "only in the thought"} <= {f.case.family for f in result.exploits}
    assert result.margin is not None
    assert result.margin <= 0
    assert [f.verdict for f in result.findings if f.case is case] == ["ok"] * len(QUESTIONS["number"])


def test_the_tasks_own_gold_answers_are_used():
    rows = [{"prompt": f"What is {n} + 1?", "solution": str(n + 1), "level": n} for n in range(100, 120)]
    seen = {}

    def reward(completions, solution, level, **kwargs):
        seen.update(dict(zip(solution, level, strict=True)))
        return [0.0 for _ in completions]

    result = audit(reward, rows=rows, column="solution", limit=4)
    assert [int(gold) - level for gold, level in seen.items()] == [1] * 4
    assert {f.gold for f in result.findings} == set(seen)


def test_of_a_conversation_the_users_last_message_is_what_attacks_repeat():
    turns = [("user", "What is 1+1?"), ("assistant", "2"), ("user", "What is 40+2?")]
    rows = [{"prompt": [{"role": role, "content": text} for role, text in turns], "answer": "42"}]
    findings = audit(rewards.answer_reward(), rows=rows).findings
    assert {finding.prompt for finding in findings} == {"What is 40+2?"}


def test_gold_solutions_are_audited_by_the_answers_in_them():
    golds = ["48 / 2 = 24, so 48 + 24 = 72.\n#### 72", "3 * 4 = 12.\n#### 12", "So it is \\boxed{7}."]
    rows = [{"prompt": f"Question {n}?", "answer": gold} for n, gold in enumerate(golds)]
    result = audit(rewards.answer_reward(), cases=REPORTED, rows=rows)
    assert {finding.gold for finding in result.findings} == {"72", "12", "7"}
    assert (len(result.exploits), len(result.refusals)) == (0, 0)


def test_of_several_gold_answers_the_first_is_audited():
    rows = [
        {"prompt": f"Question {n}?", "answer": [gold, f"{gold}.0"]}
        for n, gold in enumerate(("72", "12", "7"))
    ]
    result = audit(rewards.answer_reward(), cases=REPORTED, rows=rows)
    assert {finding.gold for finding in result.findings} == {"72", "12", "7"}
    assert (len(result.exploits), len(result.refusals)) == (0, 0)


def test_of_a_large_dataset_only_the_rows_that_are_used_are_read():
    class Dataset:
        def __init__(self):
            self.read = []

        def __len__(self):
            return 1_000_000

        def __getitem__(self, row):
            self.read.append(row)
            return {"prompt": f"What is {row} + 1?", "answer": str(row + 1)}

    dataset = Dataset()
    audit(contains_gold, rows=dataset, cases=REPORTED, limit=4)
    assert sorted(set(dataset.read)) == [0, 250_000, 500_000, 750_000]
    stream = ({"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in itertools.count())
    assert {f.gold for f in audit(contains_gold, rows=stream, cases=REPORTED, limit=2).findings} == {"1", "2"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["number", "math", "choice", "exact"])
def test_the_cases_are_written_in_the_form_that_the_reward_reads(kind, form):
    result = audit(rewards.answer_reward(kind, form=form))
    assert result.form == form
    assert (result.exploits, result.refusals) == ((), ())
    assert ('safer: form="boxed"' in str(result)) is (form in ("auto", "prose"))


def test_a_reward_that_reads_another_form_than_it_says_is_found():
    reward = rewards.answer_reward()
    reward.form = "boxed"
    right = [f for f in audit(reward).findings if f.case.family == "honest" and f.band == PAYS]
    assert all(r"\boxed{" in f.completion for f in right)


COMPOSED = {
    "clipped": lambda reward: rewards.clipped(reward),
    "cached": lambda reward: rewards.cached(reward),
    "guarded": lambda reward: rewards.guarded(reward),
    "a gate": lambda reward: rewards.gated(by=reward, reward=rewards.thinking_reward(PROMPT_OPENS)),
}


@pytest.mark.parametrize("compose", COMPOSED.values(), ids=COMPOSED)
def test_a_composition_is_audited_as_its_members_say(compose):
    member = rewards.answer_reward("choice", form="boxed", tokens=PROMPT_OPENS)
    whole = compose(member)
    assert (whole.form, whole.kind, whole.tokens.prompt_opens) == ("boxed", "choice", True)
    result = audit(whole, cases=REPORTED)
    assert (result.form, {f.gold for f in result.findings}) == ("boxed", {"A", "C"})
    assert result.full > result.floor


def test_a_reward_that_is_always_0_is_told_apart_from_one_without_exploits_and_none_judges_nothing():
    result = audit(lambda completions, **kwargs: [0.0] * len(completions))
    unfilled = ("{gold", "{th", "{wrong", "{close", "{value")
    assert not [f.case for f in result.findings if any(name in f.completion for name in unfilled)]
    assert "no more than one with nothing in it" in result.headline
    assert (result.share("refusal"), result.group_std) == (1.0, 0)
    assert "every advantage is 0" in str(result)
    silent = audit(lambda completions, **kwargs: [None] * len(completions), cases=REPORTED)
    assert "judged nothing" in silent.headline
    assert not silent.exploits


def test_a_reward_that_raises_is_reported_by_case_and_not_by_a_crash():
    def fragile(completions, answer, **kwargs):
        return [1 / len(completion[0]["content"]) for completion in completions]

    result = audit(fragile, cases=REPORTED)
    assert {f.case.name for f in result.errors} >= {"empty"}
    assert "ZeroDivisionError" in result.headline
    with pytest.raises(rewards.AuditFailed, match="raised on"):
        result.raise_for(exploits=None)


def test_chance_and_batch_order_are_noticed_and_plain_text_and_async_rewards_can_be_audited():
    calls = itertools.count()

    def chance(completions, **kwargs):
        return [float(next(calls))] * len(completions)

    async def rank(completions, **kwargs):
        return [float(i) for i in range(len(completions))]

    def plain(completions, answer, **kwargs):
        return [float(text.strip().endswith(gold)) for text, gold in zip(completions, answer, strict=True)]

    results = [audit(reward, cases=REPORTED) for reward in (chance, rank, plain)]
    assert not any(result.errors for result in results)
    assert [result.deterministic for result in results] == [False, True, True]
    assert [result.order_free for result in results][1:] == [False, True]


def test_the_result_is_shown_as_text_and_as_markdown(of_copied_rule):
    for shown in (str(of_copied_rule), of_copied_rule._repr_markdown_()):
        assert "filler thought" in shown
        assert "time per 1,000" in shown
        assert "{gold}" not in shown
    hostile = Case("x", "<script>", "{gold}{end}", NOTHING, NOTHING, "<b>")
    report = audit(contains_gold, cases=[hostile])
    assert "<script" not in report.to_markdown()
    assert "&lt;script" in report.to_markdown()
    tagged = audit(rewards.answer_reward(form="<answer>"), cases=[hostile])
    assert "| form of the answer | &lt;answer&gt; |" in tagged.to_markdown()


def test_bands_are_shares_of_what_an_honest_completion_earns():
    assert [PAYS.holds(share) for share in (0.49, 0.5)] == [False, True]
    assert [NOTHING.holds(share) for share in (0.49, 0.5)] == [True, False]
    assert CONTESTED.holds(-9)

    def reward(completions, answer, **kwargs):
        texts = [completion[0]["content"] for completion in completions]
        right = [gold in text.split("</think>")[-1] for text, gold in zip(texts, answer, strict=True)]
        return [1.0 if yes else 0.1 * bool(text.strip()) for yes, text in zip(right, texts, strict=True)]

    tenth = Case("mine", "", "{think}{wrong}{end}", rewards.Band(0.05, 0.2), CONTESTED, "a tenth for trying")
    assert [f.verdict for f in audit(reward, cases=[tenth]).findings] == ["ok"] * len(QUESTIONS["number"])


def test_a_real_tokenizer_gives_the_same_verdicts():
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.model = tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, [])
    tokenizer.add_tokens(["<think>", "</think>"])
    reward = rewards.answer_reward(tokens=ThinkTokens.from_tokenizer(tokenizer), tokenizer=tokenizer)
    families = ("honest", "typed boundary", "many boundaries", "only in the thought", "look-alike")
    cases = [case for case in CASES if case.family in families]
    audit(reward, tokenizer, cases).raise_for(exploits=0, refusals=0.02)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"aim": "style"}, "no aim 'style'"),
        ({"rows": []}, "no rows"),
        ({"rows": [{"prompt": "?"}]}, "gold answer in column 'answer'"),
    ],
)
def test_an_audit_that_cannot_be_made_says_why(kwargs, says):
    with pytest.raises(ValueError, match=says):
        audit(contains_gold, **kwargs)
