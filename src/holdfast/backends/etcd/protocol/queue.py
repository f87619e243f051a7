"""The lock protocol on etcd: a ticket is a key of its own, the create revision is its place, its turn and its fence.

    lock 'jobs'   holdfast/jobs/5e0c….x    created at 811    in: nothing is ahead of it
                  holdfast/jobs/91aa….x    created at 814    waits, watches the one before it and itself
                  holdfast/jobs/694d…      created at 815    `etcdctl lock holdfast/jobs`: exclusive too

Nobody can come in ahead of a key that is there, since revisions only grow. So whoever has once seen that nothing keeps
it out is in, for as long as its own key is there; and that is part of the same transaction. Keys end by a delete, or
with their lease: all tickets of a client with the same ttl share one (leases.py).

Every request can be sent again: a ticket's key is its own, and is created only if it is not there. What was withdrawn
without knowing whether it had been heard leaves a note under the same lease that keeps it from coming late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

from holdfast.backends.etcd.port import ClusterChanged, LeaseNotFound, Message, Watch
from holdfast.backends.etcd.protocol.acquire_all import FREE, AcquireAll, LockState
from holdfast.backends.etcd.protocol.base import OPERATIONS_MAX, TicketKey
from holdfast.backends.etcd.protocol.guarantees import QUEUE, QUEUE_LACKS
from holdfast.backends.etcd.protocol.keys import Keys, QueueEntry, parse_key, range_end
from holdfast.backends.etcd.protocol.leases import Lease, Unanswered
from holdfast.backends.etcd.protocol.messages import (
    KeyValue,
    absent,
    all_deleted,
    all_in_order,
    created_at,
    delete,
    empty,
    first,
    get,
    key_value,
    kvs,
    last,
    none_after,
    none_before,
    put,
    revision,
    succeeded,
    txn,
)
from holdfast.backends.etcd.protocol.records import METHOD_KEY, encode_record, holder_of, parse_record, ticket_info
from holdfast.backends.etcd.protocol.slots import Slots
from holdfast.core.tickets import (
    POLL_INTERVAL,
    POLL_INTERVAL_BEHIND,
    Granted,
    LockInfo,
    Ticket,
    TicketInfo,
    Waiting,
)
from holdfast.errors import (
    BackendUnavailable,
    ConfigurationError,
    HoldfastError,
    LimitConflict,
    NameConflict,
    OutcomeUnknown,
)

if TYPE_CHECKING:
    from holdfast.backends.etcd.port import EtcdPort
    from holdfast.core.ports import Runtime


KEEP_ALIVE_MAX = 1.0  # seconds for a keep-alive of the waiter lease
POLL_MAX = 1.0  # seconds for a waiter's poll: with a member that hangs, there is time left to keep its place


class View(NamedTuple):
    """A lock as one of its tickets has seen it."""

    revision: int
    ahead: Sequence[KeyValue]  # of an exclusive ticket, the last one at most
    first: Sequence[KeyValue]  # the first of all


class EtcdBackend(AcquireAll):
    """Locks in one cluster, in order."""

    guarantees = QUEUE
    lacks = QUEUE_LACKS

    def __init__(self, url: str, port: EtcdPort, runtime: Runtime, keys: Keys) -> None:
        super().__init__(url, port, runtime, keys)
        self._mutex = runtime.mutex()
        self._releasing: Counter[str] = Counter()  # by nonce: leaves without an answer yet
        self._unanswered_releases: set[str] = (
            set()
        )  # tickets of which a leave had no answer, or another one has none yet
        self._slots = Slots(runtime.nonce())
        self._foreign_names: set[str] = set()  # locks whose name is somebody's key, too

    def inherit(self, other: Self) -> None:
        super().inherit(other)
        self._unanswered_releases, self._slots = other._unanswered_releases, other._slots

    # ── enter ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        try:
            if ticket.nonce in self._ticket_keys:
                return await self._try_acquire(ticket, deadline, queue=queue)
            if queue:
                self._wakeups.expect(ticket.nonce)
            async with self._port.name_mutex(ticket.name, deadline=deadline):
                return await self._try_acquire(ticket, deadline, queue=queue)
        except (BackendUnavailable, ConfigurationError) as error:
            own_key = self._ticket_keys.get(ticket.nonce)
            if isinstance(error, BackendUnavailable) and own_key is not None and own_key.watches:
                # The engine has it in the queue and enters again, after a pause in which no wait keeps its place.
                await self._keep_waiters_alive(self._runtime.now() + KEEP_ALIVE_MAX)
            else:
                await self._undo_or_report_unknown(ticket, error, deadline)
            raise

    async def _try_acquire(self, ticket: Ticket, deadline: float, *, queue: bool) -> Granted | Waiting:
        while True:
            lease = await self._leases.fresh(ticket.ttl, deadline, delay=ticket.delay)
            own_key = self._ticket_keys.get(ticket.nonce)
            try:
                if own_key is not None:
                    outcome = await self._poll(ticket, own_key, lease, deadline)
                else:
                    outcome = await self._acquire_or_queue(ticket, lease, deadline, queue=queue)
            except LeaseNotFound:
                self._leases.mark_expired(lease)
                continue
            if outcome is not None:
                return outcome  # else what was seen had changed in between

    async def _acquire_or_queue(
        self, ticket: Ticket, lease: Lease, deadline: float, *, queue: bool
    ) -> Granted | Waiting | None:
        """Take the lock if it is free, under the lease of its ttl; else take a place in its queue if it is to wait."""
        _, folder, end = self._key_range(ticket)
        sent = self._runtime.now()
        answer = await self._create(ticket, lease, only_if=empty(folder, end), deadline=deadline)
        if succeeded(answer):
            return self._granted(ticket, lease, revision(answer), sent)
        if own := kvs(answer, 0):  # from an earlier request whose answer was lost
            return await self._poll(ticket, TicketKey(None, own[0].created), lease, deadline)
        there = kvs(answer, 3)
        if not there:
            return None
        holder = holder_of(there)
        if not ticket.exclusive:
            ahead, now = kvs(answer, 4), revision(answer)
            self._check_limit(ticket, ahead, holder)  # before anything is changed
            if blocker(ticket, queue_entries(ahead)) is None:
                # If no ticket was created since, those ahead are the same or fewer, so it is granted.
                sent = self._runtime.now()
                answer = await self._create(ticket, lease, only_if=none_after(folder, end, now), deadline=deadline)
                if succeeded(answer):
                    return self._granted(ticket, lease, revision(answer), sent)
                if not queue:
                    return None
        if queue:
            return await self._enqueue(ticket, lease, holder, deadline)
        await self._give_up(ticket, deadline)
        return Waiting(POLL_INTERVAL, holder)

    async def _give_up(self, ticket: Ticket, deadline: float) -> None:
        """It does not wait, so nobody will withdraw it. But what another member was asked before may still come."""
        if ticket.nonce in self._unanswered:
            await self.release([ticket], deadline=deadline)
        else:
            self._give_back_slot(ticket)

    async def _enqueue(
        self, ticket: Ticket, lease: Lease, holder: str | None, deadline: float
    ) -> Granted | Waiting | None:
        """Create its key at the end of the queue, under the waiter lease."""
        key, folder, end = self._key_range(ticket)
        waiter_lease = await self._leases.waiter_lease(deadline)
        everybody = last(folder, end, 2) if ticket.exclusive else all_in_order(folder, end)
        try:
            answer = await self._create(
                ticket,
                waiter_lease,
                only_if=absent(key),
                then=[everybody, first(folder, end)],
                waits=True,
                deadline=deadline,
            )
        except LeaseNotFound:
            self._leases.mark_expired(waiter_lease)
            return None
        if not succeeded(answer):
            return None
        now = revision(answer)
        own_key = self._ticket_keys[ticket.nonce] = TicketKey(None, now)
        ahead = [one for one in kvs(answer, 1) if one.created < now]
        if not ticket.exclusive:
            try:
                self._check_limit(ticket, ahead, holder)
            except LimitConflict:  # with one who came at the same time
                await self.release([ticket], deadline=deadline)
                raise
        return await self._decide(ticket, own_key, lease, View(now, ahead, kvs(answer, 2)), deadline)

    async def _create(
        self,
        ticket: Ticket,
        lease: Lease,
        *,
        only_if: Message,
        then: Sequence[Message] = (),
        waits: bool = False,
        deadline: float,
    ) -> Message:
        """Create its key, unless it was withdrawn before, or the lock is in use by method=key.

        The answers to `then` begin with number 1. If it was not created they are those of `_conflict_reads`.

        Raises:
            OutcomeUnknown: no answer; or it was withdrawn before.
            NameConflict: the lock is in use by method=key.
        """
        key = self._key(ticket)
        unanswered = Unanswered(lease, self._keys.tombstone(ticket.nonce, waits=waits))
        compare = [only_if, absent(unanswered.tombstone)]
        if ticket.name not in self._foreign_names:
            compare.append(absent(self._keys.base(ticket.name)))
        create = [put(key, encode_record(ticket, self._runtime.wall()), lease.id), *then]
        request = txn(compare, create, self._conflict_reads(ticket, unanswered.tombstone))
        answer = await self._send_create([ticket.nonce], unanswered, request, deadline)
        if not succeeded(answer):
            self._check_refusal(ticket, answer)
        return answer

    def _conflict_reads(self, ticket: Ticket, tombstone: bytes) -> list[Message]:
        """Its own key; whether it was withdrawn; the other method's key; the first of all; and, if it shares, all."""
        key, folder, end = self._key_range(ticket)
        base = self._keys.base(ticket.name)
        reads = [get(key, keys_only=True), get(tombstone, keys_only=True), get(base), first(folder, end)]
        return reads if ticket.exclusive else [*reads, all_in_order(folder, end)]

    def _check_refusal(self, ticket: Ticket, answer: Message) -> None:
        if kvs(answer, 1):
            raise OutcomeUnknown(backend=self.url, problem=f"ticket {ticket.nonce} was withdrawn before")
        self._check_method(ticket, kvs(answer, 2))

    def _check_method(self, ticket: Ticket, there: Sequence[KeyValue]) -> None:
        for other in there:
            if parse_record(other.value).method == METHOD_KEY:
                raise NameConflict(
                    lock=ticket.name, reason="it is in use with method=key: let all programs use the same method"
                )
            self._foreign_names.add(ticket.name)  # by something that is no lock: tickets find room below it

    async def _poll(
        self, ticket: Ticket, own_key: TicketKey, lease: Lease, deadline: float
    ) -> Granted | Waiting | None:
        """Whether it is granted by now. The next in line mostly is, and takes the lock in the same step."""
        key, folder, end = self._key_range(ticket)
        until = own_key.created - 1
        ahead = last(folder, end, 1, until=until) if ticket.exclusive else all_in_order(folder, end, until=until)
        reads = [get(key, keys_only=True), ahead, first(folder, end)]
        if own_key.is_next:
            only_if, sent = none_before(folder, end, own_key.created), self._runtime.now()
            answer = await self._move_to_lease(ticket, own_key, lease, deadline, only_if=[only_if], reads=reads)
            if succeeded(answer):
                return self._granted(ticket, lease, own_key.created, sent)
        else:
            limit = min(deadline, self._runtime.now() + POLL_MAX) if own_key.watches else deadline
            answer = (await self._port.call("kv/txn", txn([], reads), deadline=limit)).message
        if not any(one.created == own_key.created for one in kvs(answer, 0)):
            self._ticket_keys.pop(ticket.nonce, None)  # its lease has ended, or somebody deleted it: its place is lost
            return None
        view = View(revision(answer), kvs(answer, 1), kvs(answer, 2))
        return await self._decide(ticket, own_key, lease, view, deadline)

    async def _decide(
        self, ticket: Ticket, own_key: TicketKey, lease: Lease, view: View, deadline: float
    ) -> Granted | Waiting | None:
        """Grant it, or say what it waits for."""
        watches = self._watches(ticket, view)
        if not watches:
            # No ticket can be created ahead of it any more: it is granted once its key is under the lease of its ttl.
            sent = self._runtime.now()
            if succeeded(await self._move_to_lease(ticket, own_key, lease, deadline)):
                return self._granted(ticket, lease, own_key.created, sent)
            self._ticket_keys.pop(ticket.nonce, None)
            return None
        is_next = ticket.exclusive and watches[0].key == view.first[0].key
        self._ticket_keys[ticket.nonce] = TicketKey(None, own_key.created, is_next, watches)
        return Waiting(POLL_INTERVAL if is_next else POLL_INTERVAL_BEHIND, holder_of(view.first))

    async def _move_to_lease(
        self,
        ticket: Ticket,
        own_key: TicketKey,
        lease: Lease,
        deadline: float,
        *,
        only_if: Sequence[Message] = (),
        reads: Sequence[Message] = (),
    ) -> Message:
        """Move its key from the waiter lease to the lease of its ttl, if it is still the key that was queued.

        A put keeps the create revision, which is the ticket's place and fence. It can be repeated, and does nothing if
        it arrives after the key was deleted.
        """
        key = self._key(ticket)
        take = put(key, encode_record(ticket, self._runtime.wall()), lease.id)
        request = txn([created_at(key, own_key.created), *only_if], [take], reads)
        return (await self._port.call("kv/txn", request, deadline=deadline)).message

    def _watches(self, ticket: Ticket, view: View) -> tuple[Watch, ...]:
        """The keys that a waiting ticket has to watch; none if it may be granted."""
        key, folder, end = self._key_range(ticket)
        before, since = queue_entries(view.ahead), view.revision + 1
        blocking = blocker(ticket, before)
        if blocking is None:
            return ()
        if not ticket.exclusive and not blocking.exclusive:
            # All permits are taken. The first who waits is in as soon as one of them is given back; the others move up
            # when the one before them is in, which then writes its key anew, or gives up.
            is_first = len(before) == ticket.limit
            watch = Watch(folder, since, end=end) if is_first else Watch(before[-1].key, since, puts=True)
        else:
            watch = Watch(blocking.key, since)
        return watch, Watch(key, since)

    def _check_limit(self, ticket: Ticket, ahead: Sequence[KeyValue], holder: str | None) -> None:
        for other in queue_entries(ahead):
            if not other.exclusive and other.limit != ticket.limit:
                raise LimitConflict(lock=ticket.name, ours=ticket.limit, theirs=other.limit, holder=holder)

    # ── wait, leave ──────────────────────────────────────────────────────────────────────────────────────────────

    async def wait(self, ticket: Ticket, until: float) -> None:
        own_key = self._ticket_keys.get(ticket.nonce)
        if own_key is not None:
            self._port.watch(ticket.nonce, own_key.watches)
        while True:
            keep_at = self._leases.next_waiter_keep_alive()
            if await self._wakeups.notified(ticket.nonce, min(until, keep_at)):
                return
            now = self._runtime.now()
            if now >= until:
                return
            if now >= keep_at and not await self._keep_waiters_alive(now + KEEP_ALIVE_MAX):
                return  # the next poll finds out what became of its place

    async def _keep_waiters_alive(self, deadline: float) -> bool:
        try:
            return await self._leases.keep_waiters_alive(deadline)
        except HoldfastError:
            return False

    async def release(self, tickets: Sequence[Ticket], *, deadline: float) -> list[bool]:
        found: list[bool] = []
        self._begin_releasing(tickets)
        try:
            for start in range(0, len(tickets), OPERATIONS_MAX // 2):
                found += await self._release(tickets[start : start + OPERATIONS_MAX // 2], deadline)
        finally:
            self._end_releasing(tickets)
        return found

    def _begin_releasing(self, tickets: Sequence[Ticket]) -> None:
        """Of two leaves of one ticket, the other one may arrive after the answer: its key must not be used again."""
        with self._mutex:
            self._count_begun(tickets)

    def _count_begun(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self._releasing[ticket.nonce] += 1
            if self._releasing[ticket.nonce] > 1:
                self._unanswered_releases.add(ticket.nonce)

    def _end_releasing(self, tickets: Sequence[Ticket]) -> None:
        with self._mutex:
            self._count_ended(tickets)

    def _count_ended(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self._releasing[ticket.nonce] -= 1
            if not self._releasing[ticket.nonce]:
                del self._releasing[ticket.nonce]

    async def _release(self, tickets: Sequence[Ticket], deadline: float) -> list[bool]:
        while True:
            unanswered: set[Unanswered] = set().union(*(self._unanswered.get(ticket.nonce, ()) for ticket in tickets))
            # What may still be on its way comes under the same lease as this note: one ends with the other.
            is_noted = self._port.is_same_cluster
            tombstones = [
                put(one.tombstone, b"", one.lease.id) for one in unanswered if is_noted and not one.lease.has_expired
            ]
            deletes = [delete(self._key(ticket)) for ticket in tickets]
            is_plain = len(deletes) == 1 and not tombstones  # nearly always
            method = "kv/deleterange" if is_plain else "kv/txn"
            request = deletes[0]["request_delete_range"] if is_plain else txn([], [*deletes, *tombstones])
            try:
                answer = (await self._port.call(method, request, deadline=deadline, once=True)).message
            except LeaseNotFound:
                for lease in {one.lease for one in unanswered}:
                    await self._leases.keep_alive(lease, deadline)  # to see which of them
                continue
            except ClusterChanged:
                found = [False] * len(tickets)
            except BaseException:
                self._unanswered_releases.update(ticket.nonce for ticket in tickets)
                raise
            else:
                found = [bool(int(answer.get("deleted", 0)))] if is_plain else all_deleted(answer, len(tickets))
            for ticket in tickets:
                self._forget(ticket.nonce)
            return found

    # ── several at once ──────────────────────────────────────────────────────────────────────────────────────────

    def _compares_free(self, ticket: Ticket) -> list[Message]:
        _, folder, end = self._key_range(ticket)
        nobody = empty(folder, end)
        return [nobody] if ticket.name in self._foreign_names else [nobody, absent(self._keys.base(ticket.name))]

    def _creates(self, ticket: Ticket, lease: Lease) -> list[Message]:
        return [put(self._key(ticket), encode_record(ticket, self._runtime.wall()), lease.id)]

    def _reads(self, ticket: Ticket) -> list[Message]:
        _, folder, end = self._key_range(ticket)
        return [first(folder, end), get(self._keys.base(ticket.name))]

    def _state_of(self, ticket: Ticket, lease: Lease, answer: Message, number: int) -> LockState:
        if succeeded(answer):
            return LockState(created=revision(answer))
        self._check_method(ticket, kvs(answer, 2 * number + 1))
        there = kvs(answer, 2 * number)
        if not there:
            return FREE
        if there[0].key == self._key(ticket) and there[0].lease == lease.id:
            return LockState(created=there[0].created)
        return LockState(is_busy=True, holder=holder_of(there))

    def _give_back_slot(self, ticket: Ticket) -> None:
        self._slots.give_back(ticket.nonce)

    # ── for operators ────────────────────────────────────────────────────────────────────────────────────────────

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        return await self._lock_info(name, await self._tickets(name, deadline), {}, deadline)

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        start = self._keys.prefix(prefix)
        found = all_in_order(start, range_end(start), keys_only=False)["request_range"]
        answer = await self._port.call("kv/range", found, deadline=deadline)
        by_name: dict[str, list[KeyValue]] = {}
        for one in map(key_value, answer.message.get("kvs", ())):
            name = self._keys.lock_name(one.key)
            if name and name.startswith(prefix):
                by_name.setdefault(name, []).append(one)
        known: dict[int, float] = {}
        return [
            await self._lock_info(name, there, known, deadline)
            for name, there in sorted(by_name.items())
            if self._keys.has_prefix or any(parse_key(one.key, 0).is_ours for one in there)
        ]

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        there = await self._tickets(name, deadline)
        held = [
            one.key for one, is_in in zip(there, granted_flags(there), strict=True) if is_in and one.created == fence
        ]
        if not held:
            return False
        request = txn([created_at(held[0], fence)], [delete(held[0])])
        return succeeded((await self._port.call("kv/txn", request, deadline=deadline, once=True)).message)

    async def _tickets(self, name: str, deadline: float) -> list[KeyValue]:
        folder = self._keys.folder(name)
        found = all_in_order(folder, range_end(folder), keys_only=False)["request_range"]
        answer = await self._port.call("kv/range", found, deadline=deadline)
        return [key_value(one) for one in answer.message.get("kvs", ())]

    async def _lock_info(
        self, name: str, there: Sequence[KeyValue], known: dict[int, float], deadline: float
    ) -> LockInfo:
        holders: list[TicketInfo] = []
        waiters: list[TicketInfo] = []
        for one, is_in in zip(there, granted_flags(there), strict=True):
            if one.lease not in known:
                known[one.lease] = await self._leases.remaining(one.lease, deadline)
            (holders if is_in else waiters).append(ticket_info(one, known[one.lease], granted=is_in))
        return LockInfo(name, tuple(holders), tuple(waiters))

    # ── small things ─────────────────────────────────────────────────────────────────────────────────────────────

    def _forget(self, nonce: str) -> None:
        super()._forget(nonce)
        if nonce in self._unanswered or nonce in self._unanswered_releases:
            self._unanswered.pop(nonce, None)
            self._unanswered_releases.discard(nonce)
            self._slots.retire(nonce)
        else:
            self._slots.give_back(nonce)

    def _key(self, ticket: Ticket) -> bytes:
        slot = self._slots.of(ticket.nonce)
        return self._keys.ticket(ticket.name, slot, ticket.limit, exclusive=ticket.exclusive)

    def _key_range(self, ticket: Ticket) -> tuple[bytes, bytes, bytes]:
        folder = self._keys.folder(ticket.name)
        return self._key(ticket), folder, range_end(folder)


def queue_entries(found: Sequence[KeyValue]) -> list[QueueEntry]:
    return [parse_key(one.key, one.created) for one in found]


def blocker(ticket: Ticket, ahead: Sequence[QueueEntry]) -> QueueEntry | None:
    """The last of those ahead because of which it has to wait: when that one goes it is worth to look again."""
    if ticket.exclusive:
        return ahead[-1] if ahead else None
    exclusive = [one for one in ahead if one.exclusive]
    if exclusive:
        return exclusive[-1]
    return ahead[-1] if ticket.limit is not None and len(ahead) >= ticket.limit else None


def granted_flags(there: Sequence[KeyValue]) -> list[bool]:
    """Of all tickets of a lock, in order: the rule."""
    is_in: list[bool] = []
    nobody_is_exclusive = True
    for number, one in enumerate(queue_entries(there)):
        is_free = number == 0 if one.exclusive else nobody_is_exclusive and (one.limit is None or number < one.limit)
        is_in.append(is_free)
        nobody_is_exclusive = nobody_is_exclusive and not one.exclusive
    return is_in
