"""The results of a search, as text for people and as JSON for programs."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any

from holdfast_lab.checking import CHECKERS, report, timeline
from holdfast_lab.sim import redlock_configs
from holdfast_lab.sim.cancellation import Cancellation
from holdfast_lab.sim.exhaustive import Search, Size
from holdfast_lab.sim.run import Plan, Run
from holdfast_lab.sim.search import Totals
from holdfast_lab.sim.shrink import Shrunk

SEEDS_SHOWN = 10
CASES_SHOWN = 5
_INDENT = "  "


def summary_of(plan: Plan, totals: Totals, seconds: float, *, width: int) -> list[str]:
    """The summary of a search, without the failing worlds."""
    worlds = f"{totals.worlds:,} {_plural('world', totals.worlds)}"
    if totals.failing:
        heading = f"{plan.backend}: BROKEN in {len(totals.failing):,} of {worlds}: {_seeds(totals)}"
    else:
        heading = f"{plan.backend}: every promise kept in {worlds}"
    rate = totals.steps / seconds if seconds > 0 else 0.0
    counts = (
        f"{totals.steps:,} steps ({rate:,.0f} steps/s), {totals.events:,} events, "
        f"{totals.grants:,} grants, {totals.losses:,} losses"
    )
    happened = _listed(totals.happened) or "none"
    tested = _in_order(totals.tested)
    kept = ", ".join(_tested(name, totals) for name in tested if not totals.broken[name])
    broken = ", ".join(f"{name} (in {totals.broken[name]:,})" for name in tested if totals.broken[name])
    lines = [*_wrapped(heading, width, ""), *_wrapped(counts, width), *_wrapped(f"faults: {happened}", width)]
    if broken:
        lines += _wrapped(f"broken: {broken}", width)
    return [*lines, *_wrapped(f"kept: {kept or 'none'}", width)]


def run_report(ran: Run, *, width: int) -> str:
    """The report of one run, with its timeline."""
    if ran.error is not None:
        problem = "".join(traceback.format_exception(ran.error)).rstrip()
        return f"ENDED BY AN ERROR\n\n{problem}\n\n{timeline(ran.history, width=width)}"
    shown = report(ran.history, ran.verdict, width=width)
    return shown if ran.verdict.violations else f"{timeline(ran.history, width=width)}\n{shown}"


def shrink_summary(shrunk: Shrunk, *, width: int) -> list[str]:
    """The size of a shrunk world."""
    workload = shrunk.plan.workload
    text = (
        f"Shrunk in {shrunk.runs:,} runs to {workload.clients} {_plural('client', workload.clients)}, "
        f"{workload.rounds} {_plural('round', workload.rounds)} each, {len(shrunk.run.history):,} events, "
        f"faults that happened: {_listed(shrunk.run.happened) or 'none'}."
    )
    return wrap(text, width)


def exhaustive_summary(plan: Plan, size: Size, searched: Search, *, width: int) -> list[str]:
    """The summary of an exhaustive search."""
    kept = (
        "every promise kept"
        if not searched.failures
        else f"BROKEN: {', '.join(run.failure for run in searched.failures)}"
    )
    complete = "complete" if searched.is_complete else "NOT COMPLETE, ended early"
    heading = f"{plan.backend}: {kept} in all schedules of {_size(size)}"
    counts = (
        f"{searched.runs:,} runs, {searched.states:,} states, {searched.pruned:,} runs ended in a known state, "
        f"up to {searched.depth} choices each; {complete}"
    )
    return [*_wrapped(heading, width, ""), *_wrapped(counts, width)]


def fences_summary(
    plan: Plan, size: redlock_configs.Size, searched: redlock_configs.Search, *, width: int
) -> list[str]:
    """The summary of an exhaustive search for fences."""
    kept = f"BROKEN: {searched.broken}" if searched.broken is not None else "0 violations"
    complete = "complete" if searched.is_complete else "NOT COMPLETE, ended early"
    heading = f"{plan.backend}: fences of {_config_size(size)}: {kept}"
    counts = f"{searched.states:,} states, {searched.steps:,} steps, {searched.grants:,} of them grants; {complete}"
    return [*_wrapped(heading, width, ""), *_wrapped(counts, width)]


def cancellation_summary(
    plan: Plan, tried: Mapping[str, int], wrong: Sequence[Cancellation], *, width: int
) -> list[str]:
    """The summary of all cancellations."""
    total = sum(tried.values())
    if wrong:
        heading = f"{plan.backend}: {len(wrong):,} of {total:,} cancellations caused a problem"
    else:
        heading = f"{plan.backend}: {total:,} cancellations, no problem"
    counts = ", ".join(f"{call} ({count:,})" for call, count in tried.items())
    listed = [f"{result.case}: {result.problem}" for result in wrong[:CASES_SHOWN]]
    return [heading, *_wrapped(counts, width), *(line for each in listed for line in _wrapped(each, width))]


def exhaustive_as_data(size: Size, searched: Search, seconds: float) -> dict[str, Any]:
    """The result of an exhaustive search, as JSON data."""
    return {
        "ok": not searched.failures,
        "clients": size.clients,
        "rounds": size.rounds,
        "faults": size.faults,
        "window": size.window,
        "runs": searched.runs,
        "states": searched.states,
        "pruned": searched.pruned,
        "complete": searched.is_complete,
        "seconds": round(seconds, 3),
        "broken": [
            {"failure": failure.failure, "faults": dict(failure.happened), "script": list(failure.script)}
            for failure in searched.failures
        ],
    }


def fences_as_data(size: redlock_configs.Size, searched: redlock_configs.Search, seconds: float) -> dict[str, Any]:
    """The result of an exhaustive search for fences, as JSON data."""
    return {
        "ok": searched.broken is None,
        "nodes": len(size.clocks[0]),
        "attempts": list(size.attempts),
        "resent": size.resent,
        "amnesia": size.amnesia,
        "clocks": [list(clocks) for clocks in size.clocks],
        "states": searched.states,
        "steps": searched.steps,
        "grants": searched.grants,
        "complete": searched.is_complete,
        "seconds": round(seconds, 3),
        "broken": searched.broken,
        "path": list(searched.path),
    }


def cancellations_as_data(plan: Plan, tried: Mapping[str, int], wrong: Sequence[Cancellation]) -> dict[str, Any]:
    """The results of all cancellations, as JSON data."""
    return {
        "backend": plan.backend,
        "ok": not wrong,
        "cancellations": dict(tried),
        "wrong": [{"case": str(result.case), "problem": result.problem} for result in wrong],
    }


def _config_size(size: redlock_configs.Size) -> str:
    attempts = " and ".join(f"{count} {_plural('attempt', count)}" for count in size.attempts)
    apart = f", clocks apart in {len(size.clocks)} ways" if len(size.clocks) > 1 else ""
    resent = f", {size.resent} acquire sent twice" if size.resent else ""
    amnesia = f", {size.amnesia} node that loses its data" if size.amnesia else ""
    return f"{len(size.clocks[0])} nodes, {len(size.attempts)} clients with {attempts}{apart}{resent}{amnesia}"


def _size(size: Size) -> str:
    orders = ", close actions in any order" if size.window else ""
    return (
        f"{size.clients} {_plural('client', size.clients)} with {size.rounds} {_plural('round', size.rounds)} each "
        f"and up to {size.faults} {_plural('fault', size.faults)}{orders}"
    )


def as_data(plan: Plan, totals: Totals, seconds: float) -> dict[str, Any]:
    """The result of a search, as JSON data."""
    return {
        "backend": plan.backend,
        "ok": not totals.failing,
        "worlds": totals.worlds,
        "seconds": round(seconds, 3),
        "steps": totals.steps,
        "steps_per_second": round(totals.steps / seconds) if seconds > 0 else None,
        "events": totals.events,
        "grants": totals.grants,
        "losses": totals.losses,
        "faults": dict(sorted(totals.happened.items())),
        "promises": {
            name: {"tested": count, "broken": totals.broken[name]}
            for name, count in ((name, totals.tested[name]) for name in _in_order(totals.tested))
        },
        "failing": [{"seed": outcome.seed, "failure": outcome.failure} for outcome in totals.failing],
    }


def run_as_data(ran: Run, shrunk: Shrunk | None) -> dict[str, Any]:
    """One run, as JSON data."""
    violation = ran.verdict.gravest
    return {
        "failure": ran.failure,
        "at": None if violation is None else violation.at,
        "message": repr(ran.error) if ran.error is not None else None if violation is None else violation.message,
        "events": len(ran.history),
        "faults": dict(ran.happened),
        "clients": None if shrunk is None else shrunk.plan.workload.clients,
        "rounds": None if shrunk is None else shrunk.plan.workload.rounds,
        "shrunk_in_runs": None if shrunk is None else shrunk.runs,
        "decisions": list(ran.decisions) if shrunk is None else list(shrunk.decisions),
    }


def _in_order(tested: Iterable[str]) -> list[str]:
    """The gravest promise first."""
    order = [checker.name for checker in CHECKERS]
    return sorted(tested, key=order.index)


def _tested(name: str, totals: Totals) -> str:
    count = totals.tested[name]
    return name if count == totals.worlds else f"{name} (tested in {count:,})"


def _listed(happened: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(happened.items()) if count)


def _seeds(totals: Totals) -> str:
    shown = ", ".join(str(outcome.seed) for outcome in totals.failing[:SEEDS_SHOWN])
    more = len(totals.failing) - SEEDS_SHOWN
    return f"{_plural('seed', len(totals.failing))} {shown}" + (f" and {more:,} more" if more > 0 else "")


def _wrapped(text: str, width: int, indent: str = _INDENT) -> Iterable[str]:
    return wrap(text, width, initial_indent=indent, subsequent_indent=indent + _INDENT)


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
