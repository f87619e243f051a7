"""The runtime for asyncio: the caller's own `await` drives the protocol; background work is tasks of its loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, Self

from holdfast.core.events import logger
from holdfast.core.ports import Caller
from holdfast.errors import HoldfastError, LockLost, UsageError
from holdfast.runtimes import system
from holdfast.runtimes.blocks import ExitOfBlock, ForTasks, TaskBlock, entered_block


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
        timer = None if until is None else _Timer(loop, waiter, until)
        self._waiters.add(waiter)
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()


class AsyncioRuntime(system.SystemRuntime):
    """One for every AsyncClient, bound to the loop that first uses it."""

    event = staticmethod(AsyncioEvent)
    sleep = staticmethod(asyncio.sleep)
    join_max = 6.0  # seconds: a background task ends after its present request

    _callers: ClassVar[weakref.WeakKeyDictionary[asyncio.Task[Any], Caller]] = weakref.WeakKeyDictionary()
    # The last result of `caller_of`, because a look-up in the dictionary takes several times as long. Both are weak: a
    # caller lives as long as its task, so that the leases of a task that has ended are dropped.
    _last_caller: ClassVar[tuple[Callable[[], object], Callable[[], Caller | None]]] = (lambda: None, lambda: None)

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.current_thread()  # the thread of the loop
        self.waits_for_sockets = False  # set by a backend that needs a loop with add_reader
        self._tasks: set[asyncio.Task[None]] = set()
        self._callbacks: set[asyncio.Task[None]] = set()  # callbacks of the user, which `join` does not wait for
        self._notices = 0  # queued calls of `notify`

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of this runtime, which must be the running one.

        Raises:
            UsageError: it is used from another loop, or this one cannot do what the backend needs.
        """
        running = asyncio.get_running_loop()
        if self._loop is None:
            if (
                self.waits_for_sockets
                and getattr(type(running), "add_reader", None) is asyncio.AbstractEventLoop.add_reader
            ):
                raise UsageError(
                    "this event loop cannot wait for sockets, as the default one of Windows cannot: use "
                    "asyncio.run(main(), loop_factory=asyncio.SelectorEventLoop), or asyncio.Runner before Python 3.12"
                )
            self._loop, self._thread = running, threading.current_thread()
        elif self._loop is not running:
            raise UsageError(
                "this AsyncClient belongs to another event loop: make one for each loop, inside it "
                "(`async with holdfast.AsyncClient(url) as client`)"
            )
        return running

    def check_loop(self) -> None:
        """Raise UsageError unless the running loop is that of this runtime. The first caller sets it."""
        if self._loop is None or asyncio.get_running_loop() is not self._loop:
            _ = self.loop

    def run_from_thread(self, coroutine: Coroutine[Any, Any, object], seconds: float) -> object:
        """Run a coroutine on the loop and wait for its result, on another thread. It is cancelled after `seconds`."""
        if self._loop is None:
            coroutine.close()
            raise UsageError("this AsyncClient has no event loop yet")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(max(0.0, seconds))
        except TimeoutError:
            future.cancel()
            raise

    # All code of one loop runs on one thread and changes shared state only between awaits, so nothing has to be locked.
    # An RLock is faster than contextlib.nullcontext, whose methods are written in Python.
    mutex = staticmethod(threading.RLock)

    def caller(self) -> Caller:
        task = asyncio.current_task() or current_task()
        last_task, last_caller = self._last_caller
        # The first step of `caller_of`, because every acquire calls this.
        return known if last_task() is task and (known := last_caller()) is not None else self.caller_of(task)

    def has_ended(self, caller: Caller | None) -> bool:
        if self._loop is None or self._loop.is_closed():
            return True
        # A loop that is stopped can be run again, by a thread that still runs.
        thread = self._thread
        return not self._loop.is_running() and (thread is threading.current_thread() or not thread.is_alive())

    @classmethod
    def caller_of(cls, task: asyncio.Task[Any]) -> Caller:
        last_task, last_caller = cls._last_caller
        if last_task() is task and (known := last_caller()) is not None:
            return known
        try:
            caller = cls._callers[task]
        except KeyError:
            caller = cls._callers[task] = Caller(next(system.caller_numbers))
        cls._last_caller = (weakref.ref(task), weakref.ref(caller))
        return caller

    def agent(self) -> str:
        return current_task().get_name()

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._create(work(), name, self._tasks)

    def _create(self, work: Coroutine[Any, Any, None], name: str, tasks: set[asyncio.Task[None]]) -> None:
        # In a new context, because the objects in the caller's context must not live as long as the client.
        task = self.loop.create_task(work, name=f"holdfast-{name}", context=contextvars.Context())
        tasks.add(task)  # the loop has only weak references to tasks
        task.add_done_callback(tasks.discard)

    def call_from_thread(self, function: Callable[..., object], *args: object) -> None:
        """Let the loop call a function, from any thread. A closed loop ignores it."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *args)

    async def join(self) -> None:
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        if others:
            # With a time limit, as for threads: an observer may be in a callback of the user that waits for this end.
            await asyncio.wait(others, timeout=self.join_max)

    def call(self, function: Callable[[], object]) -> None:
        self.loop.call_soon(self._call_now, function)

    def notify(self, function: Callable[[], object], *, here: bool) -> None:
        loop = self._loop
        if (here and not self._notices) or loop is None or not loop.is_running():
            function()  # after the loop has ended, nothing else can call it
        else:
            self._notices += 1
            loop.call_soon(self._notify_now, function)

    def _notify_now(self, function: Callable[[], object]) -> None:
        self._notices -= 1
        function()

    def run_in_loop(self, function: Callable[[], object]) -> bool:
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:  # another thread, or the loop has ended
            is_here = False
        if not is_here:
            self.call_from_thread(function)
        return not is_here

    def _call_now(self, function: Callable[[], object]) -> None:
        outcome = system.call_user(function)
        if asyncio.iscoroutine(outcome):
            self._create(_discard_result(outcome), "callback", self._callbacks)


def current_task() -> asyncio.Task[Any]:
    """The task that runs this."""
    task = asyncio.current_task()
    if task is None:
        raise UsageError("locks are taken by tasks: call this from a coroutine that a task runs")
    return task


def calling_task() -> asyncio.Task[Any] | None:
    """The task that runs this; None where none does, as in the arguments of `asyncio.run`."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


