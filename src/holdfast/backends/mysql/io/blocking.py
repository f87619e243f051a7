"""MySQL for threads: statements on the caller's own thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.mysql.config import place_of
from holdfast.backends.mysql.io.connections import Lines
from holdfast.backends.mysql.io.methods import backend_of
from holdfast.backends.net.blocking import BlockingPoller
from holdfast.core.engine import IO_TIMEOUT
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.url import Address


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    place = place_of(address)
    return backend_of(place, Lines(place, BlockingPoller(), runtime), runtime)


def create_tables(address: Address) -> None:
    """Create our tables and procedures in the database that the address names, or find them there.

    Raises:
        BackendError: the server could not be asked.
        ConfigurationError: this user may not create them.
    """
    lines = Lines(place_of(address), BlockingPoller(), ThreadRuntime())
    run_sync(lines.create_tables(system.now() + IO_TIMEOUT))
