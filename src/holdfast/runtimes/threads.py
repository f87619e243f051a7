"""The runtime for threads: blocking adapters never suspend, so a protocol is one plain call on its caller's thread."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from holdfast.core.events import logger
from holdfast.core.ports import Caller, IdleCallbacks
from holdfast.errors import ThreadStartError
from holdfast.runtimes import system

T = TypeVar("T")

DRAIN_MAX = 1.0  # seconds at close and at exit for subscribers and log handlers that still have something to do


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over blocking adapters to its end, here and now.

    Between its `return` and ours there is no call and no backward jump, hence no point at which CPython would run a
    signal handler: a KeyboardInterrupt comes either inside the coroutine, whose guards undo what it did, or not yet.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking adapter suspended; it must do its I/O inline")


class Mutex(_thread.RLock):  # type: ignore[misc]  # typeshed calls it final, CPython does not
    """`with mutex:` for state that threads share. A KeyboardInterrupt never leaves it locked.

    CPython runs signal handlers at function entry, at backward jumps and after calls of C functions.

    - Enter: up to Python 3.13 one instruction calls `__enter__` and begins the protected range: the C method is safe.
      From 3.14 on it is a plain call, and an interrupt just after a C method would be outside the range. There
      `__enter__` is a Python function, which handles an interrupt after its own call; no handler runs at its return.
    - Exit: `__exit__` is always the C method. A Python function could be interrupted at its entry, before it unlocks.
    - Body: from Python 3.13 on, conditional backward jumps are not covered by the handlers around them, so a body has
      no loop and no comprehension with a condition of its own; it calls a function that has.

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


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon: leases of a program that ends without closing its client run out, they do not keep it alive.

    Raises:
        ThreadStartError: there is no room for another thread.
    """
    thread = threading.Thread(target=target, name=f"holdfast-{name}", daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise ThreadStartError(thread=thread.name, problem=str(error) or type(error).__name__) from error
    return thread


class ThreadEvent:
    """threading.Event with our clock and the `async def` that protocols speak, and safe under interrupts.

    threading.Event guards itself with a lock that it takes in Python code: a KeyboardInterrupt just after that leaves
    it taken for ever, and whoever uses the event next stands still. Here every step is one call into C.
    """

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[threading.Lock] = []  # each taken by who waits, and given back to wake it

    def set(self) -> None:
        self._is_set = True
        if self._waiters:
            try:
                self._wake()
            except BaseException:
                self._wake()  # the rest: an interrupt is no reason to let anybody sleep on
                raise

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    async def wait(self, until: float | None) -> bool:
        if self._is_set:
            return True
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        try:
            if self.is_set():  # by now; then whoever set it may not have seen us
                return True
            return waiter.acquire() if until is None else _acquired_until(waiter, until)
        finally:
            self._waiters.remove(waiter)

    def _wake(self) -> None:
        for waiter in list(self._waiters):
            with contextlib.suppress(RuntimeError):  # woken already
                waiter.release()


def _acquired_until(waiter: threading.Lock, until: float) -> bool:
    # The kernel's timers stand still while the machine is suspended, and our clock does not: so we look at it now and
    # then, and are late by no more than that after a suspend.
    while not waiter.acquire(timeout=min(max(0.0, until - system.now()), system.CLOCK_CHECK_INTERVAL)):
        if system.now() >= until:
            return False
    return True


class Threads:
    """Background threads that can be waited for together."""

    join_max = 6.0  # seconds: a background thread is at most one request away from its end

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run it on a thread of its own.

        Raises:
            ThreadStartError: there is no room for another thread.
        """
        thread = start_thread(lambda: run_sync(work()), name)
        self._threads.append(thread)
        for other in [one for one in self._threads if not one.is_alive()]:
            with contextlib.suppress(ValueError):  # another thread that starts one has removed it
                self._threads.remove(other)

    async def join(self) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(self.join_max)


class Dispatcher:
    """Calls functions one after the other, on a thread that runs while there are any. `post` never waits for them."""

    calls_max = 10_000  # that wait; more are dropped, so that one that hangs does not fill the memory

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        """In a forked child: nothing is to be called, and there is no thread."""
        self._calls: deque[Callable[[], object]] = deque()
        self._mutex = Mutex()
        self._is_running = False
        self._idle = ThreadEvent()
        self._dropped = 0

    @property
    def is_idle(self) -> bool:
        """All that was posted has been called."""
        return not self._is_running and not self._calls

    def post(self, call: Callable[[], object]) -> None:
        """Call it soon. If no thread can be started, it waits for the next `post` or `drain`."""
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
        """Wait until all was called, or the time is up."""
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
        except BaseException as error:  # not even SystemExit ends this thread: others are to be called
            sys.excepthook(type(error), error, error.__traceback__)


log_dispatcher = Dispatcher("log")
logger().post = log_dispatcher.post
system.after_fork_in_child(log_dispatcher.reset)


@atexit.register
def flush_log(seconds: float = DRAIN_MAX) -> None:
    """Wait until log handlers have got everything that was logged before this call, but no longer than this."""
    run_sync(log_dispatcher.drain(system.now() + seconds))


class _Identity(threading.local):
    def __init__(self) -> None:
        self.caller = Caller()
        self.thread = threading.current_thread()


class ThreadRuntime(IdleCallbacks):
    """One for every Client."""

    now = staticmethod(system.now)
    wall = staticmethod(time.time)
    nonce = staticmethod(system.nonce)
    jitter = staticmethod(system.jitter)
    process_info = staticmethod(system.process_info)
    event = staticmethod(ThreadEvent)
    mutex = staticmethod(Mutex)

    # An object per thread, made at its first use and gone with it. Idents are reused, and so are the objects that
    # threading.current_thread() makes up for foreign threads.
    _identity = _Identity()

    def __init__(self) -> None:
        super().__init__()
        self._threads = Threads()
        self._events = Dispatcher("events")

    def caller(self) -> Caller:
        return self._identity.caller

    def has_ended(self, caller: Caller | None) -> bool:
        # The thread that runs this ends the process.
        return caller is None or caller is self.caller()

    def agent(self) -> str:
        return self._identity.thread.name

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
            system.call_user(function)  # it must be called, even if it delays other leases

    def run_in_loop(self, function: Callable[[], object]) -> bool:
        return False  # every thread may


_warned_inside_loop = False


def warn_inside_loop() -> None:
    """A sync lock inside a running loop stops every task of that loop while it waits: say so once."""
    global _warned_inside_loop
    if _warned_inside_loop:
        return
    # While another thread imports asyncio for the first time, the module is there without its names.
    running_loop = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    if running_loop is None or running_loop() is None:
        return
    _warned_inside_loop = True
    warnings.warn(
        "holdfast.Client is used inside a running event loop, which stands still while it waits: "
        "use holdfast.AsyncClient there",
        RuntimeWarning,
        stacklevel=4,  # whoever called acquire() or entered the `with`
    )
