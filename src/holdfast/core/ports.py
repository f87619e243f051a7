"""The ports: the interfaces between the engine, the backends and the runtimes.

Protocols are plain `async def` code that uses only these interfaces. A blocking adapter does its I/O inside the
coroutine and never suspends, so one `coroutine.send(None)` runs a whole protocol on the caller's thread
(runtimes/threads.py: run_sync). The same code runs on asyncio by awaiting, and in the simulator by suspending at every
call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine, Hashable, Sequence, Sized
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from holdfast.errors import BackendUnavailable

if TYPE_CHECKING:
    from holdfast.core.tickets import Claim, Granted, LeaseGone, Live, LockInfo, Waiting
    from holdfast.errors import BackendError
    from holdfast.guarantees import Guarantees
    from holdfast.primitives import Lacks


class Event(Protocol):
    """A flag to wait for. `set` may be called from any thread or task."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    async def wait(self, until: float | None) -> bool:
        """Wait until the flag is set (True) or until this time on the runtime's clock (False)."""


class Runtime(Protocol):
    """Time, background work and identity: everything that a protocol needs besides its server."""

    def now(self) -> float:
        """Seconds on a clock that never goes back and that counts the time of a suspended machine."""

    def wall(self) -> float:
        """Unix time, for people and as a lower bound of fences; never for deadlines."""

    def nonce(self) -> str:
        """32 unguessable hexadecimal digits."""

    @property
    def spare_nonces(self) -> list[str]:
        """Some results of `nonce` that were not used yet, perhaps none. The user of one removes it."""

    def jitter(self) -> float:
        """A random number from 0 up to 1."""

    def caller(self) -> Caller:
        """The calling thread or task. Re-entry and the check for self-deadlock depend on it."""

    def has_ended(self, caller: Caller | None) -> bool:
        """At the end of the process: this thread or task can run no more code. None: it was freed."""

    def agent(self) -> str:
        """The name of the calling thread or task, for people."""

    def process_info(self) -> str:
        """This process as JSON: host, pid, program."""

    def process_id(self) -> str:
        """Distinguishes this process from all others, on all hosts; a forked child has another one."""

    def event(self) -> Event: ...

    def mutex(self) -> AbstractContextManager[Any]:
        """Guards state that callers, keeper and subscriber share. Never held across a call of a port."""

    async def sleep(self, seconds: float) -> None: ...

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run a coroutine in the background. It must end by itself, or with the runtime."""

    async def join(self) -> None:
        """Wait for background work that has been requested to end."""

    def call(self, function: Callable[[], object]) -> None:
        """Call a user's function soon, where it may block without delaying the keeper."""

    def notify(self, function: Callable[[], object], *, here: bool) -> None:
        """Call a subscriber's function in order, where it delays no lease.

        With `here` it is called at once, on the thread or task of the caller, unless earlier calls are still queued.
        Without `here` it is never called there.
        """

    def on_idle(self, method: Callable[[], object]) -> None:
        """Call a bound method whenever the keeper has been idle for a while. Its object is kept weakly."""

    def report_idle(self) -> None:
        """Call the methods that `on_idle` registered."""

    def run_in_loop(self, function: Callable[[], object]) -> bool:
        """On a thread that may not change the client's state, schedule the call in the loop and return True.

        Returns False on a thread that may. Then the caller does the work itself.
        """


class IdleCallbacks:
    """The part of a runtime that calls methods when the keeper is idle. The methods must not block."""

    def __init__(self) -> None:
        self._on_idle: list[weakref.WeakMethod[Callable[[], object]]] = []

    def on_idle(self, method: Callable[[], object]) -> None:
        self._on_idle.append(weakref.WeakMethod(method))

    def report_idle(self) -> None:
        self._on_idle = [reference for reference in self._on_idle if reference() is not None]
        for reference in self._on_idle:
            if (method := reference()) is not None:
                method()


