"""The loop that receives notifications of one client: a thread or task that runs while tickets wait."""

from __future__ import annotations

from abc import ABC, abstractmethod

from holdfast.backends.net.poller import Background, Poller
from holdfast.backends.net.waker import Waker
from holdfast.core.notifications import Wakeups
from holdfast.core.ports import Runtime

IDLE_MAX = 2.0  # seconds without a waiter after which the loop ends, and with it its connections


class Listener(ABC):
    """`_start` starts the loop unless it runs. The loop of a subclass, `_run`, receives until `_is_done`, and ends."""

    def __init__(self, poller: Poller, background: Background, runtime: Runtime) -> None:
        self._poller, self._background, self._runtime = poller, background, runtime
        self.wakeups = Wakeups(runtime)
        self._mutex = runtime.mutex()  # guards the state that callers and the loop share
        self._idle_since = 0.0
        self._waker: Waker | None = None  # while the loop runs
        self._closed = False

    @abstractmethod
    async def _run(self, waker: Waker) -> None:
        """Receive until `_is_done(waker)`. The waker wakes it from a poll."""

    @abstractmethod
    def _has_waiters(self) -> bool: ...

    def _ended(self) -> None:  # noqa: B027 (a subclass may have nothing to do)
        """Called with the mutex held when the loop ends."""

    def _start(self) -> bool:
        """With the mutex held: start the loop. Returns False if it runs already."""
        if self._waker is not None:
            return False
        self._waker = waker = Waker()
        try:
            self._background.start(lambda: self._run(waker), "listener")
        except BaseException:
            self._close_waker(waker)
            raise
        return True

    def _is_done(self, waker: Waker) -> bool:
        """Whether this loop is not needed any more. If so, the next waiter starts another one."""
        with self._mutex:
            if self._waker is not waker:
                return True  # this loop was ended before; another one may run by now
            is_idle = not self._has_waiters() and self._runtime.now() - self._idle_since > IDLE_MAX
            if self._closed or is_idle:
                self._close_waker(waker)
                self._ended()
                return True
            return False

    async def close(self) -> None:
        with self._mutex:
            self._closed = True
            self._ended()
            if self._waker is not None:
                self._waker.wake()
        await self._background.join()

    def abandon(self) -> None:
        """In a forked child."""
        self._closed = True
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.abandon()

    def _close_waker(self, waker: Waker) -> None:
        if self._waker is waker:
            self._waker = None
            waker.close()
