"""`holdfast watch`: print a line for each change of the locks. `holdfast top` shows them as a live table."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import stat
import sys
import time
from typing import TYPE_CHECKING

from holdfast.cli import options, statuses
from holdfast.cli.help import SIGNALS, STORE_READ, Commands, add_command
from holdfast.cli.lock_info import host_pid
from holdfast.cli.text import display_name, escape
from holdfast.cli.times import long, timestamp

if TYPE_CHECKING:
    from holdfast.monitor import Change

INTERVAL = 0.5
_INTERVAL_MIN = 0.05  # limits the load of the store

_DESCRIPTION = """\
Poll the store and print a line for each change: first the current holders and
waiters, then acquired, released, waits, left. Lines are never shortened, so
that logs can be searched. --json prints one object per line.

A lease that begins and ends between two polls is not shown. `released` means
that the lease has ended: released, broken or expired. If the store becomes
unavailable, this is shown, and polling continues.

Redlock, and Redis with method=setnx or getset, have no index of their locks:
all keys are searched once, then each poll reads the known locks while the
search continues for new ones. The search uses at most 5 % of the server's time,
a read at most 10 %. A new lock is shown when the search finds it: at the next
poll if there are few keys, after a minute or more if there are a million, and
at the next poll if Redis sends keyspace notifications. memcached is searched at
each poll.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "watch",
        run=_run,
        summary="print a line when a lock is acquired or released",
        description=_DESCRIPTION,
        examples={
            "holdfast watch": "all locks, until Ctrl-C",
            "holdfast watch order: --interval 2": "some locks, every two seconds",
            "holdfast watch --json >> locks.log": "one JSON object per line",
        },
        results={**STORE_READ, **SIGNALS},
    )
    options.add_prefix(parser)
    add_interval(parser)
    options.add_url(parser)
    options.add_json(parser)


def add_interval(parser: argparse.ArgumentParser, default: float = INTERVAL) -> None:
    """Add --interval."""
    parser.add_argument(
        "--interval",
        type=options.seconds(minimum=_INTERVAL_MIN),
        default=default,
        metavar="TIME",
        help="time between two polls: seconds, or text such as 500ms (default: %(default)g)",
    )


def _run(arguments: argparse.Namespace) -> int:
    from holdfast.cli.interrupts import Interrupts
    from holdfast.cli.listing import SearchInterrupted, SearchProgress
    from holdfast.monitor import Monitor

    with Interrupts() as interrupts, options.open_existing(arguments) as client, contextlib.suppress(SearchInterrupted):
        progress = SearchProgress(interrupts)
        with Monitor(client, arguments.prefix, on_step=progress.step) as monitor:
            with progress:
                snapshot = monitor.poll()
            if snapshot.error is not None:  # later polls may fail for a while
                raise snapshot.error
            while True:
                for change in snapshot.changes:
                    print(json.dumps(change.as_dict()) if arguments.json else format_change(change))
                sys.stdout.flush()
                until = time.monotonic() + arguments.interval
                monitor.search(arguments.interval)
                interrupts.wait(max(0.0, until - time.monotonic()))
                if interrupts.received:
                    break
                _check_reader()
                snapshot = monitor.poll()
    return interrupts.status or statuses.DONE


def format_change(change: Change) -> str:
    """Return the line of a change."""
    from holdfast.monitor.status import age

    line = f"{timestamp(change.at)} {change.kind:<11}  "
    ticket = change.ticket
    if ticket is None:
        return f"{line}{escape(change.problem)}".rstrip()
    fence = f"  fence {ticket.fence}" if ticket.fence is not None else ""
    word = {"holds": "for", "released": "after", "left": "after"}.get(change.kind)
    duration = f"  {word} {long(age(ticket.since, change.at))}" if word and ticket.since else ""
    return f"{line}{display_name(change.lock)}  {host_pid(ticket)}{fence}{duration}"


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
