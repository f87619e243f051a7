"""Which protocol a method is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.mysql.io.waiter_sessions import WaiterSessions
from holdfast.backends.mysql.protocol.row import RowBackend
from holdfast.backends.mysql.protocol.unique import UniqueBackend
from holdfast.backends.mysql.protocol.version import VersionBackend

if TYPE_CHECKING:
    from holdfast.backends.mysql.config import MysqlConfig
    from holdfast.backends.mysql.io.connections import Connections
    from holdfast.core.ports import Backend, Runtime


def make_backend(config: MysqlConfig, connections: Connections, runtime: Runtime) -> Backend:
    if config.method == "version":
        return VersionBackend(config.url, connections, runtime)
    if config.method == "row":
        return RowBackend(config.url, connections, WaiterSessions(connections, runtime, config.url), runtime)
    return UniqueBackend(config.url, connections, runtime)
