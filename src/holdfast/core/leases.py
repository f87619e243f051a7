"""A lease in its holder's process: the specification of its lock, and its state.

All transitions happen under the engine's mutex, so each happens once:

    HELD         -> RELEASING    release() is called
    HELD         -> LOST         the deadline passes, the server answers "gone", the store was removed, or a fork
    RELEASING    -> RELEASED     the server has answered
    RELEASING    -> UNCONFIRMED  no answer, or interrupted: the keeper repeats it; release() may be called again
    RELEASING    -> LOST         the server answers that the lease had ended before
    RELEASING    -> TRANSFERRED  transfer() was called, and the server has answered: another process may adopt it
    UNCONFIRMED  -> RELEASING    release() is called again

LOST is final: no late success revives a lease. After the deadline a lease is never reported as held, in any state.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeVar

from holdfast.core.clock import GRANULARITY_MAX, before_delay, lease_deadline, ttl_for
from holdfast.errors import LockLost, NotHeld

if TYPE_CHECKING:
    from holdfast.core.engine import Engine
    from holdfast.core.locks import BaseLock
    from holdfast.core.ports import Caller, Event
    from holdfast.core.tickets import Claim

OnLost = Callable[..., object] | str | None


class Phase(Enum):
    """The state of a lease; the docstring of this module lists the transitions."""

    HELD = "held"
    RELEASING = "being released"
    UNCONFIRMED = "released, but not confirmed"
    RELEASED = "released"
    LOST = "lost"
    TRANSFERRED = "transferred"


# Code that runs at every acquire and release uses these names, because `Phase.HELD` costs as much as reading the clock.
HELD, RELEASING, UNCONFIRMED, RELEASED, LOST, TRANSFERRED = Phase
_NOT_RELEASED = (HELD, UNCONFIRMED)
STORE_GONE = "its store is gone (removed, replaced, or closed by another program)"


class LockSpec(NamedTuple):
    """The options of a lock, checked when the lock object is created."""

    name: str
    ttl: float
    limit: int | None
    exclusive: bool
    reentrant: bool
    renew: bool
    max_hold: float | None
    stop_margin: float
    meta: Mapping[str, Any]
    about: str  # for other clients, the inside of a JSON object: meta, owner, revocable
    on_lost: OnLost
    lock_delay: float = 0.0
    owner: str = ""
    revocable: bool = False
    on_revoke: Callable[..., object] | None = None
    detect_deadlocks: bool = False
    min_hold: float = 0.0
    primitive: str = "lock"  # for events: the method of the client that made it
    group: str = ""  # for events and metrics; empty: made from the name
    passable: bool = False  # a plain lock, whose lease may be passed on between callers of one client

    @property
    def margin(self) -> float:
        """How many seconds before the server's deadline a lease ends for its holder."""
        return self.stop_margin if not self.lock_delay else self.stop_margin - before_delay(0.0, self.lock_delay)

    @property
    def ticket_ttl(self) -> float:
        """The ttl of the ticket on the server. It outlives min_hold even if the server's clock runs fast."""
        return max(self.ttl + self.lock_delay, ttl_for(self.min_hold))


T = TypeVar("T")


class AcquireResult(NamedTuple, Generic[T]):
    """The result of an acquire: the lease, or the holder that blocked it until the timeout."""

    lease: T | None
    holder: str | None = None
    waited: float = 0.0


# Makes an AcquireResult of a tuple with all fields. It saves a Python frame, which every acquire would need.
result_of: Callable[[tuple[Any, str | None, float]], AcquireResult[Any]] = functools.partial(
    tuple.__new__, AcquireResult
)


def next_renewal(now: float, deadline: float) -> float:
    """After a third of the remaining time: a third of the ttl, unless the answer was slow."""
    return now + max(0.0, deadline - now) / 3


