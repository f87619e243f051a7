"""`holdfast completion`: print a completion script for a shell, generated from the argument parser.

spec             the commands, options and arguments of the parser
bash, zsh, fish  the script of each shell; it gets lock names from `holdfast ls --names --no-search`
"""

from __future__ import annotations

import argparse
import importlib

from holdfast.cli import statuses
from holdfast.cli.help import Commands, add_command

SHELLS = ("bash", "zsh", "fish")

_DESCRIPTION = """\
Print a script that completes commands, options and the names of locks in use.
Put the line of your shell, from the examples below, into its start-up file.

Names are not completed on Redlock, on memcached and on Redis with method=setnx
or getset, because these have no index of their locks and a Tab key must not
start a search of all keys.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "completion",
        run=_run,
        summary="print a completion script for a shell",
        description=_DESCRIPTION,
        examples={
            "source <(holdfast completion bash)": "in ~/.bashrc",
            "source <(holdfast completion zsh)": "in ~/.zshrc, after compinit",
            "holdfast completion fish | source": "in ~/.config/fish/config.fish",
        },
        results={statuses.DONE: "done", statuses.USAGE: "bad arguments"},
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")


def _run(arguments: argparse.Namespace) -> int:
    from holdfast.cli import make_parser
    from holdfast.cli.completion import spec

    writer = importlib.import_module(f"holdfast.cli.completion.{arguments.shell}")
    print(writer.script(spec.read(make_parser())), end="")
    return statuses.DONE
