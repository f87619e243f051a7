"""The memory store for threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from holdfast.backends.memory.port import Store, stores
from holdfast.backends.memory.protocol.queue import MemoryBackend
from holdfast.core.notifications import Wakeups
from holdfast.core.ports import Runtime
from holdfast.core.tickets import Notification
from holdfast.runtimes.threads import ThreadRuntime
from holdfast.url import Address

T = TypeVar("T")


class BlockingPort:
    """Changes the store on the calling thread. A wake-up runs on the thread of the client that releases."""

    def __init__(self, store: Store, url: str, runtime: Runtime) -> None:
        self._store = store
        self._url = url
        self.wakeups = Wakeups(runtime)

    async def change(self, step: Callable[[Store], T], *, deadline: float) -> T:
        return self._store.change(step, self._url)

    def wake(self, notification: Notification) -> None:
        self.wakeups.wake(notification)


def open_backend(address: Address, runtime: ThreadRuntime) -> MemoryBackend:
    url = address.redacted
    return MemoryBackend(url, BlockingPort(stores.get(url), url, runtime), runtime)
