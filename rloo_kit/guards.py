"""Refuse, in words and before GPU time is spent, what TRL takes in silence or answers in riddles.

For the trainer; nothing here is called by users.  Each check is a function of what it checks, raises one of
``rloo_kit.errors`` with culprit and mend, and changes nothing.  What a reward function returns is checked by
``rewards.guarded``.  What stock TRL under unsloth makes of the same inputs: benchmarks/results/bad_inputs.md.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from rloo_kit import advantages, losses, tasks
from rloo_kit.errors import ConfigError, DatasetError, RewardError


def _refuse(what: str, where: str, todo: str) -> None:
    raise ConfigError(what, where=f"RLOOConfig({where})", todo=todo)


NUMBERS = ("beta", "temperature", "top_p", "learning_rate", "epsilon")
COUNTS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_iterations",
    "max_completion_length",
)


def check_config(args: Any, processes: int = 1) -> None:
    """Check the numbers of a config, each alone and against each other.

    Args:
        args: anything with the attributes of TRL's ``RLOOConfig``.
        processes: of the run; each has its own batch.

    Raises:
        ConfigError: the first number that is wrong.
    """
    for name in NUMBERS:
        value = getattr(args, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            _refuse(f"{name} must be a number", f"{name}={value!r}", f"write {name}=0.5, without quotes")
    for name in COUNTS:
        value = getattr(args, name)
        if not isinstance(value, int) or value < 1:
            _refuse(
                f"{name} must be a whole number from 1 up", f"{name}={value!r}", f"set {name} to 1 or more"
            )
    _check_ranges(args)
    _check_choices(args)
    _check_best(args)
    _check_batch(args, processes)


def _check_ranges(args: Any) -> None:
    k = args.num_generations
    if not isinstance(k, int) or k < 2:
        _refuse(
            "the leave-one-out baseline needs at least 2 completions per prompt",
            f"num_generations={k}",
            "set num_generations to 2 or more; 4 to 8 is usual",
        )
    if not (math.isfinite(args.beta) and args.beta >= 0):
        _refuse(
            "beta weighs a penalty and must be a number from 0 up",
            f"beta={args.beta}",
            "0.05 is the default; 0 switches the KL term off",
        )
    if not (math.isfinite(args.temperature) and args.temperature > 0):
        _refuse(
            "temperature must be above 0: greedy completions of one prompt are all equal, so no advantage is left",
            f"temperature={args.temperature}",
            "set temperature=1.0",
        )
    if not 0 < args.top_p <= 1:
        _refuse("top_p must lie in (0, 1]", f"top_p={args.top_p}", "1.0 restricts nothing")
    if not (math.isfinite(args.learning_rate) and args.learning_rate >= 0):
        _refuse(
            "learning_rate must be a number from 0 up", f"learning_rate={args.learning_rate}", "1e-5 is usual"
        )
    _check_clipping(args)


def _check_clipping(args: Any) -> None:
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    if not (0 < args.epsilon < 1 and high > 0 and math.isfinite(high)):
        _refuse(
            "the ratio is clipped to [1 - epsilon, 1 + epsilon_high], and that range is empty or open",
            f"epsilon={args.epsilon}, epsilon_high={args.epsilon_high}",
            "0.2 for both is usual; 0.28 for epsilon_high is DAPO's",
        )
    clip = args.reward_clip_range
    if clip is not None and (len(clip) != 2 or not clip[0] < clip[1]):
        _refuse(
            "the range that rewards are clipped to is inverted or empty, so every reward would be the same",
            f"reward_clip_range={clip}",
            "give (low, high) with low < high, or None",
        )
    limit = getattr(args, "reward_limit", 1e6)  # TRL's own config has none
    if not limit > 0:
        _refuse("reward_limit must be positive", f"reward_limit={limit}", "1e6 is the default")


def _check_choices(args: Any) -> None:
    """The kit's own settings, of which a plain TRL config has none."""
    choices = {
        "advantage_estimator": tuple(advantages.ESTIMATORS),
        "kl_placement": ("reward", "loss"),
        "kl_estimator": tuple(advantages.KL_ESTIMATORS),
        "loss_aggregation": losses.AGGREGATIONS,
        "prompt_sampling": ("uniform", "informative"),
        "skip_dead_groups": (None, True, False),
    }
    for name, allowed in choices.items():
        value = getattr(args, name, allowed[0])
        if value not in allowed:
            _refuse(
                f"{name} is none of {', '.join(map(str, allowed))}",
                f"{name}={value!r}",
                f"{name}={nearest[0]!r}?"
                if (nearest := difflib.get_close_matches(str(value), map(str, allowed), n=1))
                else f"{allowed[0]!r} is the default",
            )
    if getattr(args, "prompt_sampling", "uniform") == "informative" and not getattr(
        args, "shuffle_dataset", True
    ):
        _refuse(
            "informative prompts are drawn at random, and the order of the dataset was asked for",
            "prompt_sampling='informative', shuffle_dataset=False",
            "leave one of the two out",
        )


