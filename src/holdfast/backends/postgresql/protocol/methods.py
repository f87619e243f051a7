"""The two ways to lock in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.postgresql.protocol.advisory import AdvisoryBackend
from holdfast.backends.postgresql.protocol.queue import PostgresqlBackend

if TYPE_CHECKING:
    from holdfast.backends.postgresql.config import Place
    from holdfast.backends.postgresql.port import PostgresqlPort
    from holdfast.core.ports import Backend, Runtime


def backend_on(place: Place, port: PostgresqlPort, runtime: Runtime) -> Backend:
    if place.method == "advisory":
        return AdvisoryBackend(place.url, port, runtime, schema=place.schema)
    return PostgresqlBackend(place.url, port, runtime)
