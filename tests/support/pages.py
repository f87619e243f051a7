"""The pages of docs and their code blocks, as the structure tests and the tests that run the blocks see them.

A block that no common test runs has a comment on the line before it:

    <!-- run by tests/integration/test_airflow.py -->     that test runs it, or compares it with a program that it runs
    <!-- not run: it needs an account of a cloud -->      the reason
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^ *```", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!-- (?P<how>run by|not run:) (?P<what>[^>]+) -->\n\Z")
# Written by `make readme` and `python tests/sim/test_docs.py`.
_TABLES = re.compile(r"<!-- (\w+): .*?<!-- /\1 -->", re.DOTALL)
_HELP = re.compile(
    r"```console\n\$ holdfast(?: \w+)? --help\n.*?```|```console\n\$ holdfast backends\n.*?```", re.DOTALL
)


class Block(NamedTuple):
    """A code block of a page."""

    page: str  # relative to docs
    line: int
    language: str
    code: str
    run_by: str  # the path of a test, or ""
    not_run: str  # the reason, or ""

    @property
    def location(self) -> str:
        return f"docs/{self.page}:{self.line}"


def pages() -> list[str]:
    """All pages, relative to docs."""
    return sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def blocks(page: str) -> Iterator[Block]:
    text = (DOCS / page).read_text()
    for match in _FENCE.finditer(text):
        comment = _COMMENT.search(text, 0, match.start())
        run_by = comment["what"] if comment and comment["how"] == "run by" else ""
        not_run = comment["what"] if comment and comment["how"] == "not run:" else ""
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page, line, match["language"], match["code"], run_by, not_run)


def words(page: str) -> int:
    """The words of a page, code included, without generated tables and helps of commands."""
    return len(_HELP.sub("", _TABLES.sub("", (DOCS / page).read_text())).split())
