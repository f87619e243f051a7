"""Several locks in one transaction: all of them if each is free, else those before the first that is not.

What is in the way comes with the refusal, so who finds one busy needs a second transaction for what is before it, and
no third unless that has changed in between. One note, a key like that of a withdrawn ticket, stands for a whole
transaction of which nobody knows whether it will still come.
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
from holdfast.errors import BackendUnavailable, HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.etcd.port import Message
    from holdfast.backends.etcd.protocol.leases import Lease
    from holdfast.errors import BackendError, ConfigurationError

TICKETS_MAX = 63  # tickets in one transaction: two compares each, and the note's; etcd takes 128
CHARACTERS_MAX = 300_000  # in all that they have to say: etcd takes 1.5 MiB in one request


class LockState(NamedTuple):
    """What stands where a ticket wants to be."""

    created: int = 0  # its own key, from a request whose answer was lost
    is_busy: bool = False
    holder: str | None = None


FREE = LockState()


class AcquireAll(EtcdBase):
    """For both methods."""

    async def try_acquire_all(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Granted | Waiting]:
        tickets = _as_many_as_fit(tickets)
        granted: dict[str, Granted] = {}
        blocker: tuple[int, Waiting] | None = None
        wanted = list(tickets)
        while wanted:
            leases = [await self._leases.fresh(one.ttl, deadline, delay=one.delay) for one in wanted]
            sent = self._runtime.now()
            try:
                answer = await self._create_all(wanted, leases, deadline)
            except LeaseNotFound:
                for lease in set(leases):
                    await self._leases.keep_alive(lease, deadline)  # to see which of them
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
        """An enter ends with this error, which tells the engine that nothing has changed: make it so, or say otherwise.

        Raises:
            OutcomeUnknown: an earlier request of the same enter may have created its key.
        """
        nonce = ticket.nonce
        if nonce not in self._ticket_keys and nonce not in self._unanswered:
            self._forget(nonce)
        elif isinstance(error, BackendUnavailable):
            raise OutcomeUnknown(backend=error.backend, problem=error.problem) from error
        else:
            for outcome in await self.release([ticket], deadline=deadline):
                if isinstance(outcome, HoldfastError):
                    raise OutcomeUnknown(backend=outcome.backend, problem=outcome.problem) from error

    async def _create_all(self, tickets: Sequence[Ticket], leases: Sequence[Lease], deadline: float) -> Message:
        """Create all of their keys, or none.

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
        """These are not in, so nobody will withdraw them. But what another member was asked before may still come."""
        left = [ticket for ticket in rest if ticket.nonce in granted or ticket.nonce in self._unanswered]
        for outcome in await self.release(left, deadline=deadline) if left else ():
            if isinstance(outcome, HoldfastError):
                raise OutcomeUnknown(backend=outcome.backend, problem=outcome.problem)
        for ticket in rest:
            self._give_back_slot(ticket)

    # ── what a method says about one ticket ──────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _compares_free(self, ticket: Ticket) -> list[Message]:
        """That it is free: two at most."""

    @abstractmethod
    def _creates(self, ticket: Ticket, lease: Lease) -> list[Message]:
        """What takes it: two at most, and as many for each ticket."""

    @abstractmethod
    def _reads(self, ticket: Ticket) -> list[Message]:
        """What is there instead: two at most, and as many for each ticket."""

    @abstractmethod
    def _state_of(self, ticket: Ticket, lease: Lease, answer: Message, number: int) -> LockState:
        """What the answer says of the ticket with this number."""

    @abstractmethod
    def _give_back_slot(self, ticket: Ticket) -> None:
        """It is not, and nothing of it is under way."""

    @abstractmethod
    async def release(self, tickets: Sequence[Ticket], *, deadline: float) -> Sequence[bool | BackendError]: ...


def _as_many_as_fit(tickets: Sequence[Ticket]) -> Sequence[Ticket]:
    """The first of them, one at least."""
    left = CHARACTERS_MAX
    for number, ticket in enumerate(tickets[:TICKETS_MAX]):
        left -= len(ticket.info) + len(ticket.agent) + 6 * len(ticket.name)  # so often is it in the request
        if left < 0:
            return tickets[: max(1, number)]
    return tickets[:TICKETS_MAX]
