"""Which protocol a method is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.mysql.protocol import UniqueBackend
from holdfast.backends.mysql.version import VersionBackend

if TYPE_CHECKING:
    from holdfast.backends.mysql.address import Place
    from holdfast.backends.mysql.port import MysqlPort
    from holdfast.core.ports import Backend, Runtime


def backend_of(place: Place, port: MysqlPort, runtime: Runtime) -> Backend:
    if place.method == "version":
        return VersionBackend(place.url, port, runtime)
    return UniqueBackend(place.url, port, runtime)
