"""The runtime for asyncio: the caller's own `await` drives the protocol; background work is tasks of its loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from holdfast.core.events import logger
from holdfast.core.ports import Owner
from holdfast.errors import UsageError
from holdfast.runtimes import system


class AsyncioEvent:
    """Like asyncio.Event, with a wait that ends at a time of our clock. `set` belongs to the loop's own thread."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: set[asyncio.Future[bool]] = set()

    def set(self) -> None:
        self._is_set = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(True)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self, until: float | None) -> bool:
        if self._is_set:
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        timer = None
        if until is not None:
            timer = loop.call_later(max(0.0, until - system.now()), _time_is_up, waiter)
        self._waiters.add(waiter)
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()


class AsyncioRuntime:
    """One for every AsyncClient, bound to the loop that first uses it."""

    now = staticmethod(system.now)
    wall = staticmethod(time.time)
    nonce = staticmethod(system.nonce)
    jitter = staticmethod(system.jitter)
    who = staticmethod(system.who)
    event = staticmethod(AsyncioEvent)
    sleep = staticmethod(asyncio.sleep)

    _owners: ClassVar[weakref.WeakKeyDictionary[asyncio.Task[Any], Owner]] = weakref.WeakKeyDictionary()

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop this runtime belongs to, which must be the running one.

        Raises:
            UsageError: it is used from another loop.
        """
        running = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise UsageError(
                "this AsyncClient belongs to another event loop: make one for each loop, inside it "
                "(`async with holdfast.AsyncClient(url) as client`)"
            )
        return running

    def check_loop(self) -> None:
        """Raise UsageError unless this is the loop the runtime belongs to; the first one to ask is."""
        _ = self.loop

    def mutex(self) -> contextlib.AbstractContextManager[None]:
        # All code of one loop runs on one thread and changes shared state only between awaits.
        return contextlib.nullcontext()

    def owner(self) -> Owner:
        task = current_task()
        try:
            return self._owners[task]
        except KeyError:
            owner = self._owners[task] = Owner()
            return owner

    def agent(self) -> str:
        return current_task().get_name()

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        # In a context of its own: what the caller's context holds must not live as long as the client does.
        task = self.loop.create_task(work(), name=f"holdfast-{name}", context=contextvars.Context())
        self._tasks.add(task)  # the loop itself keeps tasks only weakly
        task.add_done_callback(self._tasks.discard)

    def call_from_thread(self, function: Callable[..., object], *args: object) -> None:
        """Have the loop call it, from whatever thread; a loop that is closed has nobody left to hear of it."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *args)

    async def join(self) -> None:
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        if others:
            await asyncio.wait(others)

    def call(self, function: Callable[[], object]) -> None:
        self.loop.call_soon(self._call_now, function)

    def hand_in(self, function: Callable[[], object]) -> bool:
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:  # a thread beside the loop, or after its end
            is_here = False
        if not is_here:
            self.call_from_thread(function)
        return not is_here

    def _call_now(self, function: Callable[[], object]) -> None:
        outcome = system.call_user(function)
        if asyncio.iscoroutine(outcome):
            coroutine = outcome
            self.spawn(lambda: _discard_result(coroutine), "callback")


def current_task() -> asyncio.Task[Any]:
    """The task that runs this."""
    task = asyncio.current_task()
    if task is None:
        raise UsageError("locks are taken by tasks: call this from a coroutine that a task runs")
    return task


async def _discard_result(coroutine: Coroutine[Any, Any, object]) -> None:
    try:
        await coroutine
    except Exception:
        logger().exception("an on_lost callback failed")


def _time_is_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


class Body:
    """The body of an `async with`, in its task: cancelled at a loss, by the counting that asyncio.timeout uses."""

    def __init__(self) -> None:
        self._task = current_task()
        self._cancelling = self._task.cancelling()
        self._inside = True
        self._cancelled = False

    def tell_lost(self) -> None:
        # Never at once: found out by the task itself (lease.check()), a cancellation would stay behind and hit
        # whatever the task awaits after its body.
        self._task.get_loop().call_soon(self._cancel)

    def leave(self, error: BaseException | None) -> bool:
        self._inside = False
        if not self._cancelled:
            return False
        return self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)

    def _cancel(self) -> None:
        if self._inside:
            self._cancelled = True
            self._task.cancel()
