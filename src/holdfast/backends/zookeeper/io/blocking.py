"""ZooKeeper for threads: callers wait on their own threads, and kazoo's one thread delivers answers and events."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.backends.net.blocking import BackgroundThreads
from holdfast.backends.zookeeper.config import ZookeeperConfig, config_of
from holdfast.backends.zookeeper.io.ensemble import Ensemble
from holdfast.backends.zookeeper.protocol.backend import ZookeeperBackend
from holdfast.core.ports import Backend
from holdfast.runtimes.threads import ThreadEvent, ThreadRuntime
from holdfast.url import Address


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    config = config_of(address)
    return ZookeeperBackend(config, BlockingEnsemble(config, runtime), runtime)


class BlockingEnsemble(Ensemble):
    """Waits for answers on the caller's thread."""

    def __init__(self, config: ZookeeperConfig, runtime: ThreadRuntime) -> None:
        super().__init__(config, runtime)
        self._background = BackgroundThreads()

    def _new_event(self) -> tuple[ThreadEvent, Callable[[], object]]:
        event = ThreadEvent()
        return event, event.set

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._background.start(work, "heartbeat")

    async def close(self, *, keeps_session: bool = False) -> None:
        await super().close(keeps_session=keeps_session)
        await self._background.join()

    def without_loop(self) -> None:
        """Threads need no loop."""

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        function(*arguments)
