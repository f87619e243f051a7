"""The clock of a world, which moves only by hand, and the two runtimes on it.

A *wait* is a thread or a task that waits for an event, or until a time on this clock. A thread *runs* from the end of
its wait, or from its start by the world, until it waits again, leaves the call of holdfast, or ends. The world is
*settled* when no thread runs, and no task of its loops has anything to do. The clock moves only in a settled world,
from one wait that is due to the next: so everything happens in the order of time, and takes no time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from holdfast.core import names
from holdfast.core.names import Duration
from holdfast.errors import ConfigurationError, UsageError
from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.threads.locks import Lease, Lock

WALL = 1_767_225_600.0  # Unix time at the beginning of a world: midnight of 2026-01-01, UTC
SETTLE_MAX = 30.0  # real seconds until a world that does not settle is an error
DRIVER_MAX = 3600.0  # seconds of this clock that a call in the thread or task of the test waits at most
_LEFT_POLL = 0.001  # real seconds between two checks whether a thread has left a call
_QUIET_TURNS = 20  # turns of a loop without a change in the world, after which its tasks have nothing to do


class Process:
    """The faults of one client: it stands for a process of its own."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.is_paused = False
        self.is_cut_off = False
        self.is_closing = False  # its waits end at once


class _Run:
    """A thread that runs in the world: one that the world has started, or a call of another thread."""

    def __init__(self, name: str, call: Coroutine[Any, Any, Any] | None = None) -> None:
        self.name = name
        self.call = call  # the outermost coroutine of the call; None for a thread of the world

    @property
    def has_left(self) -> bool:
        """The call has returned or raised."""
        return self.call is not None and getattr(self.call, "cr_frame", None) is None


class _Wait:
    """A thread or task that waits."""

    def __init__(self, event: WorldEvent, until: float | None, run: _Run | None = None) -> None:
        self.event = event
        self.until = until
        self.run = run  # None for a task, and for the thread of the test
        self.future: asyncio.Future[bool] | None = None  # of a task
        self.is_over = False
        self.was_set = False

    def is_due(self, now: float) -> bool:
        process = self.event.process
        if process.is_closing:
            return True
        return not process.is_paused and (self.event.is_set or (self.until is not None and self.until <= now))


