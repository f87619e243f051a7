"""The pages of docs are short and begin with a program; each code block is run by a test; links exist."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.support.pages import DOCS, ROOT, Block, blocks, pages, words

WORDS_MAX = 1200
LONG_PAGES = {
    "reference.md": "made from the docstrings",
    "benchmarks/results.md": "made by `make bench ARGS=--publish`",
    "track-record.md": "a list that grows, as the changelog",
}
# Pages for contributors, and lists, need no program at the beginning.
WITHOUT_PROGRAM = re.compile(
    r"internals/|benchmarks|safety\.md|failovers\.md|reference\.md|track-record\.md|[\w/]+-permissions\.md"
)
# Pictures of text, output of programs, and diagrams, which the build of the site draws.
NO_PROGRAMS = {"text", "mermaid"}
# A reader copies the first program of a page, so a program on memory:// says that it excludes no other process.
ON_MEMORY = re.compile(r"""(?:Client|lifespan)\(["']memory://["']\)""")
ON_MEMORY_COMMENT = "# memory:// excludes only callers of this process: use your store's URL"
ABOUT_MEMORY = {"backends/memory.md", "guarantees.md", "reference.md"}  # these explain it
TESTED_TOGETHER = {
    "pycon": "reference.md",
    "console": "cli",
}  # by test_reference.py and tests/integration/cli/test_docs.py

LINKED = [*sorted(f"../{page.name}" for page in ROOT.glob("*.md")), *pages()]


def guide_examples(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python" and not (block.run_by or block.not_run)]


@pytest.fixture
def restored_signals() -> Iterator[None]:
    """A page shows `exit_on(SIGTERM)`, which must not change the test run."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("restored_signals")
@pytest.mark.parametrize("guide", [page for page in pages() if guide_examples(page)])
def test_the_examples_of_a_guide_run(guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite://{tmp_path}/default.db")
    monkeypatch.setenv("DASHBOARD_TOKEN", "a-token-of-this-test")
    namespace: dict[str, Any] = {"__name__": guide}

    for block in guide_examples(guide):
        # Each guide has its own store, because another guide may leave a lock that is kept for its min_hold.
        code = block.code.replace('"memory://"', f'"memory://{guide}"')
        code = code.replace("sqlite:///var/lib/app/", f"sqlite://{tmp_path}/")
        exec(compile("\n" * block.line + code, f"docs/{guide}", "exec"), namespace)  # noqa: S102  (the examples are ours)

    if isinstance(namespace.get("client"), holdfast.Client):
        namespace["client"].close()
    holdfast.default_client().close()


@pytest.mark.parametrize("page", [page for page in pages() if page != "reference.md"])  # test_reference.py runs it
def test_every_code_block_is_run_by_a_test(page: str) -> None:
    unknown = []
    for block in blocks(page):
        together = TESTED_TOGETHER.get(block.language)
        if block.run_by:
            assert (ROOT / block.run_by).is_file(), block.location
        elif not (
            block.not_run
            or block.language in {"python", *NO_PROGRAMS}
            or (together and block.page.startswith(together))
        ):
            unknown.append(block.location)

    assert unknown == [], "no test runs these: see tests/support/pages.py"


@pytest.mark.parametrize("page", [page for page in pages() if page not in ABOUT_MEMORY])
def test_the_first_program_of_a_page_says_that_memory_excludes_no_other_process(page: str) -> None:
    programs = [block.code for block in blocks(page) if block.language == "python"]

    for code in programs[:1]:
        assert len(ON_MEMORY.findall(code)) == 0 or ON_MEMORY_COMMENT in code


@pytest.mark.parametrize("page", pages())
def test_a_page_is_short(page: str) -> None:
    if page in LONG_PAGES:
        assert words(page) > WORDS_MAX, "it needs no exemption any more"
    else:
        assert words(page) <= WORDS_MAX


@pytest.mark.parametrize("page", [page for page in pages() if not WITHOUT_PROGRAM.match(page)])
def test_a_page_begins_with_a_program(page: str) -> None:
    before_sections = (DOCS / page).read_text().partition("\n## ")[0].count("\n") + 1
    programs = [block.line for block in blocks(page) if block.language not in NO_PROGRAMS and not block.not_run]

    assert programs
    assert programs[0] <= before_sections


@pytest.mark.parametrize("page", pages())
def test_a_link_to_a_page_names_the_page_and_not_its_file(page: str) -> None:
    assert re.findall(r"\[(?:docs/[^]]*|[a-z0-9/-]+\.md)\]\(", (DOCS / page).read_text()) == []


@pytest.mark.parametrize("page", LINKED)
def test_the_links_of_a_page_exist(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#\s]+)", (DOCS / page).read_text())

    assert [target for target in targets if not (DOCS / page).parent.joinpath(target).exists()] == []
