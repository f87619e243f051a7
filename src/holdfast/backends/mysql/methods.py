"""Which protocol a method is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.mysql.protocol import UniqueBackend

if TYPE_CHECKING:
    from holdfast.backends.mysql.address import Place
    from holdfast.backends.mysql.port import MysqlPort
    from holdfast.core.ports import Backend, Runtime


def backend_of(place: Place, port: MysqlPort, runtime: Runtime) -> Backend:
    return UniqueBackend(place.url, port, runtime)
