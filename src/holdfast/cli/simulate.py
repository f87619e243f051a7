"""`holdfast simulate` is a command of another distribution, holdfast-lab, which an entry point names."""

from __future__ import annotations

import argparse

from holdfast.cli.help import Commands

NAME = "simulate"
SUMMARY = "search for faults that break a promise (package holdfast-lab)"
MISSING = "simulate is a command of the package holdfast-lab: pip install 'holdfast[lab]'"


def add_parser(commands: Commands[argparse.ArgumentParser], *, load: bool) -> None:
    """Add the command; without its options and its function if holdfast-lab is not installed, or if `load` is false."""
    if load:
        from importlib.metadata import entry_points  # 20 ms, which other commands do not spend

        for entry_point in entry_points(group="holdfast.commands", name=NAME):
            entry_point.load()(commands)
            return
    commands.add_parser(NAME, help=SUMMARY)
