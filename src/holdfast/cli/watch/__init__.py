"""`holdfast watch`: show how locks are acquired and released, live.

changes   the differences between two reads of the store
views     a table that is redrawn in place on a terminal, lines for a pipe, JSON for a program
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
_INTERVAL_MIN = 0.05  # limits the load of the store

_DESCRIPTION = """\
Poll the store and show its locks. A terminal shows a table, redrawn in place,
and the latest changes. Other output has a line for each change: first the
current holders and waiters, then acquired, released, waits, left.

A lease that begins and ends between two polls is not shown. `released` means
that the lease has ended: released, broken or expired. If the store becomes
unavailable, this is shown, and polling continues.

Redis and Redlock have no index of their locks: all keys are searched once,
then each poll reads the known locks while the search continues for new ones.
Both use at most 5 % of the server's time. A new lock is shown when the search
finds it: at the next poll if there are few keys, after a minute or more if
there are a million, and at the next poll if Redis sends keyspace
notifications. memcached is searched at each poll.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "watch",
        summary="watch locks being acquired and released, live",
        description=_DESCRIPTION,
        examples={
            "holdfast watch": "all locks, until Ctrl-C",
            "holdfast watch order: --interval 2": "some locks, every two seconds",
            "holdfast watch --json >> locks.log": "one JSON object per line",
        },
        results={**STORE_READ, **SIGNALS},
    )
    options.add_prefix(parser)
    parser.add_argument(
        "--interval",
        type=options.seconds(minimum=_INTERVAL_MIN),
        default=INTERVAL,
        metavar="S",
        help="seconds between two polls (default: %(default)g)",
    )
    options.add_url(parser)
    options.add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from holdfast.cli.interrupts import Interrupts
    from holdfast.cli.listing import LocksInUse, SearchInterrupted
    from holdfast.cli.watch import views
    from holdfast.cli.watch.changes import Change, diff
    from holdfast.errors import BackendError

    with (
        Interrupts() as interrupts,
        options.open_existing(arguments) as client,
        contextlib.closing(LocksInUse(client, arguments.prefix, interrupts)) as in_use,
    ):
        # The command fails if the first read fails; later reads may fail for a while.
        try:
            locks = in_use.find()
        except SearchInterrupted:
            return interrupts.status
        view = views.choose(client.url, arguments)
        view.show(locks, diff(None, locks, time.time()))
        is_available = True
        while True:
            try:
                in_use.wait(interrupts, arguments.interval)
                if interrupts.received:
                    break
                _check_reader()
                before, locks = locks, in_use.read()
            except SearchInterrupted:
                break
            except BackendError as error:
                view.show(None, [Change(time.time(), "unavailable", problem=str(error))] if is_available else [])
                is_available = False
                continue
            now = time.time()
            back = [] if is_available else [Change(now, "available")]
            is_available = True
            view.show(locks, [*back, *diff(before, locks, now)])
        if interrupts.received:
            view.end(f"ended by {interrupts.received.name}")
    return interrupts.status or statuses.DONE


def _check_reader() -> None:
    """Detect that the reader has closed the pipe, also while there is nothing to write.

    Raises:
        BrokenPipeError: the reader has closed the pipe.
    """
    output = sys.stdout.fileno()
    if not stat.S_ISFIFO(os.fstat(output).st_mode) or not hasattr(select, "poll"):
        return  # without poll(), the next write fails
    poll = select.poll()
    poll.register(output, 0)
    if poll.poll(0):
        raise BrokenPipeError
