"""ZooKeeper for threads: callers wait on their own threads, and kazoo's one thread delivers answers and events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.backends.net.blocking import BackgroundThreads
from holdfast.backends.zookeeper.config import ZookeeperConfig, config_of
from holdfast.backends.zookeeper.io.driver import Reply
from holdfast.backends.zookeeper.io.ensemble import Ensemble
from holdfast.backends.zookeeper.protocol.backend import ZookeeperBackend

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.runtimes.threads import ThreadRuntime
    from holdfast.url import Address


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    config = config_of(address)
    return ZookeeperBackend(config, BlockingEnsemble(config, runtime), runtime)


class BlockingEnsemble(Ensemble):
    """Waits for answers on the caller's thread."""

    def __init__(self, config: ZookeeperConfig, runtime: ThreadRuntime) -> None:
        super().__init__(config, runtime)
        self._background = BackgroundThreads()

    def _new_reply(self) -> Reply:
        return BlockingReply()

    async def _wait(self, reply: Reply, deadline: float) -> bool:
        return isinstance(reply, BlockingReply) and reply.wait(max(0.0, deadline - self._runtime.now()))

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._background.start(work, "heartbeat")

    async def close(self, *, keeps_session: bool = False) -> None:
        await super().close(keeps_session=keeps_session)
        await self._background.join()

    def without_loop(self) -> None:
        """Threads need no loop."""

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        function(*arguments)


class BlockingReply(Reply):
    """A reply that a thread waits for."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        super().__init__()
        self._done = threading.Lock()
        self._done.acquire()

    def set(self, value: Any) -> None:
        self.value = value
        self._finish()

    def set_exception(self, error: Exception) -> None:
        self.error = error
        self._finish()

    def wait(self, seconds: float) -> bool:
        return self._done.acquire(timeout=seconds)

    def _finish(self) -> None:
        if self._done.locked():  # kazoo may report twice that it is closed
            self._done.release()
