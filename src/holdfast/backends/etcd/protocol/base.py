"""State and mechanisms that both methods share: tickets' keys, unanswered creates, renewal, registers, closing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

from holdfast.backends.etcd.port import ClusterChanged, LeaseNotFound, Message, Watch
from holdfast.backends.etcd.protocol.continuity import CheckedPort
from holdfast.backends.etcd.protocol.keys import range_end
from holdfast.backends.etcd.protocol.leases import GRANULARITY, LEASE_EXPIRED, Lease, Leases, Unanswered
from holdfast.backends.etcd.protocol.messages import KeyValue, all_in_order, get, key_value, kvs, txn
from holdfast.backends.etcd.protocol.registers import Registers
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import Granted, LeaseGone, Live, Ticket
from holdfast.core.wakeups import Wakeups
from holdfast.errors import BackendError, HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.etcd.port import EtcdPort
    from holdfast.backends.etcd.protocol.keys import Keys
    from holdfast.core.ports import Runtime

OPERATIONS_MAX = 100  # in one transaction; etcd's own limit is 128
CLOSE_MAX = 2.0  # seconds to revoke leases


class TicketKey(NamedTuple):
    """A ticket's key as the last answer showed it."""

    lease: Lease | None  # None while it waits: the waiter lease, or after an unanswered grant the lease of its ttl
    created: int
    is_next: bool = False  # exclusive, with one ticket ahead
    watches: tuple[Watch, ...] = ()


class EtcdBase(ABC):
    """The tickets and leases of one client in one cluster."""

    warnings: tuple[str, ...] = ()
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
        self._unanswered: dict[str, set[Unanswered]] = {}  # by nonce: creates without an answer
        self._delayed: dict[str, Lease] = {}  # by nonce: granted tickets that block the lock for a delay when lost
        port.on_change(self._wakeups.wake)

    def inherit(self, other: Self) -> None:
        self._ticket_keys, self._unanswered, self._delayed = other._ticket_keys, other._unanswered, other._delayed

    @abstractmethod
    def _key(self, ticket: Ticket) -> bytes:
        """The ticket's key, whether it exists or not."""

    # ── acquire ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _send_create(
        self, nonces: Sequence[str], unanswered: Unanswered, request: Message, deadline: float
    ) -> Message:
        """Send a transaction that creates the keys of these tickets, unless the tombstone exists.

        Raises:
            OutcomeUnknown: no answer; the create may still be executed until the tombstone exists.
        """
        try:
            answer = await self._port.call("kv/txn", request, deadline=deadline)
        except BaseException as error:
            # There was no answer, or the call was cancelled or interrupted. Unless the server has refused the request,
            # it may still be executed. If the cluster has changed, it was executed.
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
        """Store the grant of a ticket."""
        self._stop_waiting(ticket.nonce)
        self._ticket_keys[ticket.nonce] = TicketKey(lease, created)
        if ticket.delay:
            self._delayed[ticket.nonce] = lease
        return Granted(created, self._deadline(ticket, lease, sent))

    def _deadline(self, ticket: Ticket, lease: Lease, sent: float) -> float:
        """The end of the ticket's ttl, or of the lease if its last keep-alive is older. A lease has whole seconds."""
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
        """Keep the lease alive once for all tickets, then check each key, which can be deleted before its lease."""
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
                stored = [(kv.created, kv.lease) for kv in kvs(answer, number)]
                if own_key is not None and stored == [(own_key.created, lease.id)]:
                    outcomes[ticket.nonce] = Live(self._deadline(ticket, lease, sent))
                else:
                    outcomes[ticket.nonce] = LeaseGone()
        return outcomes

    async def _list(self, prefix: bytes, deadline: float) -> list[KeyValue]:
        """All keys with this prefix and their values, in the order in which they were created."""
        request = all_in_order(prefix, range_end(prefix), keys_only=False)["request_range"]
        answer = await self._port.call("kv/range", request, deadline=deadline)
        return [key_value(kv) for kv in answer.message.get("kvs", ())]

    def intact(self, store: Hashable) -> bool:
        return self._port.is_same_cluster

    def on_gone(self, report: Callable[[Hashable, str], None]) -> None:
        self._port.on_cluster_changed = lambda reason: report(None, reason)  # all leases have the same store

    # ── registers ────────────────────────────────────────────────────────────────────────────────────────────────

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        return await self._registers.advance(name, number, nonce=nonce, keep=keep, deadline=deadline)

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        return await self._registers.read(names, deadline)

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        self._wakeups.wake_all()
        # A lease that was lost and not released blocks its lock for the delay.
        await self._leases.close(self._runtime.now() + CLOSE_MAX, keeping=set(self._delayed.values()))
        await self._port.close()

    def abandon(self) -> None:
        self._port.abandon()
