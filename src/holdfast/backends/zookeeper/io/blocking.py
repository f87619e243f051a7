"""ZooKeeper for threads: callers wait on their own threads, and kazoo's one thread delivers answers and events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.backends.zookeeper.config import config_of
from holdfast.backends.zookeeper.io.driver import Reply
from holdfast.backends.zookeeper.io.ensemble import Ensemble
from holdfast.backends.zookeeper.protocol.backend import ZookeeperBackend
from holdfast.runtimes.threads import run_sync, start_thread

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.runtimes.threads import ThreadRuntime
    from holdfast.url import Address

JOIN_MAX = 1.0  # seconds: a heartbeat ends at once, or soon by itself if it waits for an answer


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    config = config_of(address)
    return ZookeeperBackend(config, BlockingEnsemble(config, runtime), runtime)


class BlockingEnsemble(Ensemble):
    """Waits for answers on the caller's thread."""

    _threads: tuple[threading.Thread, ...] = ()

    def _new_reply(self) -> Reply:
        return BlockingReply()

    async def _wait(self, reply: Reply, deadline: float) -> bool:
        return isinstance(reply, BlockingReply) and reply.wait(max(0.0, deadline - self._runtime.now()))

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        thread = start_thread(lambda: run_sync(work()), "heartbeat")
        self._threads = (*(running for running in self._threads if running.is_alive()), thread)

    async def close(self, *, keeps_session: bool = False) -> None:
        await super().close(keeps_session=keeps_session)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(JOIN_MAX)

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
