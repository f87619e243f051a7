"""`holdfast show`: print everything that is known about one lock."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from holdfast.cli import options, statuses
from holdfast.cli.help import STORE_READ, Commands, add_command
from holdfast.cli.lock_info import fence_text, host_pid
from holdfast.cli.tables import Column, draw
from holdfast.cli.terminal import Terminal
from holdfast.cli.text import display_name, escape
from holdfast.cli.times import local_time, long, short
from holdfast.core.tickets import LockInfo, TicketInfo

_DESCRIPTION = """\
Show the holders of a lock: host, process, thread or task, program, since when,
how much of the ttl is left, fence and meta. Then list the waiters in the order
of the queue, and how long each has waited.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "show",
        run=_run,
        summary="show the holders and waiters of a lock",
        description=_DESCRIPTION,
        examples={
            "holdfast show nightly-report": "its holders and waiters",
            "holdfast show nightly-report >/dev/null || echo free": "test whether it is free",
        },
        results={
            statuses.DONE: "the lock has a holder or a waiter",
            statuses.NOT_DONE: "the lock is free",
            **STORE_READ,
        },
    )
    options.add_name(parser)
    options.add_url(parser)
    options.add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    with options.open_existing(arguments) as client:
        info = client.inspect(arguments.name)
        warnings = client.warnings
    is_free = not (info.holders or info.waiters)
    if arguments.json:
        from holdfast.monitor.status import lock_as_dict

        print(json.dumps(lock_as_dict(info), indent=2))
    else:
        print(*describe(info, Terminal.of(sys.stdout), time.time()), sep="\n")
    for warning in warnings:
        print(f"holdfast: warning: {escape(warning)}", file=sys.stderr)
    return statuses.NOT_DONE if is_free else statuses.DONE


def describe(info: LockInfo, terminal: Terminal, now: float) -> list[str]:
    """Return the lines: a block per holder, then the queue."""
    from holdfast.monitor.status import kind_text

    if not (info.holders or info.waiters):
        return [f"{display_name(info.name)} is free"]
    lines = [f"{display_name(info.name)} ({kind_text(info)})"]
    for holder in info.holders:
        lines += ["", *describe_holder(holder, info, now)]
    if not info.holders:
        lines += ["", "no holder at the moment"]
    if info.waiters:
        lines += ["", *_queue(info, terminal, now)]
    return lines


def describe_holder(holder: TicketInfo, info: LockInfo, now: float) -> list[str]:
    """Return one line per property of a holder."""
    from holdfast.monitor.status import age, role

    facts = [
        (role(holder, info, "holder"), host_pid(holder)),
        ("program", escape(holder.program)),
        ("thread or task", escape(holder.agent)),
        ("since", f"{local_time(holder.since)} ({long(age(holder.since, now))} ago)" if holder.since else "unknown"),
        ("ttl left", long(holder.remaining)),
        ("fence", fence_text(holder)),
    ]
    if holder.owner:
        facts.append(("owner", escape(holder.owner)))
    if holder.revocable:
        facts.append(("revocable", "yes"))
    if holder.meta:
        facts.append(("meta", escape(json.dumps(dict(holder.meta), ensure_ascii=False))))
    return [f"{fact:<16}{value}" for fact, value in facts]


def _queue(info: LockInfo, terminal: Terminal, now: float) -> Sequence[str]:
    from holdfast.monitor.status import age, role

    columns = (
        Column("", align_right=True),
        Column("waiter", flexible=True),
        Column("waits", align_right=True),
        Column("program", flexible=True, drop_order=3),
        Column("thread or task", flexible=True, drop_order=2),
        Column("as", drop_order=1),
    )
    rows = [
        (
            str(position),
            host_pid(waiter),
            short(age(waiter.since, now)),
            waiter.program,
            waiter.agent,
            role(waiter, info, ""),
        )
        for position, waiter in enumerate(info.waiters, start=1)
    ]
    return draw(columns, rows, terminal)
