"""`method=key`: a lock is one key. The client that creates it holds the lock, and all others wait until it is deleted.

The key ends with its holder's lease, as in the default method. There is no queue: when the key is deleted all waiters
try again, and any of them may acquire the lock. There are no readers or permits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.etcd.port import ClusterChanged, LeaseNotFound, Message, Watch
from holdfast.backends.etcd.protocol.acquire_all import FREE, AcquireAll, LockState
from holdfast.backends.etcd.protocol.base import OPERATIONS_MAX, TicketKey
from holdfast.backends.etcd.protocol.guarantees import KEY, KEY_LACKS
from holdfast.backends.etcd.protocol.keys import Keys, QueueEntry, range_end
from holdfast.backends.etcd.protocol.leases import Lease, Unanswered
from holdfast.backends.etcd.protocol.messages import (
    KeyValue,
    absent,
    created_at,
    delete,
    deleted,
    first,
    get,
    kvs,
    leased_to,
    put,
    revision,
    succeeded,
    txn,
)
from holdfast.backends.etcd.protocol.records import METHOD_KEY, encode_record, holder_of, parse_record, ticket_info
from holdfast.core.tickets import POLL_INTERVAL, Granted, LockInfo, Ticket, Waiting
from holdfast.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    NameConflict,
    OutcomeUnknown,
    Unsupported,
)

if TYPE_CHECKING:
    from holdfast.backends.etcd.port import EtcdPort
    from holdfast.core.ports import Runtime


class KeyBackend(AcquireAll):
    """Locks in one cluster, each with one key."""

    guarantees = KEY
    lacks = KEY_LACKS

    def __init__(self, url: str, port: EtcdPort, runtime: Runtime, keys: Keys) -> None:
        super().__init__(url, port, runtime, keys)
        self._seen: dict[str, int] = {}  # by nonce: the revision at which a waiting ticket last read the key

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        if not ticket.exclusive:
            raise Unsupported(
                backend="etcd with method=key", what="readers and semaphores", others=("etcd with method=queue",)
            )
        if queue:
            self._wakeups.expect(ticket.nonce)
        try:
            outcome = await self._try_acquire(ticket, deadline)
        except (BackendUnavailable, ConfigurationError) as error:
            await self._undo_or_report_unknown(ticket, error, deadline)
            raise
        if not queue and isinstance(outcome, Waiting):
            if ticket.nonce in self._unanswered:
                # The engine does not withdraw a ticket that does not wait. But a create without an answer may arrive.
                await self._withdraw([ticket], deadline)
            else:
                self._forget(ticket.nonce)
        return outcome

    async def _try_acquire(self, ticket: Ticket, deadline: float) -> Granted | Waiting:
        while True:
            lease = await self._leases.fresh(ticket.ttl, deadline, delay=ticket.delay)
            try:
                return await self._try_once(ticket, lease, deadline)
            except LeaseNotFound:
                self._leases.mark_expired(lease)

    async def _try_once(self, ticket: Ticket, lease: Lease, deadline: float) -> Granted | Waiting:
        unanswered = Unanswered(lease, self._keys.tombstone(ticket.nonce))
        request = txn(
            [*self._compares_free(ticket), absent(unanswered.tombstone)],
            self._creates(ticket, lease),
            [*self._reads(ticket), get(unanswered.tombstone, keys_only=True)],
        )
        sent = self._runtime.now()
        answer = await self._send_create([ticket.nonce], unanswered, request, deadline)
        now = revision(answer)
        if succeeded(answer):
            granted = self._granted(ticket, lease, now, sent)  # first, so that a failed check can release it
            await self._check_methods([ticket], answer, deadline)
            return granted
        if kvs(answer, 1):
            raise OutcomeUnknown(backend=self.url, problem=f"ticket {ticket.nonce} was withdrawn before")
        state = self._state_of(ticket, lease, answer, 0)
        if state.created:
            return self._granted(ticket, lease, state.created, sent)
        self._seen[ticket.nonce] = now
        return Waiting(min(POLL_INTERVAL, lease.ttl / 4), state.holder)

    async def _check_methods(self, tickets: Sequence[Ticket], answer: Message, deadline: float) -> None:
        """Raise NameConflict, and release the tickets, if one of the locks is in use by the other method."""
        shared = [ticket for number, ticket in enumerate(tickets) if kvs(answer, 2 * number + 1)]
        if shared:
            await self._withdraw(tickets, deadline)
            raise NameConflict(
                lock=shared[0].name, reason="it is in use without method=key: let all programs use the same method"
            )

    # ── acquire several ──────────────────────────────────────────────────────────────────────────────────────────

    async def _create_all(self, tickets: Sequence[Ticket], leases: Sequence[Lease], deadline: float) -> Message:
        sent = self._runtime.now()
        answer = await super()._create_all(tickets, leases, deadline)
        if succeeded(answer):
            for ticket, lease in zip(tickets, leases, strict=True):
                self._granted(ticket, lease, revision(answer), sent)
            await self._check_methods(tickets, answer, deadline)
        return answer

    def _compares_free(self, ticket: Ticket) -> list[Message]:
        return [absent(self._key(ticket))]

    def _creates(self, ticket: Ticket, lease: Lease) -> list[Message]:
        folder = self._keys.folder(ticket.name)
        value = encode_record(ticket, self._runtime.wall(), METHOD_KEY)
        return [put(self._key(ticket), value, lease.id), first(folder, range_end(folder))]

    def _reads(self, ticket: Ticket) -> list[Message]:
        return [get(self._key(ticket))]

    def _state_of(self, ticket: Ticket, lease: Lease, answer: Message, number: int) -> LockState:
        if succeeded(answer):
            return LockState(created=revision(answer))
        stored = kvs(answer, number)
        if not stored:
            return FREE
        record = parse_record(stored[0].value)
        if record.method != METHOD_KEY:
            raise NameConflict(lock=ticket.name, reason=f"etcd's key {stored[0].key.decode()!r} holds other data")
        if record.nonce == ticket.nonce and stored[0].lease == lease.id:  # from a request whose answer was lost
            return LockState(created=stored[0].created)
        return LockState(is_busy=True, holder=holder_of(stored))

    def _give_back_slot(self, ticket: Ticket) -> None:
        """A lock of this method has one key, and no slots."""

    # ── wait, release ────────────────────────────────────────────────────────────────────────────────────────────

    async def wait(self, ticket: Ticket, until: float) -> None:
        seen = self._seen.get(ticket.nonce)
        if seen is not None:
            self._port.watch(ticket.nonce, (Watch(self._key(ticket), seen + 1),))
        await self._wakeups.wait(ticket.nonce, until)

    async def release(self, tickets: Sequence[Ticket], *, deadline: float) -> list[bool | BackendError]:
        released: list[bool | BackendError] = []
        for start in range(0, len(tickets), OPERATIONS_MAX // 2):  # two compares each
            released += await self._release_some(tickets[start : start + OPERATIONS_MAX // 2], deadline)
        return released

    async def _release_some(self, tickets: Sequence[Ticket], deadline: float) -> list[bool | BackendError]:
        if len(tickets) > 1:
            try:
                if await self._release_in_one_step(tickets, deadline):
                    return [True] * len(tickets)
            except BackendError as error:
                return [error] * len(tickets)
        released: list[bool | BackendError] = []
        for ticket in tickets:
            try:
                released.append(await self._release(ticket, deadline))
            except BackendError as error:
                released.append(error)
            except ClusterChanged:
                released.append(False)
                self._forget(ticket.nonce)
            else:
                self._forget(ticket.nonce)
        return released

    async def _release_in_one_step(self, tickets: Sequence[Ticket], deadline: float) -> bool:
        """Release all tickets in one transaction if all of them are held and none has a create without an answer.

        Returns whether that was done.
        """
        own_keys = [(self._key(ticket), self._ticket_keys.get(ticket.nonce)) for ticket in tickets]
        ours = [(key, own_key) for key, own_key in own_keys if own_key is not None]
        if len(ours) < len(tickets) or any(ticket.nonce in self._unanswered for ticket in tickets):
            return False
        request = txn(
            [compare for key, own_key in ours for compare in _compares_own(key, own_key)],
            [delete(key) for key, _ in ours],
        )
        try:
            answer = await self._port.call("kv/txn", request, deadline=deadline, once=True)
        except ClusterChanged:
            return False
        if not succeeded(answer.message):
            return False
        for ticket in tickets:
            self._forget(ticket.nonce)
        return True

    async def _release(self, ticket: Ticket, deadline: float) -> bool:
        key = self._key(ticket)
        unanswered = tuple(self._unanswered.get(ticket.nonce, ()))
        for lease, tombstone in unanswered:
            if lease.has_expired:
                continue
            try:  # a create that may still arrive is under the same lease as its tombstone, so both end together
                await self._port.call("kv/txn", txn([], [put(tombstone, b"", lease.id)]), deadline=deadline)
            except LeaseNotFound:
                self._leases.mark_expired(lease)
        own_key = self._ticket_keys.get(ticket.nonce)
        if own_key is not None:
            return await self._delete(key, _compares_own(key, own_key), deadline)
        if not unanswered:
            return False  # it has only waited, and left no key
        answer = await self._port.call("kv/txn", txn([], [get(key)]), deadline=deadline)
        ours = [kv for kv in kvs(answer.message, 0) if parse_record(kv.value).nonce == ticket.nonce]
        if not ours:
            return False
        return await self._delete(key, [created_at(key, ours[0].created), leased_to(key, ours[0].lease)], deadline)

    async def _delete(self, key: bytes, only_if: Sequence[Message], deadline: float) -> bool:
        """Delete the key if all compares are true; whether that was done."""
        request = txn(only_if, [delete(key)])
        answer = await self._port.call("kv/txn", request, deadline=deadline, once=True)
        return succeeded(answer.message) and deleted(answer.message, 0)

    # ── operators ────────────────────────────────────────────────────────────────────────────────────────────────

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        answer = await self._port.call("kv/txn", txn([], [get(self._keys.base(name))]), deadline=deadline)
        holders = [kv for kv in kvs(answer.message, 0) if parse_record(kv.value).method == METHOD_KEY]
        return await self._lock_info(name, holders, deadline)

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        infos = [
            await self._lock_info(name, [kv], deadline)
            for kv in await self._list(self._keys.prefix(prefix), deadline)
            if parse_record(kv.value).method == METHOD_KEY and (name := self._keys.single_key_name(kv.key))
        ]
        return sorted(infos, key=lambda info: info.name)

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        key = self._keys.base(name)
        return await self._delete(key, [created_at(key, fence)], deadline) if fence > 0 else False

    async def _lock_info(self, name: str, tickets: Sequence[KeyValue], deadline: float) -> LockInfo:
        holders = []
        for kv in tickets:
            remaining = await self._leases.remaining(kv.lease, deadline)
            entry = QueueEntry(kv.key, kv.created, exclusive=True, limit=1, is_ours=True)
            holders.append(ticket_info(kv, remaining, granted=True, entry=entry))
        return LockInfo(name, tuple(holders), ())

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _key(self, ticket: Ticket) -> bytes:
        return self._keys.base(ticket.name)

    def _forget(self, nonce: str) -> None:
        super()._forget(nonce)
        self._unanswered.pop(nonce, None)

    def _stop_waiting(self, nonce: str) -> None:
        self._seen.pop(nonce, None)
        super()._stop_waiting(nonce)


def _compares_own(key: bytes, own_key: TicketKey) -> list[Message]:
    """Compares that the key is this ticket's. After a restore, another client's key can have its create revision."""
    return [created_at(key, own_key.created), leased_to(key, own_key.lease.id if own_key.lease is not None else 0)]
