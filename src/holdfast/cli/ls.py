"""`holdfast ls`: which locks are in use, and by whom."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from holdfast.cli import options, statuses
from holdfast.cli.help import STORE_READ, Commands, add_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.cli.terminal import Terminal
    from holdfast.core.tickets import LockInfo

_DESCRIPTION = """\
List the locks that somebody holds or waits for. A lock with several holders
has a line for each of them: how long it is held, and how much of the ttl is
left, unless it is renewed.

Long names are shortened in the middle, and on a narrow terminal columns are
left out: `holdfast show` and --json have everything.

Redis, Redlock and memcached have no index of their locks: all keys are
searched. On Redis and Redlock that is slow on purpose, because it takes at most
5 % of the server's time: a minute or more for a million keys. A terminal shows
the progress.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "ls",
        summary="list the locks that are in use",
        description=_DESCRIPTION,
        examples={
            "holdfast ls": "all locks in use",
            "holdfast ls order:": "those whose names begin with order:",
            "holdfast ls --json | jq '.[].lock'": "their names, for a program",
        },
        results={statuses.DONE: "done, also if no lock is in use", **STORE_READ},
    )
    options.add_prefix(parser)
    parser.add_argument(
        "--no-search", action="store_true", help="list nothing where all keys of the store would have to be searched"
    )
    options.add_url(parser)
    form = parser.add_mutually_exclusive_group()
    options.add_json(form)
    form.add_argument(
        "--names", action="store_true", help="print names only, one to a line, unprintable ones quoted as for bash"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from holdfast.cli.listing import LocksInUse, has_index

    with options.open_to_read(arguments) as client:
        url = client.url
        if arguments.no_search and not has_index(client):
            from holdfast.cli.text import escape

            if arguments.json:
                print("[]")
            print(f"{escape(url)} has no index of its locks, and --no-search was given", file=sys.stderr)
            return statuses.DONE
        locks = LocksInUse(client, arguments.prefix).find()
    if arguments.json:
        import json

        from holdfast.cli.facts import lock_as_dict

        print(json.dumps([lock_as_dict(info) for info in locks], indent=2))
    elif arguments.names:
        from holdfast.cli.text import shown

        for info in locks:
            print(shown(info.name))
    elif locks:
        from holdfast.cli.terminal import Terminal

        print(*table(locks, Terminal.of(sys.stdout), time.time()), sep="\n")
    else:
        from holdfast.cli.text import escape, shown

        those = f" whose name begins with {shown(arguments.prefix)}" if arguments.prefix else ""
        print(f"no lock{those} is in use ({escape(url)})", file=sys.stderr)
    return statuses.DONE


def table(locks: Sequence[LockInfo], terminal: Terminal, now: float) -> list[str]:
    """A heading, and a line for each holder."""
    from holdfast.cli.tables import Column, draw

    columns = (
        Column("lock", flexible=True),
        Column("kind", goes=1),
        Column("holder", flexible=True),
        Column("fence", right=True, goes=5),
        Column("held", right=True, goes=4),
        Column("left", right=True, goes=2),
        Column("waiters", right=True, goes=3),
    )
    return draw(columns, [row for info in locks for row in _rows(info, now)], terminal)


def _rows(info: LockInfo, now: float) -> Sequence[Sequence[str]]:
    from holdfast.cli.durations import age, short
    from holdfast.cli.facts import kind_words, who
    from holdfast.cli.text import shown

    name, kind, waiters = shown(info.name), kind_words(info), str(len(info.waiters))
    rows = []
    for holder in info.holders:
        held = short(age(holder.since, now))
        rows.append((name, kind, who(holder), str(holder.fence), held, short(holder.remaining), waiters))
        name = kind = waiters = ""  # said once
    return rows or [(name, kind, "(nobody)", "", "", "", waiters)]
