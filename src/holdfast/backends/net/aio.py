"""What the adapters for asyncio share: waiting on the loop, a task to listen in, and turns for those who come."""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.backends.net.poller import READ, WRITE

if TYPE_CHECKING:
    from holdfast.backends.net.calls import BackgroundCall
    from holdfast.errors import BackendError
    from holdfast.runtimes.aio import AsyncioRuntime

T = TypeVar("T")


class LoopPoller:
    """Has the loop wait."""

    def __init__(self, runtime: AsyncioRuntime) -> None:
        self._runtime = runtime
        runtime.waits_for_sockets = True

    async def ready(self, wanted: Sequence[tuple[int, int]], until: float) -> list[int]:
        loop = self._runtime.loop
        seen: asyncio.Future[list[int]] = loop.create_future()
        timer = loop.call_later(max(0.0, until - self._runtime.now()), _set, seen, [])
        try:
            for descriptor, events in wanted:
                if events & READ:
                    loop.add_reader(descriptor, _set, seen, [descriptor])
                if events & WRITE:
                    loop.add_writer(descriptor, _set, seen, [descriptor])
            return await seen
        finally:
            timer.cancel()
            for descriptor, events in wanted:
                if events & READ:
                    loop.remove_reader(descriptor)
                if events & WRITE:
                    loop.remove_writer(descriptor)

    async def finished(self, call: BackgroundCall[Any], until: float) -> bool:
        loop = self._runtime.loop
        done: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(max(0.0, until - self._runtime.now()), _set, done, False)  # noqa: FBT003 (the result)
        call.when_done(lambda: self._runtime.call_from_thread(_set, done, True))  # noqa: FBT003 (the result)
        try:
            return await done
        finally:
            timer.cancel()


def _set(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


class ListenerTasks:
    """A task for each listener."""

    def __init__(self, runtime: AsyncioRuntime) -> None:
        self._runtime = runtime
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        # In a context of its own: what the caller's context holds must not live as long as the client does.
        task = self._runtime.loop.create_task(work(), name=f"holdfast-{name}", context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def join(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))


class KeyedMutex:
    """Tasks begin in an order that people rely on. On connections of their own they would overtake each other.

    So those that enter the same lock do it one after the other, as they would inside the server anyway.
    """

    def __init__(self, runtime: AsyncioRuntime, refusal: Callable[[], BackendError]) -> None:
        """`refusal`: what to raise where the others take all the time there is."""
        self._runtime, self._refusal = runtime, refusal
        self._turns: weakref.WeakValueDictionary[Hashable, asyncio.Lock] = weakref.WeakValueDictionary()

    def of(self, lock: Hashable, deadline: float) -> AbstractAsyncContextManager[None]:
        """One's turn to enter this lock."""
        turn = self._turns.get(lock)
        if turn is None:
            turn = self._turns[lock] = asyncio.Lock()
        return _Turn(turn, deadline - self._runtime.now(), self._refusal)


class _Turn(AbstractAsyncContextManager[None]):
    """Not a generator: that would be felt, for it is on the way of every lock that is taken."""

    __slots__ = ("_refusal", "_seconds", "_turn")

    def __init__(self, turn: asyncio.Lock, seconds: float, refusal: Callable[[], BackendError]) -> None:
        self._turn, self._seconds, self._refusal = turn, seconds, refusal

    async def __aenter__(self) -> None:
        try:
            async with asyncio.timeout(max(0.0, self._seconds)):
                await self._turn.acquire()
        except TimeoutError as error:
            raise self._refusal() from error

    async def __aexit__(self, *_: object) -> None:
        self._turn.release()
