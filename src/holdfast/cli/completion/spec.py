"""Read commands, options and arguments from the parser. Only this module uses the internals of argparse."""

from __future__ import annotations

import argparse
from typing import NamedTuple

_LOCK_NAMES = ("name", "prefix")  # see cli/options.py: add_name, add_prefix
COMMAND_LINES = ("run",)  # commands whose arguments end with the command line of another program


class Option(NamedTuple):
    """One option."""

    spellings: tuple[str, ...]
    takes_value: bool
    value: str  # its placeholder in the help
    choices: tuple[str, ...]
    help: str


class Argument(NamedTuple):
    """One positional argument."""

    name: str
    choices: tuple[str, ...]
    is_lock: bool


class Command(NamedTuple):
    """One command."""

    name: str
    summary: str
    options: tuple[Option, ...]
    arguments: tuple[Argument, ...]
    runs_another: bool  # its arguments end with the command line of another program


class Spec(NamedTuple):
    """The whole command line."""

    options: tuple[Option, ...]
    commands: tuple[Command, ...]

    @property
    def with_value(self) -> list[str]:
        """Every spelling of an option that takes a value."""
        spellings = {
            spelling
            for options in (self.options, *(command.options for command in self.commands))
            for option in options
            if option.takes_value
            for spelling in option.spellings
        }
        return sorted(spellings)


def command_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands by name."""
    return dict(_commands(parser).choices)


def option_values(parser: argparse.ArgumentParser) -> dict[str, bool]:
    """Map every spelling of every option of a command to whether it takes a value."""
    return {spelling: action.nargs != 0 for action in parser._actions for spelling in action.option_strings}  # noqa: SLF001 - argparse has no public API to inspect a parser


def read(parser: argparse.ArgumentParser) -> Spec:
    """Return the specification of the whole command line."""
    commands = _commands(parser)
    summaries = {choice.dest: choice.help or "" for choice in commands._choices_actions}  # noqa: SLF001 - as above
    return Spec(
        options=_options(parser),
        commands=tuple(_command(name, summaries.get(name, ""), choice) for name, choice in commands.choices.items()),
    )


def render(script: str, **parts: str) -> str:
    """Replace `@name@` in a script. `%` and braces would collide with shell syntax."""
    for name, part in parts.items():
        script = script.replace(f"@{name}@", part)
    return script


def _commands(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001 - as above


def _command(name: str, summary: str, parser: argparse.ArgumentParser) -> Command:
    positional = [action for action in parser._actions if not action.option_strings]  # noqa: SLF001 - as above
    return Command(
        name=name,
        summary=summary,
        options=_options(parser),
        arguments=tuple(
            Argument(str(action.metavar or action.dest), _choices(action), action.dest in _LOCK_NAMES)
            for action in positional
        ),
        runs_another=name in COMMAND_LINES,
    )


def _options(parser: argparse.ArgumentParser) -> tuple[Option, ...]:
    formatter = parser._get_formatter()  # noqa: SLF001 - as above
    return tuple(
        Option(
            spellings=tuple(action.option_strings),
            takes_value=action.nargs != 0,
            value=str(action.metavar or action.dest.upper()),
            choices=_choices(action),
            help=formatter._expand_help(action) if action.help else "",  # noqa: SLF001 - as above
        )
        for action in parser._actions  # noqa: SLF001 - as above
        if action.option_strings and action.help != argparse.SUPPRESS
    )


def _choices(action: argparse.Action) -> tuple[str, ...]:
    return tuple(choice for choice in action.choices or () if isinstance(choice, str))
