"""Redlock for asyncio: all nodes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.redis.aio import TaskEars
from holdfast.backends.redis.listening import Hints
from holdfast.backends.redis.pipeline import PipelineLines
from holdfast.backends.redlock.address import council_of
from holdfast.backends.redlock.census import Census
from holdfast.backends.redlock.nodes import Nodes
from holdfast.backends.redlock.protocol import RedlockBackend

if TYPE_CHECKING:
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address


def open_backend(address: Address, runtime: AsyncioRuntime) -> RedlockBackend:
    council = council_of(address, is_asyncio=True)
    place, census = council.place, Census(council.place, runtime)
    port = Nodes(place, PipelineLines(place, place.login, place.db, runtime, census.meet), census, runtime)
    port.ears = TaskEars(place, runtime)
    port.hints = Hints(place, port, port.ears, runtime)
    return RedlockBackend(council, port, runtime)
