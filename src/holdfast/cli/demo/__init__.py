"""`holdfast demo`: processes take turns on one lock, before your eyes; one of them is killed while it holds it.

    director   runs the play: starts the crew, listens, has the holder killed, ends it all
    crew       the worker processes and the pipes to them
    worker     what each of them runs
    report     what they say on the pipe, and the clock that all of them read
    record     what happened, and whether it was right
    words      the same in sentences
    views      plain lines, or a live table

It uses holdfast as any program would: `Client`, `lock`, `lease.fence`, `client.inspect`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from holdfast.cli import statuses
from holdfast.cli.help import SIGNALS, STORE, Commands, add_command

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 8.0
WORKERS = 4


_DESCRIPTION = """\
Several processes take turns on one lock. After a while the one that holds it
is killed with kill -9, and the next takes over. Ends with a summary.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "demo",
        summary="show processes that take turns on one lock",
        description=_DESCRIPTION,
        examples={
            "holdfast demo": "four processes for eight seconds",
            "holdfast demo --workers 9 --seconds 60": "more of it",
        },
        results={
            statuses.DONE: "done, and all was as it should be",
            statuses.NOT_DONE: "a check failed",
            **STORE,
            **SIGNALS,
        },
    )
    parser.add_argument(
        "--workers",
        type=_between(int, 2, 9),
        default=WORKERS,
        metavar="N",
        help="how many processes, 2 to 9 (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=_between(float, 1, 3600),
        default=SECONDS,
        metavar="S",
        help="how long they take turns (default: %(default)g)",
    )
    parser.add_argument("--url", help="the store to use (default: a file in a private temporary folder)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from holdfast.cli.demo import director  # here: the workers import this package too, and need none of it

    return director.run(url=arguments.url, workers=arguments.workers, seconds=arguments.seconds)


_KINDS: dict[object, str] = {int: "whole number", float: "number"}


def _between(number: Callable[[str], float], least: float, most: float) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = number(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a {_KINDS[number]}, not {text!r}") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be from {least:g} to {most:g}, not {text}")
        return value

    return convert