class BaseLease:
    """One lease, without I/O: the base of Lease and AsyncLease."""

    __slots__ = (
        "__weakref__",
        "_caller_ref",
        "_claim",
        "_deadline",
        "_depth",
        "_end",
        "_engine",
        "_fence",
        "_hook",
        "_lock",
        "_lost_event",
        "_phase",
        "_reason",
        "_renew_at",
        "_revoke_requested",
        "_since",
        "_spec",
        "_store",
    )

    def __init__(  # noqa: PLR0917  (by position, because one is created at every acquire)
        self,
        engine: Engine[Any],
        spec: LockSpec,
        claim: Claim,
        granted: tuple[int, float, Hashable],
        since: float,
        caller: Caller,
        lock: BaseLock[Any],
    ) -> None:
        self._engine = engine
        self._spec = spec
        self._claim = claim
        self._fence, deadline, store = granted
        self._store: Hashable = store
        self._since = since
        path = claim.path
        if path is None:
            self._end = None if spec.max_hold is None else since + spec.max_hold
            deadline = before_delay(deadline, spec.lock_delay) if spec.lock_delay else deadline
            # Both weak: the lock keeps the leases of its callers, not the reverse.
            self._caller_ref, self._lock = weakref.ref(caller), weakref.ref(lock)
        else:  # no lock on the straight path has these options, and reading them takes time
            self._end, self._caller_ref, self._lock = None, path.caller_ref, path.lock_ref
        self._deadline = deadline if self._end is None else self._bounded(deadline)
        self._renew_at = since + (deadline - since) / 3  # as next_renewal(); a lease is granted before its deadline
        self._phase = RELEASED  # HELD when the engine publishes it, so that no half-initialised lease is ever held
        self._depth = 1
        self._revoke_requested = False
        self._reason = ""
        self._lost_event: Event | None = None
        self._hook: Callable[[], object] | None = None  # called at a loss: `async with` cancels its body by it

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._spec.name

    @property
    def fence(self) -> int:
        """A number that grows with every lease of this lock. The protected resource can refuse older ones."""
        return self._fence

    @property
    def ttl(self) -> float:
        """Seconds that the lease lives without renewal."""
        return self._spec.ttl

    @property
    def meta(self) -> Mapping[str, Any]:
        """The `meta` of the lock."""
        return self._spec.meta

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends, by the local clock, if no renewal succeeds from now on."""
        if self._phase is not HELD:
            return 0.0
        return max(0.0, self._deadline - self._engine.runtime.now())

    @property
    def held(self) -> bool:
        """Acquired, not released and not lost. The opposite is not always `lost`."""
        return self._phase is HELD and not self.lost

    @property
    def lost(self) -> bool:
        """The lease ended before it was released. Once True, always True."""
        phase = self._phase
        return phase is LOST or (phase is HELD and self._engine.runtime.now() >= self._stop_at)

    @property
    def revoke_requested(self) -> bool:
        """A client has requested the lock, so finish and release it. Only for a lock with `revocable`."""
        return self._revoke_requested

    def check(self) -> None:
        """Raise unless the lease is held. Cheap enough to call before every step.

        Raises:
            LockLost: the lease has ended or was broken; stop using the resource.
            NotHeld: it was released.
        """
        phase = self._phase  # read once, so that a loss after this line is not reported as NotHeld
        if phase is HELD:
            outcome = "gone"
            if not self._engine.backend.intact(self._store):
                reason = STORE_GONE
            elif self._engine.runtime.now() >= self._stop_at:
                reason, outcome = self._expiry_reason(), self._expiry_outcome()
            else:
                return
            self._engine.lose(self, reason, outcome)  # on a thread beside the loop, it only schedules this
            raise LockLost(lock=self.name, fence=self._fence, reason=self._reason or reason)
        if phase is LOST:
            raise self._loss()
        raise NotHeld(lock=self.name, reason=self._reason or f"this lease was {phase.value}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} fence={self._fence} {self._phase.value}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Lease belongs to the process that acquired it and cannot be pickled; send its fence")

    def __del__(self, not_released: tuple[Phase, ...] = _NOT_RELEASED) -> None:
        # The default is bound here, because Python may set module variables to None before it frees the last leases.
        # Nothing is released here: code that dropped the lease may still work under it. The lease expires instead.
        try:
            phase = self._phase
        except AttributeError:  # an interrupt hit its creation
            return
        if phase in not_released:
            self._engine.dropped(self)

    @property
    def _stop_at(self) -> float:
        return self._deadline - self._spec.stop_margin

    def _bounded(self, deadline: float) -> float:
        return deadline if self._end is None else min(deadline, self._end)

    def _change_ttl(self, spec: LockSpec, now: float) -> None:
        """Use the ttl of this spec. A shorter one counts from now on: the server may set it without an answer."""
        claim = self._claim
        if claim.unanswered:  # a request for the lock, with the old ttl, may still be executed
            claim.unanswered_ttl = min(claim.unanswered_ttl, claim.ttl)
        claim.ttl = spec.ticket_ttl
        self._spec = spec
        self._deadline = min(self._deadline, self._bounded(lease_deadline(now, spec.ttl, GRANULARITY_MAX)))
        self._renew_at = min(self._renew_at, next_renewal(now, self._deadline))

    def _expiry_outcome(self) -> str:
        """The outcome of a lease whose deadline has passed."""
        return "expired" if self._end is None or self._deadline < self._end else "max_hold"

    def _expiry_reason(self) -> str:
        if self._expiry_outcome() == "max_hold":
            reason = f"max_hold of {self._spec.max_hold:g} s is reached"
        elif not self._spec.renew:
            reason = f"its ttl of {self.ttl:g} s is over (renew=False)"
        else:
            reason = f"no renewal succeeded within its ttl of {self.ttl:g} s"
        margin = self._spec.stop_margin
        return f"{reason} (reported {margin:g} s before: stop_margin)" if margin else reason

    def _loss(self) -> LockLost:
        return LockLost(lock=self.name, fence=self._fence, reason=self._reason or self._expiry_reason())