class Caller:
    """A thread or a task, for its lifetime. Compared by identity, because the system reuses its numbers.

    `number` is unique in the process. `last_attempt` is the number of its last attempt with `detect_deadlocks`.
    `leases` maps (serial number of the client, name of the lock) to a weak reference to the lease.
    """

    __slots__ = ("__weakref__", "last_attempt", "leases", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.last_attempt = 0
        self.leases: dict[tuple[int, str], Any] = {}


class Backend(Protocol):
    """The verbs of a store that the engine uses. Every verb is idempotent by the ticket's nonce.

    Every call takes a deadline on the runtime's clock, which applies to the socket or file. BackendUnavailable means
    that nothing changed. OutcomeUnknown means that something may have changed: the engine repeats the call or schedules
    a `release`.
    """

    url: str

    @property
    def guarantees(self) -> Guarantees:
        """The guarantees that are known so far. Some stores report more after the first request."""

    @property
    def lacks(self) -> Lacks:
        """The primitives that this store lacks, with the reason. The engine refuses them."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Problems of a store that still works, for people; empty if there are none."""

    @property
    def liveness_fds(self) -> tuple[int, ...]:
        """Descriptors by which the store detects that the holder is alive, which is while any process has them open."""

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        """Acquire the lock; or, if `queue`, join its queue or keep the place in it."""

    async def try_acquire_all(self, claims: Sequence[Claim], *, deadline: float) -> Sequence[Granted | Waiting]:
        """Acquire several locks in one step, without a queue, up to the first that is busy.

        The result has at least one item. Item i belongs to ticket i; only the last one can be a Waiting. A store may
        return fewer items than tickets; the tickets without an item are not granted. Each ticket has another name. If
        this raises, some tickets may be granted, so the engine releases all of them.
        """

    async def wait(self, claim: Claim, until: float) -> None:
        """Return when `try_acquire` may succeed, at `until` at the latest."""

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> Sequence[bool | BackendError]:
        """Release leases and withdraw waiting tickets. A result says whether the ticket was a granted lease until now.

        If one server of several gives no answer, the results of its tickets are the error; the others are valid.
        """

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> Sequence[Live | LeaseGone | BackendError]:
        """Start the ttl of each lease again. Errors are results, as in `release`."""

    def intact(self, store: Hashable) -> bool:
        """False if this process knows, without a request, that the store which granted a lease was removed."""

    # The next three never create a store (file, folder, schema or table). They raise StoreMissing if it does not exist.

    async def inspect(self, name: str, *, deadline: float) -> LockInfo: ...

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]: ...

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        """End the lease with exactly this fence. Returns whether there was one."""

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        """Raise the register of this name to `number`.

        Returns whether the register was lower, or was raised by this very call, which is recognised by its nonce. A
        register never decreases. It is kept for at least `keep` seconds after it was raised, also if the process dies.
        Registers have a name space of their own; a name may be 16 characters longer than that of a lock.
        """

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> Sequence[int]:
        """The value of each register; 0 if it does not exist."""

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: close what was inherited, without sending anything on a connection."""


class Record(NamedTuple):
    """A durable text under a name. `once` stores in it that a run has begun or ended."""

    nonce: str  # identifies the call that stored it
    payload: str  # JSON text of at most RECORD_MAX bytes in UTF-8


RECORD_MAX = 80 * 1024


@runtime_checkable
class KeepsRecords(Protocol):
    """A backend with durable records. A backend without them lacks `once`."""

    async def swap_record(
        self, name: str, expected: str, record: Record | None, *, keep: float, deadline: float
    ) -> Record | None:
        """Replace the record of this name by `record`, or remove it if that is None, if its nonce is `expected`.

        "" stands for no record; so with "" and None the call only reads: it does not create the store, and raises
        StoreMissing if that does not exist. Returns the record that exists after the call. A call that finds its own
        nonce there has succeeded, also if it is a repeat.
        The record exists for `keep` seconds after the call on the clock of the store, also if the process dies, and
        does not exist after that; the store removes it then, or soon. Records have a name space of their own; a name
        has the length limit of a lock's.
        """


class PreparedRequests(NamedTuple):
    """Three requests for one lock that lack only the nonce, and the function that sends them.

    `exchange(request, nonce, now, deadline)` sends one of them and returns its reply if that is an int, otherwise an
    awaitable of the reply. `now` is the present time. The function and the awaitable raise the errors of a Backend's
    verbs. The int is the fence of a granted ticket; after a release, 1 if the ticket was a granted lease until now.
    """

    exchange: Callable[[Any, str, float, float], Any]
    acquire: Any  # and join the queue if the lock is not free
    try_acquire: Any
    release: Any
    lifetime: float  # seconds from the time at which the request is sent to the deadline of a granted lease
    waiting: Sized  # empty while no ticket of this client waits; the requests are valid only then
    # Makes the result of the backend's `try_acquire` from a reply to `acquire` or `try_acquire` that is not an int.
    # None: the request had no effect, and the backend's `try_acquire` has to send another one.
    read_reply: Callable[[Claim, Any, float], Granted | Waiting | None]


@runtime_checkable
class PreparesRequests(Protocol):
    """A backend whose requests for a plain lock are prepared once and sent by one call: see core/straight_path.py."""

    def prepare_requests(self, claim: Claim) -> PreparedRequests | None:
        """Requests for tickets that differ from this one only in the nonce. None if this store needs more checks."""


@runtime_checkable
class AdoptsLeases(Protocol):
    """A backend in which a lease can move to another process. A backend without it lacks `transfer`."""

    async def adopt(self, nonce: str, claim: Claim, *, deadline: float) -> Granted | LeaseGone:
        """Replace the granted ticket with this nonce by `claim`, with a greater fence and the ttl of the claim.

        Both have the same name, limit and exclusivity. A repeat of the call with the same claim returns the same fence.
        With the `min_hold` of the claim, the ticket stays for its ttl, also after the end of the process. A call that
        arrives after an unanswered claim was released changes nothing.
        """


@runtime_checkable
class ReservesFences(Protocol):
    """A backend whose leases can be passed on between callers of one client (core/local_handover.py)."""

    hands_over_locally: bool  # whether this client does so

    async def extend_turn(
        self, claim: Claim, successor: Claim, fences: int, *, may_stay: bool, deadline: float
    ) -> Granted | Waiting | LeaseGone:
        """Start the ttl of a granted ticket again, and reserve `fences` fences, greater than all earlier ones.

        Operators see the caller of `successor` with the range of these fences. Returns the first fence. Without
        `may_stay`, if other tickets wait for the lock, changes nothing and returns Waiting.
        """

    async def renew_alone(self, claim: Claim, holder: Claim, fence: int, *, deadline: float) -> Live | LeaseGone:
        """Start the ttl of a granted ticket again. The other fences that are reserved for it are not used any more.

        Operators see the caller of `holder` with this fence.
        """

    async def break_range(self, name: str, fence: int, *, deadline: float) -> bool:
        """End the lease for which this fence is reserved, whichever of its fences is in use."""


@runtime_checkable
class QueuesAtRelease(Protocol):
    """A backend that can release one ticket and queue another of the same client in one step."""

    async def release_and_queue(self, claim: Claim, following: Claim, *, deadline: float) -> tuple[bool, bool]:
        """Release a granted ticket, and queue `following` behind all that wait for the lock.

        Returns whether the first was held until now, and whether the second one exists in the store: as a waiter, or,
        if the first had expired, as the holder.
        """


class StoreMissing(BackendUnavailable):
    """The store does not exist, and a call that only reads does not create it. So no lock of it is in use."""


class Listing(Protocol):
    """The locks of a store: found by a search of its index or of all its keys, and read repeatedly."""

    keys_total: int  # keys in the store when this search began
    keys_searched: int  # approximately, the keys that were searched
    locks_total: int  # locks that are being read; 0 during a search
    locks_read: int
    on_step: Callable[[], object]  # called after each request; an exception that it raises ends the search
    follows: bool  # also use the change notifications of the store, if it has them

    async def search(self, seconds: float) -> bool:
        """Search for that long, or to the end of the keys. Returns whether the end is reached."""

    async def read(self) -> list[LockInfo]:
        """The present state of all locks in use that were found so far."""

    def close(self) -> None: ...


@runtime_checkable
class ListsBySearch(Protocol):
    """A backend whose `locks` takes many requests with pauses, because it must not slow its servers down."""

    def listing(self, prefix: str, *, io_timeout: float) -> Listing:
        """The locks whose names begin with `prefix`. No request takes longer than `io_timeout`."""


@runtime_checkable
class ReleasesLater(Protocol):
    """A backend that keeps its tickets alive in the background, so that a forgotten ticket never expires."""

    def release_later(self, claim: Claim) -> None:
        """Release the ticket in the background, because the keeper has no thread. The ticket is not used any more."""


@runtime_checkable
class ReportsGone(Protocol):
    """A backend that detects the end of a store: the leases are lost at that moment, not at their next renewal."""

    def on_gone(self, report: Callable[[Hashable, str], None]) -> None:
        """Register the function to call with each `Granted.store` whose leases have all ended, and with the reason.

        `intact` returns False for that store before the call.
        """


@runtime_checkable
class WorksWithoutLoop(Protocol):
    """A backend for asyncio whose connections are served by threads, so that they work after the loop has ended."""

    def without_loop(self) -> None:
        """At the end of the process: requests wait for their answers without the loop."""