class Clock:
    """The time of a world. It stands still until `advance`; no real time passes in a wait of this world."""

    def __init__(self) -> None:
        self._now = 0.0
        self._condition = threading.Condition()
        self._waits: list[_Wait] = []
        self._running: set[_Run] = set()
        self._local = threading.local()  # .run: of a thread of the world; .foreign: of the last call of another thread
        self._driver = threading.get_ident()
        self._driver_task: asyncio.Task[Any] | None = None  # the task of the test, if it has one
        self._changes = 0  # counts waits that begin or end
        self._loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
        self._own = Process(self)

    @property
    def now(self) -> float:
        """Seconds since the world began."""
        return self._now

    def wall(self) -> float:
        """Unix time in the world. It begins on 2026-01-01 at midnight UTC."""
        return WALL + self._now

    def advance(self, seconds: Duration) -> None:
        """Move the clock, and return when all threads and tasks that it woke have done what they can do at that time.

        The clock stops at each time at which a thread or task wakes, so leases are renewed, lost and granted in the
        order of time. A thread has done what it can when it waits for the clock again, has returned from its call of
        holdfast, or has ended.

        Raises:
            UsageError: called in a task of a loop that uses the world, where `async_advance` is needed; or a thread
                neither waits nor ends for 30 s of real time.
        """
        if _running_loop() in self._loops:
            raise UsageError("tasks can only run while this task waits: use `await world.clock.async_advance(…)`")
        target = self._now + _check_seconds(seconds)
        self.settle()
        while self._move(target):
            self.settle()

    async def async_advance(self, seconds: Duration) -> None:
        """As `advance`, in a task."""
        self._adopt_task()
        target = self._now + _check_seconds(seconds)
        await self.async_settle()
        while self._move(target):
            await self.async_settle()

    def sleep(self, seconds: float) -> None:
        """Wait for the clock, for programs that take their `sleep` as an argument.

        Raises:
            UsageError: the world was closed.
        """
        run_sync(ThreadEvent(self._own).wait(self._now + seconds))
        self._check_open()

    async def async_sleep(self, seconds: float) -> None:
        """As `sleep`, in a task."""
        await TaskEvent(self._own).wait(self._now + seconds)
        self._check_open()

    def _check_open(self) -> None:
        if self._own.is_closing:
            raise UsageError("the world is closed")

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────

    def settle(self) -> None:
        """Return when no thread runs, and when no task in a loop of another thread has anything to do."""
        before = -1
        while before != self._changes:
            before = self._changes
            self._settle_threads()
            for loop in list(self._loops):
                if loop.is_running() and loop is not _running_loop():
                    self._settle_loop(loop)

    def _settle_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        settling = self.async_settle()
        try:
            asyncio.run_coroutine_threadsafe(settling, loop).result(SETTLE_MAX)
        except TimeoutError:
            raise UsageError(f"a loop that uses the world does not run for {SETTLE_MAX:g} s: what blocks it?") from None
        except UsageError:  # of async_settle; it is a RuntimeError
            raise
        except (concurrent.futures.CancelledError, RuntimeError):  # the loop has ended
            settling.close()

    async def async_settle(self) -> None:
        """As `settle`, in a task: return when no other task of this loop has anything to do."""
        self._loops.add(asyncio.get_running_loop())
        quiet = 0
        while quiet < _QUIET_TURNS:
            before = self._changes
            self._settle_threads()
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._changes == before else 0

    def _settle_threads(self) -> None:
        limit = time.monotonic() + SETTLE_MAX
        mine = {getattr(self._local, "run", None), getattr(self._local, "foreign", None)}
        with self._condition:
            while True:
                self._running = {run for run in self._running if not run.has_left}
                others = self._running - mine
                if not others:
                    return
                seconds_left = limit - time.monotonic()
                if seconds_left <= 0:
                    raise UsageError(
                        f"the thread {min(run.name for run in others)!r} neither waits for the clock of the world nor "
                        f"ends for {SETTLE_MAX:g} s: does it wait for this thread, or for real time?"
                    )
                is_foreign = any(run.call is not None for run in others)  # it leaves its call without notice
                self._condition.wait(_LEFT_POLL if is_foreign else seconds_left)

    # ── moving ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _move(self, target: float) -> bool:
        """Move to the next time at which a wait ends, or to `target`. Returns whether that woke anything."""
        with self._condition:
            times = [wait.until for wait in self._waits if wait.until is not None and not wait.event.process.is_paused]
            due = min(times, default=target)
            self._now = max(self._now, min(due, target))
            return self._wake()

    def _wake(self) -> bool:
        """End all waits that are due. Returns whether there were any."""
        with self._condition:
            due = [wait for wait in self._waits if wait.is_due(self._now)]
            for wait in due:
                self._end(wait)
            return bool(due)

    def _end(self, wait: _Wait) -> None:
        if wait.is_over:
            return
        wait.is_over, wait.was_set = True, wait.event.is_set
        self._changes += 1
        self._waits.remove(wait)
        if wait.run is not None:
            self._running.add(wait.run)
        if wait.future is not None:
            _set_result(wait.future, result=wait.was_set)
        self._condition.notify_all()

    def _begin(self, wait: _Wait) -> None:
        self._changes += 1
        self._waits.append(wait)
        if wait.run is not None:
            self._running.discard(wait.run)
        self._condition.notify_all()

    # ── the test itself ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _is_driver_thread(self) -> bool:
        """This is the thread of the test, which made the world."""
        return threading.get_ident() == self._driver

    @property
    def _is_driver_task(self) -> bool:
        """This is the task of the test."""
        return self._is_driver_thread and asyncio.current_task() is self._driver_task

    def _adopt_task(self) -> None:
        """Treat the calling task as the task of the test, unless another one has this role and has not ended."""
        if _running_loop() is not None and (self._driver_task is None or self._driver_task.done()):
            self._driver_task = asyncio.current_task()

    # ── threads ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _wait_in_thread(self, event: WorldEvent, until: float | None) -> bool:
        is_driver = self._is_driver_thread
        with self._condition:
            wait = _Wait(event, until, None if is_driver else self._run_here())
            if wait.is_due(self._now):
                return event.is_set
            self._begin(wait)
            while not is_driver and not wait.is_over:
                self._condition.wait()
        try:
            while not wait.is_over:
                self._drive(until)
        finally:
            with self._condition:
                self._end(wait)  # after an error of `_drive`, or an interrupt
        return wait.was_set

    def _drive(self, until: float | None) -> None:
        """The thread of the test waits, so nothing else moves the clock: move it to the next wait that is due."""
        self.settle()
        if not self._wake() and not self._move(self._now + DRIVER_MAX if until is None else until):
            raise endless_wait()

    def _run_here(self) -> _Run:
        run: _Run | None = getattr(self._local, "run", None)
        if run is None:
            call, run = _outermost_call(), getattr(self._local, "foreign", None)
            if run is None or run.call is not call:
                run = self._local.foreign = _Run(threading.current_thread().name, call)
        return run

    def _started(self, name: str) -> _Run:
        """Count a thread that is about to start as one that runs."""
        run = _Run(name)
        with self._condition:
            self._running.add(run)
        return run

    @contextlib.contextmanager
    def _running_as(self, run: _Run) -> Iterator[None]:
        """The body of a thread that the world has started."""
        before = getattr(self._local, "run", None)
        self._local.run = run
        try:
            yield
        finally:
            self._local.run = before
            with self._condition:
                self._running.discard(run)
                self._condition.notify_all()

    def _await_change(self, seconds: float) -> None:
        """Return when a wait begins or ends, or after this real time."""
        with self._condition:
            self._condition.wait(seconds)

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _wait_in_task(self, event: WorldEvent, until: float | None) -> bool:
        loop = asyncio.get_running_loop()
        self._loops.add(loop)
        wait = _Wait(event, until)
        with self._condition:
            if wait.is_due(self._now):
                return event.is_set
            wait.future = loop.create_future()
            self._begin(wait)
        try:
            while not wait.future.done() and self._is_driver_task:
                await self.async_settle()
                if not wait.future.done() and not self._move(self._now + DRIVER_MAX if until is None else until):
                    raise endless_wait()
            return await wait.future
        finally:
            with self._condition:
                self._end(wait)


