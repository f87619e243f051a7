"""The runtime for threads: blocking adapters never suspend, so a protocol is a plain call on the caller's thread."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import operator
import os
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from holdfast.core.events import logger
from holdfast.core.ports import Caller
from holdfast.errors import ThreadStartError
from holdfast.runtimes import system

T = TypeVar("T")

DRAIN_MAX = 1.0  # seconds at close and at exit for calls of subscribers and log handlers that are queued


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over blocking adapters to its end, here and now.

    Between its `return` and ours there is no call and no backward jump, hence no point at which CPython would run a
    signal handler: a KeyboardInterrupt is raised either inside the coroutine, whose guards undo what it did, or later.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise suspended(coroutine)


def suspended(coroutine: Coroutine[Any, Any, object]) -> RuntimeError:
    """The error for a coroutine that has suspended."""
    coroutine.close()
    return RuntimeError("a blocking adapter suspended; it must do its I/O inline")


class Mutex(_thread.RLock):  # type: ignore[misc]  # typeshed calls it final, CPython does not
    """`with mutex:` for state that threads share. A KeyboardInterrupt never leaves it locked.

    CPython runs signal handlers at function entry, at backward jumps and after calls of C functions.

    - Enter: up to Python 3.13 one instruction calls `__enter__` and begins the protected range: the C method is safe.
      From 3.14 on it is a plain call, and an interrupt just after a C method would be outside the range. There
      `__enter__` is a Python function, which handles an interrupt after its own call; no handler runs at its return.
    - Exit: `__exit__` is always the C method. A Python function could be interrupted at its entry, before it unlocks.
    - Body: from Python 3.13 on, conditional backward jumps are not covered by the handlers around them. So a body has
      no loop and no comprehension with a condition; it calls a function that has one.

    It is re-entrant, because a signal handler or a finaliser can use the client while its thread is in a body. So a
    body leaves the state consistent at every call that it makes.
    """

    __slots__ = ()

    is_mine: ClassVar[Callable[[Mutex], bool]] = _thread.RLock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001
    """Whether the calling thread has it, so that a signal handler or a finaliser runs inside a body."""

    if sys.version_info >= (3, 14):

        def __enter__(self) -> bool:
            try:
                return self.acquire()
            except BaseException:
                if self.is_mine():
                    self.release()
                raise


def mutex_of_process(mutexes: dict[int, Mutex]) -> Mutex:
    """The mutex of this process, among those by pid: at a fork, another thread may have locked that of the parent."""
    return mutexes.setdefault(os.getpid(), Mutex())  # atomic


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread, so that leases do not keep a program alive that ends without closing its client.

    Raises:
        ThreadStartError: the system refuses another thread.
    """
    thread = threading.Thread(target=target, name=f"holdfast-{name}", daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise ThreadStartError(thread=thread.name, problem=str(error) or type(error).__name__) from error
    return thread


class ThreadEvent:
    """threading.Event with the runtime's clock, an `async def` wait, and safe under interrupts.

    threading.Event guards itself with a lock that it acquires in Python code: a KeyboardInterrupt just after that
    leaves it locked forever, and the next user of the event blocks. Here every step is one call into C.
    """

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[threading.Lock] = []  # each is locked by its waiter, and released to wake it

    def set(self) -> None:
        self._is_set = True
        if self._waiters:
            try:
                self._wake()
            except BaseException:
                self._wake()  # the remaining waiters, in spite of the interrupt
                raise

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    async def wait(self, until: float | None) -> bool:
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        try:
            if self._is_set:  # checked after this waiter is in the list, so that `set` is noticed before and after
                return True
            return waiter.acquire() if until is None else _acquired_until(waiter, until)
        finally:
            self._waiters.remove(waiter)

    def _wake(self) -> None:
        for waiter in list(self._waiters):
            try:  # noqa: SIM105  (suppress() would add three frames to every wake-up)
                waiter.release()
            except RuntimeError:
                pass  # woken already


def _acquired_until(waiter: threading.Lock, until: float) -> bool:
    # Timers of the kernel do not count the time of a suspend, but the runtime's clock does. So the clock is checked
    # regularly, and the wait ends at most CLOCK_CHECK_INTERVAL too late.
    while not waiter.acquire(timeout=min(max(0.0, until - system.now()), system.CLOCK_CHECK_INTERVAL)):
        if system.now() >= until:
            return False
    return True


class Threads:
    """Background threads that can be waited for together."""

    join_max = 6.0  # seconds: a background thread ends after its present request

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run a coroutine on a thread of its own.

        Raises:
            ThreadStartError: the system refuses another thread.
        """
        thread = start_thread(lambda: run_sync(work()), name)
        self._threads.append(thread)
        for ended in [other for other in self._threads if not other.is_alive()]:
            with contextlib.suppress(ValueError):  # another thread has removed it
                self._threads.remove(ended)

    async def join(self) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(self.join_max)


class Dispatcher:
    """Calls functions one after the other, on a thread that runs while there are calls. `post` never waits."""

    calls_max = 10_000  # queued calls; more are dropped, so that a call that hangs does not fill the memory

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        """In a forked child: there are no calls and no thread."""
        self._calls: deque[Callable[[], object]] = deque()
        self._mutex = Mutex()
        self._is_running = False
        self._idle = ThreadEvent()
        self._dropped = 0

    @property
    def is_idle(self) -> bool:
        """All posted calls have been made."""
        return not self._is_running and not self._calls

    def post(self, call: Callable[[], object]) -> None:
        """Call a function soon. If no thread can be started, it stays queued until the next `post` or `drain`."""
        if len(self._calls) >= self.calls_max:
            self._dropped += 1
            return
        starts = False
        try:
            with self._mutex:
                self._calls.append(call)
                starts = not self._is_running
                self._is_running = True
                self._idle.clear()
            if starts:
                start_thread(self._run, self._name)
        except BaseException as error:
            if starts:
                self._is_running = False
            if not isinstance(error, ThreadStartError):
                raise

    async def drain(self, until: float) -> None:
        """Wait until all calls have been made, or until then."""
        if self._calls and not self._is_running:
            with contextlib.suppress(IndexError):  # no thread could be started for these
                while True:
                    self._call(self._calls.popleft())
        elif not self.is_idle:
            await self._idle.wait(until)

    def _run(self) -> None:
        while (call := self._next()) is not None:
            self._call(call)

    def _next(self) -> Callable[[], object] | None:
        with self._mutex:
            if self._calls:
                return self._calls.popleft()
            self._is_running = False
            self._idle.set()
            return None

    def _call(self, call: Callable[[], object]) -> None:
        try:
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                logger().warning("%d calls of slow subscribers or log handlers were dropped", dropped)
            call()
        except BaseException as error:  # not even SystemExit ends this thread, because other calls are queued
            sys.excepthook(type(error), error, error.__traceback__)


log_dispatcher = Dispatcher("log")
logger().post = log_dispatcher.post
system.after_fork_in_child(log_dispatcher.reset)


@atexit.register
def flush_log(seconds: float = DRAIN_MAX) -> None:
    """Wait until the log handlers have received all earlier records, or this time is over."""
    run_sync(log_dispatcher.drain(system.now() + seconds))


class _Identity(threading.local):
    def __init__(self) -> None:
        self.caller = Caller(next(system.caller_numbers))
        self.thread = threading.current_thread()


class ThreadRuntime(system.SystemRuntime):
    """One for every Client."""

    event = staticmethod(ThreadEvent)
    mutex = staticmethod(Mutex)

    # An object per thread, created at the first use and freed with the thread. The system reuses thread idents, and
    # threading.current_thread() reuses its objects for foreign threads.
    _identity = _Identity()
    # Partials, because these are faster than functions, and every acquire calls them.
    caller: Callable[[], Caller] = staticmethod(functools.partial(operator.attrgetter("caller"), _identity))
    agent: Callable[[], str] = staticmethod(functools.partial(operator.attrgetter("thread.name"), _identity))

    def __init__(self) -> None:
        super().__init__()
        self._threads = Threads()
        self._events = Dispatcher("events")

    def has_ended(self, caller: Caller | None) -> bool:
        # The calling thread is the one that ends the process, so no more code runs under its leases.
        return caller is None or caller is self.caller()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._threads.start(work, name)

    async def join(self) -> None:
        await self._threads.join()
        await self._events.drain(system.now() + DRAIN_MAX)

    def notify(self, function: Callable[[], object], *, here: bool) -> None:
        if here and self._events.is_idle:
            function()
        else:
            self._events.post(function)

    def call(self, function: Callable[[], object]) -> None:
        try:
            start_thread(lambda: system.call_user(function), "callback")
        except ThreadStartError:
            system.call_user(function)  # it must be called, even if that delays other leases

    def run_in_loop(self, function: Callable[[], object]) -> bool:
        return False  # every thread may change the state


_warned_inside_loop = False
running_loop: Callable[[], object] | None = None  # that of asyncio, once the program has imported it


def warn_inside_loop() -> None:
    """Warn once: a Client inside a running loop blocks every task of that loop while it waits."""
    global running_loop, _warned_inside_loop
    if _warned_inside_loop:
        return
    if running_loop is None:
        # While another thread imports asyncio for the first time, the module exists without its names.
        running_loop = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
        if running_loop is None:
            return
    if running_loop() is None:
        return
    _warned_inside_loop = True
    warnings.warn(
        "holdfast.Client is used inside a running event loop, which is blocked while it waits: "
        "use holdfast.AsyncClient there",
        RuntimeWarning,
        stacklevel=4,  # the caller of acquire() or of the `with`
    )
