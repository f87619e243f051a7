"""Which protocol a method is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.mysql.gates import Gates
from holdfast.backends.mysql.protocol import UniqueBackend
from holdfast.backends.mysql.row import RowBackend
from holdfast.backends.mysql.version import VersionBackend

if TYPE_CHECKING:
    from holdfast.backends.mysql.address import Place
    from holdfast.backends.mysql.lines import Lines
    from holdfast.core.ports import Backend, Runtime


def backend_of(place: Place, lines: Lines, runtime: Runtime) -> Backend:
    if place.method == "version":
        return VersionBackend(place.url, lines, runtime)
    if place.method == "row":
        return RowBackend(place.url, lines, Gates(lines, runtime, place.url), runtime)
    return UniqueBackend(place.url, lines, runtime)
