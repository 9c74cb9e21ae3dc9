"""``RLOOConfig.suggested``: settings from the memory plan, lengths and measured runs, each with its reason."""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from datasets import Dataset, IterableDataset

from rloo_kit import data_checks
from rloo_kit.errors import ConfigError
from rloo_kit.memory.hardware import Device
from rloo_kit.memory.model_choice import FIT_COMPLETION_TOKENS
from rloo_kit.memory.plan import Plan, batch_sizes, first, plan
from rloo_kit.memory.plan_settings import Configured
from rloo_kit.memory.policy_tensors import Plannable
from rloo_kit.policy.policy import Policy
from rloo_kit.tasks import Task

Card = str | float | Device | None
Settings = Mapping[str, Any]

# Prompts per update, and the values of K to try, largest first.  Every measured run used 4 x 8.
PROMPTS, GROUPS = 4, (8, 4, 2)
THINKING_TOKENS, LEAST_TOKENS = 4096, 64  # in a completion with a thought but no budget; the fewest to try
GUESS = "a guess, not measured"


class Reason(NamedTuple):
    """A row of ``RLOOConfig.reasons``."""

    setting: str
    value: Any
    why: str

    def __str__(self) -> str:
        return f"{self.setting:<28} {self.value!s:<20} {self.why}"


class Evidence(NamedTuple):
    """The settings that a kind of policy was trained with, and where the results are."""

    settings: Settings
    completion_tokens: int
    source: str


CONSTANT = {"lr_scheduler_type": "constant", "warmup_steps": 0}
WARMED = {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.05}
ONCE = {"num_iterations": 1, "importance_sampling_level": None}
TWICE = {"num_iterations": 2, "importance_sampling_level": "token"}
TINY = {"learning_rate": 1e-3, "max_steps": 30, **CONSTANT, **TWICE}
SMALL = {"learning_rate": 3e-4, "max_steps": 20, **CONSTANT, **TWICE}
MEASURED = {
    "tiny": Evidence(TINY, 32, "measured: benchmarks/results/time_to_accuracy.md"),
    "small": Evidence(SMALL, 40, "measured: benchmarks/results/settings_words.md"),
}
"""From the bundled policy, and from SmolLM2-135M (32 bit, CPU) for all below 0.5 B parameters in 16 or 32 bit."""


