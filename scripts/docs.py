"""Write the parts of docs/ that come from the code: cards, settings, symptoms, files and public names.

    python scripts/docs.py            write them
    python scripts/docs.py --check    only say which pages differ; exit status 1 if any does

A page keeps its own prose.  The text between the two marks

    <!-- python scripts/docs.py: NAME -->
    <!-- end -->

is replaced by the result of the function of that name in :data:`BLOCKS`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

ROOT = Path(__file__).resolve().parent.parent
SIGNATURE = ROOT / "rloo_kit" / "train" / "signature.pyi"
sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "benchmarks")]

import reference  # noqa: E402

MARKS = re.compile(
    r"(<!-- python scripts/docs\.py: (?P<name>[a-z -]+) -->\n).*?(^<!-- end -->)", re.DOTALL | re.MULTILINE
)
BESIDE = (
    *("num_generations", "beta", "learning_rate", "max_completion_length", "temperature", "num_iterations"),
    *("epsilon", "loss_aggregation", "loss_type", "scale_rewards", "normalize_advantages", "kl_placement"),
    *("importance_sampling_level", "mask_truncated_completions", "per_device_train_batch_size"),
    *("gradient_accumulation_steps", "warmup_steps", "weight_decay", "gradient_checkpointing"),
)
"""Settings whose defaults are compared between RLOO and GRPO."""

FROM_GRPO = ("loss_type", "scale_rewards", "max_prompt_length", "unsloth_num_chunks")
"""The settings that GRPO notebooks use most among those with another name here, or none."""


def card_table() -> str:
    from rloo_kit.memory import model_choice

    return model_choice.table()


TONIGHT = {
    "8": ("RTX 3060 Ti", "RTX 4060"),
    "12": ("RTX 3060 12GB", "RTX 4070"),
    "16": ("RTX 4060 Ti 16GB", "RTX 4080"),
    "24": ("RTX 3090", "RTX 4090"),
}
"""Card size in GB with a file in configs/ -> two cards of that size."""


def tonight() -> str:
    from rloo_kit.cli.config import load_config
    from rloo_kit.cli.run import planned
    from rloo_kit.memory.duration import spelled

    sections = []
    for size, cards in TONIGHT.items():
        file, rows = f"configs/{size}gb.yaml", []
        for own in ([], ["policy.name=largest"]):
            config = load_config(ROOT / file, own)
            plans = [planned(config, card.lower()) for card in cards]
            s, shape = plans[0].settings, plans[0].model.checkpoint
            thinking = f"thinking {'on' if config.policy.get('thinking', True) else 'off'}"
            row = [
                f"{shape.name}, {'cannot think' if shape.thinks == 'never' else thinking}",
                f"{s.update_rows // s.num_generations} x {s.num_generations}",
                f"{s.prompt_tokens} + {s.max_completion_length}",
                f"{s.max_steps}; {(config.evaluate or {}).get('n')} problems, twice",
                f"{plans[0].peak_bytes / 2**30:.1f} GiB, {plans[0].fits}",
            ]
            rows.append([*row, *(spelled(plan.seconds["in all"]) for plan in plans)])
        head = ("policy", "prompts x K", "tokens", "steps; evaluated", "memory", *cards)
        sections.append(
            f"### {' or '.join(cards)} ({size} GB): what to run tonight\n\n{markdown_table(head, rows)}\n\n"
            f"`rloo-kit train {file}`; for the second `--set policy.name=largest "
            f"--set trainer.output_dir=out/{size}gb/largest/run --set save=out/{size}gb/largest/adapter`."
        )
    return "\n\n".join(sections)


# --- settings ---------------------------------------------------------------------------------------------


def defaults(config_class: type) -> dict[str, object]:
    return {
        item.name: item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
        for item in dataclasses.fields(config_class)
    }


def trls(config_class: type) -> type:
    """Return TRL's own base of a config class: on a GPU unsloth's generated class stands between them."""
    return next(base for base in config_class.__mro__ if base.__module__.startswith("trl."))


def settings() -> str:
    from rloo_kit import RLOOConfig

    ours, theirs = defaults(RLOOConfig), defaults(trls(RLOOConfig))
    said = reference.in_docstring(RLOOConfig, plain)
    default = {
        name: shown(value) + (f" (TRL: {shown(theirs[name])})" if theirs.get(name, value) != value else "")
        for name, value in ours.items()
    }
    rows = [(f"`{name}`", default[name], text) for name, text in said.items()]
    table = markdown_table(("setting", "default", "meaning"), rows)
    others = [f"`{name}` {text}" for name, text in default.items() if name not in said and "(TRL" in text]
    return f"{table}\n\nOther defaults that differ from TRL's: {', '.join(others)}."


def grpo_names() -> str:
    """Return the kit's names for the ``GRPOConfig`` fields of TRL that notebooks set most, without refused values."""
    from rloo_kit.train import renamed_args

    rows = []
    for name in FROM_GRPO:
        by_settings: dict[str, list[str]] = {}
        for value, ours in renamed_args.GRPO.get(name, {}).items():
            written = ", ".join(f"`{key}={one!r}`" for key, one in ours.items())
            by_settings.setdefault(written, []).append(f"`{value!r}`")
        said = "; ".join(f"{' or '.join(values)}: {written}" for written, values in by_settings.items())
        rows.append((f"`{name}`", said or plain(f"left out with a warning: {renamed_args.LEFT_OUT[name]}")))
    return markdown_table(("GRPO's", "here"), rows)


