"""MySQL for threads: statements run on the caller's own thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.mysql.config import config_of
from holdfast.backends.mysql.io.connections import Connections, make_backend
from holdfast.backends.net.blocking import BlockingPoller
from holdfast.core.engine import IO_TIMEOUT
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.url import Address


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    config = config_of(address)
    return make_backend(config, Connections(config, BlockingPoller(), runtime), runtime)


def create_tables(address: Address) -> None:
    """Create or upgrade our tables and procedures in the database of the address, for `holdfast init`.

    Raises:
        BackendError: the server could not be reached, or did not answer.
        ConfigurationError: this user may not create them.
    """
    connections = Connections(config_of(address), BlockingPoller(), ThreadRuntime())
    run_sync(connections.create_tables(system.now() + IO_TIMEOUT))
