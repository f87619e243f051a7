"""etcd for asyncio: a connection for each call in flight, and one task that receives watch events."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from holdfast.backends.etcd.config import EtcdConfig, config_of
from holdfast.backends.etcd.io.cluster import Cluster, backend_on
from holdfast.backends.net.aio import BackgroundTasks, KeyedMutex, LoopPoller
from holdfast.core.ports import Backend
from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.url import Address


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    config = config_of(address)
    return backend_on(LoopCluster(config, runtime), config, runtime)


class LoopCluster(Cluster):
    """A cluster whose tasks queue for a lock in the order in which they started."""

    def __init__(self, config: EtcdConfig, runtime: AsyncioRuntime) -> None:
        super().__init__(config, LoopPoller(runtime), BackgroundTasks(runtime), runtime)
        self._name_mutexes = KeyedMutex(runtime, config.url)

    def name_mutex(self, name: str, *, deadline: float) -> AbstractAsyncContextManager[None]:
        return self._name_mutexes.hold(name, deadline)
