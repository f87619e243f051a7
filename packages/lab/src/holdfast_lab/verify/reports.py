"""The result of a run, as text for people, as JSON for programs, and as an HTML page with pictures."""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from html import escape
from textwrap import wrap
from typing import Any

from holdfast_lab.checking import Violation, svg, timeline
from holdfast_lab.checking import history as h

from .adapter import HOLDFAST, PROMISES
from .judging import Finding, Recovery, Result
from .runner import Plan

PICTURES_MAX = 10  # of each promise
_SHOWN = 3  # violations of each promise in the text
_MARGIN = 400  # events before and after a violation in its picture


def redacted(url: str) -> str:
    """The URL without its password."""
    return re.sub(r"(?<=:)[^/?#:@,]*(?=@)|(?<=password=)[^&]*", "***", url)


def command_for(plan: Plan) -> str:
    """The command line that repeats the run: the same choices, although not the same timing."""
    command = ["holdfast", "verify", redacted(plan.url), "--seed", str(plan.seed)]
    defaults = Plan("")
    for option in ("seconds", "workers", "ttl"):
        value = getattr(plan, option)
        if value != getattr(defaults, option):
            command += [f"--{option}", f"{value:g}"]
    for adapter in plan.adapters if plan.adapters != HOLDFAST else ():
        command += ["--adapter", adapter]
    for name in plan.only:
        command += ["--only", name]
    for fault in plan.commands:
        command += ["--fault" if fault.during else "--between", f"{fault.name}={fault.line}"]
    return shlex.join(command)


# ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def as_text(result: Result, *, width: int) -> str:
    """The table, the recoveries, the first violations with a timeline, and the command that repeats the run."""
    plan = result.evidence.plan
    lines = [_heading(result), ""]
    cells = [(row.promise, row.declared or "-", row.status, row.detail) for row in result.rows]
    lines += _table(("promise", "declared", "result", "counts"), cells, width)
    if result.recoveries:
        lines += ["", "time to recover"]
        lines += _table(("fault", "times", "median", "longest"), [_recovery(each) for each in result.recoveries], width)
    for name, reason in result.evidence.not_exercised.items():
        lines += wrap(f"not exercised: {name}: {reason}", width, subsequent_indent="  ")
    for problem in result.evidence.histories.problems[:1]:
        lines += ["", f"{len(result.evidence.histories.problems)} turns failed in the load itself. The first:", problem]
    for finding in _first_of_each(result.findings):
        lines += ["", *_described(result, finding, width)]
    lines += ["", f"seed {plan.seed}; to repeat: {command_for(plan)}"]
    return "\n".join(lines) + "\n"


def _heading(result: Result) -> str:
    broken = [row.promise for row in result.rows if row.status == "broken"]
    verdict = f"BROKEN: {', '.join(broken)}" if broken else "every promise that was exercised held"
    counts = f"grants: {result.grants:,}, losses: {result.losses:,}, faults: {len(result.evidence.faults)}"
    return f"{redacted(result.evidence.plan.url)}: {verdict} ({counts})"


def _recovery(each: Recovery) -> tuple[str, ...]:
    typical = "-" if each.typical is None else f"{each.typical:.2f} s"
    longest = "not in time" if each.longest is None else f"{each.longest:.2f} s"
    return each.fault, str(each.times), typical, longest


def _table(heading: tuple[str, ...], cells: Sequence[tuple[str, ...]], width: int) -> list[str]:
    widths = [max(len(row[column]) for row in (heading, *cells)) for column in range(len(heading) - 1)]
    indent = sum(widths) + 2 * len(widths) + 2
    lines = []
    for row in (heading, *cells):
        left = "  " + "".join(f"{cell:<{size}}  " for cell, size in zip(row, widths, strict=False))
        last = wrap(row[-1], max(20, width - indent)) or [""]
        lines.append((left + last[0]).rstrip())
        lines += [" " * indent + more for more in last[1:]]
    return lines


def _first_of_each(findings: Sequence[Finding]) -> list[Finding]:
    """The first violation of each promise that is broken."""
    first: dict[str, Finding] = {}
    for each in findings:
        if each.status == "broken":
            first.setdefault(each.promise, each)
    return list(first.values())[:_SHOWN]


def _described(result: Result, finding: Finding, width: int) -> list[str]:
    history, violation = pictured(result, finding)
    text = f"{finding.promise} broken, after the fault {finding.fault!r}: {violation.message}"
    return [*wrap(text, width), timeline(history, violation, width=width).rstrip()]


# ── the part of a history that a picture needs ───────────────────────────────────────────────────────────────────


def pictured(result: Result, finding: Finding) -> tuple[h.History, Violation]:
    """The events of the lock and the faults near the violation, and the violation; times since the start of the run.

    Pictures mark the events of a violation by identity, so each event is copied once.
    """
    started = result.evidence.started
    violation = _with_grants(result, finding.violation)
    lock = violation.lock
    near = [event for event in result.evidence.histories.complete if getattr(event, "lock", lock) in (lock, None)]
    times = [violation.at, *(event.at for event in violation.events)]
    first = bisect_left(near, min(times), key=_at)
    last = bisect_right(near, max(times), key=_at)
    chosen = near[max(0, first - _MARGIN) : last + _MARGIN]
    copies = {id(event): _moved(event, -started) for event in [*violation.events, *chosen]}
    events = tuple(copies[id(event)] for event in violation.events)
    return [copies[id(event)] for event in chosen], violation._replace(at=violation.at - started, events=events)


