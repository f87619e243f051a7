"""Acquire several locks in one transaction: all of them if each is free, else those before the first busy one.

A refused transaction returns the state of each lock. So if a lock is busy, a second transaction acquires the locks
before it, and a third is needed only if one of those has changed. One tombstone stands for a whole transaction that has
no answer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.etcd.port import LeaseNotFound
from holdfast.backends.etcd.protocol.base import EtcdBase
from holdfast.backends.etcd.protocol.leases import Unanswered
from holdfast.backends.etcd.protocol.messages import absent, txn
from holdfast.core.tickets import POLL_INTERVAL, Granted, Ticket, Waiting
from holdfast.errors import BackendError, BackendUnavailable, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.etcd.port import Message
    from holdfast.backends.etcd.protocol.leases import Lease
    from holdfast.errors import ConfigurationError

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

    async def try_acquire_all(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Granted | Waiting]:
        tickets = _as_many_as_fit(tickets)
        granted: dict[str, Granted] = {}
        blocker: tuple[int, Waiting] | None = None
        wanted = list(tickets)
        while wanted:
            leases = [await self._leases.fresh(ticket.ttl, deadline, delay=ticket.delay) for ticket in wanted]
            sent = self._runtime.now()
            try:
                answer = await self._create_all(wanted, leases, deadline)
            except LeaseNotFound:
                for lease in set(leases):
                    await self._leases.keep_alive(lease, deadline)  # shows which of them has expired
                continue
            free: list[Ticket] = []
            for number, (ticket, lease) in enumerate(zip(wanted, leases, strict=True)):
                state = self._state_of(ticket, lease, answer, number)
                if state.created:
                    granted[ticket.nonce] = self._granted(ticket, lease, state.created, sent)
                elif state.is_busy:
                    index = tickets.index(ticket)
                    blocker = index, Waiting(min(POLL_INTERVAL, lease.ttl / 4), state.holder)
                    break
                else:
                    free.append(ticket)
            wanted = free
        if blocker is None:
            return [granted[ticket.nonce] for ticket in tickets]
        index, waiting = blocker
        await self._withdraw_rest(tickets[index:], granted, deadline)
        return [*(granted[ticket.nonce] for ticket in tickets[:index]), waiting]

    async def _undo_or_report_unknown(
        self, ticket: Ticket, error: BackendUnavailable | ConfigurationError, deadline: float
    ) -> None:
        """Prepare to raise an error that means that nothing has changed: undo what this acquire may have changed.

        Raises:
            OutcomeUnknown: an earlier request of the same acquire may have created its key.
        """
        nonce = ticket.nonce
        if nonce not in self._ticket_keys and nonce not in self._unanswered:
            self._forget(nonce)
        elif isinstance(error, BackendUnavailable):
            raise OutcomeUnknown(backend=error.backend, problem=error.problem) from error
        else:
            await self._withdraw([ticket], deadline)

    async def _create_all(self, tickets: Sequence[Ticket], leases: Sequence[Lease], deadline: float) -> Message:
        """Create the keys of all tickets, or none.

        Raises:
            OutcomeUnknown: no answer.
        """
        unanswered = Unanswered(leases[0], self._keys.tombstone(self._runtime.nonce()))
        compares, then, reads = [absent(unanswered.tombstone)], [], []
        for ticket, lease in zip(tickets, leases, strict=True):
            compares += self._compares_free(ticket)
            then += self._creates(ticket, lease)
            reads += self._reads(ticket)
        nonces = [ticket.nonce for ticket in tickets]
        return await self._send_create(nonces, unanswered, txn(compares, then, reads), deadline)

    async def _withdraw_rest(self, rest: Sequence[Ticket], granted: Collection[str], deadline: float) -> None:
        """Withdraw tickets that are not granted, which the engine does not do: unanswered creates may still arrive."""
        left = [ticket for ticket in rest if ticket.nonce in granted or ticket.nonce in self._unanswered]
        if left:
            await self._withdraw(left, deadline)
        for ticket in rest:
            self._give_back_slot(ticket)

    async def _withdraw(self, tickets: Sequence[Ticket], deadline: float) -> None:
        """Release tickets for which the caller gets no lease.

        Raises:
            OutcomeUnknown: a release failed.
        """
        for outcome in await self.release(tickets, deadline=deadline):
            if isinstance(outcome, BackendError):
                raise OutcomeUnknown(backend=outcome.backend, problem=outcome.problem)

    # ── the part of a method for one ticket ──────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _compares_free(self, ticket: Ticket) -> list[Message]:
        """Compares that the lock is free: at most two."""

    @abstractmethod
    def _creates(self, ticket: Ticket, lease: Lease) -> list[Message]:
        """Operations that acquire the lock: at most two, and the same number for each ticket."""

    @abstractmethod
    def _reads(self, ticket: Ticket) -> list[Message]:
        """Reads of the state of a busy lock: at most two, and the same number for each ticket."""

    @abstractmethod
    def _state_of(self, ticket: Ticket, lease: Lease, answer: Message, number: int) -> LockState:
        """The state of the lock of the ticket with this number, from an answer."""

    @abstractmethod
    def _give_back_slot(self, ticket: Ticket) -> None:
        """The ticket is not granted, and no request about it is on its way."""

    @abstractmethod
    async def release(self, tickets: Sequence[Ticket], *, deadline: float) -> Sequence[bool | BackendError]: ...


def _as_many_as_fit(tickets: Sequence[Ticket]) -> Sequence[Ticket]:
    """The first tickets that fit into one request; at least one."""
    left = CHARACTERS_MAX
    for number, ticket in enumerate(tickets[:TICKETS_MAX]):
        left -= len(ticket.info) + len(ticket.agent) + 6 * len(ticket.name)  # the request has the name six times
        if left < 0:
            return tickets[: max(1, number)]
    return tickets[:TICKETS_MAX]
