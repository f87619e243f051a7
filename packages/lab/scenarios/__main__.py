"""`make failovers`: real failovers, restarts and migrations under `holdfast verify`, and docs/failovers.md from them.

Each scenario runs on servers of its own. Its result is stored in packages/lab/scenarios/results, and the page is made
from all stored results, so a scenario can be repeated alone.
"""

from __future__ import annotations

import argparse
import datetime as dt
import functools
import sys
from pathlib import Path

from packages.lab.scenarios import results
from packages.lab.scenarios.page import page
from packages.lab.scenarios.registry import SCENARIOS
from packages.lab.scenarios.runner import ROOT, Options, RunError, run

PAGE = ROOT / "docs" / "failovers.md"


def main(words: list[str] | None = None) -> int:
    """Return 1 if a scenario failed, broke a promise that its backend declares, or broke none that it has to break."""
    parser = argparse.ArgumentParser(prog="make failovers", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this scenario, or this group")
    parser.add_argument("--list", action="store_true", help="print the names and groups of the scenarios")
    parser.add_argument("--seconds", type=float, default=120.0, metavar="S", help="of load for each (default: 120)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the choices of each run (default: 1)")
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="for pages with pictures of violations")
    parser.add_argument("--no-page", action="store_true", help="store no result, and do not write docs/failovers.md")
    arguments = parser.parse_args(words)
    if arguments.list:
        print("\n".join(f"{scenario.group:<9} {name}" for name, scenario in SCENARIOS.items()))
        return 0
    known = {*SCENARIOS, *(scenario.group for scenario in SCENARIOS.values())}
    if unknown := [name for name in arguments.only if name not in known]:
        parser.error(f"--only {unknown[0]}: no such scenario (known: {', '.join(SCENARIOS)})")
    if arguments.report is not None:
        arguments.report.mkdir(parents=True, exist_ok=True)
    chosen = [each for each in SCENARIOS.values() if not arguments.only or {each.name, each.group} & {*arguments.only}]
    options = Options(arguments.seconds, arguments.seed, arguments.report)
    bad = []
    for number, scenario in enumerate(chosen, start=1):
        begun = f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M}"
        prefix = f"holdfast: {number} of {len(chosen)}, {scenario.name}: "
        _show(f"{prefix}starting its servers")
        try:
            data = run(scenario, options, functools.partial(_show, prefix))
        except RunError as error:
            _show(f"{prefix}{error}")
            bad.append(scenario.name)
            continue
        result = results.Result(scenario.name, begun, data)
        _show(prefix, result.text(scenario))
        if result.problem(scenario):
            _show(f"{prefix}{result.problem(scenario)}")
            bad.append(scenario.name)
        if not arguments.no_page:
            results.store(result)
            PAGE.write_text(page(results.stored()))
    if bad:
        _show(f"holdfast: not as declared: {', '.join(bad)}")
    return 1 if bad else 0


def _show(*texts: str) -> None:
    print("".join(texts), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
