"""`holdfast show`: all that is known of one lock."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from holdfast.cli import options, statuses
from holdfast.cli.help import STORE_READ, Commands, add_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.cli.terminal import Terminal
    from holdfast.core.tickets import LockInfo, TicketInfo

_DESCRIPTION = """\
Show who holds a lock: host, process, thread or task, program, since when, how
much of its ttl is left, its fence and its meta. Then who waits for it, in
order, and for how long.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "show",
        summary="show who holds a lock and who waits for it",
        description=_DESCRIPTION,
        examples={
            "holdfast show nightly-report": "who has it",
            "holdfast show nightly-report >/dev/null || echo free": "whether it is free",
        },
        results={statuses.DONE: "somebody holds it or waits for it", statuses.NOT_DONE: "it is free", **STORE_READ},
    )
    options.add_name(parser)
    options.add_url(parser)
    options.add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    with options.open_to_read(arguments) as client:
        info = client.inspect(arguments.name)
        warnings = client.warnings
    from holdfast.cli.text import escape

    is_free = not (info.holders or info.waiters)
    if arguments.json:
        from holdfast.cli.facts import lock_as_dict

        print(json.dumps(lock_as_dict(info), indent=2))
    else:
        from holdfast.cli.terminal import Terminal

        print(*describe(info, Terminal.of(sys.stdout), time.time()), sep="\n")
    for trouble in warnings:
        print(f"holdfast: trouble: {escape(trouble)}", file=sys.stderr)
    return statuses.NOT_DONE if is_free else statuses.DONE


def describe(info: LockInfo, terminal: Terminal, now: float) -> list[str]:
    """Lines for people: a block for each holder, then the queue."""
    from holdfast.cli.facts import kind_words
    from holdfast.cli.text import shown

    if not (info.holders or info.waiters):
        return [f"{shown(info.name)} is free"]
    lines = [f"{shown(info.name)} ({kind_words(info)})"]
    for holder in info.holders:
        lines += ["", *describe_holder(holder, info, now)]
    if not info.holders:
        lines += ["", "nobody holds it just now"]
    if info.waiters:
        lines += ["", *_queue(info, terminal, now)]
    return lines


def describe_holder(holder: TicketInfo, info: LockInfo, now: float) -> list[str]:
    """One holder, a fact to a line."""
    from holdfast.cli.durations import age, long, moment
    from holdfast.cli.facts import role, who
    from holdfast.cli.text import escape

    facts = [
        (role(holder, info, "holder"), who(holder)),
        ("program", escape(holder.program)),
        ("thread or task", escape(holder.agent)),
        ("since", f"{moment(holder.since)} ({long(age(holder.since, now))} ago)" if holder.since else "unknown"),
        ("ttl left", long(holder.remaining)),
        ("fence", str(holder.fence)),
    ]
    if holder.owner:
        facts.append(("owner", escape(holder.owner)))
    if holder.revocable:
        facts.append(("revocable", "yes: it listens to `holdfast revoke`"))
    if holder.meta:
        facts.append(("meta", escape(json.dumps(dict(holder.meta), ensure_ascii=False))))
    return [f"{fact:<16}{value}" for fact, value in facts]


def _queue(info: LockInfo, terminal: Terminal, now: float) -> Sequence[str]:
    from holdfast.cli.durations import age, short
    from holdfast.cli.facts import role, who
    from holdfast.cli.tables import Column, draw

    columns = (
        Column("", right=True),
        Column("waiter", flexible=True),
        Column("waits", right=True),
        Column("program", flexible=True, goes=3),
        Column("thread or task", flexible=True, goes=2),
        Column("as", goes=1),
    )
    rows = [
        (
            str(place),
            who(waiter),
            short(age(waiter.since, now)),
            waiter.program,
            waiter.agent,
            role(waiter, info, ""),
        )
        for place, waiter in enumerate(info.waiters, start=1)
    ]
    return draw(columns, rows, terminal)
