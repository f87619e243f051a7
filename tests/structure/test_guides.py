"""The examples of the guides run from top to bottom, and links exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import holdfast

DOCS = Path(__file__).parents[2] / "docs"


PAGES = [
    "../README.md",
    "../CONTRIBUTING.md",
    *sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")),
]
GUIDES = [
    "airflow.md",
    "asyncio.md",
    "celery.md",
    "choosing-a-store.md",
    "comparison.md",
    "deadlocks.md",
    "edge-cases.md",
    "election.md",
    "fastapi.md",
    "first-lock.md",
    "guarantees.md",
    "how-we-know.md",
    "index.md",
    "kubernetes.md",
    "leases.md",
    "lock-all.md",
    "locked.md",
    "losing-a-lock.md",
    "metrics.md",
    "once.md",
    "once-per.md",
    "options.md",
    "readers-writers-permits.md",
    "security.md",
    "troubleshooting.md",
    "verify.md",
]


@pytest.mark.parametrize("guide", GUIDES)
def test_the_examples_of_a_guide_run(guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite://{tmp_path}/default.db")
    examples = re.findall(r"```python\n(.*?)```", (DOCS / guide).read_text(), re.DOTALL)
    assert examples
    names: dict[str, Any] = {"__name__": guide}

    for example in examples:
        # With a store of its own: another guide may leave a lock that is kept for its min_hold.
        code = example.replace('"memory://"', f'"memory://{guide}"')
        exec(compile(code, guide, "exec"), names)  # noqa: S102  (the examples are ours)

    if "client" in names:
        names["client"].close()
    holdfast.default_client().close()


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_exist(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#\s]+)", (DOCS / page).read_text())

    assert [target for target in targets if not (DOCS / page).parent.joinpath(target).exists()] == []
