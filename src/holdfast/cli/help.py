"""The parser of a command. Every help text has the same parts in the same order and fits in 80 columns."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Mapping

from holdfast.cli import statuses

_COLUMNS = 78

# Exit statuses with their meanings, for the `results` of several commands.
USAGE: dict[int | str, str] = {statuses.USAGE: "bad arguments, or a URL that cannot be used"}
STORE = {**USAGE, statuses.UNAVAILABLE: "the store is not available"}
STORE_READ = {**USAGE, statuses.UNAVAILABLE: "the store is not available, or does not exist"}
SIGNALS: dict[int | str, str] = {"130, 143": "ended by Ctrl-C, or by SIGTERM"}

Commands = argparse._SubParsersAction  # noqa: SLF001 - argparse has no public name for the result of add_subparsers


def add_command(
    commands: Commands[argparse.ArgumentParser],
    name: str,
    *,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    description: str,
    examples: Mapping[str, str],
    results: Mapping[int | str, str],
) -> argparse.ArgumentParser:
    """Add the parser of one command.

    Args:
        run: Runs the command and returns its exit status. The namespace also has the parser, for its `error`.
        summary: One line, for the list of commands.
        description: Lines of at most 80 columns.
        examples: Maps command lines to explanations.
        results: Maps exit statuses to their meanings.
    """
    meanings = {str(status): meaning for status, meaning in results.items()}
    parts = [listed("examples:", examples), listed("exit status:", meanings)]
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog="\n\n".join(parts),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def listed(heading: str, entries: Mapping[str, str]) -> str:
    """Return the heading and one line for each entry with its meaning, wrapped."""
    column = max(map(len, entries)) + 4
    lines = [
        textwrap.fill(meaning, _COLUMNS, initial_indent=f"  {entry}".ljust(column), subsequent_indent=" " * column)
        for entry, meaning in entries.items()
    ]
    return "\n".join([heading, *lines])
