"""The seams. Protocols are plain `async def` code that touches only what is named here.

Why `async def` in a library for threads: a blocking adapter does its I/O inside the coroutine and never suspends, so
one `coroutine.send(None)` runs the whole protocol on the caller's own thread (runtimes/threads.py: run_sync). The same
text runs on asyncio by awaiting, and in a simulator by parking at every call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from holdfast.errors import BackendUnavailable

if TYPE_CHECKING:
    from holdfast.core.tickets import Granted, LeaseGone, Live, LockInfo, Ticket, Waiting
    from holdfast.errors import BackendError
    from holdfast.guarantees import Guarantees
    from holdfast.primitives import Lacks


class Event(Protocol):
    """A flag that somebody can wait for. `set` may be called from anywhere."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    async def wait(self, until: float | None) -> bool:
        """Wait until it is set (True) or `until` on the runtime's clock has passed (False)."""


class Runtime(Protocol):
    """Time, tasks and identity: everything a protocol may know of the world but its server."""

    def now(self) -> float:
        """Seconds on a clock that never goes back and goes on while the machine sleeps."""

    def wall(self) -> float:
        """Unix time: for people, and as a floor for fences; never for deadlines."""

    def nonce(self) -> str:
        """32 unguessable hexadecimal digits."""

    def jitter(self) -> float:
        """A random number from 0 up to 1."""

    def caller(self) -> Caller:
        """The calling thread or task, for re-entry and self-deadlock."""

    def has_ended(self, owner: Caller | None) -> bool:
        """At the end of the process: no code of this thread or task can run any more; None has been freed."""

    def agent(self) -> str:
        """Its name, for people."""

    def process_info(self) -> str:
        """This process as JSON: host, pid, program."""

    def event(self) -> Event: ...

    def mutex(self) -> AbstractContextManager[Any]:
        """Guards state shared by callers, keeper and listener. Never held across a port call."""

    async def sleep(self, seconds: float) -> None: ...

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run it in the background; it must end by itself or when the runtime does."""

    async def join(self) -> None:
        """Wait for what was spawned and has been told to end."""

    def call(self, function: Callable[[], object]) -> None:
        """Call a user's function soon, where it may take its time without holding up the keeper."""

    def notify(self, function: Callable[[], object], *, here: bool) -> None:
        """Call a subscriber's function, after those before it and where it delays no lease.

        With `here` at once, on the caller's own thread or task, unless earlier ones still wait; else never there.
        """

    def on_idle(self, method: Callable[[], object]) -> None:
        """Have a bound method called, while its object exists, each time the keeper has had nothing to do for long."""

    def report_idle(self) -> None:
        """Call these methods."""

    def run_in_loop(self, function: Callable[[], object]) -> bool:
        """Where the client's state may be looked at but not changed, have it called where it may. Whether it was so."""


class IdleCallbacks:
    """The part of a runtime that calls methods when the keeper has had nothing to do for long. They must not block."""

    def __init__(self) -> None:
        self._on_idle: list[weakref.WeakMethod[Callable[[], object]]] = []

    def on_idle(self, method: Callable[[], object]) -> None:
        self._on_idle.append(weakref.WeakMethod(method))

    def report_idle(self) -> None:
        self._on_idle = [one for one in self._on_idle if one() is not None]
        for reference in self._on_idle:
            if (method := reference()) is not None:
                method()


class Caller:
    """A thread or a task, for as long as it lives. Compared by identity, never by a number that could be reused.

    It remembers, weakly, what it holds: (client's serial number, lock name) -> the lease.
    """

    __slots__ = ("__weakref__", "leases")

    def __init__(self) -> None:
        self.leases: dict[tuple[int, str], Any] = {}


