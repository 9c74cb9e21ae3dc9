"""Write the parts of docs/ that come from the code: cards, settings, symptoms, errors, rooms and public names.

    python scripts/docs.py            write them
    python scripts/docs.py --check    only say which pages differ; exit status 1 where one does

For contributors; `make docs` calls it before mkdocs.  A page keeps its own prose.  What lies between the two marks

    <!-- python scripts/docs.py: NAME -->
    <!-- end -->

is replaced by what the function of that name in :data:`BLOCKS` returns.  This script builds no site.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import itertools
import json
import math
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rloo_kit.watch.log import Log

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
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
"""Settings whose defaults RLOO and GRPO are compared by."""

FROM_GRPO = ("loss_type", "scale_rewards", "kl_in_reward", "max_prompt_length", "unsloth_num_chunks")
"""What GRPO notebooks set most, of what has another name here or none."""


# --- cards ------------------------------------------------------------------------------------------------


def card_table() -> str:
    """What fits which card, with the rule that the table follows."""
    from rloo_kit.memory import cards

    return cards.table()


# --- settings ---------------------------------------------------------------------------------------------


def defaults(config_class: type) -> dict[str, object]:
    """Field name -> default, of a dataclass whose every field has one."""
    return {
        item.name: item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
        for item in dataclasses.fields(config_class)
    }


def trls(config_class: type) -> type:
    """TRL's own class behind the kit's: on a GPU unsloth's generated one stands between them."""
    return next(base for base in config_class.__mro__ if base.__module__.startswith("trl."))


def settings() -> str:
    """Every setting that the docstring explains, TRL's first; then the other defaults that are not TRL's."""
    from rloo_kit import RLOOConfig

    ours, theirs = defaults(RLOOConfig), defaults(trls(RLOOConfig))
    said = reference.in_docstring(RLOOConfig, documented)
    default = {
        name: shown(value) + (f" (TRL: {shown(theirs[name])})" if theirs.get(name, value) != value else "")
        for name, value in ours.items()
    }
    table = markdown_table(
        ("setting", "default", "meaning"), [(f"`{name}`", default[name], text) for name, text in said.items()]
    )
    others = [f"`{name}` {text}" for name, text in default.items() if name not in said and "(TRL" in text]
    return f"{table}\n\nOther defaults that differ from TRL's: {', '.join(others)}."


def own_settings() -> str:
    """The fields that ``RLOOConfig`` adds to TRL's, with the text of its docstring."""
    from rloo_kit import RLOOConfig
    from rloo_kit.train.own import NAMES

    said = dict(documented(inspect.getdoc(RLOOConfig) or ""))
    ours = defaults(RLOOConfig)
    rows = [(f"`{name}`", shown(ours[name]), said[name][:1].upper() + said[name][1:]) for name in NAMES]
    return markdown_table(("setting", "default", "meaning"), rows)


def documented(docstring: str) -> Iterator[tuple[str, str]]:
    """The ``name: text`` entries of a docstring's indented sections, each text in one line of Markdown."""
    for found in re.finditer(r"^ {4}(\w+): (.*(?:\n {5,}\S.*)*)", docstring, re.MULTILINE):
        yield found[1], plain(found[2])


def trl_settings() -> str:
    """TRL's arguments that matter most, with the kit's default."""
    from rloo_kit import RLOOConfig
    from rloo_kit.train.described import TEN

    ours = defaults(RLOOConfig)
    rows = [(f"`{name}`", shown(ours[name]), text) for name, text in TEN.items()]
    return markdown_table(("setting", "default", "meaning"), rows)


def changed_defaults() -> str:
    """Where ``RLOOConfig()`` differs from TRL's config as it is without unsloth."""
    from rloo_kit import RLOOConfig

    ours, theirs = defaults(RLOOConfig), defaults(trls(RLOOConfig))
    rows = [
        (f"`{name}`", shown(ours[name]), shown(value))
        for name, value in theirs.items()
        if ours[name] != value
    ]
    return markdown_table(("setting", "rloo-kit", "TRL"), rows)


