"""The command line. The top of the house: nothing imports it.

A command is a module (or a folder) here with a function `add_parser(commands)`: it adds its own parser, with
`run=<function>` among its defaults, and imports what it needs when it runs. Then its name goes into `_COMMANDS`.
`run(arguments)` returns the exit status: 0, 1 if what was asked for did not come out, 128 + n for signal n.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence

from holdfast import HoldfastError, __version__

_COMMANDS = ("demo",)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status of the process."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a lock's name may hold what this terminal cannot show
    try:
        parser = _parser()
        arguments = parser.parse_args(argv)
        if arguments.run is None:
            parser.print_help(sys.stderr)
            return 2
        run: Callable[[argparse.Namespace], int] = arguments.run
        status = run(arguments)
        sys.stdout.flush()
    except HoldfastError as error:
        print("holdfast:", " ".join(str(error).split()), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output has gone (`holdfast … | head`). Python flushes once more at exit: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="holdfast", description="Locks that many programs share.")
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in _COMMANDS:
        importlib.import_module(f"holdfast.cli.{name}").add_parser(commands)
    return parser
