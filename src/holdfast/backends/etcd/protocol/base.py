"""State and mechanisms that both methods share: tickets' keys, unanswered creates, renewal, registers, records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from holdfast.backends.base_backend import BaseBackend
from holdfast.backends.etcd.port import ClusterChanged, EtcdPort, LeaseNotFound, Message, Watch
from holdfast.backends.etcd.protocol.continuity import CheckedPort
from holdfast.backends.etcd.protocol.keys import Keys
from holdfast.backends.etcd.protocol.leases import (
    GRANULARITY,
    LEASE_EXPIRED,
    Lease,
    Leases,
    Unanswered,
    table_key,
)
from holdfast.backends.etcd.protocol.messages import (
    KeyValue,
    all_in_order,
    get,
    kvs,
    modified_at,
    put,
    succeeded,
    txn,
)
from holdfast.backends.etcd.protocol.records import SPARE_MAX, Records
from holdfast.backends.etcd.protocol.registers import KeepingLeases, Registers
from holdfast.core.clock import lease_deadline
from holdfast.core.ports import Runtime
from holdfast.core.tickets import Claim, Granted, LeaseGone, Live, may_have_happened
from holdfast.errors import BackendError, OutcomeUnknown

OPERATIONS_MAX = 100  # in one transaction; etcd's own limit is 128
CLOSE_MAX = 2.0  # seconds to revoke leases


class TicketKey(NamedTuple):
    """A ticket's key as the last answer showed it."""

    lease: Lease | None  # None while it waits: the waiter lease, or after an unanswered grant the lease of its ttl
    created: int
    is_next: bool = False  # exclusive, with one ticket ahead
    watches: tuple[Watch, ...] = ()


class ClaimState:
    """The state of a claim."""

    key: TicketKey | None = None
    slot: str | None = None  # a part of the key (`Slots`)
    read_at = 0  # method=key: the revision at which it last read the key, while it waits
    creates: tuple[Unanswered, ...] = ()  # without an answer
    moves: tuple[Lease, ...] = ()  # leases to which a request without an answer may have moved the key, or may yet


def state_of(claim: Claim) -> ClaimState:
    state = claim.state = claim.state or ClaimState()
    return state


