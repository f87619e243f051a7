"""`method=queue`: each ticket is a key, and the create revision is both its place in the queue and its fence.

    lock 'jobs'   holdfast/jobs/5e0c….x    created at 811    granted: no key is ahead of it
                  holdfast/jobs/91aa….x    created at 814    waits, watches the key before it and its own key
                  holdfast/jobs/694d…      created at 815    `etcdctl lock holdfast/jobs`: exclusive too

No key can be created ahead of an existing one, because revisions only grow. So a ticket that is not blocked at one
revision stays granted for as long as its own key exists; one transaction checks both. A key ends by a delete or with
its lease. All tickets of a client with the same ttl share a lease (leases.py).

Every request can be repeated: each ticket has its own key, which is created only if it does not exist. If a ticket is
withdrawn while a create has no answer, a tombstone under the same lease makes a late create fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from holdfast.backends.etcd.port import ClusterChanged, EtcdPort, LeaseNotFound, Message, Watch
from holdfast.backends.etcd.protocol.acquire_all import FREE, LockState
from holdfast.backends.etcd.protocol.base import OPERATIONS_MAX, TicketKey, state_of
from holdfast.backends.etcd.protocol.guarantees import QUEUE, QUEUE_LACKS
from holdfast.backends.etcd.protocol.keys import Keys, QueueEntry, Slots
from holdfast.backends.etcd.protocol.leases import Lease, Unanswered
from holdfast.backends.etcd.protocol.messages import (
    KeyValue,
    absent,
    all_in_order,
    created_at,
    delete,
    deleted,
    empty,
    first,
    get,
    kvs,
    last,
    none_after,
    none_before,
    put,
    revision,
    succeeded,
    txn,
)
from holdfast.backends.etcd.protocol.operators import QueueOperators, queue_entries
from holdfast.backends.etcd.protocol.ticket_values import METHOD_KEY, encode_value, holder_of, parse_value
from holdfast.core.ports import Runtime
from holdfast.core.tickets import (
    POLL_INTERVAL,
    POLL_INTERVAL_BEHIND,
    Claim,
    Granted,
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

KEEP_ALIVE_MAX = 1.0  # seconds for a keep-alive of the waiter lease
POLL_MAX = 1.0  # seconds for a waiter's poll: if a member hangs, enough time is left to keep the place in the queue


class View(NamedTuple):
    """A lock as one of its tickets sees it."""

    revision: int
    ahead: Sequence[KeyValue]  # all tickets ahead; for an exclusive ticket, at most the last of them
    first: Sequence[KeyValue]  # the first ticket of the lock


class EtcdBackend(QueueOperators):
    """Locks in one cluster, in FIFO order."""

    guarantees = QUEUE
    lacks = QUEUE_LACKS

    def __init__(self, url: str, port: EtcdPort, runtime: Runtime, keys: Keys) -> None:
        super().__init__(url, port, runtime, keys)
        self._mutex = runtime.mutex()
        self._releasing: Counter[str] = Counter()  # by nonce: releases that are in flight
        self._slots = Slots(runtime.nonce())
        self._foreign_names: set[str] = set()  # names of locks that are also keys of other programs

    # ── acquire ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        try:
            if state_of(claim).key is not None:
                outcome = await self._try_acquire(claim, deadline, queue=queue)
            else:
                if queue:
                    self._wakeups.expect(claim)
                async with self._port.name_mutex(claim.name, deadline=deadline):
                    outcome = await self._try_acquire(claim, deadline, queue=queue)
        except (BackendUnavailable, ConfigurationError) as error:
            own_key = state_of(claim).key
            if isinstance(error, BackendUnavailable) and own_key is not None and own_key.watches:
                # The ticket stays in the queue, and the engine tries again after a pause in which no `wait` keeps it.
                await self._keep_waiters_alive(self._runtime.now() + KEEP_ALIVE_MAX)
            else:
                await self._undo_or_report_unknown(claim, error, deadline)
            raise
        return await self._cover_min_hold(claim, outcome, deadline) if isinstance(outcome, Granted) else outcome

    async def _try_acquire(self, claim: Claim, deadline: float, *, queue: bool) -> Granted | Waiting:
        while True:
            lease = await self._leases.fresh(claim.ttl, deadline, delay=claim.delay)
            own_key = state_of(claim).key
            try:
                if own_key is not None:
                    outcome = await self._poll(claim, own_key, lease, deadline)
                else:
                    only_if, sent = empty(*self._key_range(claim)[1:]), self._runtime.now()
                    answer = await self._create(claim, lease, only_if=only_if, deadline=deadline)
                    if self._is_created(claim, answer):
                        return self._granted(claim, lease, revision(answer), sent)
                    outcome = await self._share_or_queue(claim, lease, answer, deadline, queue=queue)
            except LeaseNotFound:
                self._leases.mark_expired(lease)
                continue
            if outcome is not None:
                return outcome  # None: the lock has changed between two requests

    async def _share_or_queue(
        self, claim: Claim, lease: Lease, answer: Message, deadline: float, *, queue: bool
    ) -> Granted | Waiting | None:
        """Acquire a lock in use together with its holders, or else take a place in its queue, if `queue`.

        `answer` is that to a create that was refused. None: the lock has changed since.
        """
        if own := kvs(answer, 0):  # from an earlier request whose answer was lost
            return await self._poll(claim, TicketKey(None, own[0].created), lease, deadline)
        if not (first_ticket := kvs(answer, 3)):
            return None
        holder = holder_of(first_ticket)
        if not claim.exclusive:
            ahead, read_at = kvs(answer, 4), revision(answer)
            self._check_limit(claim, ahead, holder)  # before anything is changed
            if blocker(claim, queue_entries(ahead)) is None:
                # If no ticket was created since then, at most the same tickets are ahead, so it is granted.
                _, folder, end = self._key_range(claim)
                sent = self._runtime.now()
                answer = await self._create(claim, lease, only_if=none_after(folder, end, read_at), deadline=deadline)
                if self._is_created(claim, answer):
                    return self._granted(claim, lease, revision(answer), sent)
                if not queue:
                    return None
        if queue:
            return await self._enqueue(claim, lease, holder, deadline)
        await self._give_up(claim, deadline)
        return Waiting(POLL_INTERVAL, holder)

    async def _enqueue(
        self, claim: Claim, lease: Lease, holder: str | None, deadline: float
    ) -> Granted | Waiting | None:
        """Create its key at the end of the queue, under the waiter lease."""
        key, folder, end = self._key_range(claim)
        waiter_lease = await self._leases.waiter_lease(deadline)
        queued = last(folder, end, 2) if claim.exclusive else all_in_order(folder, end)
        try:
            answer = await self._create(
                claim,
                waiter_lease,
                only_if=absent(key),
                then=[queued, first(folder, end)],
                waits=True,
                deadline=deadline,
            )
        except LeaseNotFound:
            self._leases.mark_expired(waiter_lease)
            return None
        if not self._is_created(claim, answer):
            return None
        created = revision(answer)
        own_key = state_of(claim).key = TicketKey(None, created)
        ahead = [kv for kv in kvs(answer, 1) if kv.created < created]
        if not claim.exclusive:
            try:
                self._check_limit(claim, ahead, holder)
            except LimitConflict:  # with a ticket that was created at the same time
                await self.release([claim], deadline=deadline)
                raise
        return await self._decide(claim, own_key, lease, View(created, ahead, kvs(answer, 2)), deadline)

    def _create(
        self,
        claim: Claim,
        lease: Lease,
        *,
        only_if: Message,
        then: Sequence[Message] = (),
        waits: bool = False,
        deadline: float,
    ) -> Coroutine[Any, Any, Message]:
        """Create its key, unless it was withdrawn before, or the lock is in use by method=key.

        The answers to `then` start with number 1. If the key was not created, the answers are others: 0 the key, 1 its
        tombstone, 2 the key of method=key, 3 the first ticket of the lock, 4 for a shared ticket all tickets.

        Raises:
            OutcomeUnknown: no answer.
        """
        key, folder, end = self._key_range(claim)
        base, tombstone = self._keys.base(claim.name), self._keys.tombstone(claim.nonce, waits=waits)
        compares = [only_if, absent(tombstone)]
        if claim.name not in self._foreign_names:
            compares.append(absent(base))
        create = [put(key, encode_value(claim, self._runtime.wall()), lease.id), *then]
        reads = [get(key, keys_only=True), get(tombstone, keys_only=True), get(base), first(folder, end)]
        if not claim.exclusive:
            reads.append(all_in_order(folder, end))
        return self._send_create([claim], Unanswered(lease, tombstone), txn(compares, create, reads), deadline)

    def _is_created(self, claim: Claim, answer: Message) -> bool:
        """Whether this create has succeeded.

        Raises:
            OutcomeUnknown: the ticket was withdrawn before.
            NameConflict: the lock is in use by method=key.
        """
        if succeeded(answer):
            return True
        if kvs(answer, 1):
            raise OutcomeUnknown(backend=self.url, problem=f"ticket {claim.nonce} was withdrawn before")
        self._check_method(claim, kvs(answer, 2))
        return False

    def _check_method(self, claim: Claim, others: Sequence[KeyValue]) -> None:
        for other in others:
            if parse_value(other.value).method == METHOD_KEY:
                raise NameConflict(
                    lock=claim.name, reason="it is in use with method=key: let all programs use the same method"
                )
            self._foreign_names.add(claim.name)  # a key of another program; tickets are below it

    async def _poll(self, claim: Claim, own_key: TicketKey, lease: Lease, deadline: float) -> Granted | Waiting | None:
        """Check whether a queued ticket can be granted. If it is next, the same transaction grants it."""
        key, folder, end = self._key_range(claim)
        until = own_key.created - 1
        ahead = last(folder, end, 1, until=until) if claim.exclusive else all_in_order(folder, end, until=until)
        reads = [get(key, keys_only=True), ahead, first(folder, end)]
        if own_key.is_next:
            only_if, sent = none_before(folder, end, own_key.created), self._runtime.now()
            answer = await self._move_to_lease(claim, own_key, lease, deadline, only_if=[only_if], reads=reads)
            if succeeded(answer):
                return self._granted(claim, lease, own_key.created, sent)
        else:
            answered_by = min(deadline, self._runtime.now() + POLL_MAX) if own_key.watches else deadline
            answer = (await self._port.call("kv/txn", txn([], reads), deadline=answered_by)).message
        if not any(kv.created == own_key.created for kv in kvs(answer, 0)):
            state_of(claim).key = None  # the key expired or was deleted, so its place is lost
            return None
        view = View(revision(answer), kvs(answer, 1), kvs(answer, 2))
        return await self._decide(claim, own_key, lease, view, deadline)

    async def _decide(
        self, claim: Claim, own_key: TicketKey, lease: Lease, view: View, deadline: float
    ) -> Granted | Waiting | None:
        """Grant the ticket, or store what it has to watch. None: its key does not exist any more."""
        watches = self._watches(claim, view)
        if not watches:
            # No ticket can be created ahead of it, so it is granted once its key is under the lease of its ttl.
            sent = self._runtime.now()
            if succeeded(await self._move_to_lease(claim, own_key, lease, deadline)):
                return self._granted(claim, lease, own_key.created, sent)
            state_of(claim).key = None
            return None
        is_next = claim.exclusive and watches[0].key == view.first[0].key
        state_of(claim).key = TicketKey(None, own_key.created, is_next, watches)
        return Waiting(POLL_INTERVAL if is_next else POLL_INTERVAL_BEHIND, holder_of(view.first))

    async def _move_to_lease(
        self,
        claim: Claim,
        own_key: TicketKey,
        lease: Lease,
        deadline: float,
        *,
        only_if: Sequence[Message] = (),
        reads: Sequence[Message] = (),
    ) -> Message:
        """Move its key from the waiter lease to the lease of its ttl, if it is still the key that was queued.

        A put keeps the create revision, which is the ticket's place and fence. The request can be repeated, and does
        nothing if it arrives after the key was deleted. But if it arrives after the last renewal of a ticket with a
        min_hold, it moves the key back to the lease of the ttl. So such a ticket counts as unanswered until the answer
        arrives; without one, it is released after its min_hold.
        """
        key = self._key(claim)
        move = put(key, encode_value(claim, self._runtime.wall()), lease.id)
        request = txn([created_at(key, own_key.created), *only_if], [move], reads)
        was_unanswered, claim.unanswered = claim.unanswered, claim.unanswered or bool(claim.min_hold)
        answer = await self._port.call("kv/txn", request, deadline=deadline)
        claim.unanswered = was_unanswered or (answer.repeated and bool(claim.min_hold))
        return answer.message

    def _watches(self, claim: Claim, view: View) -> tuple[Watch, ...]:
        """The keys that a waiting ticket has to watch; none if it may be granted."""
        key, folder, end = self._key_range(claim)
        before, since = queue_entries(view.ahead), view.revision + 1
        blocking = blocker(claim, before)
        if blocking is None:
            return ()
        if not claim.exclusive and not blocking.exclusive:
            # All permits are held. The first waiter is granted as soon as any permit is released. Another waiter moves
            # up when the ticket before it is granted, which writes its key again, or withdrawn.
            is_first = len(before) == claim.limit
            watch = Watch(folder, since, end=end) if is_first else Watch(before[-1].key, since, puts=True)
        else:
            watch = Watch(blocking.key, since)
        return watch, Watch(key, since)

    def _check_limit(self, claim: Claim, ahead: Sequence[KeyValue], holder: str | None) -> None:
        for other in queue_entries(ahead):
            if not other.exclusive and other.limit != claim.limit:
                raise LimitConflict(lock=claim.name, ours=claim.limit, theirs=other.limit, holder=holder)

    # ── wait, release ────────────────────────────────────────────────────────────────────────────────────────────

    async def wait(self, claim: Claim, until: float) -> None:
        own_key = state_of(claim).key
        if own_key is not None:
            self._port.watch(claim.nonce, own_key.watches)
        while True:
            keep_at = self._leases.next_waiter_keep_alive()
            if await self._wakeups.wait(claim, min(until, keep_at)) is not None:
                return
            now = self._runtime.now()
            if now >= until:
                return
            if now >= keep_at and not await self._keep_waiters_alive(now + KEEP_ALIVE_MAX):
                return  # the next poll shows whether the place is lost

    async def _keep_waiters_alive(self, deadline: float) -> bool:
        try:
            return await self._leases.keep_waiters_alive(deadline)
        except HoldfastError:
            return False

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> list[bool]:
        released: list[bool] = []
        with self._mutex:
            self._count_releases(claims, 1)
        try:
            for start in range(0, len(claims), OPERATIONS_MAX // 2):
                released += await self._release(claims[start : start + OPERATIONS_MAX // 2], deadline)
        finally:
            with self._mutex:
                self._count_releases(claims, -1)
        return released

    def _count_releases(self, claims: Sequence[Claim], change: int) -> None:
        """Of two releases that overlap, one may arrive after the other's answer, so the key is not reused."""
        for claim in claims:
            self._releasing[claim.nonce] += change
            if change > 0 and self._releasing[claim.nonce] > 1:
                claim.withdrawn = True
            elif not self._releasing[claim.nonce]:
                del self._releasing[claim.nonce]

    async def _release(self, claims: Sequence[Claim], deadline: float) -> list[bool]:
        while True:
            unanswered: set[Unanswered] = {create for claim in claims for create in state_of(claim).creates}
            # A create that may still arrive is under the same lease as its tombstone, so both end together.
            is_same_cluster = self._port.is_same_cluster
            tombstones = [
                put(create.tombstone, b"", create.lease.id)
                for create in unanswered
                if is_same_cluster and not create.lease.has_expired
            ]
            deletes = [delete(self._key(claim)) for claim in claims]
            is_plain = len(deletes) == 1 and not tombstones  # the usual case
            method = "kv/deleterange" if is_plain else "kv/txn"
            request = deletes[0]["request_delete_range"] if is_plain else txn([], [*deletes, *tombstones])
            try:
                answer = (await self._port.call(method, request, deadline=deadline, once=True)).message
            except LeaseNotFound:
                for lease in {create.lease for create in unanswered}:
                    await self._leases.keep_alive(lease, deadline)  # shows which of them has expired
                continue
            except ClusterChanged:
                released = [False] * len(claims)
            except BaseException:
                for claim in claims:
                    claim.withdrawn = True
                raise
            else:
                released = (
                    [bool(int(answer.get("deleted", 0)))]
                    if is_plain
                    else [deleted(answer, number) for number in range(len(claims))]
                )
            for claim in claims:
                self._forget(claim)
            return released

    # ── acquire several ──────────────────────────────────────────────────────────────────────────────────────────

    def _compares_free(self, claim: Claim) -> list[Message]:
        _, folder, end = self._key_range(claim)
        is_empty = empty(folder, end)
        return [is_empty] if claim.name in self._foreign_names else [is_empty, absent(self._keys.base(claim.name))]

    def _creates(self, claim: Claim, lease: Lease) -> list[Message]:
        return [put(self._key(claim), encode_value(claim, self._runtime.wall()), lease.id)]

    def _reads(self, claim: Claim) -> list[Message]:
        _, folder, end = self._key_range(claim)
        return [first(folder, end), get(self._keys.base(claim.name))]

    def _state_of(self, claim: Claim, lease: Lease, answer: Message, number: int) -> LockState:
        self._check_method(claim, kvs(answer, 2 * number + 1))
        queued = kvs(answer, 2 * number)
        if not queued:
            return FREE
        if queued[0].key == self._key(claim) and queued[0].lease == lease.id:
            return LockState(created=queued[0].created)
        return LockState(is_busy=True, holder=holder_of(queued))

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _forget(self, claim: Claim) -> None:
        if not claim.unanswered and not claim.withdrawn:  # else a request about the key may still arrive
            slot, state_of(claim).slot = state_of(claim).slot, None
            if slot is not None:
                self._slots.give_back(slot)
        claim.withdrawn = False
        super()._forget(claim)

    def _key(self, claim: Claim) -> bytes:
        state = state_of(claim)
        if state.slot is None:
            state.slot = self._slots.take()
        return self._keys.ticket(claim.name, state.slot, claim.limit, exclusive=claim.exclusive)

    def _key_range(self, claim: Claim) -> tuple[bytes, bytes, bytes]:
        return self._key(claim), *self._keys.folder_range(claim.name)


def blocker(claim: Claim, ahead: Sequence[QueueEntry]) -> QueueEntry | None:
    """The last ticket ahead that blocks this one. Once it has ended, a poll can succeed."""
    if claim.exclusive:
        return ahead[-1] if ahead else None
    exclusive = [entry for entry in ahead if entry.exclusive]
    if exclusive:
        return exclusive[-1]
    return ahead[-1] if claim.limit is not None and len(ahead) >= claim.limit else None
