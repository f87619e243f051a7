"""`holdfast top`: a live table of the locks, on a terminal. Needs Textual, which the extra `tui` installs.

rows      the columns, their order, the filter: pure
pages     the lines of each page, escaped: pure
widgets   lines on the screen, without markup
app       the application: pages, dialogs, polling
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys

from holdfast.cli import options, statuses
from holdfast.cli.help import STORE_READ, Commands, add_command
from holdfast.cli.watch import add_interval
from holdfast.errors import ConfigurationError

INTERVAL = 0.25  # with the time of two reads, a change is on the screen within a second
_FIRST_SEARCH = 1.0  # seconds; what is found later appears later
_DESCRIPTION = """\
Show the locks in use as a live table: the holder of each, how long it has held
the lock, how much of the ttl is left, the waiters and the longest wait. Enter
opens the page of a lock with its queue; g shows which caller waits for which,
deadlocks in red. r requests a release, b breaks a lease after its fence was
typed. ? lists all keys.

If the store becomes unavailable, this is shown, and polling continues. It
polls as `holdfast watch` does. It needs a terminal and the package Textual:
pip install 'holdfast[tui]'.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "top",
        run=_run,
        summary="show the locks as a live table",
        description=_DESCRIPTION,
        examples={
            "holdfast top": "all locks, until q is pressed",
            "holdfast top order: --interval 2": "some locks, every two seconds",
        },
        results={statuses.DONE: "ended by q or Ctrl-C", **STORE_READ, "143": "ended by SIGTERM"},
    )
    options.add_prefix(parser)
    add_interval(parser, INTERVAL)
    options.add_url(parser)


def _run(arguments: argparse.Namespace) -> int:
    if importlib.util.find_spec("textual") is None:
        raise ConfigurationError("`holdfast top` needs the package textual: pip install 'holdfast[tui]'")
    streams = (sys.stdin, sys.stdout, sys.stderr)  # Textual draws on stderr
    if os.environ.get("TERM") == "dumb" or not all(stream is not None and stream.isatty() for stream in streams):
        raise ConfigurationError("`holdfast top` needs a terminal: use `holdfast watch` or `holdfast ls`")
    import asyncio

    return asyncio.run(_show(arguments))


async def _show(arguments: argparse.Namespace) -> int:
    import asyncio

    from holdfast.aio.client import AsyncClient
    from holdfast.cli.top.app import TopApp
    from holdfast.monitor import AsyncMonitor

    async with AsyncClient(arguments.url) as client:
        options.prepare_existing(client)
        async with AsyncMonitor(client, arguments.prefix, first_search=_FIRST_SEARCH) as monitor:
            first = await monitor.poll()
            if first.error is not None:  # later polls may fail for a while
                raise first.error
            app = TopApp(client, monitor, first, interval=arguments.interval)

            def end(number: signal.Signals) -> None:
                app.exit(statuses.of_signal(number))

            # Without these, the terminal would stay in the mode of the application.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, end, number)
            status = await app.run_async()
    return statuses.DONE if status is None else status