def old_names() -> str:
    """Arguments of older recipes that have another name today."""
    from rloo_kit.train import renamed_args

    today: dict[str, list[str]] = {}
    for old, new in {**renamed_args.CONFIG_OLD, **renamed_args.TRAINER_OLD}.items():
        today.setdefault(new, []).append(f"`{old}`")
    return "\n".join(f"- `{new}`: {', '.join(old)}" for new, old in today.items())


def grpo_names() -> str:
    """What the fields of TRL's ``GRPOConfig`` that notebooks set most are here, without what is refused."""
    from rloo_kit.train import renamed_args

    rows = [(name, grpo_row(renamed_args.FIELDS[name])) for name in FROM_GRPO]
    taken = [(f"`{name}`", re.sub(r"(?<=`); others are refused.*", "", said)) for name, said in rows]
    return markdown_table(("GRPO's", "here"), taken)


def grpo_row(row: Any) -> str:
    """A row of the mapping in words: what each value becomes, and what becomes of any other."""
    by_settings: dict[str, list[str]] = {}
    for value, ours in row.becomes.items():
        written = ", ".join(f"`{name}={one!r}`" for name, one in ours.items())
        by_settings.setdefault(written, []).append(f"`{value!r}`")
    said = [f"{' or '.join(values)}: {written}" for written, values in by_settings.items()]
    if row.nothing:
        said.append(f"{' or '.join(f'`{value!r}`' for value in row.nothing)}: changes nothing")
    other = f"left out with a warning: {row.left_out}" if row.left_out else f"refused: {row.todo}"
    return "; ".join([*said, plain(f"others are {other}")])


# --- symptoms and errors ----------------------------------------------------------------------------------

MADE_UP: dict[str, list[dict[str, float]]] = {
    "non-finite figures": [{"step": 1, "reward": math.inf, "grad_norm": 1.0}],
}
"""Logs that have a symptom of which no run is recorded under tests/data/health or simulated in foreign_logs.py."""


def symptoms() -> str:
    """Every symptom: what its rule looks for, and what it says of a run that has it."""
    from rloo_kit.watch.symptoms import SYMPTOMS

    return "\n".join(section for name, rule in SYMPTOMS.items() for section in symptom(name, rule)).rstrip()


def simulated_log(name: str) -> Log:
    """A log that has a symptom of which no run is recorded."""
    import foreign_logs

    from rloo_kit.watch.log import Known, Log, rounds

    simulated = (foreign_logs.run(kind, seed=0) for kind in foreign_logs.SICK.values() if name in kind.named)
    entries = rounds(MADE_UP[name] if name in MADE_UP else next(simulated))
    return Log(entries, Known.guessed(entries))


def ill_log(name: str) -> tuple[Log, str]:
    """A log that has a symptom, and where it is from: a recorded run, else a made-up one."""
    import health_runs

    file = health_runs.file_of(f"{name}.ill")
    if not file.exists():
        return simulated_log(name), "a made-up log"
    return health_runs.read(file), f"[a recorded run](../{file.relative_to(ROOT)})"


def first_sign(rule: Callable[..., object], log: Log) -> Any:
    """What the rule says when it first sees its symptom."""
    signs = (rule(log.first(end)) for end in range(1, len(log) + 1))
    return next(sign for sign in signs if sign is not None)


OF_ONE_RUN = {
    "thought_then_answer(answer_reward)": "the reward for right answers",
    "characters down by 27": "`A` down",
    "characters": "`A`",
    "right_answer": "`B`",
    "of_another_column": "the reward",
    "format_reward": "`A`",
    "accuracy_reward": "`B`",
    "usual norm, 0.9": "usual norm",
}
"""What the run that a symptom is shown on has of its own -> what stands for it in the short table."""


def symptoms_in_short() -> str:
    """Every symptom in a row: its likely cause, and what to change first alone, without a run's own figures."""
    from rloo_kit.watch.symptoms import SYMPTOMS

    rows = []
    for name, rule in SYMPTOMS.items():
        sign = first_sign(rule, ill_log(name)[0])
        cause = reference.shortened(plain(re.sub(r": \S+ -?\d.*", "", sign.cause)))
        change = plain(re.sub(r" \(now [^)]*\)|; .*", "", sign.change))
        rows.append((name, of_any_run(cause), of_any_run(f"`{sign.setting}`, {change}")))
    return markdown_table(("symptom", "likely cause", "change first"), rows)


