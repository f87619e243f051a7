"""The clients of the stores in the setting HOLDFAST: created at the first use, one for each process and store."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

try:
    from django.conf import settings
    from django.db import connections
except ImportError as error:
    raise ImportError("holdfast.django needs Django: pip install 'holdfast[django]'") from error

from holdfast.base_client import DEFAULT_TTL
from holdfast.core.names import check_ttl, did_you_mean
from holdfast.django.stores import Database, Store, entry_of, store_of
from holdfast.errors import ConfigurationError, UsageError
from holdfast.runtimes import system
from holdfast.runtimes.threads import Mutex
from holdfast.threads.client import Client

if TYPE_CHECKING:
    from holdfast.aio.client import AsyncClient

ClientT = TypeVar("ClientT")

_clients: dict[str, Client] = {}
_mutex = Mutex()

_Key = tuple[asyncio.AbstractEventLoop, str]
_async_clients: dict[_Key, tuple[AsyncClient, AsyncGenerator[None]]] = {}


def client(alias: str = "default") -> Client:
    """The client of a store of the setting HOLDFAST; the same object each time.

    Raises:
        ConfigurationError: the setting is refused; the message names the key and the fix.
    """
    made = _clients.get(alias)
    if made is not None and not made._closed:
        return made
    with _mutex:
        made = _clients.get(alias)
        if made is None or made._closed:
            made = _clients[alias] = make_client(alias)
            atexit.register(_close_if_idle, made)
        return made


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
        made = make_async_client(alias)
        closing = _close_with_loop(key, made)
        # This runs it to its `yield`. From then on the loop knows it, and ends it when the loop itself ends.
        try:
            closing.asend(None).send(None)
        except StopIteration:
            _async_clients[key] = (made, closing)
    return made


def make_client(alias: str) -> Client:
    """A new client of a store. Raises ConfigurationError."""
    return _make(Client, alias)


def make_async_client(alias: str) -> AsyncClient:
    from holdfast.aio.client import AsyncClient

    return _make(AsyncClient, alias)


def store(alias: str) -> Store:
    """The arguments of the clients of this alias. Raises ConfigurationError."""
    entry = entry_of(getattr(settings, "HOLDFAST", None), alias)
    return store_of(entry, _database(alias, entry["DATABASE"]) if "DATABASE" in entry else None)


def ttl_of(alias: str = "default") -> float:
    """The ttl of the clients of this alias, without a client. If the settings are refused, their use says so."""
    try:
        return check_ttl(store(alias).keywords.get("ttl", DEFAULT_TTL))
    except ConfigurationError:
        return DEFAULT_TTL


def close_clients(**_: Any) -> None:
    """Close all clients, because their settings have changed. A test runner changes settings, a server does not."""
    with _mutex:
        closed = list(_clients.values())
        _clients.clear()
    for made in closed:
        made.close()
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


def _close_if_idle(made: Client) -> None:
    """At the end of the process. runtimes/exits.py ends the leases, because it knows which of them are in use."""
    if not made._closed and made._current is not None and made._current.is_idle:
        made.close()


def _in_forked_child() -> None:
    global _mutex
    _mutex = Mutex()  # another thread of the parent may have locked the old one


system.after_fork_in_child(_in_forked_child)
