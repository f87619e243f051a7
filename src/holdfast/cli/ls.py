"""`holdfast ls`: list the locks in use and their holders."""

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
from holdfast.cli.times import short
from holdfast.core.tickets import LockInfo

_DESCRIPTION = """\
List the locks that have a holder or a waiter. Each holder has a line: how long
it has held the lock, and how much of the ttl is left.

Long names are shortened in the middle, and columns are omitted on a narrow
terminal. `holdfast show` and --json print everything.

Redlock, memcached, and Redis with method=setnx or getset have no index of
their locks, so all keys are searched. On Redis and Redlock the search uses at
most 5 % of the server's time and takes a minute or more for a million keys. A
terminal shows the progress. The index of Redis does not have locks that only
other programs hold; `holdfast show` shows these.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "ls",
        run=_run,
        summary="list the locks that are in use",
        description=_DESCRIPTION,
        examples={
            "holdfast ls": "all locks in use",
            "holdfast ls order:": "locks whose names begin with order:",
            "holdfast ls --json | jq '.[].lock'": "their names, for a program",
        },
        results={statuses.DONE: "done, also if no lock is in use", **STORE_READ},
    )
    options.add_prefix(parser)
    parser.add_argument("--no-search", action="store_true", help="print nothing if the store has no index of its locks")
    options.add_url(parser)
    form = parser.add_mutually_exclusive_group()
    options.add_json(form)
    form.add_argument(
        "--names", action="store_true", help="print only names, one per line; unprintable names are quoted for bash"
    )


def _run(arguments: argparse.Namespace) -> int:
    from holdfast.cli.listing import find_locks, has_index

    with options.open_existing(arguments) as client:
        url = client.url
        if arguments.no_search and not has_index(client):
            if arguments.json:
                print("[]")
            print(f"{escape(url)} has no index of its locks, and --no-search was given", file=sys.stderr)
            return statuses.DONE
        locks = find_locks(client, arguments.prefix)
    if arguments.json:
        from holdfast.monitor.status import lock_as_dict

        print(json.dumps([lock_as_dict(info) for info in locks], indent=2))
    elif arguments.names:
        for info in locks:
            print(display_name(info.name))
    elif locks:
        print(*table(locks, Terminal.of(sys.stdout), time.time()), sep="\n")
    else:
        which = f" whose name begins with {display_name(arguments.prefix)}" if arguments.prefix else ""
        print(f"no lock{which} is in use ({escape(url)})", file=sys.stderr)
    return statuses.DONE


def table(locks: Sequence[LockInfo], terminal: Terminal, now: float) -> list[str]:
    """Return a heading and one line per holder."""
    columns = (
        Column("lock", flexible=True),
        Column("kind", drop_order=1),
        Column("holder", flexible=True),
        Column("fence", align_right=True, drop_order=5),
        Column("held", align_right=True, drop_order=4),
        Column("left", align_right=True, drop_order=2),
        Column("waiters", align_right=True, drop_order=3),
    )
    return draw(columns, [row for info in locks for row in _rows(info, now)], terminal)


def _rows(info: LockInfo, now: float) -> Sequence[Sequence[str]]:
    from holdfast.monitor.status import age, kind_text

    name, kind, waiters = display_name(info.name), kind_text(info), str(len(info.waiters))
    rows = []
    for holder in info.holders:
        held = short(age(holder.since, now))
        rows.append((name, kind, host_pid(holder), fence_text(holder), held, short(holder.remaining), waiters))
        name = kind = waiters = ""  # only in the first line of a lock
    return rows or [(name, kind, "(none)", "", "", "", waiters)]
