"""The documentation site builds, its links and anchors exist, and its pages load nothing from other hosts."""

from __future__ import annotations

import importlib.util
import re
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from tools import build_site, sequence_diagram

DOCS = build_site.ROOT / "docs"
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)


class Page(HTMLParser):
    """The anchors of a page, its links, what a browser loads for it, and the classes of its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name == "class":
                self.classes.update((value or "").split())
            elif name == "src" or (name == "href" and tag == "link"):
                self.loaded.append(value or "")
            elif name == "href":
                self.links.append(value or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("zensical is not installed: it is in the dependency group dev")
    folder = tmp_path_factory.mktemp("site")
    build_site.build(folder)  # --strict: a link to a page or anchor that does not exist is an error
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}


def test_all_links_of_the_site_lead_to_a_page_and_an_anchor(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links + page.loaded:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if target.is_dir():
                target /= "index.html"
            exists = target.is_relative_to(site.resolve()) and target.is_file()
            if not exists or (url.fragment and target in pages and unquote(url.fragment) not in pages[target].anchors):
                broken.append(f"{path.relative_to(site)}: {link}")

    assert broken == []


def test_the_site_loads_nothing_from_other_hosts(site: Path, pages: dict[Path, Page]) -> None:
    missing = Page((site / "404.html").read_text())
    foreign = {url for page in [*pages.values(), missing] for url in page.loaded if urlsplit(url).netloc}
    # The script of the theme loads these from a CDN for a page that has such an element.
    loading = {"mermaid", "glightbox", "pyodide", "arithmatex"} & {
        name for page in pages.values() for name in page.classes
    }

    assert foreign == set()
    assert loading == set()


def test_styles_of_the_site_load_nothing_from_other_hosts(site: Path) -> None:
    styles = list(site.rglob("*.css"))

    assert styles
    assert [path for path in styles if re.search(r"url\(['\"]?(https?:)?//|@import", path.read_text())] == []


def test_a_file_outside_of_docs_has_a_page(site: Path) -> None:
    assert "orders_dag" in (site / "source/examples/airflow_orders/orders_dag.py/index.html").read_text()
    assert (site / "changelog/index.html").is_file()


def test_diagrams_are_pictures(site: Path) -> None:
    diagrams = (DOCS / "internals/calls.md").read_text().count("```mermaid")
    pictures = list((site / "internals").glob("calls-*.svg"))

    assert len(pictures) == diagrams > 0
    assert all(picture.read_text().startswith("<svg") for picture in pictures)
    assert "sequenceDiagram" not in (site / "internals/calls/index.html").read_text()


def test_a_diagram_shows_all_of_its_texts() -> None:
    picture = sequence_diagram.draw("""sequenceDiagram
        participant A as first <one>
        participant B
        loop until done
            A->>B: a request
            alt yes
                B-->>A: its reply
            else no
                B->>B: work
            end
        end
        Note over A,B: both
    """)

    assert re.findall(r"<text[^>]*>([^<]*)", picture) == [
        *("first &lt;one&gt;", "B", "loop until done", "a request", "alt yes", "its reply", "else no", "work", "both")
    ]


@pytest.mark.parametrize("line", ["A-xB: lost", "end", "activate A", "loop for ever"])
def test_a_line_that_cannot_be_drawn_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match=r"not understood|has no end"):
        sequence_diagram.draw(f"sequenceDiagram\nparticipant A\nparticipant B\n{line}")


def test_every_page_is_in_the_navigation_once() -> None:
    in_navigation = list(_pages_in(yaml.safe_load((build_site.ROOT / build_site.CONFIG).read_text())["nav"]))
    existing = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]

    assert sorted(in_navigation) == sorted([*existing, "changelog.md", "contributing.md"])


def _pages_in(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in _pages_in(part)]


def test_links_are_inline() -> None:
    """Zensical checks these; its check of references also reports text such as `[Unreleased]`."""
    texts = {path: CODE.sub("", path.read_text()) for path in DOCS.rglob("*.md")}

    assert [path for path, text in texts.items() if re.search(r"\]\[|^\[[^\]]+\]: ", text, re.MULTILINE)] == []


def test_a_link_to_a_missing_file_is_an_error() -> None:
    source = PurePosixPath("docs/index.md")

    with pytest.raises(build_site.BrokenLink, match=r"docs/index.md links to \.\./gone.py"):
        build_site.with_links_of_the_site("[gone](../gone.py)", source, set())

    assert build_site.with_links_of_the_site("`[gone](../gone.py)`", source, set()) == "`[gone](../gone.py)`"