class EtcdBase(BaseBackend[CheckedPort], Registers, Records, ABC):
    """The tickets and leases of one client in one cluster."""

    warnings: tuple[str, ...] = ()
    port_type = CheckedPort

    def __init__(self, url: str, port: EtcdPort, runtime: Runtime, keys: Keys) -> None:
        super().__init__(url, self.port_type(url, port), runtime)
        self._keys = keys
        self._leases = Leases(url, self._port, runtime)
        self._wakeups = port.wakeups
        self._register_leases = KeepingLeases(self._port, runtime, lambda seconds: seconds)
        self._record_leases = KeepingLeases(self._port, runtime, lambda seconds: min(SPARE_MAX, seconds // 16))
        self._delayed: dict[str, Lease] = {}  # by nonce: granted tickets that block the lock for a delay when lost

    @abstractmethod
    def _key(self, claim: Claim) -> bytes:
        """The ticket's key, whether it exists or not."""

    # ── acquire ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _send_create(
        self, claims: Sequence[Claim], unanswered: Unanswered, request: Message, deadline: float
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
            is_refused = isinstance(error, LeaseNotFound) or not may_have_happened(error)
            if isinstance(error, ClusterChanged) or not is_refused:
                self._add_unanswered(claims, unanswered)
            raise
        if answer.repeated:
            self._add_unanswered(claims, unanswered)
        return answer.message

    def _add_unanswered(self, claims: Sequence[Claim], unanswered: Unanswered) -> None:
        for claim in claims:
            claim.unanswered = True
            state_of(claim).creates += (unanswered,)

    def _granted(self, claim: Claim, lease: Lease, created: int, sent: float) -> Granted:
        """Store the grant of a ticket."""
        self._stop_waiting(claim)
        state_of(claim).key = TicketKey(lease, created)
        if claim.delay or claim.min_hold:
            self._delayed[claim.nonce] = lease
        return Granted(created, self._deadline(claim, lease, sent))

    async def _cover_min_hold(self, claim: Claim, granted: Granted, deadline: float) -> Granted:
        """Keep the lease of a new grant alive, if it could expire before the ticket's min_hold is over.

        The time of the lease began before the grant: other tickets share it, and the request may have been slow.

        Raises:
            OutcomeUnknown: that got no answer, or the lease has expired. The ticket is released or acquired again.
        """
        own_key = state_of(claim).key
        if not claim.min_hold or own_key is None or own_key.lease is None:
            return granted
        if own_key.lease.deadline >= self._runtime.now() + claim.min_hold:
            return granted
        (outcome,) = await self.renew([claim], deadline=deadline)
        match outcome:
            case Live():
                return Granted(granted.fence, outcome.deadline)
            case LeaseGone():
                raise OutcomeUnknown(backend=self.url, problem=outcome.reason)
            case error:
                raise OutcomeUnknown(backend=self.url, problem=error.problem) from error

    def _deadline(self, claim: Claim, lease: Lease, sent: float) -> float:
        """The end of the ticket's ttl, or of the lease if its last keep-alive is older. A lease has whole seconds."""
        return min(lease_deadline(sent, claim.ttl, GRANULARITY), lease.deadline)

    def _stop_waiting(self, claim: Claim) -> None:
        if self._wakeups.forget(claim):
            self._port.unwatch(claim.nonce)

    def _forget(self, claim: Claim) -> None:
        self._stop_waiting(claim)
        self._delayed.pop(claim.nonce, None)
        claim.state, claim.unanswered = None, False

    # ── renewal ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone | BackendError]:
        outcomes: dict[str, Live | LeaseGone | BackendError] = {
            claim.nonce: LeaseGone(LEASE_EXPIRED) for claim in claims
        }
        by_lease: dict[Lease | None, list[Claim]] = {}  # None: the ttl has changed since the last renewal
        for claim in claims:
            own_key = state_of(claim).key
            if own_key is not None and own_key.lease is not None:
                is_moved = claim.is_final or own_key.lease.key != table_key(claim.ttl) or state_of(claim).moves
                by_lease.setdefault(None if is_moved else own_key.lease, []).append(claim)
        for lease, sharing in by_lease.items():
            try:
                if lease is None:
                    outcomes |= {claim.nonce: await self._move_to_ttl(claim, deadline) for claim in sharing}
                else:
                    outcomes |= await self._renew(sharing, lease, deadline)
            except BackendError as error:
                outcomes |= {claim.nonce: error for claim in sharing}
            except ClusterChanged as error:
                outcomes |= {claim.nonce: LeaseGone(str(error)) for claim in sharing}
        return [outcomes[claim.nonce] for claim in claims]

    async def _renew(self, claims: Sequence[Claim], lease: Lease, deadline: float) -> dict[str, Live | LeaseGone]:
        """Keep the lease alive once for all tickets, then check each key, which can be deleted before its lease."""
        sent = self._runtime.now()
        if not await self._leases.keep_alive(lease, deadline):
            return {claim.nonce: LeaseGone(LEASE_EXPIRED) for claim in claims}
        outcomes: dict[str, Live | LeaseGone] = {claim.nonce: LeaseGone() for claim in claims}
        for start in range(0, len(claims), OPERATIONS_MAX):
            chunk = claims[start : start + OPERATIONS_MAX]
            request = txn([], [get(self._key(claim), keys_only=True) for claim in chunk])
            answer = (await self._port.call("kv/txn", request, deadline=deadline)).message
            for number, claim in enumerate(chunk):
                own_key = state_of(claim).key
                stored = [(kv.created, kv.lease) for kv in kvs(answer, number)]
                if own_key is not None and stored == [(own_key.created, lease.id)]:
                    outcomes[claim.nonce] = Live(self._deadline(claim, lease, sent))
        return outcomes

    async def _move_to_ttl(self, claim: Claim, deadline: float) -> Live | LeaseGone:
        """Move the key of a granted ticket to the lease of its new ttl. A put keeps the create revision: the fence.

        The last renewal of a ticket moves its key to a lease of its own: no other ticket keeps that lease alive.

        It succeeds only if the key was not written since it was read. So an earlier move that arrives later fails.
        """
        key, state, is_repeated = self._key(claim), state_of(claim), False
        lease: Lease | None = None
        sent = self._runtime.now()
        while True:
            if not claim.is_final:
                lease = await self._leases.renewed_since(sent, claim.ttl, deadline)
            elif lease is None or lease.has_expired:
                lease = await self._leases.separate(claim.ttl, deadline)
            stored = kvs((await self._port.call("kv/txn", txn([], [get(key)]), deadline=deadline)).message, 0)
            own_key = state.key  # read after the requests, because another caller may have moved it
            if own_key is None or own_key.lease is None:
                return LeaseGone()
            leases = {own_key.lease.id, *(move.id for move in state.moves)}
            if not stored or stored[0].created != own_key.created or stored[0].lease not in leases:
                return LeaseGone()
            is_done = is_repeated and stored[0].lease == lease.id
            if not is_done:
                is_repeated, state.moves = True, (*state.moves, lease)
                move = txn([modified_at(key, stored[0].modified)], [put(key, stored[0].value, lease.id)])
                try:
                    is_done = succeeded((await self._port.call("kv/txn", move, deadline=deadline)).message)
                except LeaseNotFound:
                    self._leases.mark_expired(lease)
            if is_done:
                state.key, state.moves = TicketKey(lease, own_key.created), ()
                live = Live(self._deadline(claim, lease, sent))
                if claim.is_final and not claim.unanswered:
                    EtcdBase._forget(self, claim)  # without its slot: the name of the key is not reused
                elif claim.delay or claim.min_hold:
                    self._delayed[claim.nonce] = lease
                return live

    async def _list(self, ranges: Sequence[tuple[bytes, bytes]], deadline: float) -> list[KeyValue]:
        """All keys of these ranges and their values, in the order in which they were created."""
        request = txn([], [all_in_order(start, end, keys_only=False) for start, end in ranges])
        answer = await self._port.call("kv/txn", request, deadline=deadline)
        listed = [kv for number in range(len(ranges)) for kv in kvs(answer.message, number)]
        return sorted(listed, key=lambda kv: kv.created)

    def intact(self, store: Hashable) -> bool:
        return self._port.is_same_cluster

    def on_gone(self, report: Callable[[Hashable, str], None]) -> None:
        self._port.on_cluster_changed = lambda reason: report(None, reason)  # all leases have the same store

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        self._wakeups.wake_all()
        # A ticket that was not released blocks its lock for the delay, or until its min_hold is over.
        await self._leases.close(self._runtime.now() + CLOSE_MAX, keeping=set(self._delayed.values()))
        await super().close()
