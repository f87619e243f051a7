"""The two ways to lock in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.postgresql.protocol.advisory import AdvisoryBackend
from holdfast.backends.postgresql.protocol.queue import PostgresqlBackend

if TYPE_CHECKING:
    from holdfast.backends.postgresql.config import PostgresqlConfig
    from holdfast.backends.postgresql.port import PostgresqlPort
    from holdfast.core.ports import Backend, Runtime


def make_backend(config: PostgresqlConfig, port: PostgresqlPort, runtime: Runtime) -> Backend:
    if config.method == "advisory":
        return AdvisoryBackend(config.url, port, runtime, schema=config.schema)
    return PostgresqlBackend(config.url, port, runtime)
