"""`holdfast watch`: locks as they are taken and given back, live.

changes   what is different between two looks at the store
views     a table drawn in place for a terminal, lines for a pipe, JSON for a program
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import stat
import sys
import time

from holdfast.cli import options, statuses
from holdfast.cli.help import SIGNALS, STORE_READ, Commands, add_command

INTERVAL = 0.5
_INTERVAL_MIN = 0.05  # a look costs the store something

_DESCRIPTION = """\
Look at the store again and again. On a terminal: a table, drawn in place, and
the latest changes. Otherwise a line for each change: first what holds and
waits already, then acquired, released, waits, left.

What begins and ends between two looks is not seen. `released` means that the
lease is over: given back, broken, or at the end of its ttl. If the store
becomes unavailable, that is shown, and watching goes on.

Redis and Redlock have no index of their locks: all keys are searched once, and
then each look reads the locks that were found, while the search begins again
for new ones. Search and looks take at most 5 % of the server's time. A new lock
is shown when the search finds it: at the next look if there are few keys, after
a minute or more if there are a million. It is shown at the next look if Redis
sends keyspace notifications. memcached is searched at each look.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "watch",
        summary="watch locks being taken and given back, live",
        description=_DESCRIPTION,
        examples={
            "holdfast watch": "all locks, until Ctrl-C",
            "holdfast watch order: --interval 2": "some locks, every two seconds",
            "holdfast watch --json >> locks.log": "one JSON object to a line",
        },
        results={**STORE_READ, **SIGNALS},
    )
    options.add_prefix(parser)
    parser.add_argument(
        "--interval",
        type=options.seconds(least=_INTERVAL_MIN),
        default=INTERVAL,
        metavar="S",
        help="seconds between two looks (default: %(default)g)",
    )
    options.add_url(parser)
    options.add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from holdfast.cli.interrupts import Interrupts
    from holdfast.cli.listing import LocksInUse, Stopped
    from holdfast.cli.watch import views
    from holdfast.cli.watch.changes import Change, between
    from holdfast.errors import BackendError

    with (
        Interrupts() as interrupts,
        options.open_to_read(arguments) as client,
        contextlib.closing(LocksInUse(client, arguments.prefix, interrupts)) as in_use,
    ):
        # The first look decides whether there is anything to watch; later ones may fail for a while.
        try:
            locks = in_use.find()
        except Stopped:
            return interrupts.status
        view = views.choose(client.url, arguments)
        view.show(locks, between(None, locks, time.time()))
        is_available = True
        while True:
            try:
                in_use.wait(interrupts, arguments.interval)
                if interrupts.received:
                    break
                _check_reader()
                before, locks = locks, in_use.read()
            except Stopped:
                break
            except BackendError as error:
                view.show(None, [Change(time.time(), "unavailable", problem=str(error))] if is_available else [])
                is_available = False
                continue
            now = time.time()
            back = [] if is_available else [Change(now, "available")]
            is_available = True
            view.show(locks, [*back, *between(before, locks, now)])
        if interrupts.received:
            view.end(f"ended by {interrupts.received.name}")
    return interrupts.status or statuses.DONE


def _check_reader() -> None:
    """Notice that whoever read our output has gone, also while there is nothing to write.

    Raises:
        BrokenPipeError: it has.
    """
    output = sys.stdout.fileno()
    if not stat.S_ISFIFO(os.fstat(output).st_mode) or not hasattr(select, "poll"):
        return  # without poll() the next write notices it
    poll = select.poll()
    poll.register(output, 0)
    if poll.poll(0):
        raise BrokenPipeError
