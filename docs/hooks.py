"""Hooks for mkdocs: let the site follow links that leave docs/, and add mkdocstrings' directives.

The pages are written for the repository, where ``../benchmarks/results/step.md`` is a file.  For the site each file
that a page links to is added under ``repository/``, and the links are rewritten.  A link to a folder becomes plain
text there.  Called by mkdocs alone (mkdocs.yml).
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = "repository/"
LINK = re.compile(r"(?P<text>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
NAME = re.compile(r"^- \[`(?P<name>\w+)[^`]*`\]\(\.\./(?P<file>[\w/]+)\.py\)", re.MULTILINE)
LIST = re.compile(r"(?:^- .*\n)+", re.MULTILINE)
ROLE = re.compile(r":(?:mod|class|func|meth|attr|data|exc):<code>~?")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what the pages link to outside docs/, and what those files link to."""
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        for found in LINK.finditer((ROOT / page).read_text()):
            target = from_root(page, found["target"])
            if target in seen or target.startswith("docs/") or not (ROOT / target).is_file():
                continue
            seen.add(target)
            files.append(File.generated(config, OUTSIDE + target, abs_src_path=str(ROOT / target)))
            if target.endswith(".md"):
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links, and put below each list of public names the directives for their full docstrings."""
    uri = page.file.src_uri
    here = uri.removeprefix(OUTSIDE) if uri.startswith(OUTSIDE) else f"docs/{uri}"

    def rewritten(found: re.Match[str]) -> str:
        target = from_root(here, found["target"])
        if (ROOT / target).is_dir():
            return found["text"][1:-1]
        if not (ROOT / target).is_file():
            return found[0]
        in_site = target.removeprefix("docs/") if target.startswith("docs/") else OUTSIDE + target
        relative = posixpath.relpath(in_site, posixpath.dirname(uri) or ".")
        return f"{found['text']}({relative}{found['anchor'] or ''})"

    if uri == "api.md":
        markdown = LIST.sub(lambda names: names[0] + directives(names[0]), markdown)
    return LINK.sub(rewritten, markdown)


def directives(names: str) -> str:
    """mkdocstrings' directives for the names of a list."""
    return "".join(f"\n::: {row['file'].replace('/', '.')}.{row['name']}\n" for row in NAME.finditer(names))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Take Sphinx's roles off the docstrings' references."""
    return ROLE.sub("<code>", html)


def from_root(page: str, target: str) -> str:
    """A relative link of a page, as a path from the root."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
