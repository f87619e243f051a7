"""The command line. No other package of holdfast imports it.

Each command is a module or a folder in this package. Its function `add_parser(commands)` adds a parser with the default
`run=<function>`. `run(arguments)` returns the exit status, one of `statuses`; `main` maps exceptions to statuses. A
command imports at its top only modules that are small or that `import holdfast` loads anyway, and the rest when it
runs, so that `holdfast --help` starts fast. `_COMMANDS` lists the modules.
`simulate` and `verify` are in the distribution holdfast-lab, the only package that imports this one.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from holdfast import BackendError, ConfigurationError, HoldfastError, HoldfastWarning, __version__
from holdfast.cli import lab, statuses
from holdfast.cli.argv import split_argv
from holdfast.cli.completion.spec import COMMAND_LINES, command_parsers, option_values
from holdfast.cli.text import escape
from holdfast.core.names import did_you_mean

# Modules in the order of the help text. A module name can differ from its command: `break` is a keyword.
_COMMANDS = (
    *("run", "ls", "show", "revoke", "break_lock", "once", "top", "watch", "deadlocks", "dashboard"),
    *("init", "backends", "completion", "lab", "demo"),
)
_EPILOG = """\
`holdfast COMMAND --help` has examples and exit statuses. The store is --url, or
$HOLDFAST_URL, or a file in this user's state folder.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status of the process."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        status = _main(argv)
    if argv is None:  # the process ends now: without this, the interpreter searches all modules for garbage first
        gc.freeze()
    return status


def _main(argv: Sequence[str] | None) -> int:
    _replace_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # a lock name may contain characters that this terminal cannot encode
    try:
        argv = sys.argv[1:] if argv is None else argv
        parser = make_parser(with_lab=bool(argv) and argv[0] in lab.SUMMARIES)
        words, command = _split(parser, argv)
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
        # The reader has closed the pipe (`holdfast … | head`). Python flushes again at exit: discard that output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return statuses.BROKEN_PIPE
    return status


def _replace_closed_streams() -> None:
    """Open the null device in place of each standard stream that the parent has closed.

    Otherwise the next file or socket would get the descriptor of that stream. `holdfast run` replaces descriptor 1, and
    writes to descriptor 2. The order of the streams is that of their descriptors: a file gets the lowest free one.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends


def _split(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments for argparse, and the command line that `holdfast run` has to run."""
    name = argv[0] if argv else ""
    parsers = command_parsers(parser)
    if name.startswith("-") or not name:
        option = name.partition("=")[0]
        if option and option not in option_values(parser):
            parsers = command_parsers(make_parser())
            owner = next((command for command in parsers if option in option_values(parsers[command])), None)
            if owner is not None:
                raise ConfigurationError(f"{option} must follow the command: holdfast {owner} {option} …")
        return split_argv("holdfast", argv, option_values(parser), runs_another=False)
    if name not in parsers:
        raise ConfigurationError(f"there is no command {name!r}{did_you_mean(name, parsers)}")
    if name in lab.SUMMARIES and parsers[name].get_default("run") is None:
        raise ConfigurationError(lab.missing(name))
    words, command = split_argv(name, argv[1:], option_values(parsers[name]), runs_another=name in COMMAND_LINES)
    return [name, *words], command


def make_parser(*, with_lab: bool = True) -> argparse.ArgumentParser:
    """Return the parser of the whole command line. `completion` reads it too.

    Args:
        with_lab: Search the installed distributions for the options of `simulate` and `verify`.
    """
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
        if module == "lab":
            lab.add_parsers(commands, load=with_lab)
        else:
            importlib.import_module(f"holdfast.cli.{module}").add_parser(commands)
    return parser


def _show_warning(message: Warning | str, category: type[Warning], *source: Any, **_: Any) -> None:
    """Print a warning. Omit the source line of a warning of holdfast, because the user did not write that code."""
    text = message if issubclass(category, HoldfastWarning) else warnings.formatwarning(message, category, *source[:2])
    print("holdfast: warning:", escape(str(text).strip()), file=sys.stderr)


def _status_of(error: HoldfastError) -> int:
    match error:
        case ConfigurationError():
            return statuses.USAGE
        case BackendError():
            return statuses.UNAVAILABLE
        case _:
            return statuses.NOT_DONE
