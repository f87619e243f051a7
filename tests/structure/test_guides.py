"""The examples of the guides run, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("guide", ["election.md", "locked.md"])
def test_the_examples_of_a_guide_run(guide: str) -> None:
    examples = re.findall(r"```python\n(.*?)```", (DOCS / guide).read_text(), re.DOTALL)
    assert examples
    names: dict[str, Any] = {"__name__": guide}

    for example in examples:
        exec(compile(example, guide, "exec"), names)  # noqa: S102  (that is the point)

    names["client"].close()