def suggest(
    policy: Plannable, task: Task | Dataset | None, card: Card, given: Settings, named: Settings | None = None
) -> list[Reason]:
    """Return settings with a reason for each; lengths are measured only with a loaded policy and a task.  ``named`` has
    the thinking setting and the longest sequence of a policy that is only a name, if they are known."""
    if "num_train_epochs" in given:
        given = {"max_steps": -1, **given}  # a number of steps would override the epochs
    prompt_tokens, answer_tokens = _lengths(policy, task, given)
    settings: Any = SimpleNamespace(**{"single_pass": Configured.single_pass, "beta": 0.0, **given})
    base = plan(policy, settings, card, prompt_tokens=prompt_tokens)
    evidence, checkpoint = _evidence(base), base.model.checkpoint
    chosen = {**evidence.settings, **given}
    base = base.with_settings(num_iterations=chosen["num_iterations"])
    tokens, tokens_because = _completion(evidence, policy, answer_tokens, base, named or {})
    tokens = given.get("max_completion_length", tokens)
    plans = list(_smaller(base, given, tokens))
    if not plans:
        todo = "give batches that are multiples of num_generations"
        raise ConfigError("no batch of whole groups has these sizes", where=f"suggested({given})", todo=todo)
    if (fitting := first(plans, "fits") or first(plans, "tight")) is None:
        what, todo = f"no batch fits: {base.takes}", "load a smaller policy: rloo_kit.fit(card) names one"
        raise ConfigError(what, where=f"RLOOConfig.suggested({checkpoint.name})", todo=todo)
    sizes, place = fitting.settings, f"{fitting.device.name}: {fitting.takes}"
    fits = f"the largest that fits {place}"
    if sizes.max_completion_length != tokens:
        tokens_because = f"{tokens} would not fit"
    k_because = "as in the measured runs" if sizes.num_generations == GROUPS[0] else fits
    save, sampled = max(1, chosen["max_steps"] // 4) if chosen["max_steps"] > 0 else 0.25, "all at once"
    if sizes.batch_rows == sizes.num_generations:
        sampled = "a prompt's K at a time" + ", the faster by the plan's seconds" * bool(fitting.seconds)
    accumulation, prompts = sizes.gradient_accumulation_steps, sizes.update_rows // sizes.num_generations
    prompts_because = f"{prompts} prompts an update" + ", as in the measured runs" * (prompts == PROMPTS)
    rows = {
        "num_generations": (sizes.num_generations, k_because),
        "per_device_train_batch_size": (
            sizes.per_device_train_batch_size,
            fits if accumulation > 1 else f"all fit {place}",
        ),
        "gradient_accumulation_steps": (accumulation, prompts_because),
        "steps_per_generation": (sizes.steps_per_generation, f"completions are sampled {sampled}"),
        "max_completion_length": (sizes.max_completion_length, tokens_because),
        **{name: (value, evidence.source) for name, value in evidence.settings.items()},
        "beta": (0.0, "a function checks the answer; as in the measured runs"),
        "temperature": (checkpoint.temperature, GUESS if evidence.source == GUESS else "the checkpoint's"),
        "save_steps": (save, "four checkpoints a run"),
    } | {name: (value, "given") for name, value in given.items()}
    if given.get("eval_strategy") == "steps":  # otherwise unsloth prints that eval_steps is ignored
        rows.setdefault("eval_steps", (save, "as often as checkpoints"))
    if "generation_batch_size" in given:  # TRL takes only one of the two
        del rows["steps_per_generation"]
    return [Reason(name, *row) for name, row in rows.items()]


def _lengths(policy: Any, task: object, given: Settings) -> tuple[int | None, int]:
    """Count the tokens of the longest prompt, None if they cannot be counted, and of the longest answer; of a stream,
    its first row's."""
    if task is None or not isinstance(policy, Policy):
        return None, 0
    rows: Any = getattr(task, "train", task)
    if isinstance(rows, IterableDataset):
        rows = Dataset.from_list(list(rows.take(1)))
    data_checks.check_rows(rows, "RLOOConfig.suggested")
    _, prompts = data_checks.longest_prompts(rows)
    tokens = policy.tokenize(prompts, **given.get("chat_template_kwargs") or {})
    longest = max(map(str, rows["answer"]), key=len) if "answer" in rows.column_names else ""
    return max(map(len, tokens)), len(policy.tokenizer(longest)["input_ids"])


def _evidence(planned: Plan) -> Evidence:
    checkpoint, settings, whole = planned.model.checkpoint, planned.settings, planned.model.full_sizes
    if checkpoint.name in MEASURED:
        return MEASURED[checkpoint.name]
    billions = checkpoint.parameters / 1e9
    if billions < 0.5 and not (settings.four_bit or whole):
        return MEASURED["small"]
    rate = 1e-6 if whole else 5e-5 if billions < 3 else 1e-5
    return Evidence({"learning_rate": rate, "max_steps": 100, **WARMED, **ONCE}, 0, GUESS)


def _completion(evidence: Evidence, policy: Any, answer: int, base: Plan, named: Settings) -> tuple[int, str]:
    checkpoint, longest = base.model.checkpoint, named.get("max_seq_length") or base.model.checkpoint.positions
    thinking = named.get("thinking")
    if thinking is None:
        thinking = getattr(policy, "thinking", checkpoint.thinks != "never")
    work, why = (THINKING_TOKENS if thinking else FIT_COMPLETION_TOKENS), GUESS
    if evidence.completion_tokens:
        work, why = evidence.completion_tokens, evidence.source
    if thinking and thinking is not True:
        work = thinking + (evidence.completion_tokens or FIT_COMPLETION_TOKENS)
        why = "the thinking budget, and an answer in words"
    longest = getattr(getattr(policy, "model", policy), "max_seq_length", None) or longest
    if (room := longest - base.settings.prompt_tokens) < work + answer:
        return room, f"what the longest prompt leaves of {longest} tokens"
    answers = f"{answer} tokens for the longest answer, " if answer else ""
    return work + answer, f"{answers}{work} for the reasoning before it; {why}"


def _smaller(base: Plan, given: Settings, tokens: int) -> Iterator[Plan]:
    """Yield plans, largest first: smaller micro-batches, then a smaller K, then shorter completions."""
    micro, steps = given.get("per_device_train_batch_size"), given.get("gradient_accumulation_steps")
    halves = () if "max_completion_length" in given else (tokens >> n for n in range(1, tokens.bit_length()))
    batch, per_batch = given.get("generation_batch_size"), given.get("steps_per_generation")
    by_group = base.settings.on_gpu and base.settings.num_iterations == 1 and not (micro or steps or batch or per_batch)
    for length in (tokens, *(half for half in halves if half >= LEAST_TOKENS)):
        for k in (given["num_generations"],) if "num_generations" in given else GROUPS:
            rows = micro * steps if micro and steps else math.lcm(PROMPTS * k, micro or steps or 1)
            same = base.with_settings(num_generations=k, max_completion_length=length)
            sizes = [
                n for n in range(rows, 0, -1) if rows % n == 0 and n == (micro or n) and steps in (None, rows // n)
            ]
            at_once: Sequence[int] = (k, rows) if by_group else (batch or rows,)
            if per_batch and sizes:  # on policy if that many passes are at most one update
                at_once = [n * per_batch for n in sizes if n * per_batch <= rows] or [per_batch * sizes[-1]]
            choices = [same.with_settings(**batch_sizes(1, n, rows)) for n in at_once if n % k == 0]
            choices.sort(key=lambda one: sum(one.seconds.get("a step", ())))
            for n in (choice.settings.batch_rows for choice in choices):
                for size in sizes:
                    if n % size == 0 and per_batch in (None, n // size):
                        yield same.with_settings(**batch_sizes(size, n, rows))