def of_any_run(text: str) -> str:
    """The text with placeholders for what only one run has."""
    for own, placeholder in OF_ONE_RUN.items():
        text = text.replace(own, placeholder)
    return text


def rloo_beside_grpo() -> str:
    """The defaults of the kit's RLOO, TRL's RLOO and TRL's GRPO."""
    from rloo_kit import RLOOConfig

    columns = [defaults(RLOOConfig), defaults(trls(RLOOConfig))]
    from trl import GRPOConfig  # unsloth, which the kit imports, comes first

    columns.append(defaults(trls(GRPOConfig)))
    rows = [(f"`{name}`", *(shown(of[name]) if name in of else "-" for of in columns)) for name in BESIDE]
    return markdown_table(("setting", "rloo-kit", "TRL's RLOO", "TRL's GRPO"), rows)


def symptom(name: str, rule: Callable[..., object]) -> list[str]:
    """One symptom's section."""
    log, source = ill_log(name)
    sign, function = first_sign(rule, log), rule.func if isinstance(rule, partial) else rule
    return [
        f"### {name}",
        "",
        plain((inspect.getdoc(function) or "").split("\n\n")[0]),
        "",
        f"- In {source}: {plain(sign.evidence)}.",
        f"- Likely cause: {plain(sign.cause)}.",
        f"- Change first: `{sign.setting}`, {plain(sign.change)}.",
        "",
    ]


def errors() -> str:
    """The errors that the kit and the rewards raise on purpose."""
    import rewards
    from rewards import errors as reward_errors
    from rloo_kit import errors as kit_errors

    classes = [
        (module.__name__, item)
        for module in (kit_errors, reward_errors)
        for item in vars(module).values()
        if isinstance(item, type) and item.__module__ == module.__name__
    ]
    classes.append(("rewards", rewards.AuditFailed))
    rows = [
        (f"`{module}.{item.__name__}`", ", ".join(f"`{base}`" for base in builtins_of(item)), summary(item))
        for module, item in classes
    ]
    return markdown_table(("error", "is also a", "raised for"), rows)


def builtins_of(error: type) -> list[str]:
    """The built-in errors that ``except`` may name for this one, nearest first, without the general ones."""
    bases = [base.__name__ for base in error.__mro__ if base.__module__ == "builtins"]
    return [name for name in bases if name not in ("Exception", "BaseException", "object", "OSError")]


# --- architecture and public names ------------------------------------------------------------------------


def floors() -> list[list[str]]:
    """The rooms of ``rloo_kit`` from the top floor to the ground, as import-linter keeps them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[room.strip() for room in layer.split("|")] for layer in layers]


def rooms() -> str:
    """The floors as a picture in text."""
    width = max(len(room) for floor in floors() for room in floor) + 2
    most = max(len(floor) for floor in floors())
    rule = "+" + "-" * (4 + width * most) + "+"
    lines = [rule]
    for number, floor in zip(range(len(floors()) - 1, -1, -1), floors(), strict=True):
        names = "".join(f"{room:<{width}}" for room in floor)
        lines += [f"| {number}  {names:<{width * most}}|", rule]
    return "\n".join(["```text", *lines, "```"])


def kit_names() -> str:
    """The public names of ``rloo_kit``, of which ``tasks`` is a room with names of its own."""
    import rloo_kit

    return names_table(rloo_kit, [name for name in rloo_kit.__all__ if name != "tasks"])


def task_names() -> str:
    """The public names of ``rloo_kit.tasks``."""
    from rloo_kit import tasks

    return names_table(tasks, tasks.__all__)


def reward_names() -> str:
    """The public names of ``rewards``."""
    import rewards

    return names_table(rewards, rewards.__all__)


def names_table(package: ModuleType, names: Sequence[str]) -> str:
    """Names with their signature and the first sentence of their docstring."""
    lines = []
    for name in names:
        file = source_of(home_of(package, name))
        says = plain(first_sentence(docstring_of(ROOT / file, name)))
        lines.append(reference.name_line(name, getattr(package, name), f"../{file}", says))
    return "\n".join(lines)


def home_of(package: ModuleType, name: str) -> str:
    """The module that defines a public name: classes and functions know theirs, a constant's is looked for."""
    value = getattr(package, name)
    if isinstance(value, type | FunctionType):
        return value.__module__
    for file in sorted(Path(package.__path__[0]).rglob("*.py")):
        if re.search(rf"^{name}\b.*? = ", file.read_text(), re.MULTILINE):
            return ".".join(file.relative_to(ROOT).with_suffix("").parts)
    raise LookupError(f"{package.__name__} defines no {name}")


