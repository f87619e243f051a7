"""Which protocol a method is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.mysql.io.waiter_sessions import Gates
from holdfast.backends.mysql.protocol.row import RowBackend
from holdfast.backends.mysql.protocol.unique import UniqueBackend
from holdfast.backends.mysql.protocol.version import VersionBackend

if TYPE_CHECKING:
    from holdfast.backends.mysql.config import Place
    from holdfast.backends.mysql.io.connections import Lines
    from holdfast.core.ports import Backend, Runtime


def backend_of(place: Place, lines: Lines, runtime: Runtime) -> Backend:
    if place.method == "version":
        return VersionBackend(place.url, lines, runtime)
    if place.method == "row":
        return RowBackend(place.url, lines, Gates(lines, runtime, place.url), runtime)
    return UniqueBackend(place.url, lines, runtime)
