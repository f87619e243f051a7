"""A metadata hook of hatchling: the long description is README.md with absolute links.

A package index shows the text without the repository, so a relative link leads nowhere there. Links lead to the tag of
this version, so that they show the state that was released.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# A target without a scheme that is no anchor. Code is matched first, because text in code is never a link.
LINK = re.compile(
    r"^```.*?^```|`[^`\n]+`|(?P<image>!?)(?P<text>\[[^\]]*\])\((?![a-z]+:|#)(?P<path>[^)\s]+)\)",
    re.DOTALL | re.MULTILINE,
)


def with_absolute_links(text: str, repository: str, version: str) -> str:
    def replace(match: re.Match[str]) -> str:
        if match["path"] is None:
            return match[0]
        view = "raw" if match["image"] else "blob"
        return f"{match['image']}{match['text']}({repository}/{view}/v{version}/{match['path']})"

    return LINK.sub(replace, text)


class PypiReadme(MetadataHookInterface):
    """hatchling takes the one subclass in this file."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, metadata["urls"]["Repository"], metadata["version"]),
        }
