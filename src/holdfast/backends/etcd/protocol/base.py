"""What both methods share: what is known of our keys, requests that may come late, renewal, marks, the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

from holdfast.backends.etcd.port import ClusterChanged, LeaseNotFound, Message, Watch
from holdfast.backends.etcd.protocol.continuity import CheckedPort
from holdfast.backends.etcd.protocol.leases import GRANULARITY, LEASE_EXPIRED, Lease, Leases, Unanswered
from holdfast.backends.etcd.protocol.messages import get, kvs, txn
from holdfast.backends.etcd.protocol.registers import Registers
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import Granted, LeaseGone, Live, Ticket
from holdfast.core.wakeups import Wakeups
from holdfast.errors import BackendError, HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.etcd.port import EtcdPort
    from holdfast.backends.etcd.protocol.keys import Keys
    from holdfast.core.ports import Runtime

OPERATIONS_MAX = 100  # in one transaction; etcd itself takes 128
CLOSE_MAX = 2.0  # seconds to give leases back


class TicketKey(NamedTuple):
    """What is known of a ticket's key since the last answer about it."""

    lease: Lease | None  # None while it waits: the waiter lease, or after an unanswered grant the one of its ttl
    created: int
    is_next: bool = False  # exclusive, and only one is ahead
    watches: tuple[Watch, ...] = ()


class EtcdBase(ABC):
    """Locks in one cluster."""

    warnings: tuple[str, ...] = ()  # it works, or it does not
    liveness_fds: tuple[int, ...] = ()  # the server cannot see that a holder has died
    port_type = CheckedPort

    def __init__(self, url: str, port: EtcdPort, runtime: Runtime, keys: Keys) -> None:
        self.url = url
        self._port = port = self.port_type(url, port)
        self._runtime = runtime
        self._keys = keys
        self._leases = Leases(url, port, runtime)
        self._wakeups = Wakeups(runtime)
        self._ticket_keys: dict[str, TicketKey] = {}  # by nonce: tickets that have a key
        self._registers = Registers(port, runtime, keys)
        self._unanswered: dict[str, set[Unanswered]] = {}  # by nonce: enters that had no answer
        self._delayed: dict[str, Lease] = {}  # by nonce: granted ones that keep others out for a while if they are lost
        port.on_change(self._wakeups.wake)

    def inherit(self, other: Self) -> None:
        self._ticket_keys, self._unanswered, self._delayed = other._ticket_keys, other._unanswered, other._delayed

    @abstractmethod
    def _key(self, ticket: Ticket) -> bytes:
        """The key that it has, or would have."""

    # ── coming and going ─────────────────────────────────────────────────────────────────────────────────────────

    async def _send_create(
        self, nonces: Sequence[str], unanswered: Unanswered, request: Message, deadline: float
    ) -> Message:
        """Make a transaction that creates the keys of these tickets, unless the note is there.

        Raises:
            OutcomeUnknown: no answer; until the note is there it may still come.
        """
        try:
            answer = await self._port.call("kv/txn", request, deadline=deadline)
        except BaseException as error:
            # No answer, or cancelled or interrupted before it. Unless the server has refused it, it may still come. If
            # the store is not the same as before, it was done there.
            is_refused = isinstance(error, HoldfastError | LeaseNotFound)
            if isinstance(error, OutcomeUnknown | ClusterChanged) or not is_refused:
                self._add_unanswered(nonces, unanswered)
            raise
        if answer.repeated:
            self._add_unanswered(nonces, unanswered)
        return answer.message

    def _add_unanswered(self, nonces: Sequence[str], unanswered: Unanswered) -> None:
        for nonce in nonces:
            self._unanswered.setdefault(nonce, set()).add(unanswered)

    def _granted(self, ticket: Ticket, lease: Lease, created: int, sent: float) -> Granted:
        """It is in."""
        self._stop_waiting(ticket.nonce)
        self._ticket_keys[ticket.nonce] = TicketKey(lease, created)
        if ticket.delay:
            self._delayed[ticket.nonce] = lease
        return Granted(created, self._deadline(ticket, lease, sent))

    def _deadline(self, ticket: Ticket, lease: Lease, sent: float) -> float:
        """Until when: what counts is the lease's last keep-alive; a ttl with a fraction is less than the lease's."""
        return min(lease_deadline(sent, ticket.ttl, GRANULARITY), lease.deadline)

    def _stop_waiting(self, nonce: str) -> None:
        if self._wakeups.forget(nonce):
            self._port.unwatch(nonce)

    def _forget(self, nonce: str) -> None:
        self._stop_waiting(nonce)
        self._ticket_keys.pop(nonce, None)
        self._delayed.pop(nonce, None)

    # ── renewal ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def renew(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Live | LeaseGone | BackendError]:
        outcomes: dict[str, Live | LeaseGone | BackendError] = {
            ticket.nonce: LeaseGone(LEASE_EXPIRED) for ticket in tickets
        }
        by_lease: dict[Lease, list[Ticket]] = {}
        for ticket in tickets:
            own_key = self._ticket_keys.get(ticket.nonce)
            if own_key is not None and own_key.lease is not None:
                by_lease.setdefault(own_key.lease, []).append(ticket)
        for lease, some in by_lease.items():
            try:
                outcomes |= await self._renew(some, lease, deadline)
            except BackendError as error:
                outcomes |= {ticket.nonce: error for ticket in some}
            except ClusterChanged as error:
                outcomes |= {ticket.nonce: LeaseGone(str(error)) for ticket in some}
        return [outcomes[ticket.nonce] for ticket in tickets]

    async def _renew(self, tickets: Sequence[Ticket], lease: Lease, deadline: float) -> dict[str, Live | LeaseGone]:
        """One keep-alive for all of them; and whether each key is there still, for the lease does not know that."""
        sent = self._runtime.now()
        if not await self._leases.keep_alive(lease, deadline):
            return {ticket.nonce: LeaseGone(LEASE_EXPIRED) for ticket in tickets}
        outcomes: dict[str, Live | LeaseGone] = {}
        for start in range(0, len(tickets), OPERATIONS_MAX):
            some = tickets[start : start + OPERATIONS_MAX]
            request = txn([], [get(self._key(ticket), keys_only=True) for ticket in some])
            answer = (await self._port.call("kv/txn", request, deadline=deadline)).message
            for number, ticket in enumerate(some):
                own_key = self._ticket_keys.get(ticket.nonce)
                found = [(one.created, one.lease) for one in kvs(answer, number)]
                if own_key is not None and found == [(own_key.created, lease.id)]:
                    outcomes[ticket.nonce] = Live(self._deadline(ticket, lease, sent))
                else:
                    outcomes[ticket.nonce] = LeaseGone()
        return outcomes

    def intact(self, store: Hashable) -> bool:
        return self._port.is_same_cluster

    def on_gone(self, report: Callable[[Hashable, str], None]) -> None:
        self._port.on_cluster_changed = lambda reason: report(None, reason)  # all leases have the same store

    # ── marks ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        return await self._registers.advance(name, number, nonce=nonce, keep=keep, deadline=deadline)

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        return await self._registers.read(names, deadline)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        self._wakeups.wake_all()
        # What was lost and not given back keeps others out for its delay.
        await self._leases.close(self._runtime.now() + CLOSE_MAX, keeping=set(self._delayed.values()))
        await self._port.close()

    def abandon(self) -> None:
        self._port.abandon()
