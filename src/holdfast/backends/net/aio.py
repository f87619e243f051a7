"""Waiting, background work and a mutex per key for the adapters for asyncio."""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from holdfast.backends.net.calls import BackgroundCall
from holdfast.backends.net.poller import READ, WRITE
from holdfast.errors import BackendUnavailable
from holdfast.runtimes.aio import AsyncioEvent, AsyncioRuntime


class LoopPoller:
    """Waits on the event loop."""

    def __init__(self, runtime: AsyncioRuntime) -> None:
        self._runtime = runtime
        runtime.waits_for_sockets = True

    async def poll(self, wanted: Sequence[tuple[int, int]], until: float) -> list[int]:
        loop = self._runtime.loop
        ready: asyncio.Future[list[int]] = loop.create_future()
        timer = loop.call_later(max(0.0, until - self._runtime.now()), _set, ready, [])
        try:
            for descriptor, events in wanted:
                if events & READ:
                    loop.add_reader(descriptor, _set, ready, [descriptor])
                if events & WRITE:
                    loop.add_writer(descriptor, _set, ready, [descriptor])
            return await ready
        finally:
            timer.cancel()
            for descriptor, events in wanted:
                if events & READ:
                    loop.remove_reader(descriptor)
                if events & WRITE:
                    loop.remove_writer(descriptor)

    async def wait_done(self, call: BackgroundCall[Any], until: float) -> bool:
        self._runtime.check_loop()
        event = AsyncioEvent()
        call.add_done_callback(lambda: self._runtime.call_from_thread(event.set))
        return await event.wait(until)


def _set(future: asyncio.Future[list[int]], ready: list[int]) -> None:
    if not future.done():
        future.set_result(ready)


class BackgroundTasks:
    """A task for each piece of work."""

    def __init__(self, runtime: AsyncioRuntime) -> None:
        self._runtime = runtime
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        # A new context, because the task would keep the values of the caller's context as long as the client lives.
        task = self._runtime.loop.create_task(work(), name=f"holdfast-{name}", context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def join(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))


class KeyedMutex:
    """A FIFO mutex per key, for the requests that acquire the same lock.

    Users rely on the order in which tasks begin to wait for a lock. Requests on different connections could overtake
    each other. The mutex costs no parallelism, because the server also runs requests for the same lock in sequence.
    """

    def __init__(self, runtime: AsyncioRuntime, url: str) -> None:
        self._runtime, self._url = runtime, url
        self._mutexes: weakref.WeakValueDictionary[Hashable, asyncio.Lock] = weakref.WeakValueDictionary()

    def hold(self, key: Hashable, deadline: float) -> AbstractAsyncContextManager[None]:
        """Hold the mutex of this key for the body.

        Raises:
            BackendUnavailable: it is not free before the deadline.
        """
        mutex = self._mutexes.get(key)
        if mutex is None:
            mutex = self._mutexes[key] = asyncio.Lock()
        return _Held(mutex, deadline - self._runtime.now(), self._url)


class _Held(AbstractAsyncContextManager[None]):
    """A class, because a generator would add measurable time to every acquire."""

    __slots__ = ("_mutex", "_seconds", "_url")

    def __init__(self, mutex: asyncio.Lock, seconds: float, url: str) -> None:
        self._mutex, self._seconds, self._url = mutex, seconds, url

    async def __aenter__(self) -> None:
        try:
            async with asyncio.timeout(max(0.0, self._seconds)):
                await self._mutex.acquire()
        except TimeoutError as error:
            problem = "requests of other tasks for this lock took all the time"
            raise BackendUnavailable(backend=self._url, problem=problem) from error

    async def __aexit__(self, *_: object) -> None:
        self._mutex.release()