class WorldEvent:
    """An event on the clock of a world."""

    __slots__ = ("is_set", "process")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.is_set = False

    def set(self) -> None:
        self.is_set = True
        self.process.clock._wake()

    def clear(self) -> None:
        self.is_set = False


class ThreadEvent(WorldEvent):
    """An event that threads wait for."""

    __slots__ = ()

    async def wait(self, until: float | None) -> bool:
        return self.process.clock._wait_in_thread(self, until)


class TaskEvent(WorldEvent):
    """An event that tasks wait for."""

    __slots__ = ()

    async def wait(self, until: float | None) -> bool:
        return await self.process.clock._wait_in_task(self, until)


class _WorldTime:
    """The part of both runtimes that follows the clock of the world. A runtime comes after it in the bases."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._clock = process.clock

    def now(self) -> float:
        return self._clock.now

    def wall(self) -> float:
        return self._clock.wall()

    def jitter(self) -> float:
        return 0.5

    def notify(self, function: Callable[[], object], *, here: bool) -> None:
        function()  # also the keeper's events, so that they are delivered when the world is settled


class WorldThreadRuntime(_WorldTime, ThreadRuntime):
    """The runtime of a Client in a world."""

    def event(self) -> ThreadEvent:  # type: ignore[override]  # another class with the same port
        return ThreadEvent(self._process)

    async def sleep(self, seconds: float) -> None:
        await self.event().wait(self._clock.now + seconds)

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        run = self._clock._started(name)

        async def tracked() -> None:
            with self._clock._running_as(run):
                await work()

        super().spawn(tracked, name)

    def call(self, function: Callable[[], object]) -> None:
        run = self._clock._started("callback")

        def tracked() -> None:
            with self._clock._running_as(run):
                function()

        super().call(tracked)


class WorldTaskRuntime(_WorldTime, AsyncioRuntime):
    """The runtime of an AsyncClient in a world."""

    def event(self) -> TaskEvent:  # type: ignore[override]  # another class with the same port
        return TaskEvent(self._process)

    async def sleep(self, seconds: float) -> None:
        await self.event().wait(self._clock.now + seconds)


def _check_seconds(seconds: Duration) -> float:
    checked = names.check_duration("seconds", seconds)
    if checked < 0:
        raise ConfigurationError(f"seconds must be 0 or more, not {seconds!r}: a clock does not go back")
    return checked


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _set_result(future: asyncio.Future[bool], *, result: bool) -> None:
    loop = future.get_loop()

    def set_now() -> None:
        if not future.done():
            future.set_result(result)

    if loop is _running_loop():
        set_now()
    else:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(set_now)


# Functions that run the coroutine of a call, which is their variable `coroutine`.
_RUN_CALLS = (run_sync.__code__, Lock._try.__code__, Lease.release.__code__, Lease._exit_block.__code__)


def _outermost_call() -> Coroutine[Any, Any, Any] | None:
    """The coroutine of the call of holdfast that this thread is in: its end is the end of the call."""
    call: Coroutine[Any, Any, Any] | None = None
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code in _RUN_CALLS:
            call = frame.f_locals["coroutine"]
    return call


def endless_wait() -> UsageError:
    """The error of a wait in the thread or task of the test that would never end."""
    return UsageError(
        "the thread or task of the test waits, and nothing in the world ends this wait: release the lock before, use a "
        "timeout, or wait in another thread (world.start) or task"
    )
