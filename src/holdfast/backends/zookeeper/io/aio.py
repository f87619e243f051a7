"""ZooKeeper for asyncio: kazoo's thread passes answers and events to the loop, and no other thread is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.backends.net.aio import BackgroundTasks
from holdfast.backends.zookeeper.config import ZookeeperConfig, config_of
from holdfast.backends.zookeeper.io.blocking import BlockingReply
from holdfast.backends.zookeeper.io.driver import KazooSession, Reply
from holdfast.backends.zookeeper.io.ensemble import Ensemble
from holdfast.backends.zookeeper.protocol.backend import ZookeeperBackend

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    config = config_of(address)
    return ZookeeperBackend(config, LoopEnsemble(config, runtime), runtime)


class LoopEnsemble(Ensemble):
    """Waits for answers on the loop."""

    def __init__(self, config: ZookeeperConfig, runtime: AsyncioRuntime) -> None:
        super().__init__(config, runtime)
        self._loops = runtime
        self._background = BackgroundTasks(runtime)
        self._has_loop = True

    def without_loop(self) -> None:
        self._has_loop = False

    async def open(self, timeout: float, *, deadline: float) -> KazooSession:
        if self._has_loop:
            self._loops.check_loop()
        return await super().open(timeout, deadline=deadline)

    def _new_reply(self) -> Reply:
        return _LoopReply(self._loops) if self._has_loop else BlockingReply()

    async def _wait(self, reply: Reply, deadline: float) -> bool:
        seconds = max(0.0, deadline - self._runtime.now())
        if isinstance(reply, BlockingReply):
            return reply.wait(seconds)
        return isinstance(reply, _LoopReply) and await reply.wait(seconds)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._has_loop:  # otherwise the process ends before a session needs its heartbeat
            self._background.start(work, "heartbeat")

    async def close(self, *, keeps_session: bool = False) -> None:
        await self._background.join()
        await super().close(keeps_session=keeps_session)

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        self._loops.call_from_thread(function, *arguments)


class _LoopReply(Reply):
    """A reply that a task awaits."""

    __slots__ = ("_future", "_runtime")

    def __init__(self, runtime: AsyncioRuntime) -> None:
        super().__init__()
        self._runtime = runtime
        self._future: asyncio.Future[bool] = runtime.loop.create_future()

    def set(self, value: Any) -> None:
        self.value = value
        self._runtime.call_from_thread(self._settle, True)  # noqa: FBT003

    def set_exception(self, error: Exception) -> None:
        self.error = error
        self._runtime.call_from_thread(self._settle, True)  # noqa: FBT003

    async def wait(self, seconds: float) -> bool:
        timer = self._runtime.loop.call_later(seconds, self._settle, False)  # noqa: FBT003
        try:
            return await self._future
        finally:
            timer.cancel()

    def _settle(self, has_arrived: bool) -> None:  # noqa: FBT001
        if not self._future.done():
            self._future.set_result(has_arrived)