class Backend(Protocol):
    """What a store offers the engine. Every verb is idempotent by the ticket's nonce.

    Every call takes a deadline on the runtime's clock that reaches the socket or file. BackendUnavailable means that
    nothing changed, OutcomeUnknown that it may have: the engine then repeats the call or owes a `release`.
    """

    url: str

    @property
    def guarantees(self) -> Guarantees:
        """What it promises, as far as it is known by now: some stores say more once they were asked."""

    @property
    def lacks(self) -> Lacks:
        """Which primitives it does not have, and why; the engine refuses them before they get here."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the store although it works, for people; () where it works or does not."""

    @property
    def liveness_fds(self) -> tuple[int, ...]:
        """Descriptors by which the store sees that the holder lives, if it does: open in any process, it lives."""

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        """Take the lock, or (if `queue`) a place in its queue, or keep the place already taken."""

    async def try_acquire_all(self, tickets: Sequence[Ticket], *, deadline: float) -> Sequence[Granted | Waiting]:
        """Acquire several locks in one step, without a queue, up to the first that is busy.

        The result has at least one item. Item i belongs to ticket i; only the last one can be a Waiting. A store may
        return fewer items than tickets; the tickets without an item are not granted. Each ticket has another name. If
        this raises, some tickets may be granted, so the engine releases all of them.
        """

    async def wait(self, ticket: Ticket, until: float) -> None:
        """Return when it is worth to enter again, at `until` at the latest."""

    async def release(self, tickets: Sequence[Ticket], *, deadline: float) -> Sequence[bool | BackendError]:
        """Release or withdraw; for each, whether it was a granted lease of ours until now.

        Where one server of several gave no answer, its tickets have the error in their place, and the others count.
        """

    async def renew(self, tickets: Sequence[Ticket], *, deadline: float) -> Sequence[Live | LeaseGone | BackendError]:
        """Let each lease run for its ttl again; errors as in `release`."""

    def intact(self, store: Hashable) -> bool:
        """False if it can be seen locally, without asking, that the store which granted a lease was taken away."""

    # The next three never create a store (file, folder, schema or table), and raise StoreMissing where it is missing.

    async def inspect(self, name: str, *, deadline: float) -> LockInfo: ...

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]: ...

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        """End exactly the lease with this fence; whether there was one."""

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        """Raise this name's mark to `number`; whether it was lower, or is this very call's already, by its nonce.

        A mark is a number that never goes down, kept for at least `keep` seconds after it was raised, whatever becomes
        of the process that did. Marks have names of their own, up to 16 characters longer than a lock's, and have
        nothing to do with the lock that is called the same.
        """

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> Sequence[int]:
        """The mark of each; 0 where there is none."""

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: let go of what was inherited, without a word on any connection."""


class StoreMissing(BackendUnavailable):
    """The store does not exist yet, and a call that only reads does not create it. No lock is in use in it."""


class Listing(Protocol):
    """The locks of a store that has no index of them, searched and read again and again."""

    keys_total: int  # how many keys the store had when this search began
    keys_searched: int  # about how many of them were searched
    locks_total: int  # how many locks are being read; 0 during a search
    locks_read: int
    on_step: Callable[[], object]  # called after each request; what it raises ends the search
    follows: bool  # let the store report changes as well, if it can

    async def search(self, seconds: float) -> bool:
        """Search for that long, or to the end of the keys; whether that is reached, and the next search can begin."""

    async def read(self) -> list[LockInfo]:
        """All locks in use that were found by now, as they are now."""

    def close(self) -> None: ...


@runtime_checkable
class ListsBySearch(Protocol):
    """A backend whose `locks` searches all keys of its servers, which takes long because it must not slow them down."""

    def listing(self, prefix: str, *, io_timeout: float) -> Listing:
        """The locks whose names begin with `prefix`; no request takes longer than `io_timeout`."""


@runtime_checkable
class ReleasesLater(Protocol):
    """A backend that keeps its tickets alive in the background, so that a forgotten one would never expire."""

    def release_later(self, ticket: Ticket) -> None:
        """Release it in the background too: the keeper has no thread for that. The ticket is not used any more."""


@runtime_checkable
class ReportsGone(Protocol):
    """A backend that learns by itself that a store is gone: its leases are lost then, not at their next renewal."""

    def on_gone(self, report: Callable[[Hashable, str], None]) -> None:
        """Have `report` called with each `Granted.store` whose leases have all ended, and the reason.

        `intact` is False for it from before that call.
        """


@runtime_checkable
class WorksWithoutLoop(Protocol):
    """A backend for asyncio whose connections are served by threads, so that they outlive the loop."""

    def without_loop(self) -> None:
        """At the end of the process: requests wait for their answers without the loop, which has ended."""


@runtime_checkable
class Inherits(Protocol):
    """A backend that releases a ticket only if it knows more of it than the ticket says."""

    def inherit(self, other: Any) -> None:
        """At the end of the process: take over what `other`, of the same class, knows. Its loop has ended."""
