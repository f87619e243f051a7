"""The statements of docs/backends that give a user the permissions of a backend: tests run what the docs show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_PAGES = Path(__file__).parents[2] / "docs" / "backends"
_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def statements(page: str, heading: str, replaced: Mapping[str, str] | None = None) -> list[str]:
    """The lines of the first code block under this heading in the section Permissions, with some words replaced."""
    _, _, section = (_PAGES / f"{page}.md").read_text().partition("\n## Permissions\n")
    section = section.partition("\n## ")[0]
    _, _, part = section.partition(f"\n### {heading}\n")
    block = _BLOCK.search(part.partition("\n### ")[0])
    assert block is not None, f"docs/backends/{page}.md has no statements under Permissions, {heading}"
    text = block[1]
    for word, other in (replaced or {}).items():
        assert word in text, f"the statements of {page}, {heading} do not contain {word!r}"
        text = text.replace(word, other)
    return text.splitlines()
