"""``RLOOConfig``'s fields as people and their editors see them: the kit's first, then TRL's that matter most, then the
rest, each with its type and default.

For ``help(RLOOConfig)``, for completion in a notebook, and for ``signature.pyi``, which is written from here for type
checkers.  Nothing here checks a value; :mod:`.fields` does.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import textwrap
import types
import typing
from typing import Annotated, Any, Literal, get_args, get_origin

from rloo_kit.train import fields
from rloo_kit.train.own import NAMES
from rloo_kit.values import Hint

TEN = {
    "num_generations": "K: completions sampled for each prompt. The baseline of each is the mean of the other K - 1.",
    "per_device_train_batch_size": "Completions in one forward and backward pass. Lower it first when memory is short.",
    "gradient_accumulation_steps": "Passes in one update. Batch x accumulation completions, a multiple of K, "
    "make an update.",
    "steps_per_generation": "Passes between two rounds of sampling; None takes `gradient_accumulation_steps`. "
    "A smaller number samples an update's completions in more rounds of fewer; for memory alone see "
    "`generation_rows`.",
    "max_completion_length": "Longest completion in tokens. What is cut cannot be right.",
    "learning_rate": "Of AdamW on the LoRA. The first setting to lower when a run goes wrong.",
    "beta": "Weight of the KL term that holds the policy near the reference; 0 switches it off, and saves a pass.",
    "temperature": "Of sampling. Below 1, a prompt's completions become alike and teach less; a small model "
    "says noise at 1, and `policy.checkpoint.temperature` has what suits it.",
    "max_steps": "Updates in the run; -1 trains `num_train_epochs` epochs instead.",
    "output_dir": "Log, checkpoints and picture of the run.",
}
"""The arguments of TRL's that matter most here, and what each does."""

WIDTH = 110
"""Of a line of code; pyproject.toml sets it."""

FUNCTIONS = ("advantage_estimator", "on_unhealthy")
"""Settings that are a name or a function."""


def in_order(config_class: type) -> list[dataclasses.Field[Any]]:
    """The fields that can be given: ``output_dir``, which is the first argument, the kit's own, the ten, the rest."""
    found = {item.name: item for item in dataclasses.fields(config_class) if item.init}
    first = ("output_dir", *NAMES, *TEN)
    return [found[name] for name in dict.fromkeys((*first, *found))]


def default(item: dataclasses.Field[Any]) -> Any:
    """A field's default as a user writes it."""
    value = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
    return value.value if isinstance(value, enum.Enum) else value


def annotation(name: str) -> str:
    """A field's type, in builtins, ``Any``, ``Literal`` and ``Callable``, so that nothing has to be imported for it."""
    return "str | Callable[..., Any]" if name in FUNCTIONS else written(fields.hints()[name])


def written(hint: Hint) -> str:
    """A type as Python source; a choice of an enumeration is text, what is no builtin is ``Any``.

    >>> written(Annotated[int, "at least 1"] | None), written(list[str] | Literal["a"]), written(inspect.Signature)
    ('int | None', 'list[str] | Literal["a"]', 'Any')
    """
    origin: Any = get_origin(hint)
    if origin is Annotated:
        return written(get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        parts = sorted(dict.fromkeys(map(written, get_args(hint))), key=lambda part: part == "None")
        return " | ".join(parts)
    if origin is Literal:
        return f"Literal[{', '.join(map(_literal, get_args(hint)))}]"
    if origin in (list, dict, tuple):
        return f"{origin.__name__}[{', '.join(map(written, get_args(hint)))}]"
    if hint is type(None):
        return "None"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "str"
    return hint.__name__ if getattr(hint, "__module__", "") == "builtins" else "Any"


def _literal(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def signature(config_class: type) -> inspect.Signature:
    """All arguments of a configuration, for ``inspect.signature`` and for what completes in a notebook."""
    kinds = inspect.Parameter
    return inspect.Signature(
        [
            kinds(
                item.name,
                kinds.POSITIONAL_OR_KEYWORD if item.name == "output_dir" else kinds.KEYWORD_ONLY,
                default=default(item),
                annotation=annotation(item.name),
            )
            for item in in_order(config_class)
        ]
    )


def docstring(config_class: type) -> str:
    """The class's own docstring, then the ten of TRL's, then the rest in a line each."""
    items = in_order(config_class)
    said, (before, raises, after) = [], str(config_class.__doc__).partition("    Raises:\n")
    said.append("    TRL's that matter most:")
    said += [
        textwrap.fill(f"{name}: {text}", 118, initial_indent=" " * 8, subsequent_indent=" " * 12)
        for name, text in TEN.items()
    ]
    said += ["", "    The rest of TRL's and transformers':"]
    rest = [item for item in items if item.name not in (*TEN, *NAMES)]
    said += [f"        {item.name}: {annotation(item.name)} = {default(item)!r}" for item in rest]
    return before + "\n".join(said) + "\n\n" + raises + after


def source(config_class: type) -> str:
    """The text of ``signature.pyi``."""
    lines = []
    for item in in_order(config_class):
        value = default(item)
        shown = json.dumps(value) if isinstance(value, str) else repr(value)
        simple = value is None or isinstance(value, str | int | float)
        lines.append(
            _wrapped(f"        {item.name}: {annotation(item.name)} = {shown if simple else '...'},")
        )
    lines.insert(1, "        *,")
    return HEAD + "\n".join(lines) + "\n    ) -> None: ...\n"


def _wrapped(line: str) -> str:
    """A line as the formatter breaks it, where its choices are too many for it."""
    return line if len(line) <= WIDTH else line.replace("[", f"[\n{' ' * 12}").replace("]", f"\n{' ' * 8}]")


HEAD = '''"""The arguments of ``RLOOConfig``, for type checkers and editors; nothing else reads it.

Written by ``python scripts/docs.py`` from :mod:`.described`: not to be edited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import trl

class Signature(trl.RLOOConfig):
    """What ``RLOOConfig(...)`` can be given; it takes the names of older TRL releases and GRPO's too."""

    def __init__(
        self,
'''
