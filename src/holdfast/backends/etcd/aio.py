"""etcd for asyncio: a connection for each call under way, changes heard by one task."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.etcd.address import Node, Place, place_of
from holdfast.backends.etcd.cluster import Cluster
from holdfast.backends.etcd.methods import backend_on
from holdfast.backends.etcd.wires import READ, WRITE
from holdfast.errors import BackendUnavailable

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    place = place_of(address)
    return backend_on(LoopCluster(place, LoopEyes(runtime), Tasks(runtime), runtime), place, runtime)


class LoopCluster(Cluster):
    """Tasks begin in an order that people rely on. On connections of their own they would overtake each other."""

    def __init__(self, place: Place, eyes: LoopEyes, background: Tasks, runtime: AsyncioRuntime) -> None:
        super().__init__(place, eyes, background, runtime)
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def _turn(self, name: str, deadline: float) -> AsyncIterator[None]:
        turn = self._turns.get(name)
        if turn is None:
            turn = self._turns[name] = asyncio.Lock()
        try:
            async with asyncio.timeout(max(0.0, deadline - self._now())):
                await turn.acquire()
        except TimeoutError as error:
            raise BackendUnavailable(backend=self._place.url, problem="other tasks asked all the time") from error
        try:
            yield
        finally:
            turn.release()

    def turn(self, name: str, *, deadline: float) -> contextlib.AbstractAsyncContextManager[None]:
        return self._turn(name, deadline)


class LoopEyes:
    """Has the loop wait."""

    def __init__(self, runtime: AsyncioRuntime) -> None:
        self._runtime = runtime

    async def ready(self, wanted: Sequence[tuple[int, int]], until: float) -> list[int]:
        loop = self._runtime.loop
        seen: asyncio.Future[list[int]] = loop.create_future()
        timer = loop.call_later(max(0.0, until - self._runtime.now()), _tell, seen, [])
        try:
            for descriptor, events in wanted:
                if events & READ:
                    loop.add_reader(descriptor, _tell, seen, [descriptor])
                if events & WRITE:
                    loop.add_writer(descriptor, _tell, seen, [descriptor])
            return await seen
        finally:
            timer.cancel()
            for descriptor, _ in wanted:
                loop.remove_reader(descriptor)
                loop.remove_writer(descriptor)

    async def addresses(self, node: Node, deadline: float) -> list[str]:
        async with asyncio.timeout(max(0.0, deadline - self._runtime.now())):
            found = await self._runtime.loop.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)
        return [str(address[0]) for *_, address in found]


class Tasks:
    """A task for the listener."""

    def __init__(self, runtime: AsyncioRuntime) -> None:
        self._runtime = runtime
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # In a context of its own: what the caller's context holds must not live as long as the client does.
        task = self._runtime.loop.create_task(work(), name="holdfast-listener", context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def join(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))


def _tell(seen: asyncio.Future[list[int]], ready: list[int]) -> None:
    if not seen.done():
        seen.set_result(ready)
