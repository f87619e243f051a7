"""Options that commands share, so that they are spelled, explained and refused alike."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.client import Client


def add_url(parser: argparse.ArgumentParser) -> None:
    """--url, for a command that uses `open_client`."""
    parser.add_argument(
        "--url",
        help="the store, such as sqlite:///var/lib/app/locks.db (default: $HOLDFAST_URL, or a file of this user's)",
    )


def add_json(parser: argparse._ActionsContainer) -> None:
    """--json: the same facts for a program."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def add_name(parser: argparse.ArgumentParser) -> None:
    """NAME, of one lock. Completion offers the locks that are in use."""
    parser.add_argument("name", metavar="NAME", help="the lock's name")


def add_prefix(parser: argparse.ArgumentParser) -> None:
    """[PREFIX], for some of the locks. Completion offers those that are in use."""
    parser.add_argument(
        "prefix", metavar="PREFIX", nargs="?", default="", help="only locks whose names begin like this"
    )


def open_client(arguments: argparse.Namespace) -> Client:
    """A client for the store that `add_url` was told of.

    Raises:
        ConfigurationError: there is no such store, or one that no other process could see.
    """
    from holdfast.client import Client
    from holdfast.errors import ConfigurationError
    from holdfast.guarantees import Scope

    client = Client(arguments.url)
    if client.guarantees.scope is Scope.PROCESS:
        client.close()
        raise ConfigurationError(f"url {client.url} is private to one process: name a store that others can see too")
    return client


def open_to_read(arguments: argparse.Namespace) -> Client:
    """The same, for a command that only reads: where the store is missing, that is an error, and nothing is created."""
    client = open_client(arguments)
    client._engine.needs_store = True  # noqa: SLF001 - to a program, a missing store is a store without locks
    return client


def seconds(*, least: float = 0.0) -> Callable[[str], float]:
    """A type for argparse: a finite number of seconds, `least` or more."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text!r}") from None
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be {least:g} or more seconds, not {text}")
        return value

    return convert


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A type for argparse: a whole number, `least` or more and `most` or less."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            bounds = f"{least} or more" if most is None else f"from {least} to {most:,}"
            raise argparse.ArgumentTypeError(f"must be a whole number, {bounds}, not {text!r}")
        return value

    return convert
