"""One turn of the load: acquire a lock, use the resource, hold, release; written down in the journal.

The turn is a coroutine over an AsyncAdapter. For threads, `Inline` gives an Adapter the same methods, which never
suspend, so `run_inline` runs the turn on the thread of the caller.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from holdfast.errors import BackendUnavailable, OutcomeUnknown
from holdfast.runtimes.system import now
from holdfast_lab.checking.history import WhyFailed

from .adapter import Adapter, AsyncAdapter
from .hub import Hub
from .journal import Journal

T = TypeVar("T")
CHECK_EVERY = 0.05  # seconds between two checks of a lease
HOT = 0.75  # the share of turns that use a contended name
LONG = 0.004  # the share of turns that are longer than the ttl


class Turn(NamedTuple):
    """The choices of one turn."""

    lock: str
    ttl: float
    timeout: float
    hold: float  # seconds, with checks of the lease
    work: float = 0.0  # seconds between the last check and the write to the resource


class Choices:
    """The random choices of one thread or task. The same seed gives the same turns."""

    def __init__(self, seed: str, names: list[str], hot: int, ttl: float) -> None:
        self._random = random.Random(seed)  # noqa: S311  (not a secret)
        self._hot, self._cold = names[:hot], names[hot:]
        self._ttl = ttl

    def next(self) -> Turn:
        chance = self._random.random()
        lock = self._random.choice(self._hot if chance < HOT or not self._cold else self._cold)
        # Mostly short; some holds need several renewals.
        hold = self._random.choice((0.0, 0.001, 0.002, 0.005, 0.02))
        if self._random.random() < LONG:
            hold = self._ttl * 1.5
        timeout = self._random.choice((0.0, 0.2, 1.0, self._ttl * 2.0, self._ttl * 2.0))
        return Turn(lock, self._ttl, timeout, hold, self._random.choice((0.0, 0.001, 0.01)))

    def pause(self) -> float:
        """Seconds until the next turn."""
        return self._random.uniform(0.0, 0.03)


class Inline:
    """The methods of an Adapter as coroutines that never suspend."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.renews = adapter.renews
        self.fence, self.remaining = adapter.fence, adapter.remaining

    async def acquire(self, name: str, ttl: float, timeout: float) -> Any | None:
        return self.adapter.acquire(name, ttl, timeout)

    async def release(self, held: Any) -> bool:
        return self.adapter.release(held)

    async def is_held(self, held: Any) -> bool:
        return self.adapter.is_held(held)

    async def extend(self, held: Any) -> bool:
        return self.adapter.extend(held)


def run_inline(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError("the turn of a thread was suspended")


async def sleep_inline(seconds: float) -> None:
    """Sleep on the thread of the caller."""
    time.sleep(seconds)  # noqa: ASYNC251  (it runs on a thread of its own)


class Player:
    """Plays turns with one adapter."""

    def __init__(
        self,
        adapter: Inline | AsyncAdapter,
        journal: Journal,
        hub: Hub,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._adapter = adapter
        self._journal = journal
        self._hub = hub
        self._sleep = sleep
        self.ticket = 0  # of the last turn
        self.is_holding = False

    async def play(self, turn: Turn, until: Callable[[], bool] | None = None) -> bool:
        """One turn: whether the lock was acquired. `until` ends the hold early, before its time."""
        journal, lock = self._journal, turn.lock
        ticket = self.ticket = journal.new_ticket()
        journal.write("started", ticket=ticket, lock=lock, timeout=turn.timeout)
        try:
            held = await self._adapter.acquire(lock, turn.ttl, turn.timeout)
        except Exception as error:  # any library, any error
            outcome, reason = _why_failed(error), f"{type(error).__name__}: {error}"
            journal.write("failed", ticket=ticket, lock=lock, outcome=outcome, reason=reason[:200])
            return False
        if held is None:
            journal.write("failed", ticket=ticket, lock=lock, outcome="timed out", reason="")
            return False
        fence = self._adapter.fence(held)
        journal.write("granted", ticket=ticket, lock=lock, fence=fence)
        self.is_holding = True
        accepted, value = self._hub.read(lock, ticket, fence)
        is_held = await self._hold(held, turn, ticket, until)
        if is_held and accepted:
            # A pause after the last check can be longer than the lease. Then only the fence protects the resource.
            if turn.work:
                await self._sleep(turn.work)
            self._hub.write(lock, ticket, fence, before=value)
        await self._release(held, ticket)
        return True

    async def _hold(self, held: Any, turn: Turn, ticket: int, until: Callable[[], bool] | None) -> bool:
        """Check the lease until the end of the hold: whether it was held at the last check."""
        end = now() + turn.hold
        extended = now()
        while True:
            if not await self._check(held, ticket):
                return False
            left = end - now()
            if left <= 0 or (until is not None and until()):
                return True
            await self._sleep(min(CHECK_EVERY, left))
            if not self._adapter.renews and now() - extended > turn.ttl / 3:
                extended = now()
                with contextlib.suppress(Exception):  # the next check has the answer
                    await self._adapter.extend(held)

    async def _check(self, held: Any, ticket: int) -> bool:
        """The time is read before the check, so that a pause after it cannot extend the belief."""
        at = now()
        try:
            remaining = self._adapter.remaining(held)
            is_held = await self._adapter.is_held(held)
        except Exception:  # the check had no answer, so it shows nothing
            return True
        if is_held:
            self._journal.write("held", at, ticket=ticket, deadline=None if remaining is None else at + remaining)
        else:
            self._journal.write("not held", ticket=ticket)
        return is_held

    async def _release(self, held: Any, ticket: int) -> None:
        self._journal.write("release", ticket=ticket)
        self.is_holding = False
        try:
            outcome = "released" if await self._adapter.release(held) else "lost"
        except Exception as error:  # any library, any error
            self._journal.write("released", ticket=ticket, outcome="pending", reason=type(error).__name__)
        else:
            self._journal.write("released", ticket=ticket, outcome=outcome)


def _why_failed(error: Exception) -> WhyFailed:
    if isinstance(error, BackendUnavailable):
        return "unavailable"
    return "unknown" if isinstance(error, OutcomeUnknown | OSError) else "error"