def _check_best(args: Any) -> None:
    """Answers: transformers takes the lowest loss for the best checkpoint, and RLOO's reads about 0 in every run."""
    asked = getattr(args, "load_best_model_at_end", False) or getattr(args, "save_strategy", "") == "best"
    if asked and getattr(args, "metric_for_best_model", None) in ("loss", "eval_loss"):
        _refuse(
            "the best checkpoint would be chosen by the loss, which in RLOO says nothing: it reads about 0",
            f"metric_for_best_model={args.metric_for_best_model!r}",
            "metric_for_best_model='eval_reward', greater_is_better=True",
        )


def _check_batch(args: Any, processes: int) -> None:
    """The completions of a generation batch must be whole groups; unsloth would change the batch instead."""
    per_step = args.per_device_train_batch_size * processes
    steps = args.steps_per_generation or args.gradient_accumulation_steps
    size, k = args.generation_batch_size or per_step * steps, args.num_generations
    if size % k:
        fitting = sorted({max(k, size // k * k), (size // k + 1) * k})
        _refuse(
            f"a generation batch of {size} completions does not divide into groups of {k}",
            f"per_device_train_batch_size={args.per_device_train_batch_size}, processes={processes}, "
            f"steps_per_generation={steps}, num_generations={k}",
            f"make batch x accumulation a multiple of {k}: {' or '.join(map(str, fitting))}",
        )


CUT = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
"""Settings that change what is sampled, at the values that change nothing."""


def doubts(args: Any) -> list[str]:
    """What a config may ask for and hardly means, a sentence or two each, for whoever took it to warn of."""
    found = []
    in_loss = getattr(args, "kl_placement", "reward") == "loss"
    if args.beta and in_loss and getattr(args, "kl_estimator", None) == "k1":
        found.append(
            "kl_estimator='k1' in the loss holds nothing back: its expected gradient is 0. Use 'k2' or 'k3', or "
            "kl_placement='reward'."
        )
    grpo = getattr(args, "advantage_estimator", "rloo") == "grpo"
    if args.beta and grpo and not in_loss and not getattr(args, "skip_dead_groups", False):
        found.append(
            "advantage_estimator='grpo' divides by each group's spread, which in a group of equal rewards is that "
            "of the KL term alone: noise becomes a full-size advantage. Set kl_placement='loss', as GRPO has it, or "
            "skip_dead_groups=True."
        )
    # TRL samples from the policy as these cut it, and takes log-probabilities of all of it.
    asked = {name: getattr(args, name, none) for name, none in CUT.items()}
    cut = [f"{name}={value}" for name, value in asked.items() if value not in (CUT[name], None)]
    if cut:
        found.append(
            f"{', '.join(cut)}: completions are sampled from another distribution than the one that is trained, so the "
            "gradient is slightly biased, and so are ratio and KL. Leave it out while training; for sampling "
            "afterwards, policy.generate takes it."
        )
    return found


def check_dataset(dataset: Any, args: Any, tokenizer: Any, name: str = "train_dataset") -> None:
    """Check that a dataset has prompts, that none is empty, and that it fills one generation batch.

    Args:
        dataset: a ``datasets.Dataset`` or ``IterableDataset``; of the latter only the first row is seen.
        args: the config.
        tokenizer: asked whether it can render conversations.
        name: the argument's name, for messages.

    Raises:
        DatasetError: with the row that is at fault.
    """
    _check_kind(dataset, name)
    columns = dataset.column_names
    if columns is not None and {"image", "images"} & set(columns):
        raise DatasetError(
            "the dataset has images, and rloo_kit trains text policies",
            where=f"{name}, whose columns are {sorted(columns)}",
            todo="drop the column with dataset.remove_columns, or train with trl.RLOOTrainer",
        )
    if columns is not None and "prompt" not in columns:
        raise DatasetError(
            "the dataset has no column 'prompt'",
            where=f"{name}, whose columns are {sorted(columns)}",
            todo=f"rename the column that holds the prompts: dataset.rename_column({_likeliest(columns)}, 'prompt')",
        )
    sized = hasattr(dataset, "__len__")
    needed = args.generation_batch_size // args.num_generations
    if sized and name == "train_dataset" and len(dataset) < needed:
        raise DatasetError(
            f"one generation batch takes {needed} prompts and the dataset has {len(dataset)}, so no step would run",
            where=name,
            todo="give more prompts (rows may repeat), or a smaller batch or accumulation",
        )
    prompts: Iterable[Any] = dataset["prompt"] if sized else (row["prompt"] for row in dataset.take(1))
    for index, prompt in enumerate(prompts):
        _check_prompt(prompt, index, tokenizer, name)


def _check_kind(dataset: Any, name: str) -> None:
    columns = getattr(dataset, "column_names", dataset)
    if columns is not None and not (isinstance(columns, list) and hasattr(dataset, "column_names")):
        refuse_dataset(dataset, name, where="RLOOTrainer")


def refuse_dataset(dataset: Any, name: str, where: str) -> NoReturn:
    """Say what to give instead of something that is no dataset."""
    todo = "datasets.Dataset.from_list(rows), each row a dict with a 'prompt'"
    if isinstance(dataset, tasks.Task):
        todo = f"pass task.{'train' if name == 'train_dataset' else 'held_out'}"
    elif hasattr(dataset, "column_names"):  # a DatasetDict
        todo = f"pass one of its splits: dataset[{next(iter(dataset), 'train')!r}]"
    elif hasattr(dataset, "iloc"):
        todo = "datasets.Dataset.from_pandas(frame)"
    raise DatasetError(
        f"{name} is a {type(dataset).__name__} and no datasets.Dataset", where=where, todo=todo
    )


USUAL = ("question", "problem", "instruction", "query", "messages", "input", "text")
"""Names under which prompts are published."""


def _likeliest(columns: Sequence[str]) -> str:
    return next((repr(column) for column in USUAL if column in columns), "its name")


def _check_prompt(prompt: Any, index: int, tokenizer: Any, name: str) -> None:
    where = f"{name}[{index}]['prompt'] = {str(prompt)[:60]!r}"
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
        text = "".join(str(message.get("content") or "") for message in prompt)
        if tokenizer is not None and getattr(tokenizer, "chat_template", None) is None:
            raise DatasetError(
                "the prompts are conversations and the tokenizer has no chat template",
                where=where,
                todo="use an instruct or chat checkpoint, or give plain strings as prompts",
            )
    elif isinstance(prompt, str):
        text = prompt
    else:
        raise DatasetError(
            "a prompt must be a string or a list of messages",
            where=where,
            todo="give text, or [{'role': 'user', 'content': text}]",
        )
    if not text.strip():
        raise DatasetError("a prompt is empty", where=where, todo="drop such rows with dataset.filter")


def longest_prompts(dataset: Any, count: int = 16) -> tuple[list[int], list[Any]]:
    """The prompts with the most characters, the candidates for the most tokens, and their rows."""
    prompts = dataset["prompt"] if hasattr(dataset, "__len__") else [r["prompt"] for r in dataset.take(1)]
    longest = sorted(enumerate(prompts), key=lambda pair: len(str(pair[1])), reverse=True)[:count]
    return [row for row, _ in longest], [prompt for _, prompt in longest]


def distinct(names: Sequence[str]) -> list[str]:
    """The same names, numbered from their second occurrence on.

    >>> distinct(["right", "short", "right"])
    ['right', 'short', 'right_2']
    """
    return [name if (n := names[: i + 1].count(name)) == 1 else f"{name}_{n}" for i, name in enumerate(names)]


def check_lengths(
    prompt_ids: Sequence[Sequence[int]],
    max_completion_length: int,
    max_seq_length: int | None,
    rows: Sequence[int] | None = None,
) -> None:
    """Check that prompt + completion fit, since unsloth cuts inside the forward pass and shapes break.

    Args:
        prompt_ids: token ids of each prompt.
        max_completion_length, max_seq_length: in tokens; a max_seq_length of None sets no limit.
        rows: where in the dataset the prompts stand; None where they are a generation batch.

    Raises:
        DatasetError: a prompt that is too long, with its tokens.
    """
    if max_seq_length is None:
        return
    index, longest = max(enumerate(map(len, prompt_ids)), key=lambda pair: pair[1])
    if longest + max_completion_length > max_seq_length:
        place = f"prompt {index} of the batch" if rows is None else f"train_dataset[{rows[index]}]"
        raise DatasetError(
            f"prompt + completion can reach {longest + max_completion_length} tokens, and the policy was loaded "
            f"for {max_seq_length}",
            where=f"{place} has {longest} tokens, max_completion_length is {max_completion_length}",
            todo=f"load_policy(max_seq_length={longest + max_completion_length}), a smaller "
            "max_completion_length, or drop the long prompts",
        )


def check_rewards(reward_funcs: Sequence[Any], reward_weights: Sequence[float] | None, where: str) -> None:
    """Check that there are rewards, and as many weights, all finite and not all zero.

    Args:
        reward_funcs, reward_weights: as the user gave them.
        where: the call that takes the weights, for the message: "RLOOConfig".

    Raises:
        RewardError: none, or weights that do not match them.
    """
    if not reward_funcs:
        raise RewardError(
            "there is no reward function, so every reward is 0 and nothing is learned",
            where="RLOOTrainer(reward_funcs=[])",
            todo="pass at least one: def reward(completions, **kwargs) -> list[float]",
        )
    if reward_weights is None:
        return
    if len(reward_weights) != len(reward_funcs):
        raise RewardError(
            f"there are {len(reward_weights)} reward_weights for {len(reward_funcs)} reward functions",
            where=f"{where}(reward_weights={list(reward_weights)})",
            todo="give one weight per function, in the same order",
        )
    if not all(map(math.isfinite, reward_weights)) or not any(reward_weights):
        raise RewardError(
            "reward_weights must be finite and not all 0",
            where=f"{where}(reward_weights={list(reward_weights)})",
            todo="1.0 each weighs all functions alike",
        )


def reward_columns(dataset: Any) -> list[str] | None:
    """The columns that rewards receive besides TRL's own keywords; None where the dataset does not tell."""
    columns = dataset.column_names
    if columns is None:
        columns = list(next(iter(itertools.islice(dataset, 1)), {})) or None
    return None if columns is None else [column for column in columns if column != "prompt"]
