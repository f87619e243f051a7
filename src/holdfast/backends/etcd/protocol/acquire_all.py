"""Acquire several locks in one transaction: all of them if each is free, else those before the first busy one.

A refused transaction returns the state of each lock. So if a lock is busy, a second transaction acquires the locks
before it, and a third is needed only if one of those has changed. One tombstone stands for a whole transaction that has
no answer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import NamedTuple

from holdfast.backends.etcd.port import LeaseNotFound, Message
from holdfast.backends.etcd.protocol.base import EtcdBase, state_of
from holdfast.backends.etcd.protocol.leases import Lease, Unanswered
from holdfast.backends.etcd.protocol.messages import absent, revision, succeeded, txn
from holdfast.core.tickets import POLL_INTERVAL, Claim, Granted, Waiting
from holdfast.errors import BackendError, BackendUnavailable, ConfigurationError, OutcomeUnknown

TICKETS_MAX = 63  # in one transaction: two compares each, and one for the tombstone; etcd's limit is 128
CHARACTERS_MAX = 300_000  # of all tickets together: etcd's limit is 1.5 MiB for a request


class LockState(NamedTuple):
    """The state of a lock that a ticket requests."""

    created: int = 0  # the ticket's own key, created now or by an earlier request without an answer
    is_busy: bool = False
    holder: str | None = None


FREE = LockState()


class AcquireAll(EtcdBase):
    """`try_acquire_all` for both methods."""

    async def try_acquire_all(self, claims: Sequence[Claim], *, deadline: float) -> list[Granted | Waiting]:
        claims = _as_many_as_fit(claims)
        granted: dict[str, Granted] = {}
        waiting: list[Waiting] = []
        end = len(claims)  # the index of the first lock that is busy; all before it are granted
        wanted = list(claims)
        while wanted:
            leases = [await self._leases.fresh(claim.ttl, deadline, delay=claim.delay) for claim in wanted]
            sent = self._runtime.now()
            try:
                answer = await self._create_all(wanted, leases, deadline)
            except LeaseNotFound:
                for lease in set(leases):
                    await self._leases.keep_alive(lease, deadline)  # shows which of them has expired
                continue
            free: list[Claim] = []
            is_created = succeeded(answer)
            for number, (claim, lease) in enumerate(zip(wanted, leases, strict=True)):
                state = LockState(revision(answer)) if is_created else self._state_of(claim, lease, answer, number)
                if state.created:
                    granted[claim.nonce] = self._granted(claim, lease, state.created, sent)
                elif state.is_busy:
                    end = claims.index(claim)
                    waiting = [Waiting(min(POLL_INTERVAL, lease.ttl / 4), state.holder)]
                    break
                else:
                    free.append(claim)
            wanted = free
        await self._withdraw_rest(claims[end:], granted, deadline)
        return [
            *[await self._cover_min_hold(claim, granted[claim.nonce], deadline) for claim in claims[:end]],
            *waiting,
        ]

    async def _undo_or_report_unknown(
        self, claim: Claim, error: BackendUnavailable | ConfigurationError, deadline: float
    ) -> None:
        """Prepare to raise an error that means that nothing has changed: undo what this acquire may have changed.

        Raises:
            OutcomeUnknown: an earlier request of the same acquire may have created its key.
        """
        if state_of(claim).key is None and not claim.unanswered:
            self._forget(claim)
        elif isinstance(error, BackendUnavailable):
            raise OutcomeUnknown(backend=error.backend, problem=error.problem) from error
        else:
            await self._withdraw([claim], deadline)

    async def _create_all(self, claims: Sequence[Claim], leases: Sequence[Lease], deadline: float) -> Message:
        """Create the keys of all tickets, or none.

        Raises:
            OutcomeUnknown: no answer.
        """
        unanswered = Unanswered(leases[0], self._keys.tombstone(self._runtime.nonce()))
        compares, then, reads = [absent(unanswered.tombstone)], [], []
        for claim, lease in zip(claims, leases, strict=True):
            compares += self._compares_free(claim)
            then += self._creates(claim, lease)
            reads += self._reads(claim)
        return await self._send_create(claims, unanswered, txn(compares, then, reads), deadline)

    async def _withdraw_rest(self, claims: Sequence[Claim], granted: Collection[str], deadline: float) -> None:
        """Withdraw tickets that the caller does not get, because the engine does not withdraw them.

        The keys of those in `granted` exist, and a create without an answer may still arrive.
        """
        withdrawn = [claim for claim in claims if claim.nonce in granted or claim.unanswered]
        if withdrawn:
            await self._withdraw(withdrawn, deadline)
        for claim in claims:
            self._forget(claim)

    async def _give_up(self, claim: Claim, deadline: float) -> None:
        """The engine does not withdraw a ticket that does not wait. But a create without an answer may still arrive."""
        if claim.unanswered:
            await self._withdraw([claim], deadline)
        else:
            self._forget(claim)

    async def _withdraw(self, claims: Sequence[Claim], deadline: float) -> None:
        """Release tickets for which the caller gets no lease.

        Raises:
            OutcomeUnknown: a release failed.
        """
        for outcome in await self.release(claims, deadline=deadline):
            if isinstance(outcome, BackendError):
                raise OutcomeUnknown(backend=outcome.backend, problem=outcome.problem)

    # ── the part of a method for one ticket ──────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _compares_free(self, claim: Claim) -> list[Message]:
        """Compares that the lock is free: at most two."""

    @abstractmethod
    def _creates(self, claim: Claim, lease: Lease) -> list[Message]:
        """Operations that acquire the lock: at most two, and the same number for each ticket."""

    @abstractmethod
    def _reads(self, claim: Claim) -> list[Message]:
        """Reads of the state of a busy lock: at most two, and the same number for each ticket."""

    @abstractmethod
    def _state_of(self, claim: Claim, lease: Lease, answer: Message, number: int) -> LockState:
        """The state of the lock of the ticket with this number, from the answer to a refused transaction."""

    @abstractmethod
    async def release(self, claims: Sequence[Claim], *, deadline: float) -> Sequence[bool | BackendError]: ...


def _as_many_as_fit(claims: Sequence[Claim]) -> Sequence[Claim]:
    """The first tickets that fit into one request; at least one."""
    size = 0
    for number, claim in enumerate(claims[:TICKETS_MAX]):
        # An estimate: the name is in the request 5 to 7 times.
        size += len(claim.info) + len(claim.agent) + 6 * len(claim.name)
        if size > CHARACTERS_MAX:
            return claims[: max(1, number)]
    return claims[:TICKETS_MAX]
