"""Hazard: the page about other libraries shows a broken promise as held, or counts a documented limit as broken."""

from __future__ import annotations

from typing import Any

from benchmarks.safety.__main__ import LIBRARIES
from benchmarks.safety.page import Cell, page
from holdfast_lab.verify.adapter import load


def result(**statuses: str) -> dict[str, Any]:
    """A result of `holdfast verify --json` with these promises."""
    promises = [
        {"promise": promise, "status": status.replace("_", " "), "broken": int(status in {"broken", "documented"})}
        for promise, status in statuses.items()
    ]
    return {"grants": 10, "promises": promises, "not_exercised": {}}


def test_the_page_shows_broken_and_documented_promises_with_the_command_that_repeats_them() -> None:
    cells = [
        Cell("ours", "pause", result(exclusion="held", writes="held", scope="held"), "", "holdfast verify URL"),
        Cell("theirs", "pause", result(exclusion="documented", writes="broken", scope="broken"), "", "repeat it"),
        Cell("theirs", "kill", None, "not installed"),
    ]

    lines = page(cells, {"ours": "0.2.0", "theirs": None}, 12.0).splitlines()

    assert "| ours 0.2.0 | held | – |" in lines
    assert "| theirs | **writes**, (exclusion) | not installed |" in lines
    assert "- theirs, pause: writes (1), exclusion (1)  " in lines
    assert "  `repeat it`" in lines


def test_an_exclusion_that_is_declared_as_best_effort_counts_as_documented() -> None:
    broken = result(exclusion="broken", writes="held")

    assert Cell("theirs", "pause", broken | {"guarantees": None}).text == "**exclusion**"
    assert Cell("ours", "pause", broken | {"guarantees": {"exclusion": "best-effort"}}).text == "(exclusion)"


def test_a_run_without_a_grant_is_not_shown_as_held() -> None:
    cell = Cell("theirs", "pause", result(exclusion="not_exercised") | {"grants": 0})

    assert cell.text == "no lock was granted"


def test_every_library_has_an_adapter_with_valid_declarations() -> None:
    for library in LIBRARIES:
        if library.adapter:
            assert load(f"benchmarks.safety.adapters:{library.adapter}").__name__ == library.adapter
