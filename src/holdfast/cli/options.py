"""Options that several commands share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.names import parse_duration
from holdfast.errors import ConfigurationError
from holdfast.guarantees import Scope
from holdfast.threads.client import Client

if TYPE_CHECKING:
    from holdfast.aio.client import AsyncClient


def add_url(parser: argparse.ArgumentParser) -> None:
    """Add --url, for a command that uses `open_client`."""
    parser.add_argument(
        "--url",
        help="the store, such as sqlite:///var/lib/app/locks.db (default: $HOLDFAST_URL, or a file of this user)",
    )


def add_json(parser: argparse._ActionsContainer) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def add_name(parser: argparse.ArgumentParser) -> None:
    """Add NAME. Completion offers the locks in use."""
    parser.add_argument("name", metavar="NAME", help="the lock's name")


def add_prefix(parser: argparse.ArgumentParser) -> None:
    """Add [PREFIX]. Completion offers the locks in use."""
    parser.add_argument(
        "prefix", metavar="PREFIX", nargs="?", default="", help="only locks whose names begin with PREFIX"
    )


def open_client(arguments: argparse.Namespace) -> Client:
    """Return a client for the store of `add_url`.

    Raises:
        ConfigurationError: the URL is invalid, or the store is private to one process.
    """
    return shared(Client(arguments.url))


def shared(client: Client) -> Client:
    """Return the client. Close it and raise ConfigurationError if its store is private to one process."""
    try:
        require_shared(client)
    except BaseException:
        client.close()
        raise
    return client


def open_existing(arguments: argparse.Namespace) -> Client:
    """Return a client that does not create a missing store: using it is an error. For commands that only read."""
    client = open_client(arguments)
    prepare_existing(client)
    return client


def prepare_existing(client: Client | AsyncClient) -> None:
    """Make a client such as `open_existing` returns.

    Raises:
        ConfigurationError: the store is private to one process.
    """
    require_shared(client)
    client._engine.operators.needs_store = True  # noqa: SLF001 - the public API treats a missing store as a store without locks


def require_shared(client: Client | AsyncClient) -> None:
    """Raise ConfigurationError if the store is private to one process."""
    if client.guarantees.scope is Scope.PROCESS:
        raise ConfigurationError(
            f"url {client.url} is private to one process: use a store that other processes can reach"
        )


def seconds(*, minimum: float = 0.0) -> Callable[[str], float]:
    """Return a type for argparse: a finite number of seconds or text such as 15m, `minimum` or more."""

    def convert(text: str) -> float:
        try:
            value = parse_duration(text)
        except ValueError:
            problem = f"must be a number of seconds or text like 500ms, 30s, 15m or 1h, not {text!r}"
            raise argparse.ArgumentTypeError(problem) from None
        if not minimum <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be {minimum:g} or more seconds, not {text}")
        return value

    return convert


def whole(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Return a type for argparse: a whole number from `minimum` to `maximum`."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum or (maximum is not None and value > maximum):
            bounds = f"{minimum} or more" if maximum is None else f"from {minimum} to {maximum:,}"
            raise argparse.ArgumentTypeError(f"must be a whole number, {bounds}, not {text!r}")
        return value

    return convert
