"""The memory store for asyncio."""

from __future__ import annotations

from holdfast.backends.memory.io.blocking import BlockingPort
from holdfast.backends.memory.port import Store, stores
from holdfast.backends.memory.protocol.queue import MemoryBackend
from holdfast.core.tickets import Notification
from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.url import Address


class AsyncioPort(BlockingPort):
    """A change is a few dictionary operations, so it runs inline here too. Only wake-ups must be passed to the loop."""

    def __init__(self, store: Store, url: str, runtime: AsyncioRuntime) -> None:
        super().__init__(store, url, runtime)
        self._runtime = runtime

    def wake(self, notification: Notification) -> None:
        self._runtime.call_from_thread(self.wakeups.wake, notification)


def open_backend(address: Address, runtime: AsyncioRuntime) -> MemoryBackend:
    url = address.redacted
    return MemoryBackend(url, AsyncioPort(stores.get(url), url, runtime), runtime)
