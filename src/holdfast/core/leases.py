"""A lease as its holder knows it: the terms it was taken on, and the state it is in.

States, and who moves them (always under the engine's mutex, so each move happens once):

    HELD       -> RELEASING   release() is called
    HELD       -> LOST        the deadline passes, the server says "gone", the store was taken away, or we forked
    RELEASING  -> RELEASED    the server has answered
    RELEASING  -> OWED        no answer, or interrupted: the keeper repeats it; release() may be called again
    RELEASING  -> LOST        the answer: it was not ours any more, although we thought so
    OWED       -> RELEASING   release() is called again

LOST is sticky: no late success revives a lease. Nothing says held after the deadline, whatever the state says.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from holdfast.core.clock import before_delay
from holdfast.errors import LockLost, NotHeld

if TYPE_CHECKING:
    from holdfast.core.engine import Engine
    from holdfast.core.locks import BaseLock
    from holdfast.core.ports import Caller, Event
    from holdfast.core.tickets import Granted, Ticket

OnLost = Callable[..., object] | str | None


class Phase(Enum):
    """Where a lease is in its life; the module's docstring has the moves."""

    HELD = "held"
    RELEASING = "being released"
    UNCONFIRMED = "given back, not confirmed"
    RELEASED = "released"
    LOST = "lost"


# What runs at every acquire and release uses these: asking an Enum for a member takes as long as reading the clock.
HELD, RELEASING, UNCONFIRMED, RELEASED, LOST = Phase
_NOT_GIVEN_BACK = (HELD, UNCONFIRMED)
STORE_GONE = "the store that it was kept in was taken away (removed, replaced, or closed by somebody else)"


class LockSpec(NamedTuple):
    """What a lock asks for at every acquire; checked when the lock object is made."""

    name: str
    ttl: float
    limit: int | None
    exclusive: bool
    reentrant: bool
    renew: bool
    max_hold: float | None
    stop_margin: float
    meta: Mapping[str, Any]
    about: str  # what others see of it, as the inside of a JSON object: meta, owner, revocable
    on_lost: OnLost
    lock_delay: float = 0.0
    owner: str = ""
    revocable: bool = False
    on_revoke: Callable[..., object] | None = None

    @property
    def margin(self) -> float:
        """How long before the server's deadline a lease is of no use any more."""
        return self.stop_margin if not self.lock_delay else self.stop_margin - before_delay(0.0, self.lock_delay)

    @property
    def is_permit(self) -> bool:
        """One of several that a single owner may take at once: a semaphore's."""
        return self.limit is not None and not self.exclusive


def next_renewal(now: float, deadline: float) -> float:
    """After a third of what is left: that is a third of the ttl, unless the answer took long."""
    return now + max(0.0, deadline - now) / 3


class BaseLease:
    """One lease, without I/O: what the two shells' Lease classes share."""

    __slots__ = (
        "__weakref__",
        "_caller_ref",
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
        "_ticket",
    )

    def __init__(  # noqa: PLR0917  (by position, because it is made for every acquire)
        self,
        engine: Engine[Any],
        spec: LockSpec,
        ticket: Ticket,
        granted: Granted,
        since: float,
        caller: Caller,
        lock: BaseLock[Any],
    ) -> None:
        self._engine = engine
        self._spec = spec
        self._ticket = ticket
        self._fence = granted.fence
        self._store: Hashable = granted.store
        self._since = since
        self._end = None if spec.max_hold is None else since + spec.max_hold
        deadline = before_delay(granted.deadline, spec.lock_delay) if spec.lock_delay else granted.deadline
        self._deadline = deadline if self._end is None else self._bounded(deadline)
        self._renew_at = next_renewal(since, deadline)
        self._phase = RELEASED  # HELD from when the engine publishes it, so that nothing half-made is ever held
        self._depth = 1
        self._revoke_requested = False
        self._reason = ""
        self._caller_ref = weakref.ref(
            caller
        )  # weakly, both: the lock keeps its owner's lease, not the other way round
        self._lock = weakref.ref(lock)
        self._lost_event: Event | None = None
        self._hook: Callable[[], object] | None = None  # how `async with` cancels its body

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._spec.name

    @property
    def fence(self) -> int:
        """The number that grows with every lease of this lock; the protected resource can refuse older ones."""
        return self._fence

    @property
    def ttl(self) -> float:
        """How long the lease lives without renewal, in seconds."""
        return self._spec.ttl

    @property
    def meta(self) -> Mapping[str, Any]:
        """What the lock was given as `meta`."""
        return self._spec.meta

    @property
    def remaining(self) -> float:
        """Seconds that are certainly left, by the local clock, if no renewal succeeds from now on."""
        if self._phase is not HELD:
            return 0.0
        return max(0.0, self._deadline - self._engine.runtime.now())

    @property
    def held(self) -> bool:
        """Taken, not given back, and not lost: the opposite is not always `lost`."""
        return self._phase is HELD and not self.lost

    @property
    def lost(self) -> bool:
        """It ended without having been released. Once True, always True."""
        if self._phase is HELD and self._engine.runtime.now() >= self._stop_at:
            self._engine.lose(self, self._why_over())
            if self._phase is HELD:
                return True  # this is a thread beside the loop, which has been asked to see to it
        return self._phase is LOST

    @property
    def revoke_requested(self) -> bool:
        """Somebody asks for the lock: come to an end and release it. Only of a lock made with `revocable`."""
        return self._revoke_requested

    def check(self) -> None:
        """Go on only if the lease is still ours; cheap enough to call before every step.

        Raises:
            LockLost: the lease has ended or was taken; stop touching the resource.
            NotHeld: it was released.
        """
        is_taken_away = self._phase is HELD and not self._engine.backend.intact(self._store)
        if is_taken_away:
            self._engine.lose(self, STORE_GONE)
        is_over = self._phase is not HELD  # read before `lost`: a loss that comes after it is not reported as NotHeld
        if self.lost:
            raise self._loss()
        if is_over:
            raise NotHeld(lock=self.name, reason=self._reason or f"this lease was {self._phase.value}")
        if is_taken_away:  # a thread beside the loop, as above
            raise LockLost(lock=self.name, fence=self._fence, reason=STORE_GONE)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} fence={self._fence} {self._phase.value}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Lease belongs to the process that took it and cannot be pickled; send its fence")

    def __del__(self, not_given_back: tuple[Phase, ...] = _NOT_GIVEN_BACK) -> None:
        # The default is bound here, because Python may set module variables to None before it frees the last leases.
        # Nothing is released here: whoever dropped the lease may still be working under it. It runs out instead.
        if getattr(self, "_phase", None) in not_given_back:
            self._engine.dropped(self)

    @property
    def _stop_at(self) -> float:
        return self._deadline - self._spec.stop_margin

    def _bounded(self, deadline: float) -> float:
        return deadline if self._end is None else min(deadline, self._end)

    def _why_over(self) -> str:
        if self._end is not None and self._deadline >= self._end:
            why = f"max_hold of {self._spec.max_hold:g} s is reached"
        elif not self._spec.renew:
            why = f"its ttl of {self.ttl:g} s is over (renew=False)"
        else:
            why = f"no renewal succeeded within its ttl of {self.ttl:g} s"
        margin = self._spec.stop_margin
        return f"{why} (told {margin:g} s before: stop_margin)" if margin else why

    def _loss(self) -> LockLost:
        return LockLost(lock=self.name, fence=self._fence, reason=self._reason or self._why_over())
