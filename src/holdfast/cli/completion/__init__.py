"""`holdfast completion`: a script for the shell, made from the parser itself, so that it knows what the parser knows.

spec             what the parser says of commands, options and arguments
bash, zsh, fish  the same as a script of that shell, which asks `holdfast ls --names --no-search` for names
"""

from __future__ import annotations

import argparse
import importlib

from holdfast.cli import statuses
from holdfast.cli.help import Commands, add_command

SHELLS = ("bash", "zsh", "fish")

_DESCRIPTION = """\
Print a script that has the shell complete commands, options and the names of
the locks that are in use. Put the line below into the shell's start-up file.

Names are not completed on Redis, Redlock and memcached: these have no index of
their locks, and a Tab key must not start a search of all keys.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "completion",
        summary="print a script for the shell's Tab key",
        description=_DESCRIPTION,
        examples={
            "source <(holdfast completion bash)": "in ~/.bashrc",
            "source <(holdfast completion zsh)": "in ~/.zshrc, after compinit",
            "holdfast completion fish | source": "in ~/.config/fish/config.fish",
        },
        results={statuses.DONE: "done", statuses.USAGE: "bad arguments"},
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from holdfast.cli import make_parser
    from holdfast.cli.completion import spec

    writer = importlib.import_module(f"holdfast.cli.completion.{arguments.shell}")
    print(writer.script(spec.read(make_parser())), end="")
    return statuses.DONE
