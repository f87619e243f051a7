"""The keeper's schedule: which lease is renewed or expires next, and which release is sent next."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.deadlines import DeadlineHeap
from holdfast.core.leases import HELD, BaseLease, next_renewal
from holdfast.core.tickets import Claim

if TYPE_CHECKING:
    from holdfast.core.ports import Caller

BATCH_MAX = 100  # leases in one request
RETRY_MIN, RETRY_MAX = 0.05, 1.0
# The share of its ttl by which a lease may be renewed early, together with one that is due. A request for each lease
# would cost several times as much, and wake two threads.
EARLY = 1 / 30


class PendingRelease(NamedTuple):
    """A release that has to be sent or repeated."""

    claim: Claim
    when: float  # the time of the next try
    pause: float = RETRY_MIN  # after a failure
    caller: weakref.ref[Caller] | None = None  # its code may run under the lease until `when`; None: no code does


class Schedule:
    """Not thread-safe: the keeper's mutex guards it.

    A signal handler or a finaliser may use the client while a method runs. Then it only adds to `unscheduled`,
    `pending` and `dropped`: every method stays correct if that happens at any of its calls.
    """

    def __init__(self) -> None:
        self._renewals: DeadlineHeap[BaseLease] = DeadlineHeap(_renew_at)
        self._expiries: DeadlineHeap[BaseLease] = DeadlineHeap(_expires_at)
        # Leases that are in neither heap: most are released before the timer reads this. Only the timer and the workers
        # take leases from here, because a KeyboardInterrupt of a caller's thread could lose one.
        self.unscheduled: deque[weakref.ref[Any]] = deque()
        self.pending: dict[str, PendingRelease] = {}  # by nonce
        self.dropped: deque[PendingRelease] = deque()  # of leases that no variable refers to any more

    @property
    def is_empty(self) -> bool:
        """There is no lease to keep and no release to send."""
        return not self.unscheduled and self._expiries.earliest() is None and not self.pending and not self.dropped

    @property
    def has_work(self) -> bool:
        """There is a lease to renew or a release to send, now or later. Leases that are in no heap yet do not count."""
        return self._renewals.earliest() is not None or bool(self.pending)

    def next_renewal(self) -> float | None:
        self._add_new()
        return self._renewals.earliest()

    def next_expiry(self) -> float | None:
        self._add_new()
        return self._expiries.earliest()

    def next_release(self) -> float | None:
        return min((release.when for release in list(self.pending.values())), default=None)

    def take_expired(self, now: float) -> list[BaseLease]:
        self._add_new()
        return self._expiries.take(now, BATCH_MAX)

    def take_renewals(self, now: float) -> list[BaseLease]:
        """The leases whose renewal is due, and others that are due soon after it. `add_renewals` puts them back."""
        self._add_new()
        return self._renewals.take(now, BATCH_MAX, _early)

    def due_releases(self, now: float) -> list[Claim]:
        return [release.claim for release in list(self.pending.values()) if release.when <= now][:BATCH_MAX]

    def renew_again(self, leases: Sequence[BaseLease], now: float) -> None:
        """Plan another renewal of leases that are being renewed, after a short pause. A success moves it later."""
        for lease in leases:
            pause = min(RETRY_MAX, lease.ttl / 10)
            if now < lease._deadline:  # sooner if it ends soon: a renewal may not have prolonged it
                pause = min(pause, max(RETRY_MIN, next_renewal(now, lease._deadline) - now))
            lease._renew_at = now + pause

    def add_renewals(self, leases: Sequence[BaseLease]) -> None:
        """Put back leases that were taken for a renewal, except those that have ended."""
        for lease in leases:
            self._renewals.add(lease)

    def move(self, lease: BaseLease) -> None:
        """The lease may end earlier now. One that is in no heap is being renewed or is new, and is added later."""
        self._renewals.move(lease)
        self._expiries.move(lease)

    def postpone(self, claim: Claim, now: float) -> None:
        """The release of this ticket got no answer."""
        release = self.pending.get(claim.nonce)
        if release is not None:
            pause = min(RETRY_MAX, 2 * release.pause)
            self.pending[claim.nonce] = release._replace(when=now + pause, pause=pause)

    def add_dropped(self) -> None:
        """Add the releases of dropped leases to the pending ones."""
        while self.dropped:
            release = self.dropped.popleft()
            self.pending[release.claim.nonce] = release

    def _add_new(self) -> None:
        while self.unscheduled:
            lease = self.unscheduled.popleft()()
            if lease is not None:
                self._renewals.add(lease)
                self._expiries.add(lease)


def _renew_at(lease: BaseLease) -> float | None:
    return lease._renew_at if lease._phase is HELD and lease._spec.renew else None


def _early(lease: BaseLease) -> float:
    return lease._spec.ttl * EARLY


def _expires_at(lease: BaseLease) -> float | None:
    return lease._deadline - lease._spec.stop_margin if lease._phase is HELD else None