def rloo_beside_grpo() -> str:
    from rloo_kit import RLOOConfig

    columns = [defaults(RLOOConfig), defaults(trls(RLOOConfig))]
    from trl import GRPOConfig  # after the kit, which imports unsloth first

    columns.append(defaults(trls(GRPOConfig)))
    rows = [(f"`{name}`", *(shown(of[name]) if name in of else "-" for of in columns)) for name in BESIDE]
    return markdown_table(("setting", "rloo-kit", "TRL's RLOO", "TRL's GRPO"), rows)


# --- symptoms ---------------------------------------------------------------------------------------------

PLACEHOLDERS = {"functions": "the reward", "height": "hard", "answer": "the reward for right answers"}
PLACEHOLDERS |= {"large": "`A`", "small": "`B`", "setting": "temperature", "change": "to 1"}
"""Placeholder in a symptom's text -> what replaces it where there is no run."""


def symptoms_in_short() -> str:
    data = tomllib.loads((ROOT / "rloo_kit" / "watch" / "symptoms.toml").read_text())
    rows = []
    for name, symptom in data.items():
        cause, setting, change = (in_general(symptom[key]) for key in ("cause", "setting", "change"))
        rows.append((name, reference.shortened(cause), f"`{setting}`, " + re.sub("; .*", "", change)))
    return markdown_table(("symptom", "likely cause", "change first"), rows)


def in_general(text: str) -> str:
    """Return a symptom's text without words from a run; a setting's current value is left out."""
    return plain(re.sub(r"(?:: reward | by )?\{(\w+)\}", lambda word: PLACEHOLDERS.get(word[1], ""), text))


# --- public names ---------------------------------------------------------------------------------------


def names_list(package: str) -> str:
    found = __import__(package, fromlist=["__all__"])
    lines = []
    for name in (name for name in found.__all__ if name != "tasks"):  # tasks has its own list
        module, said = home_of(found, name)
        file = Path(*module.split("."))
        file = file / "__init__.py" if (ROOT / file).is_dir() else file.with_suffix(".py")
        says = plain(first_sentence(said))
        lines.append(reference.name_line(name, getattr(found, name), f"../{file}", says))
    return "\n".join(lines)


def home_of(package: ModuleType, name: str) -> tuple[str, str]:
    """Return the module that defines a public name, and its docstring; a constant's may be the comment above it."""
    value = getattr(package, name)
    if isinstance(value, type | FunctionType):
        return value.__module__, inspect.getdoc(value) or ""
    constant = rf'((?:^#.*\n)*)^{name}\b.*? = .*(?:(?:\n.+)*?\n"""([^"]*))?'
    for file in sorted(Path(package.__path__[0]).rglob("*.py")):
        if match := re.search(constant, file.read_text(), re.MULTILINE):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            return module, match[2] or re.sub(r"^#:? ?", "", match[1], flags=re.MULTILINE)
    raise LookupError(f"{package.__name__} defines no {name}")


