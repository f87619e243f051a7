"""Publish a run into docs/benchmarks: results and plots, and the links to plots in docs/benchmarks.md and README.md.

A run of some tables (`--only`) replaces these tables; the others stay as they were published, with their date. Files
are written at the end of a run only, without an interrupt in between.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.contender import Contender
from benchmarks.measure import FULL, Measure
from benchmarks.page import with_plots
from benchmarks.plan import Group, make_plan
from benchmarks.report import Report
from benchmarks.results import Outcome, Record


def published(folder: str, measures: Sequence[Measure], contenders: Sequence[Contender]) -> list[Outcome]:
    """Return the outcomes in results.json, without tables and contenders that do not exist any more."""
    try:
        with open(os.path.join(folder, "results.json"), encoding="utf-8") as file:
            data = json.load(file)
    except FileNotFoundError:
        return []
    groups = {_key(group): group for group in make_plan(measures, contenders, FULL)}
    outcomes = []
    for table in data["tables"]:
        group = groups.get((table["measure"], table["arena"], table["setting"]))
        if group is None:
            continue
        cases = {case.contender.name: case for case in group.cases}
        rows = [row for row in table["rows"] if row["contender"] in cases]
        records = [Record(cases[row["contender"]], row["rounds"], row["problem"]) for row in rows]
        number = max((len(record.rounds) for record in records), default=0)
        outcomes.append(
            Outcome(
                replace(group, cases=tuple(record.case for record in records), rounds=number),
                {row["contender"]: row["cores"] for row in rows},
                records,
                table.get("run") or run_text(data["machine"]),
            )
        )
    return outcomes


def merged(earlier: Sequence[Outcome], latest: Sequence[Outcome], order: Sequence[Group]) -> list[Outcome]:
    """Return the tables of both in this order, the latest of each."""
    outcomes = {_key(outcome.group): outcome for outcome in (*earlier, *latest)}
    return [outcomes[_key(group)] for group in order if _key(group) in outcomes]


def run_text(machine: dict[str, str]) -> str:
    """Return what identifies a run."""
    return f"{machine.get('date', '?')}, holdfast {machine.get('holdfast', '?')}, load before {machine['load before']}"


def publish(report: Report, folder: str, readme: str) -> None:
    """Write the files of the folder, and the plots into the page beside it and into the README."""
    with _without_interrupts():
        report.write(folder)
        for path, within in ((f"{folder}.md", os.path.basename(folder)), (readme, "docs/benchmarks")):
            with open(path, encoding="utf-8") as file:
                page = file.read()
            text = with_plots(page, folder, within)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C for the moment in which the files are written, so that they are of one run."""
    usual = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def _key(group: Group) -> tuple[str, str | None, str]:
    return group.measure.name, group.arena, group.setting.slug
