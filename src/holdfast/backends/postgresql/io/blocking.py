"""PostgreSQL for threads: statements on the caller's own thread, hints on one listening thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.net.blocking import BackgroundThreads, BlockingPoller
from holdfast.backends.postgresql.config import place_of
from holdfast.backends.postgresql.io.database import Database
from holdfast.backends.postgresql.protocol.methods import backend_on
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.url import Address

CREATE_MAX = 30.0  # seconds


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    place = place_of(address)
    port = Database(place, BlockingPoller(), BackgroundThreads(), runtime)
    return backend_on(place, port, runtime)


def create_tables(address: Address) -> None:
    """For `holdfast init`."""
    database = Database(place_of(address), BlockingPoller(), BackgroundThreads(), ThreadRuntime())
    run_sync(database.create_tables(deadline=system.now() + CREATE_MAX))