# --- Markdown ---------------------------------------------------------------------------------------------


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def plain(text: str) -> str:
    """Return a docstring or message as one line of Markdown, without Sphinx's roles."""
    text = re.sub(r":\w+:`~?([^`<]+?)(?: <[^`]*>)?`", r"`\1`", " ".join(text.split()))
    pieces = text.replace("``", "`").split("`")
    pieces[::2] = [re.sub(r"([<*])", r"\\\1", piece) for piece in pieces[::2]]  # escaped, else they are markup
    return "`".join(pieces)


def first_sentence(text: str) -> str:
    """Return the first paragraph up to the first full stop that ends a word."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[\w)`\]]\.) ", paragraph)[0]


def shown(value: object) -> str:
    text = json.dumps(value) if isinstance(value, str) else repr(value)
    return f"`{value:g}`" if isinstance(value, float) else f"`{text}`"


BLOCKS: dict[str, Callable[[], str]] = {
    "cards": card_table,
    "tonight": tonight,
    "settings": settings,
    "names of grpo": grpo_names,
    "symptoms in short": symptoms_in_short,
    "rloo beside grpo": rloo_beside_grpo,
    "files": reference.files,
    "names of the kit": partial(names_list, "rloo_kit"),
    "names of tasks": partial(names_list, "rloo_kit.tasks"),
    "names of rewards": partial(names_list, "rewards"),
}


SIGNATURE_HEAD = '''"""The arguments of ``RLOOConfig``, for type checkers and editors.

Written by ``python scripts/docs.py`` from train/config.py: not to be edited.
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


def signature_source() -> str:
    """Return the text of ``signature.pyi``, with lines broken as the formatter breaks them."""
    from rloo_kit import RLOOConfig
    from rloo_kit.train import config

    lines = []
    for one in inspect.signature(RLOOConfig).parameters.values():
        value = one.default
        default = json.dumps(value) if isinstance(value, str) else repr(value)
        simple = value is None or isinstance(value, str | int | float)
        may_be_function = one.name in ("advantage_estimator", "on_unhealthy")
        hint = "str | Callable[..., Any]" if may_be_function else written_type(config.types()[one.name])
        line = f"        {one.name}: {hint} = {default if simple else '...'},"
        if len(line) > 110:
            line = line.replace("[", f"[\n{' ' * 12}").replace("]", f"\n{' ' * 8}]")
        lines.append(line)
    lines.insert(1, "        *,")
    return SIGNATURE_HEAD + "\n".join(lines) + "\n    ) -> None: ...\n"


def written_type(hint: Any) -> str:
    """Return a type as Python source that needs no import: an enum becomes ``str``, a class that is no builtin ``Any``.

    >>> written_type(Annotated[int, "at least 1"] | None), written_type(list[str] | Literal["a"]), written_type(Path)
    ('int | None', 'list[str] | Literal["a"]', 'Any')
    """
    origin: Any = get_origin(hint)
    if origin is Annotated:
        return written_type(get_args(hint)[0])
    if origin in (Union, UnionType):
        return " | ".join(sorted(dict.fromkeys(map(written_type, get_args(hint))), key="None".__eq__))
    if origin is Literal:
        choices = (json.dumps(one) if isinstance(one, str) else repr(one) for one in get_args(hint))
        return f"Literal[{', '.join(choices)}]"
    if origin in (list, dict, tuple):
        return f"{origin.__name__}[{', '.join(map(written_type, get_args(hint)))}]"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "str"
    if hint is type(None):
        return "None"
    return hint.__name__ if getattr(hint, "__module__", "") == "builtins" else "Any"


def stale() -> dict[Path, str]:
    """Return page -> new text for each page, and the signature for type checkers, that differs from the code."""
    texts = {page: page.read_text() for page in sorted([*(ROOT / "docs").glob("*.md"), ROOT / "SKILL.md"])}
    written = {
        page: MARKS.sub(lambda found: f"{found[1]}\n{BLOCKS[found['name']]()}\n\n{found[3]}", text)
        for page, text in texts.items()
    }
    written[SIGNATURE] = signature_source()
    return {page: text for page, text in written.items() if not page.exists() or text != page.read_text()}


def main() -> int:
    with contextlib.redirect_stdout(None):  # suggested settings print their reasons
        found = stale()
    for page, text in found.items():
        print(f"{page.relative_to(ROOT)} is out of date")
        if "--check" not in sys.argv:
            page.write_text(text)
    return int("--check" in sys.argv and bool(found))


if __name__ == "__main__":
    sys.exit(main())
