"""PostgreSQL for threads: statements run on the caller's own thread, notifications arrive on a background thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.net.blocking import BackgroundThreads, BlockingPoller
from holdfast.backends.postgresql.config import config_of
from holdfast.backends.postgresql.io.connections import Database, make_backend
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.url import Address

CREATE_MAX = 30.0  # seconds


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    config = config_of(address)
    return make_backend(config, Database(config, BlockingPoller(), BackgroundThreads(), runtime), runtime)


def create_tables(address: Address) -> None:
    """For `holdfast init`."""
    database = Database(config_of(address), BlockingPoller(), BackgroundThreads(), ThreadRuntime())
    run_sync(database.create_tables(system.now() + CREATE_MAX))
