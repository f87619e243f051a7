"""Builds the documentation site with Zensical, or serves it: `python -m tools.build_site build build/site`, or `serve`.

Pages link to files outside of docs/ (an example, CONTRIBUTING.md). A code host shows these; a site has pages only.
So the site is built from a copy: the given folder gets mkdocs.yml, docs/ and a page for each such file, and the links
lead there. Diagrams become pictures. Everything else is copied as it is. The built pages are in its subfolder html/.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from html import escape
from pathlib import Path, PurePosixPath

from tools import sequence_diagram

ROOT = Path(__file__).parents[1]
CONFIG = "mkdocs.yml"
# The pages for files outside of docs/ and for folders. Any other file gets a page that shows it.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "docs/backends": "choosing-a-store.md",
}
LANGUAGES = {".py": "python", ".json": "json", ".yaml": "yaml", ".yml": "yaml"}
# Code is matched first, because text in code that looks like a link is not a link.
LINK = re.compile(
    r"(?P<code>^```.*?^```|`[^`\n]+`)|(?P<open>\]\()(?P<target>[^)#\s:]+)(?=[)#])", re.DOTALL | re.MULTILINE
)
DIAGRAM = re.compile(r"^```mermaid\n(?P<text>.*?)^```\n", re.DOTALL | re.MULTILINE)


class BrokenLink(ValueError):
    """A page links to a file that does not exist, or to a folder."""


def page_of(path: PurePosixPath) -> PurePosixPath:
    """Where a file of the repository is in the docs folder of the site."""
    if str(path) in PAGES:
        return PurePosixPath(PAGES[str(path)])
    return path.relative_to("docs") if path.parts[0] == "docs" else PurePosixPath(f"source/{path}.md")


def with_links_of_the_site(text: str, source: PurePosixPath, outside: set[PurePosixPath]) -> str:
    """The text of a page, with links for the site. Files outside of docs that it links to are added to `outside`."""

    def replace(match: re.Match[str]) -> str:
        if match["code"]:
            return match[0]
        target = PurePosixPath(os.path.normpath(source.parent / match["target"]))
        if str(target) not in PAGES and not (ROOT / target).is_file():
            raise BrokenLink(f"{source} links to {match['target']}, which is not a file")
        if str(target) not in PAGES and target.parts[0] != "docs":
            outside.add(target)
        return match["open"] + os.path.relpath(page_of(target), page_of(source).parent)

    return LINK.sub(replace, text)


def with_pictures(text: str, page: PurePosixPath, files: dict[PurePosixPath, bytes]) -> str:
    """The text of a page, with a picture for each diagram. The pictures are added to `files`."""
    numbers = itertools.count(1)

    def replace(match: re.Match[str]) -> str:
        picture = page.with_name(f"{page.stem}-{next(numbers)}.svg")
        files[picture] = sequence_diagram.draw(match["text"]).encode()
        steps = escape("; ".join(line.strip() for line in match["text"].splitlines()[1:]))
        return f"![Sequence diagram. {steps}]({picture.name})\n"

    return DIAGRAM.sub(replace, text)


def source_page(path: PurePosixPath) -> str:
    """A page that shows a file."""
    fence = "`" * 5
    language = LANGUAGES.get(path.suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n{fence}{language}\n{(ROOT / path).read_text()}{fence}\n"


def copy_sources(folder: Path) -> None:
    """Write the configuration and the pages of the site into a folder, changed files only."""
    files: dict[PurePosixPath, bytes] = {}
    outside: set[PurePosixPath] = set()
    sources = [PurePosixPath(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*") if path.is_file()]
    for source in [*sources, PurePosixPath("CHANGELOG.md"), PurePosixPath("CONTRIBUTING.md")]:
        content = (ROOT / source).read_bytes()
        if source.suffix == ".md":
            text = with_links_of_the_site(content.decode(), source, outside)
            content = with_pictures(text, page_of(source), files).encode()
        files[page_of(source)] = content
    for source in outside:
        files[page_of(source)] = source_page(source).encode()

    docs = folder / "docs"
    for path, content in [(folder / CONFIG, (ROOT / CONFIG).read_bytes())] + [
        (docs / page, content) for page, content in files.items()
    ]:
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for path in docs.rglob("*"):
        if path.is_file() and PurePosixPath(path.relative_to(docs)) not in files:
            path.unlink()


def zensical(*arguments: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "zensical", *arguments, "--config-file", str(folder / CONFIG)]


def build(folder: Path, *arguments: str) -> None:
    """Build the site. A broken link or anchor is an error."""
    copy_sources(folder)
    subprocess.run(zensical("build", "--clean", "--strict", *arguments, folder=folder), check=True)


def serve(folder: Path, *arguments: str) -> None:
    """Serve the site until Ctrl-C, and copy pages again when they change."""
    copy_sources(folder)
    with subprocess.Popen(zensical("serve", *arguments, folder=folder)) as server:
        try:
            while server.poll() is None:
                time.sleep(1)
                try:
                    copy_sources(folder)
                except BrokenLink as error:
                    sys.stderr.write(f"{error}\n")
        except KeyboardInterrupt:
            server.terminate()


if __name__ == "__main__":
    try:
        {"build": build, "serve": serve}[sys.argv[1]](Path(sys.argv[2]).resolve(), *sys.argv[3:])
    except (BrokenLink, subprocess.CalledProcessError) as error:
        sys.exit(f"holdfast: {error}")
