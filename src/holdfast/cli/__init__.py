"""The command line. The top of the house: nothing imports it.

A command is a module (or a folder) here with a function `add_parser(commands)`: it adds its own parser, with
`run=<function>` among its defaults, and imports what it needs when it runs. Then its module goes into `_COMMANDS`.
`run(arguments)` returns the exit status, one of `statuses`; what it raises is given one here.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from holdfast import BackendError, ConfigurationError, HoldfastError, HoldfastWarning, __version__
from holdfast.cli import statuses
from holdfast.cli.completion.spec import COMMAND_LINES, command_parsers, option_values
from holdfast.cli.text import escape
from holdfast.cli.words import cut
from holdfast.core.names import did_you_mean

# Modules, in the order of the help. Each knows what its command is called: `break` could not be a module's name.
_COMMANDS = (
    *("run", "ls", "show", "revoke", "break_lock", "watch"),
    *("init", "backends", "completion", "simulate", "demo"),
)
_EPILOG = """\
`holdfast COMMAND --help` says more, with examples and exit statuses. The store
is --url, or $HOLDFAST_URL, or a file in this user's state folder.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status of the process."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a lock's name may hold what this terminal cannot show
    if sys.stdout is None:  # closed by whoever started us: nobody reads, but the status counts
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    try:
        parser = make_parser()
        words, command = _prepared(parser, sys.argv[1:] if argv is None else argv)
        arguments = parser.parse_args(words, argparse.Namespace(command=command))
        if arguments.run is None:
            parser.print_help(sys.stderr)
            return statuses.USAGE
        run: Callable[[argparse.Namespace], int] = arguments.run
        status = run(arguments)
        sys.stdout.flush()
    except HoldfastError as error:
        print("holdfast:", escape(" ".join(str(error).split())), file=sys.stderr)
        return _status_of(error)
    except KeyboardInterrupt:
        return statuses.of_signal(signal.SIGINT)
    except BrokenPipeError:
        # Whoever read our output has gone (`holdfast … | head`). Python flushes once more at exit: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return statuses.BROKEN_PIPE
    return status


def _prepared(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words for argparse, and the command line that `holdfast run` is to run."""
    name = argv[0] if argv else ""
    found = command_parsers(parser)
    if name.startswith("-") or not name:
        option = name.partition("=")[0]
        if option not in option_values(parser):
            owner = next((command for command in found if option in option_values(found[command])), None)
            if owner is not None:
                raise ConfigurationError(f"{option} goes behind the command: holdfast {owner} {option} …")
        return cut("holdfast", argv, option_values(parser), runs_another=False)
    if name not in found:
        raise ConfigurationError(f"there is no command {name!r}{did_you_mean(name, found)}")
    words, command = cut(name, argv[1:], option_values(found[name]), runs_another=name in COMMAND_LINES)
    return [name, *words], command


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; `completion` reads it too."""
    parser = argparse.ArgumentParser(
        prog="holdfast",
        description="Locks that many programs share.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in _COMMANDS:
        importlib.import_module(f"holdfast.cli.{module}").add_parser(commands)
    return parser


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **_: Any) -> None:
    """Without the line of code, if it is ours: the user did not write that."""
    text = message if issubclass(category, HoldfastWarning) else warnings.formatwarning(message, category, *place[:2])
    print("holdfast: warning:", escape(str(text).strip()), file=sys.stderr)


def _status_of(error: HoldfastError) -> int:
    match error:
        case ConfigurationError():
            return statuses.USAGE
        case BackendError():
            return statuses.UNAVAILABLE
        case _:
            return statuses.NOT_DONE
