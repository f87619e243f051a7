"""`holdfast simulate` and `holdfast verify` are commands of another distribution, holdfast-lab: its entry points."""

from __future__ import annotations

import argparse

from holdfast.cli.help import Commands

SUMMARIES = {
    "simulate": "search for faults that break a promise (package holdfast-lab)",
    "verify": "check the promises on your own servers, with faults (package holdfast-lab)",
}


def missing(name: str) -> str:
    """The message for a command that is not installed."""
    return f"{name} is a command of the package holdfast-lab: pip install 'holdfast[lab]'"


def add_parsers(commands: Commands[argparse.ArgumentParser], *, load: bool) -> None:
    """Add the commands; without options and functions if holdfast-lab is not installed, or if `load` is false."""
    installed = {}
    if load:
        from importlib.metadata import entry_points  # 20 ms, which other commands do not spend

        installed = {entry_point.name: entry_point for entry_point in entry_points(group="holdfast.commands")}
    for name, summary in SUMMARIES.items():
        if name in installed:
            installed[name].load()(commands)
        else:
            commands.add_parser(name, help=summary)
