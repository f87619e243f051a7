"""etcd for asyncio: a connection for each call under way, changes heard by one task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.etcd.config import Place, place_of
from holdfast.backends.etcd.io.cluster import Cluster
from holdfast.backends.etcd.protocol.methods import backend_on
from holdfast.backends.net.aio import BackgroundTasks, KeyedMutex, LoopPoller
from holdfast.errors import BackendUnavailable

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from holdfast.core.ports import Backend
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    place = place_of(address)
    return backend_on(LoopCluster(place, runtime), place, runtime)


class LoopCluster(Cluster):
    """Whose tasks come to a lock in the order in which they began."""

    def __init__(self, place: Place, runtime: AsyncioRuntime) -> None:
        super().__init__(place, LoopPoller(runtime), BackgroundTasks(runtime), runtime)
        self._keyed_mutex = KeyedMutex(
            runtime, lambda: BackendUnavailable(backend=place.url, problem="other tasks asked all the time")
        )

    def turn(self, name: str, *, deadline: float) -> AbstractAsyncContextManager[None]:
        return self._keyed_mutex.hold(name, deadline)
