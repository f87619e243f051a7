"""ZooKeeper for asyncio: kazoo's thread passes answers and events to the loop, and no other thread is needed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from holdfast.backends.net.aio import BackgroundTasks
from holdfast.backends.zookeeper.config import ZookeeperConfig, config_of
from holdfast.backends.zookeeper.io.driver import KazooSession
from holdfast.backends.zookeeper.io.ensemble import Ensemble
from holdfast.backends.zookeeper.protocol.backend import ZookeeperBackend
from holdfast.core.ports import Backend, Event
from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.runtimes.threads import ThreadEvent
from holdfast.url import Address


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    config = config_of(address)
    return ZookeeperBackend(config, LoopEnsemble(config, runtime), runtime)


class LoopEnsemble(Ensemble):
    """Waits for answers on the loop."""

    def __init__(self, config: ZookeeperConfig, runtime: AsyncioRuntime) -> None:
        super().__init__(config, BackgroundTasks(runtime), runtime)
        self._loops = runtime
        self._has_loop = True

    def without_loop(self) -> None:
        self._has_loop = False

    async def open(self, timeout: float, *, deadline: float) -> KazooSession:
        if self._has_loop:
            self._loops.check_loop()
        return await super().open(timeout, deadline=deadline)

    def _new_event(self) -> tuple[Event, Callable[[], object]]:
        if self._has_loop:
            event = self._loops.event()
            return event, partial(self._loops.call_from_thread, event.set)
        blocking_event = ThreadEvent()
        return blocking_event, blocking_event.set

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._has_loop:  # otherwise the process ends before a session needs its heartbeat
            super().start(work)

    async def close(self, *, keeps_session: bool = False) -> None:
        await self._background.join()  # the heartbeats are cancelled before their sessions are closed
        await super().close(keeps_session=keeps_session)

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        self._loops.call_from_thread(function, *arguments)
