"""`method=key`: a lock is one key. The client that creates it holds the lock, and all others wait until it is deleted.

The key ends with its holder's lease, as in the default method. There is no queue: when the key is deleted all waiters
try again, and any of them may acquire the lock. There are no readers or permits.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.etcd.port import ClusterChanged, LeaseNotFound, Message, Watch
from holdfast.backends.etcd.protocol.acquire_all import FREE, AcquireAll, LockState
from holdfast.backends.etcd.protocol.base import OPERATIONS_MAX, TicketKey, state_of
from holdfast.backends.etcd.protocol.guarantees import KEY, KEY_LACKS
from holdfast.backends.etcd.protocol.keys import QueueEntry
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
from holdfast.backends.etcd.protocol.ticket_values import METHOD_KEY, encode_value, holder_of, parse_value, ticket_info
from holdfast.core.one_by_one import result_or_error
from holdfast.core.tickets import POLL_INTERVAL, Claim, Granted, LockInfo, Waiting
from holdfast.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    NameConflict,
    OutcomeUnknown,
    Unsupported,
)


class KeyBackend(AcquireAll):
    """Locks in one cluster, each with one key."""

    guarantees = KEY
    lacks = KEY_LACKS

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        if not claim.exclusive:
            raise Unsupported(
                backend="etcd with method=key", what="readers and semaphores", others=("etcd with method=queue",)
            )
        if queue:
            self._wakeups.expect(claim)
        try:
            outcome = await self._try_acquire(claim, deadline)
        except (BackendUnavailable, ConfigurationError) as error:
            await self._undo_or_report_unknown(claim, error, deadline)
            raise
        if not queue and isinstance(outcome, Waiting):
            await self._give_up(claim, deadline)
        return await self._cover_min_hold(claim, outcome, deadline) if isinstance(outcome, Granted) else outcome

    async def _try_acquire(self, claim: Claim, deadline: float) -> Granted | Waiting:
        while True:
            lease = await self._leases.fresh(claim.ttl, deadline, delay=claim.delay)
            unanswered = Unanswered(lease, self._keys.tombstone(claim.nonce))
            request = txn(
                [*self._compares_free(claim), absent(unanswered.tombstone)],
                self._creates(claim, lease),
                [*self._reads(claim), get(unanswered.tombstone, keys_only=True)],
            )
            sent = self._runtime.now()
            try:
                answer = await self._send_create([claim], unanswered, request, deadline)
            except LeaseNotFound:
                self._leases.mark_expired(lease)
                continue
            if succeeded(answer):
                # First, so that a failed check can release it.
                granted = self._granted(claim, lease, revision(answer), sent)
                await self._check_methods([claim], answer, deadline)
                return granted
            if kvs(answer, 1):
                raise OutcomeUnknown(backend=self.url, problem=f"ticket {claim.nonce} was withdrawn before")
            state = self._state_of(claim, lease, answer, 0)
            if state.created:
                return self._granted(claim, lease, state.created, sent)
            state_of(claim).read_at = revision(answer)
            return Waiting(min(POLL_INTERVAL, lease.ttl / 4), state.holder)

    async def _check_methods(self, claims: Sequence[Claim], answer: Message, deadline: float) -> None:
        """Raise NameConflict, and release the tickets, if one of the locks is in use by the other method."""
        shared = [claim for number, claim in enumerate(claims) if kvs(answer, 2 * number + 1)]
        if shared:
            await self._withdraw(claims, deadline)
            raise NameConflict(
                lock=shared[0].name, reason="it is in use without method=key: let all programs use the same method"
            )

    # ── acquire several ──────────────────────────────────────────────────────────────────────────────────────────

    async def _create_all(self, claims: Sequence[Claim], leases: Sequence[Lease], deadline: float) -> Message:
        sent = self._runtime.now()
        answer = await super()._create_all(claims, leases, deadline)
        if succeeded(answer):
            for claim, lease in zip(claims, leases, strict=True):
                self._granted(claim, lease, revision(answer), sent)
            await self._check_methods(claims, answer, deadline)
        return answer

    def _compares_free(self, claim: Claim) -> list[Message]:
        return [absent(self._key(claim))]

    def _creates(self, claim: Claim, lease: Lease) -> list[Message]:
        value = encode_value(claim, self._runtime.wall(), METHOD_KEY)
        return [put(self._key(claim), value, lease.id), first(*self._keys.folder_range(claim.name))]

    def _reads(self, claim: Claim) -> list[Message]:
        return [get(self._key(claim))]

    def _state_of(self, claim: Claim, lease: Lease, answer: Message, number: int) -> LockState:
        stored = kvs(answer, number)
        if not stored:
            return FREE
        value = parse_value(stored[0].value)
        if value.method != METHOD_KEY:
            raise NameConflict(lock=claim.name, reason=f"etcd's key {stored[0].key.decode()!r} holds other data")
        if value.nonce == claim.nonce and stored[0].lease == lease.id:  # from a request whose answer was lost
            return LockState(created=stored[0].created)
        return LockState(is_busy=True, holder=holder_of(stored))

    # ── wait, release ────────────────────────────────────────────────────────────────────────────────────────────

    async def wait(self, claim: Claim, until: float) -> None:
        if read_at := state_of(claim).read_at:
            self._port.watch(claim.nonce, (Watch(self._key(claim), read_at + 1),))
        await self._wakeups.wait(claim, until)

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> list[bool | BackendError]:
        released: list[bool | BackendError] = []
        for start in range(0, len(claims), OPERATIONS_MAX // 2):  # two compares each
            released += await self._release_some(claims[start : start + OPERATIONS_MAX // 2], deadline)
        return released

    async def _release_some(self, claims: Sequence[Claim], deadline: float) -> list[bool | BackendError]:
        if len(claims) > 1:
            try:
                if await self._release_in_one_step(claims, deadline):
                    return [True] * len(claims)
            except BackendError as error:
                return [error] * len(claims)
        return [await result_or_error(self._release(claim, deadline)) for claim in claims]

    async def _release_in_one_step(self, claims: Sequence[Claim], deadline: float) -> bool:
        """Release all tickets in one transaction if all of them are held and none has a create without an answer.

        Returns whether that was done.
        """
        own_keys = [(self._key(claim), state_of(claim).key) for claim in claims]
        ours = [(key, own_key) for key, own_key in own_keys if own_key is not None]
        if len(ours) < len(claims) or any(claim.unanswered or state_of(claim).moves for claim in claims):
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
        for claim in claims:
            self._forget(claim)
        return True

    async def _release(self, claim: Claim, deadline: float) -> bool:
        try:
            was_held = await self._delete_own_key(claim, deadline)
        except ClusterChanged:
            was_held = False
        self._forget(claim)
        return was_held

    async def _delete_own_key(self, claim: Claim, deadline: float) -> bool:
        """Delete the ticket's key. Also make creates and moves without an answer ineffective."""
        key = self._key(claim)
        unanswered = state_of(claim).creates
        for lease, tombstone in unanswered:
            if lease.has_expired:
                continue
            try:  # a create that may still arrive is under the same lease as its tombstone, so both end together
                await self._port.call("kv/txn", txn([], [put(tombstone, b"", lease.id)]), deadline=deadline)
            except LeaseNotFound:
                self._leases.mark_expired(lease)
        own_key, moves = state_of(claim).key, state_of(claim).moves
        if not unanswered and not moves:
            if own_key is None:
                return False  # it has only waited, and left no key
            return await self._delete(key, _compares_own(key, own_key), deadline)
        # A create without an answer may have made the key again after the end of the one that is known. A move to
        # another lease may arrive between the read and the delete.
        while True:
            answer = await self._port.call("kv/txn", txn([], [get(key)]), deadline=deadline)
            ours = [kv for kv in kvs(answer.message, 0) if parse_value(kv.value).nonce == claim.nonce]
            if not ours:
                return False
            only_if = [created_at(key, ours[0].created), leased_to(key, ours[0].lease)]
            if await self._delete(key, only_if, deadline):
                return True

    async def _delete(self, key: bytes, only_if: Sequence[Message], deadline: float) -> bool:
        """Delete the key if all compares are true; whether that was done."""
        request = txn(only_if, [delete(key)])
        answer = await self._port.call("kv/txn", request, deadline=deadline, once=True)
        return succeeded(answer.message) and deleted(answer.message, 0)

    # ── operators ────────────────────────────────────────────────────────────────────────────────────────────────

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        answer = await self._port.call("kv/txn", txn([], [get(self._keys.base(name))]), deadline=deadline)
        holders = [kv for kv in kvs(answer.message, 0) if parse_value(kv.value).method == METHOD_KEY]
        return await self._lock_info(name, holders, deadline)

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        infos = [
            await self._lock_info(name, [kv], deadline)
            for kv in await self._list(self._keys.ranges(prefix), deadline)
            if parse_value(kv.value).method == METHOD_KEY and (name := self._keys.single_key_name(kv.key))
        ]
        return sorted(infos, key=lambda info: info.name)

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        key = self._keys.base(name)
        return await self._delete(key, [created_at(key, fence)], deadline) if fence > 0 else False

    async def _lock_info(self, name: str, keys: Sequence[KeyValue], deadline: float) -> LockInfo:
        holders = []
        for kv in keys:
            remaining = await self._leases.remaining(kv.lease, deadline)
            entry = QueueEntry(kv.key, kv.created, exclusive=True, limit=1, is_ours=True)
            holders.append(ticket_info(kv, entry, remaining, granted=True))
        return LockInfo(name, tuple(holders), ())

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _key(self, claim: Claim) -> bytes:
        return self._keys.base(claim.name)

    def _stop_waiting(self, claim: Claim) -> None:
        state_of(claim).read_at = 0
        super()._stop_waiting(claim)


def _compares_own(key: bytes, own_key: TicketKey) -> list[Message]:
    """Compares that the key is this ticket's. After a restore, another client's key can have its create revision."""
    return [created_at(key, own_key.created), leased_to(key, own_key.lease.id if own_key.lease is not None else 0)]