def source_of(module: str) -> str:
    """A module's file, from the root."""
    file = Path(*module.split("."))
    return str(file / "__init__.py" if (ROOT / file).is_dir() else file.with_suffix(".py"))


def docstring_of(file: Path, name: str) -> str:
    """The docstring of a class, function or constant at the top of a module.

    A constant's follows it as a string; without one, the comment above it is taken.
    """
    text = file.read_text()
    body = ast.parse(text).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if name in [target.id for target in targets if isinstance(target, ast.Name)]:
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                return inspect.cleandoc(str(after.value.value))
            above = itertools.takewhile(
                lambda line: line.startswith("#"), text.splitlines()[node.lineno - 2 :: -1]
            )
            return " ".join(line.lstrip("#: ") for line in reversed(list(above)))
    raise LookupError(f"{file} defines no {name}")


# --- Markdown ---------------------------------------------------------------------------------------------


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar inside a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def plain(text: str) -> str:
    """Text of a docstring or message as one line of Markdown, without Sphinx's roles."""
    text = re.sub(r":\w+:`~?([^`<]+?)(?: <[^`]*>)?`", r"`\1`", " ".join(text.split()))
    text = text.replace("``", "`")
    pieces = text.split("`")
    outside = [
        re.sub(r"([<*])", r"\\\1", piece) for piece in pieces[::2]
    ]  # what Markdown would take for markup
    return "`".join(piece for pair in zip(outside, [*pieces[1::2], ""], strict=True) for piece in pair)[:-1]


def first_sentence(text: str) -> str:
    """Up to the first full stop at the end of a word, in the first paragraph."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[\w)`\]]\.) ", paragraph)[0]


def summary(item: type) -> str:
    """The first sentence of a class's docstring, without its full stop."""
    return plain(first_sentence(inspect.getdoc(item) or "")).rstrip(".")


def shown(value: object) -> str:
    """A default as a user writes it."""
    text = (
        f"{value:g}"
        if isinstance(value, float)
        else json.dumps(value)
        if isinstance(value, str)
        else repr(value)
    )
    return f"`{text}`"


# --- pages ------------------------------------------------------------------------------------------------

BLOCKS: dict[str, Callable[[], str]] = {
    "cards": card_table,
    "settings": settings,
    "old names": old_names,
    "names of grpo": grpo_names,
    "symptoms in short": symptoms_in_short,
    "rloo beside grpo": rloo_beside_grpo,
    "layers": lambda: reference.layers(floors()),
    "files": reference.files,
    "names of the kit": kit_names,
    "names of tasks": task_names,
    "names of rewards": reward_names,
}


def generated(page: str) -> str:
    """A page with every block written anew."""
    return MARKS.sub(lambda found: f"{found[1]}\n{BLOCKS[found['name']]()}\n\n{found[3]}", page)


def stale() -> dict[Path, str]:
    """The pages that differ from what the code gives, and the signature that type checkers read: page -> new text."""
    from rloo_kit import RLOOConfig
    from rloo_kit.train import described

    pages = {page: generated(page.read_text()) for page in sorted([*DOCS.glob("*.md"), ROOT / "SKILL.md"])}
    pages[SIGNATURE] = described.source(RLOOConfig)
    return {page: text for page, text in pages.items() if not page.exists() or text != page.read_text()}


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    found = stale()
    for page, text in found.items():
        print(f"{page.relative_to(ROOT)} {'is out of date' if check else 'written'}")
        if not check:
            page.write_text(text)
    return int(check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
