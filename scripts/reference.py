"""List the code for docs/: every file by its first sentence, public names by signature, settings by docstring.

scripts/docs.py puts these texts between a page's marks.  All of it is read from docstrings, signatures and dataclass
fields, so this file has no list of files, names or settings.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("rloo_kit", "rewards")
LONG = 7
"""Words beyond which a sentence is cut at a colon; two words more, at a comma; four words more, at ", and"."""
EXPLAINED = 20
"""Words that a page shows of a setting's meaning, in whole sentences; ``help`` shows all of it."""
MANY = 7
"""The most fields of a dataclass that are shown."""


# --- files ------------------------------------------------------------------------------------------------


def files() -> str:
    lines = []
    for folder in folders():
        found = sorted(file for file in folder.glob("*.py") if not file.stem.startswith("__"))
        lines += ["", f"{folder.relative_to(ROOT)}/"]
        lines += [f"  {file.stem:<23} {opening(file)}" for file in found]
    return "\n".join(["```text", *lines[1:], "```"])


def folders() -> Iterator[Path]:
    for name in PACKAGES:
        yield from sorted(file.parent for file in (ROOT / name).rglob("__init__.py"))


def opening(file: Path) -> str:
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    text = " ".join(docstring.split("\n\n")[0].split())
    text = re.sub(r"(?::\w+:)?`+~?\.?([^`<]+?)(?: <[^`]*>)?`+", r"\1", text)
    return shortened(re.split(r"(?<!et al)(?<=[\w)`\]])\.(?: |$)", text)[0])


def shortened(sentence: str) -> str:
    """Return a long sentence up to its first colon or semicolon; if it is still long, up to a comma."""
    marks = (("[:;] ", LONG, 3), (", (?!or |and )", LONG + 2, 4), (", and ", LONG + 4, 6))
    for mark, longest, least in marks:
        heads = (sentence[: found.start()] for found in re.finditer(mark, sentence))
        whole = (head for head in heads if len(head.split()) >= least and is_balanced(head))
        if len(sentence.split()) > longest:
            sentence = next(whole, sentence)
    return sentence.rstrip(".")


def is_balanced(text: str) -> bool:
    pairs = all(text.count(left) == text.count(right) for left, right in ("()", "[]"))
    return pairs and text.count('"') % 2 == 0


# --- public names -----------------------------------------------------------------------------------------


def name_line(name: str, value: object, link: str, says: str) -> str:
    methods = ", ".join(f"`{one}`" for one in own_methods(value))
    return f"- [`{name}{signature(value)}`]({link}): {shortened(says)}" + (f"; {methods}" if methods else "")


def signature(value: object) -> str:
    if not callable(value) or is_error(value):
        return ""
    parameters = list(inspect.signature(value).parameters.values())
    said = [written(one) for one in parameters]
    if dataclasses.is_dataclass(value) and len(said) > MANY:
        return f"({', '.join(said[:MANY])}, ...)"
    named = [number for number, one in enumerate(parameters) if one.kind is one.KEYWORD_ONLY]
    if named and not any(one.kind is one.VAR_POSITIONAL for one in parameters):
        said.insert(named[0], "*")
    return f"({', '.join(said)})"


def written(parameter: inspect.Parameter) -> str:
    """Return a parameter with its default, or with dots for a default that is long or no plain value."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    star = next((star for kind, star in stars.items() if kind is parameter.kind), "")
    if parameter.default is parameter.empty:
        return star + parameter.name
    default = repr(parameter.default).replace("'", '"')
    return f"{parameter.name}={default if len(default) <= 20 and '<' not in default else '...'}"


def own_methods(value: object) -> list[str]:
    if not isinstance(value, type) or is_error(value):
        return []
    inherited = {name for base in value.__mro__[1:] for name in vars(base)}
    methods = (FunctionType, classmethod, staticmethod)
    own = (name for name, one in vars(value).items() if isinstance(one, methods))
    return [name for name in own if not name.startswith("_") and name not in inherited]


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


# --- settings ---------------------------------------------------------------------------------------------


def explained(text: str) -> str:
    """Return as many whole sentences as fit into :data:`EXPLAINED` words, and at least the first."""
    text = re.sub(r"; see `rloo_kit\.[\w.]+`", "", text[:1].upper() + text[1:])
    sentences = re.split(r"(?<!Dr)\. (?=[A-Z\"])", text.rstrip("."))
    said = sentences[0]
    for sentence in sentences[1:]:
        enough = len(f"{said} {sentence}".split()) > EXPLAINED and len(said.split()) > 2
        if enough and not sentence.startswith("None"):
            break
        said = f"{said}. {sentence}"
    return said


def in_docstring(config: type, plain: Callable[[str], str]) -> dict[str, str]:
    """Return field -> meaning for the fields that a configuration's docstring explains, not those it only lists."""
    fields = {one.name for one in dataclasses.fields(config)}
    docstring = (inspect.getdoc(config) or "").partition("The rest of TRL's")[0]
    ours, _, theirs = docstring.partition("TRL's that matter most")
    entries = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}\S.*)*)", re.MULTILINE)
    found = [*entries.findall(theirs), *entries.findall(ours)]
    return {name: explained(plain(text)) for name, text in found if name in fields}
