"""The results of scenarios, one file for each: the parts of the JSON of `holdfast verify` that the page shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from packages.lab.scenarios.scenario import Scenario

FOLDER = Path(__file__).parent / "results"
_VIOLATIONS_MAX = 20
_KEPT = ("seed", "guarantees", "grants", "losses", "server_faults", "seconds", "load")


class Result(NamedTuple):
    """One run of a scenario."""

    name: str
    begun: str  # UTC
    data: Mapping[str, Any]

    def violated(self, scenario: Scenario) -> tuple[list[str], list[str]]:
        """The promises that are broken, and those that are broken within a limit that the store declares."""
        broken: list[str] = []
        limited: list[str] = []
        for row in self.data["promises"]:
            if row["status"] in ("broken", "documented"):
                promise = row["promise"]
                declared = (self.data["guarantees"] or {}).get(promise)
                is_limited = declared in ("best-effort", "cache") or promise in scenario.limits
                (limited if is_limited or row["status"] == "documented" else broken).append(promise)
        return broken, limited

    def count(self, promise: str) -> int:
        """The number of violations of a promise."""
        return next(int(row["broken"]) for row in self.data["promises"] if row["promise"] == promise)

    def recoveries(self) -> dict[str, list[float | None]]:
        """Seconds of each fault, by its name; None: it took too long."""
        names = dict.fromkeys(fault["name"] for fault in self.data["faults"])
        return {name: [fault["recovered"] for fault in self.data["faults"] if fault["name"] == name] for name in names}

    def text(self, scenario: Scenario) -> str:
        """One line for the progress."""
        broken, limited = self.violated(scenario)
        known = [each for times in self.recoveries().values() for each in times if each is not None]
        parts = [f"{self.data['grants']:,} leases", f"{len(self.data['faults'])} faults"]
        parts += [f"{promise} broken" for promise in broken]
        parts += [f"{promise} broken as declared" for promise in limited]
        if known:
            parts.append(f"recovery {median(known):.2f} s (median)")
        return ", ".join(parts)

    def problem(self, scenario: Scenario) -> str:
        """The reason why this is not the result that the scenario has to have, or ""."""
        broken, limited = self.violated(scenario)
        missed = [promise for promise in scenario.must_break if promise not in (*broken, *limited)]
        if missed:
            return f"found no violation of {', '.join(missed)}, which this scenario breaks"
        unexpected = [] if scenario.must_break else broken
        return f"broken although declared: {', '.join(unexpected)}" if unexpected else ""


def store(result: Result) -> None:
    data = result.data
    kept = {
        "begun": result.begun,
        **{name: data[name] for name in _KEPT},
        "promises": [{field: row[field] for field in ("promise", "status", "broken")} for row in data["promises"]],
        "faults": [{field: fault[field] for field in ("name", "recovered")} for fault in data["faults"]],
        "violations": [each for each in data["violations"] if each["status"] == "broken"][:_VIOLATIONS_MAX],
    }
    FOLDER.mkdir(exist_ok=True)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in kept.items())
    (FOLDER / f"{result.name}.json").write_text(f"{{\n{lines}\n}}\n")


def stored() -> dict[str, Result]:
    """All stored results by name."""
    results = {}
    for path in sorted(FOLDER.glob("*.json")):
        data = json.loads(path.read_text())
        results[path.stem] = Result(path.stem, data.pop("begun"), data)
    return results
