"""The clients of the stores in the setting HOLDFAST: created at the first use, one for each process and store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

try:
    from django.conf import settings
    from django.db import connections
except ImportError as error:
    raise ImportError("holdfast.django needs Django: pip install 'holdfast[django]'") from error

from holdfast.base_client import DEFAULT_TTL
from holdfast.core.names import check_ttl, did_you_mean
from holdfast.default import SharedClients
from holdfast.django.stores import Database, Store, entry_of, store_of
from holdfast.errors import ConfigurationError, UsageError
from holdfast.threads.client import Client

if TYPE_CHECKING:
    from holdfast.aio.client import AsyncClient

ClientT = TypeVar("ClientT")

_Key = tuple[asyncio.AbstractEventLoop, str]
_async_clients: dict[_Key, tuple[AsyncClient, AsyncGenerator[None]]] = {}


def client(alias: str = "default") -> Client:
    """The client of a store of the setting HOLDFAST; the same object each time.

    Raises:
        ConfigurationError: the setting is refused; the message names the key and the fix.
    """
    return _clients.get(alias)


def async_client(alias: str = "default") -> AsyncClient:
    """The client for asyncio of a store of the setting HOLDFAST: for async views, one for each event loop.

    It is closed when its loop ends. A server for WSGI runs each async view in a loop of its own.

    Raises:
        ConfigurationError: the setting is refused; the message names the key and the fix.
        UsageError: no event loop runs in this thread.
    """
    try:
        key = (asyncio.get_running_loop(), alias)
    except RuntimeError:
        raise UsageError("async_client() is for coroutines, and no event loop runs here: use client()") from None
    made, _ = _async_clients.get(key, (None, None))
    if made is None or made._closed:
        for other in [other for other in list(_async_clients) if other[0].is_closed()]:
            _async_clients.pop(other, None)
        from holdfast.aio.client import AsyncClient

        made = _make(AsyncClient, alias)
        closing = _close_with_loop(key, made)
        # This runs the generator to its `yield`. From then on the event loop closes the generator when the loop ends.
        try:
            closing.asend(None).send(None)
        except StopIteration:
            _async_clients[key] = (made, closing)
    return made


def make_client(alias: str) -> Client:
    """A new client of a store. Raises ConfigurationError."""
    return _make(Client, alias)


def store(alias: str) -> Store:
    """The arguments of the clients of this alias. Raises ConfigurationError."""
    entry = entry_of(getattr(settings, "HOLDFAST", None), alias)
    return store_of(entry, _database(alias, entry["DATABASE"]) if "DATABASE" in entry else None)


def ttl_of(alias: str = "default") -> float:
    """The ttl of the clients of this alias, without a client. The first use of a client reports refused settings."""
    try:
        return check_ttl(store(alias).keywords.get("ttl", DEFAULT_TTL))
    except ConfigurationError:
        return DEFAULT_TTL


def close_clients(**_: Any) -> None:
    """Close all clients, because their settings have changed. A test runner changes settings, a server does not."""
    _clients.close()
    _async_clients.clear()  # asyncio ends the generators that are dropped here, and they close their clients


def _make(kind: Callable[..., ClientT], alias: str) -> ClientT:
    arguments = store(alias)
    try:
        return kind(arguments.url, **arguments.keywords)
    except ConfigurationError as error:
        raise ConfigurationError(f"HOLDFAST[{alias!r}] is refused: {error}") from error


def _database(alias: str, database: str) -> Database:
    if database not in connections.settings:
        hint = did_you_mean(str(database), connections.settings)
        raise ConfigurationError(f"HOLDFAST[{alias!r}]['DATABASE'] is {database!r}, which is not in DATABASES{hint}")
    return Database(connections[database].vendor, connections.settings[database])


async def _close_with_loop(key: _Key, made: AsyncClient) -> AsyncGenerator[None]:
    """An asynchronous generator, because asyncio.run() ends those of its loop before it closes the loop."""
    try:
        yield
    finally:
        current, _ = _async_clients.get(key, (None, None))
        if current is made:  # not its successor after a change of the settings
            del _async_clients[key]
        await made.close()


_clients = SharedClients(make_client)