def _with_grants(result: Result, violation: Violation) -> Violation:
    """The violation with the grants of its leases, so that the picture begins with them."""
    tickets = {getattr(event, "ticket", None) for event in violation.events}
    grants = [
        event
        for event in result.evidence.histories.complete
        if isinstance(event, h.Granted) and event.ticket in tickets and event not in violation.events
    ]
    return violation._replace(events=(*grants, *violation.events))


def _at(event: h.Event) -> float:
    return event.at


def _moved(event: h.Event, by: float) -> h.Event:
    values = {name: value + by for name in ("at", "deadline") if (value := getattr(event, name, None)) is not None}
    return event._replace(**values)


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def as_data(result: Result) -> dict[str, Any]:
    """The result as JSON data."""
    evidence = result.evidence
    started = evidence.started
    return {
        "ok": result.is_ok,
        "url": redacted(evidence.plan.url),
        "adapters": list(evidence.plan.adapters),
        "seed": evidence.plan.seed,
        "command": command_for(evidence.plan),
        "guarantees": None if evidence.guarantees is None else evidence.guarantees.as_dict(),
        "grants": result.grants,
        "losses": result.losses,
        "connections": evidence.connections,
        "promises": [row._asdict() for row in result.rows],
        "faults": [
            {
                "name": fault.name,
                "detail": fault.detail,
                "at": round(fault.began - started, 3),
                "seconds": round(fault.ended - fault.began, 3),
                "recovered": None if fault.recovered is None else round(fault.recovered, 3),
            }
            for fault in evidence.faults
        ],
        "not_exercised": evidence.not_exercised,
        "violations": [
            {
                "promise": finding.promise,
                "status": finding.status,
                "fault": finding.fault,
                "at": round(finding.violation.at - started, 6),
                "message": finding.violation.message,
            }
            for finding in result.findings
        ],
        "problems": list(evidence.histories.problems),
    }


# ── HTML ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --paper: #ffffff; --line: #dde2e8; --faint: #66727f; }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe5eb; --paper: #14181d; --line: #2c343d; --faint: #93a0ad; } }
body { font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .35rem .75rem .35rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top; } th { color: var(--faint); font-weight: 500; }
td:nth-child(-n+3) { white-space: nowrap; } td:nth-child(5) { color: var(--faint); }
.broken { color: #d33a2f; font-weight: 600; } .held { color: #2f7d5b; } .faint { color: var(--faint); }
code { overflow-wrap: anywhere; } svg { max-width: 100%; height: auto; }
"""


def as_html(result: Result) -> str:
    """A page without scripts and without references to other files."""
    evidence = result.evidence
    url = redacted(evidence.plan.url)
    rows = [(row.promise, row.declared, row.status, row.detail, PROMISES.get(row.promise, "")) for row in result.rows]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<title>holdfast verify {escape(url)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(_heading(result).removeprefix(url + ': '))}</h1>",
        f"<p><code>{escape(url)}</code></p>",
        f'<p class="faint">seed {evidence.plan.seed}; to repeat: <code>{escape(command_for(evidence.plan))}</code></p>',
        _html_table(("promise", "declared", "result", "counts", "meaning"), rows),
    ]
    if result.recoveries:
        parts += [
            "<h2>Time to recover</h2>",
            _html_table(("fault", "times", "median", "longest"), [_recovery(each) for each in result.recoveries]),
        ]
    if evidence.not_exercised:
        parts += [
            "<h2>Not exercised</h2>",
            _html_table(("fault", "reason"), list(evidence.not_exercised.items())),
        ]
    pictures = [finding for finding in result.findings if _rank(result.findings, finding) < PICTURES_MAX]
    for finding in pictures:
        history, violation = pictured(result, finding)
        title = f"{finding.promise}: {finding.status}, after the fault {finding.fault!r}"
        parts += [
            f"<h2>{escape(title)}</h2>",
            svg(history, violation),
        ]
    left_out = sum(row.broken for row in result.rows) - len(pictures)
    if left_out > 0:
        parts.append(f'<p class="faint">… and {left_out} more violations.</p>')
    return "\n".join([*parts, "</body></html>", ""])


def _rank(findings: Sequence[Finding], each: Finding) -> int:
    """How many violations of the same promise come before this one."""
    return [other for other in findings if other.promise == each.promise].index(each)


def _html_table(heading: tuple[str, ...], cells: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    body = "".join(
        "<tr>" + "".join(f'<td class="{_css(cell)}">{escape(cell)}</td>' for cell in row) + "</tr>" for row in cells
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _css(cell: str) -> str:
    return cell if cell in ("broken", "held") else ""
