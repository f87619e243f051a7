"""`holdfast demo`: processes take turns on one lock, and one of them is killed while it holds the lock.

runner    starts the workers, prints what happens, kills a holder
worker    the program of each worker process
history   the turns of the workers, and the checks on them
"""

from __future__ import annotations

import argparse

from holdfast.cli import options, statuses
from holdfast.cli.help import SIGNALS, STORE, Commands, add_command

_DESCRIPTION = """\
Several processes take turns on one lock. After a while a process that holds
the lock is killed with kill -9, and the next one takes over. The demo ends
with a summary.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "demo",
        run=_run,
        summary="show processes that take turns on one lock",
        description=_DESCRIPTION,
        examples={
            "holdfast demo": "four processes for eight seconds",
            "holdfast demo --workers 9 --seconds 60": "more processes and a longer run",
        },
        results={statuses.DONE: "all checks passed", statuses.NOT_DONE: "a check failed", **STORE, **SIGNALS},
    )
    parser.add_argument(
        "--workers",
        type=options.whole(2, 9),
        default=4,
        metavar="N",
        help="number of processes, 2 to 9 (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=options.seconds(minimum=1),
        default=8.0,
        metavar="TIME",
        help="how long they take turns: seconds, or text such as 1m (default: %(default)g)",
    )
    parser.add_argument("--url", help="the store to use (default: a file in a private temporary folder)")


def _run(arguments: argparse.Namespace) -> int:
    from holdfast.cli.demo.runner import run  # not at the top, because the workers import this package too

    return run(url=arguments.url, workers=arguments.workers, seconds=arguments.seconds)