async def _discard_result(coroutine: Coroutine[Any, Any, object]) -> None:
    try:
        await coroutine
    except Exception:
        logger().exception("an on_lost or on_revoke callback failed")


class _Timer:
    """Ends a wait by the runtime's clock, which counts the time of a suspended machine; the loop's clock does not."""

    __slots__ = ("_handle", "_loop", "_until", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[bool], until: float) -> None:
        self._loop, self._waiter, self._until = loop, waiter, until
        self._set(until - system.now())

    def cancel(self) -> None:
        self._handle.cancel()

    def _set(self, seconds: float) -> None:
        self._handle = self._loop.call_later(max(0.0, min(seconds, system.CLOCK_CHECK_INTERVAL)), self._check)

    def _check(self) -> None:
        seconds_left = self._until - system.now()
        if seconds_left > 0.0:
            self._set(seconds_left)
        elif not self._waiter.done():
            self._waiter.set_result(False)


class Body:
    """The body of an `async with`, in its task: cancelled at a loss, by the counting that asyncio.timeout uses."""

    def __init__(self, task: asyncio.Task[Any] | None = None) -> None:
        """`task` is the one that runs the body: by default, the one that calls this."""
        self.task = task or current_task()
        self._cancelling = self.task.cancelling()
        self._inside = True
        self._cancelled = False

    def report_lost(self) -> None:
        # Not at once: if the task itself detects the loss (lease.check()), the cancellation would be delivered at an
        # await after the body.
        self.task.get_loop().call_soon(self._cancel)

    def end(self, error: BaseException | None) -> bool:
        """Whether `error`, which ends the body, is the cancellation of `report_lost`."""
        self._inside = False
        if not self._cancelled:
            return False
        return self.task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)

    def _cancel(self) -> None:
        if self._inside:
            self._cancelled = True
            self.task.cancel()


class Bodies(list[Body]):
    """The open bodies of one lease. A loss cancels the outermost one of each task, and through it the inner ones."""

    __slots__ = ()

    def end(self, body: Body | None, error: BaseException | None) -> bool:
        """As `Body.end`; None stands for the body that began last."""
        if body is None and not self:
            return False
        body = body or self[-1]
        self.remove(body)
        return body.end(error)

    def report_lost(self) -> None:
        # In the order in which they began: a task that waits for another one is cancelled before that one ends.
        outermost: dict[asyncio.Task[Any] | None, Body] = {}
        for body in self:
            outermost.setdefault(body.task, body)
        for body in outermost.values():
            body.report_lost()


class AsyncBlocks(ForTasks):
    """`async with` on a lease: the part that AsyncLease and AsyncLeaseAll share."""

    __slots__ = ()

    _hook: Callable[[], object] | None
    _bodies: Bodies  # set together with the hook

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return self._enter_block(entered_block(self), calling_task())

    __aexit__ = ExitOfBlock(TaskBlock)

    async def _enter_block(self, block: TaskBlock | None, task: asyncio.Task[Any] | None) -> Self:
        self.check()
        return self._enter_body(block, task)

    def _enter_body(self, block: TaskBlock | None, task: asyncio.Task[Any] | None) -> Self:
        """Begin the body: a loss cancels it from here on."""
        body = None
        if self._cancels_bodies:
            if self._hook is None:
                lease: Any = self  # the subclass has these slots
                lease._bodies = bodies = Bodies()
                lease._hook = bodies.report_lost
            body = Body(task)
            self._bodies.append(body)
        if block is not None:
            block.lease, block.body = self, body
        return self

    async def _exit_block(self, body: Body | None, error: BaseException | None) -> None:
        ended_by_us = self._hook is not None and self._bodies.end(body, error)
        try:
            await self._release_at_end()
        except HoldfastError as also:
            if error is None:
                raise
            error.add_note(f"holdfast: {also}")  # the error of the body is raised
        if ended_by_us:
            raise self._loss() from error

    def _last_entered(self) -> Self:
        return self

    if TYPE_CHECKING:

        def check(self) -> None: ...
        def _loss(self) -> LockLost: ...
        def _release_at_end(self) -> Coroutine[Any, Any, None]: ...
        @property
        def _cancels_bodies(self) -> bool: ...


def run_in_new_loop(coroutine: Coroutine[Any, Any, object], seconds: float) -> object:
    """Run a coroutine on this thread, for a client whose own loop has ended."""
    return asyncio.run(asyncio.wait_for(coroutine, seconds))
