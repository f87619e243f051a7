"""Shared by the protocols on MySQL and PostgreSQL: waiters that get no notifications poll their position in the queue.

A poll locks and writes nothing. The first waiter polls often, and the interval grows with the square of the position in
the queue. So all waiters together poll little more often than the first two. Only while the queue moves fast do the
waiters behind poll more often.

Pure, as everything in `protocol/`: no sockets, threads or clocks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.engine import IO_TIMEOUT_MIN
from holdfast.core.notifications import Wakeups
from holdfast.core.tickets import Claim, Notification
from holdfast.errors import BackendError

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime

POLL_MIN, POLL_MAX = 0.002, 0.02  # seconds between polls of the first waiter: often after a change, then less
_STEADY_POLLS = 8  # polls without a change until the interval grows
_EARLY = 4  # the interval is at most this fraction of the expected time until the grant


class Polled(NamedTuple):
    """The result of a poll."""

    is_blocked: bool  # False: the ticket may be granted, or has to be queued again
    ahead: int = 0  # waiters before it


class QueuePosition:
    """The position of a waiter in the queue, and when its next poll is due. It is the `state` of a waiting claim."""

    __slots__ = ("_ahead", "_pace", "_since", "blocker_ends", "reads")

    def __init__(self, now: float, reads: str = "") -> None:
        self.reads = reads  # the name of the lock of a reader, which is granted with the readers before it; else empty
        self.blocker_ends = float("inf")  # when the lease that blocks it expires, unless it is renewed
        self._ahead = 0  # waiters before it
        self._since = now  # when that number last changed, as far as polls have shown
        self._pace = 0.0  # seconds for each waiter that left the queue, at the last change

    def update(self, ahead: int, now: float) -> None:
        """A poll has found this many waiters before it."""
        if ahead != self._ahead:
            self._pace = (now - self._since) / max(1, self._ahead - ahead)
            self._ahead, self._since = ahead, now

    def poll_delay(self, now: float) -> float:
        """Seconds until the next poll: a fraction of the expected wait, limited by the position in the queue."""
        position, quiet = self._ahead + 1, now - self._since
        by_pace = position * max(self._pace, quiet) / _EARLY
        weight = position if self.reads else position**2
        by_position = weight * max(POLL_MIN, min(POLL_MAX, quiet / _STEADY_POLLS))
        return max(POLL_MIN, min(by_pace, by_position))


class PolledWaiters:
    """The waiting claims of one client, on a store that sends no notifications."""

    def __init__(
        self,
        runtime: Runtime,
        poll: Callable[[Claim, float], Awaitable[Polled]],
        *,
        interval_max: float = float("inf"),
    ) -> None:
        """`poll` gets the claim and the deadline. No waiter polls less often than every `interval_max` seconds."""
        self._runtime, self._poll, self._interval_max = runtime, poll, interval_max
        self._wakeups = Wakeups(runtime)

    def start(self, claim: Claim, now: float) -> QueuePosition:
        """The position of this claim, which waits."""
        position: QueuePosition | None = claim.state
        if position is None:
            position = claim.state = QueuePosition(now, claim.name if claim.limit is None else "")
        return position

    async def wait(self, claim: Claim, until: float) -> None:
        """Poll until the lock may be granted, or until then."""
        now, deadline = self._runtime.now, max(until, self._runtime.now() + IO_TIMEOUT_MIN)
        self._wakeups.expect(claim)
        while (position := claim.state) is not None:
            until = min(until, position.blocker_ends)
            delay = min(position.poll_delay(now()), self._interval_max)
            await self._wakeups.wait(claim, min(until, now() + delay))
            if now() >= until or claim.state is None:
                return
            try:
                polled = await self._poll(claim, deadline)
            except BackendError:
                return  # the next try_acquire reports the error
            if not polled.is_blocked:
                return
            position.update(polled.ahead, now())

    def granted(self, claim: Claim) -> None:
        """The claim is granted. If it is a reader, the readers of this client that wait for its lock may be too."""
        self.stop(claim)
        if claim.limit is None:
            for other in self._wakeups.expected():
                if other.limit is None and other.name == claim.name:
                    self._wakeups.wake(Notification(other.nonce))

    def stop(self, claim: Claim) -> None:
        """The claim does not wait any more."""
        if claim.state is not None:
            claim.state = None
            self._wakeups.forget(claim)

    def wake_all(self) -> None:
        self._wakeups.wake_all()
