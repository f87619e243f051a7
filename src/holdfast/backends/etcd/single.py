"""`method=key`: the plain form. A lock is one key: who creates it has the lock, and everybody else waits for its end.

The key goes with its holder's lease, as in the default method. There is no queue, so all who wait try again when the
key has gone, and any of them may be next; and no readers or permits.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.etcd.guarantees import KEY, KEY_LACKS
from holdfast.backends.etcd.keys import Keys, Ticketed, after
from holdfast.backends.etcd.leases import GRANULARITY, LEASE_OVER, Lease, Leases, Unheard
from holdfast.backends.etcd.marks import Marks
from holdfast.backends.etcd.messages import (
    Entry,
    absent,
    all_in_order,
    created_at,
    delete,
    deleted,
    entries,
    entry,
    first,
    get,
    put,
    revision,
    succeeded,
    txn,
)
from holdfast.backends.etcd.port import ClusterChanged, LeaseNotFound, Message, Watch
from holdfast.backends.etcd.records import METHOD_KEY, described, holder_of, record, written
from holdfast.backends.etcd.together import FREE, Seen, Together
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import LOOK_AGAIN, Gone, Granted, Live, LockInfo, Ticket, Waiting
from holdfast.core.wakeups import Wakeups
from holdfast.errors import BackendError, HoldfastError, NameConflict, OutcomeUnknown, Unsupported

if TYPE_CHECKING:
    from holdfast.backends.etcd.port import EtcdPort
    from holdfast.core.ports import Runtime

OPERATIONS_MAX = 100  # in one transaction; etcd itself takes 128
CLOSING_MAX = 2.0  # seconds to give leases back


class Held(NamedTuple):
    """A key of ours, as far as it is known."""

    lease: Lease
    created: int
    ticket: Ticket


class KeyBackend(Together):
    """Locks in one cluster, a key for each."""

    guarantees = KEY
    lacks = KEY_LACKS
    troubles: tuple[str, ...] = ()  # it works, or it does not
    lifelines: tuple[int, ...] = ()  # the server cannot see that a holder has died

    def __init__(self, url: str, port: EtcdPort, runtime: Runtime, keys: Keys) -> None:
        self.url = url
        self._port = port
        self._runtime = runtime
        self._keys = keys
        self._leases = Leases(url, port, runtime)
        self._wakeups = Wakeups(runtime)
        self._held: dict[str, Held] = {}  # by nonce
        self._seen: dict[str, int] = {}  # by nonce: the revision at which a waiting ticket last saw the key
        self._marks = Marks(port, runtime, keys)
        self._unheard: dict[str, set[Unheard]] = {}  # by nonce: enters that had no answer
        port.listen(self._wakeups.wake)

    async def enter(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        if not ticket.exclusive:
            raise Unsupported(
                backend="etcd with method=key", what="readers and semaphores", others=("etcd with method=queue",)
            )
        if queue:
            self._wakeups.expect(ticket.nonce)
        while True:
            lease = await self._leases.fresh(ticket.ttl, deadline, delay=ticket.delay)
            try:
                outcome = await self._enter(ticket, lease, deadline)
            except LeaseNotFound:
                self._leases.is_over(lease)
                continue
            if not queue and isinstance(outcome, Waiting) and ticket.nonce in self._unheard:
                # It does not wait, so nobody will withdraw it; but what another member was asked may still come.
                (left,) = await self.leave([ticket], deadline=deadline)
                if isinstance(left, BackendError):
                    raise OutcomeUnknown(backend=left.backend, problem=left.problem)
            return outcome

    async def _enter(self, ticket: Ticket, lease: Lease, deadline: float) -> Granted | Waiting:
        unheard = Unheard(lease, self._keys.gone(ticket.nonce))
        request = txn(
            [*self._compares(ticket), absent(unheard.note)],
            self._then(ticket, lease),
            [*self._looks(ticket), get(unheard.note, keys_only=True)],
        )
        sent = self._runtime.now()
        try:
            answer = await self._port.call("kv/txn", request, deadline=deadline)
        except BaseException as error:
            # No answer, or cancelled or interrupted before it. Unless the server has refused it, it may still come.
            if isinstance(error, OutcomeUnknown) or not isinstance(error, HoldfastError | LeaseNotFound):
                self._not_heard([ticket.nonce], unheard)
            raise
        if answer.repeated:
            self._not_heard([ticket.nonce], unheard)
        now = revision(answer.message)
        if succeeded(answer.message):
            granted = self._came(ticket, lease, now, sent)  # for now: whoever cannot give it back owes that
            await self._check_methods([ticket], answer.message, deadline)
            return granted
        if entries(answer.message, 1):
            raise OutcomeUnknown(backend=self.url, problem=f"ticket {ticket.nonce} was withdrawn before")
        seen = self._seen_of(ticket, lease, answer.message, 0)
        if seen.created:
            return self._came(ticket, lease, seen.created, sent)
        self._seen[ticket.nonce] = now
        return Waiting(min(LOOK_AGAIN, lease.ttl / 4), seen.holder)

    async def _check_methods(self, tickets: Sequence[Ticket], answer: Message, deadline: float) -> None:
        """None of the locks that were just taken may be in use by the other method."""
        shared = [ticket for number, ticket in enumerate(tickets) if entries(answer, 2 * number + 1)]
        if shared:
            for left in await self.leave(tickets, deadline=deadline):
                if isinstance(left, BackendError):
                    raise OutcomeUnknown(backend=left.backend, problem=left.problem)
            raise NameConflict(
                lock=shared[0].name, reason="it is in use without method=key: let all programs use the same method"
            )

    # ── several at once ──────────────────────────────────────────────────────────────────────────────────────────

    async def _create_all(self, tickets: Sequence[Ticket], leases: Sequence[Lease], deadline: float) -> Message:
        sent = self._runtime.now()
        answer = await super()._create_all(tickets, leases, deadline)
        if succeeded(answer):
            for ticket, lease in zip(tickets, leases, strict=True):
                self._came(ticket, lease, revision(answer), sent)
            await self._check_methods(tickets, answer, deadline)
        return answer

    def _compares(self, ticket: Ticket) -> list[Message]:
        return [absent(self._keys.base(ticket.name))]

    def _then(self, ticket: Ticket, lease: Lease) -> list[Message]:
        base, folder = self._keys.base(ticket.name), self._keys.folder(ticket.name)
        value = written(ticket, self._runtime.wall(), METHOD_KEY)
        return [put(base, value, lease.id), first(folder, after(folder))]

    def _looks(self, ticket: Ticket) -> list[Message]:
        return [get(self._keys.base(ticket.name))]

    def _seen_of(self, ticket: Ticket, lease: Lease, answer: Message, number: int) -> Seen:
        if succeeded(answer):
            return Seen(created=revision(answer))
        there = entries(answer, number)
        if not there:
            return FREE
        known = record(there[0].value)
        if known.method != METHOD_KEY:
            raise NameConflict(lock=ticket.name, reason=f"etcd's key {there[0].key.decode()!r} holds something else")
        if known.nonce == ticket.nonce and there[0].lease == lease.id:  # from a request whose answer was lost
            return Seen(created=there[0].created)
        return Seen(is_busy=True, holder=holder_of(there))

    def _turned_away(self, ticket: Ticket) -> None:
        """There is nothing to remember of it."""

    def _came(self, ticket: Ticket, lease: Lease, created: int, sent: float) -> Granted:
        self._stop_waiting(ticket.nonce)
        self._held[ticket.nonce] = Held(lease, created, ticket)
        return Granted(created, min(lease_deadline(sent, ticket.ttl, GRANULARITY), lease.deadline))

    async def wait(self, ticket: Ticket, until: float) -> None:
        seen = self._seen.get(ticket.nonce)
        if seen is not None:
            self._port.follow(ticket.nonce, (Watch(self._keys.base(ticket.name), seen + 1),))
        await self._wakeups.wait(ticket.nonce, until)

    async def leave(self, tickets: Sequence[Ticket], *, deadline: float) -> list[bool | BackendError]:
        found: list[bool | BackendError] = []
        for start in range(0, len(tickets), OPERATIONS_MAX):
            found += await self._leave_some(tickets[start : start + OPERATIONS_MAX], deadline)
        return found

    async def _leave_some(self, tickets: Sequence[Ticket], deadline: float) -> list[bool | BackendError]:
        if len(tickets) > 1:
            try:
                if await self._leave_together(tickets, deadline):
                    return [True] * len(tickets)
            except BackendError as error:
                return [error] * len(tickets)
        found: list[bool | BackendError] = []
        for ticket in tickets:
            try:
                found.append(await self._leave(ticket, deadline))
            except BackendError as error:
                found.append(error)
            except ClusterChanged:
                found.append(False)
            else:
                self._forget(ticket.nonce)
        return found

    async def _leave_together(self, tickets: Sequence[Ticket], deadline: float) -> bool:
        """Give all of them back in one step, if nothing is to be said about any: whether that was done."""
        held = [self._held.get(ticket.nonce) for ticket in tickets]
        ours = [(self._keys.base(one.ticket.name), one.created) for one in held if one is not None]
        if len(ours) < len(tickets) or any(ticket.nonce in self._unheard for ticket in tickets):
            return False
        request = txn([created_at(*one) for one in ours], [delete(base) for base, _ in ours])
        try:
            answer = await self._port.call("kv/txn", request, deadline=deadline, once=True)
        except ClusterChanged:
            return False
        if not succeeded(answer.message):
            return False
        for ticket in tickets:
            self._forget(ticket.nonce)
        return True

    async def _leave(self, ticket: Ticket, deadline: float) -> bool:
        base = self._keys.base(ticket.name)
        unheard = tuple(self._unheard.get(ticket.nonce, ()))
        for lease, note in unheard:
            if lease.is_over:
                continue
            try:  # what may still be on its way comes under the same lease as this note: one ends with the other
                await self._port.call("kv/txn", txn([], [put(note, b"", lease.id)]), deadline=deadline)
            except LeaseNotFound:
                self._leases.is_over(lease)
        held = self._held.get(ticket.nonce)
        if held is not None:
            return await self._delete(base, held.created, deadline)
        if not unheard:
            return False  # it was told that it had to wait, and left nothing behind
        answer = await self._port.call("kv/txn", txn([], [get(base)]), deadline=deadline)
        ours = [one for one in entries(answer.message, 0) if record(one.value).nonce == ticket.nonce]
        return bool(ours) and await self._delete(base, ours[0].created, deadline)

    async def _delete(self, base: bytes, created: int, deadline: float) -> bool:
        """Delete exactly this one."""
        request = txn([created_at(base, created)], [delete(base)])
        answer = await self._port.call("kv/txn", request, deadline=deadline, once=True)
        return succeeded(answer.message) and deleted(answer.message, 0)

    async def renew(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Live | Gone | BackendError]:
        outcomes: dict[str, Live | Gone | BackendError] = {ticket.nonce: Gone(LEASE_OVER) for ticket in tickets}
        by_lease: dict[Lease, list[Held]] = {}
        for ticket in tickets:
            if (held := self._held.get(ticket.nonce)) is not None:
                by_lease.setdefault(held.lease, []).append(held)
        for lease, those in by_lease.items():
            for start in range(0, len(those), OPERATIONS_MAX):
                some = those[start : start + OPERATIONS_MAX]
                try:
                    outcomes |= await self._renew(some, lease, deadline)
                except BackendError as error:
                    outcomes |= {held.ticket.nonce: error for held in some}
                except ClusterChanged as error:
                    outcomes |= {held.ticket.nonce: Gone(str(error)) for held in some}
        return [outcomes[ticket.nonce] for ticket in tickets]

    async def _renew(self, those: Sequence[Held], lease: Lease, deadline: float) -> dict[str, Live | Gone]:
        """One keep-alive for all of them; and whether each key is there still, for the lease does not know that."""
        sent = self._runtime.now()
        if not await self._leases.keep(lease, deadline):
            return {held.ticket.nonce: Gone(LEASE_OVER) for held in those}
        request = txn([], [get(self._keys.base(held.ticket.name), keys_only=True) for held in those])
        answer = await self._port.call("kv/txn", request, deadline=deadline)
        outcomes: dict[str, Live | Gone] = {}
        for number, held in enumerate(those):
            is_there = any(one.created == held.created for one in entries(answer.message, number))
            believed = min(lease_deadline(sent, held.ticket.ttl, GRANULARITY), lease.deadline)
            outcomes[held.ticket.nonce] = Live(believed) if is_there else Gone()
        return outcomes

    def intact(self, store: Hashable) -> bool:
        return True

    async def mark(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        return await self._marks.raise_to(name, number, nonce=nonce, keep=keep, deadline=deadline)

    async def marks(self, names: Sequence[str], *, deadline: float) -> list[int]:
        return await self._marks.all(names, deadline)

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        answer = await self._port.call("kv/txn", txn([], [get(self._keys.base(name))]), deadline=deadline)
        there = [one for one in entries(answer.message, 0) if record(one.value).method == METHOD_KEY]
        return await self._described(name, there, deadline)

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        start = self._keys.starting(prefix)
        found = all_in_order(start, after(start), keys_only=False)["request_range"]
        answer = await self._port.call("kv/range", found, deadline=deadline)
        infos = [
            await self._described(name, [one], deadline)
            for one in map(entry, answer.message.get("kvs", ()))
            if record(one.value).method == METHOD_KEY and (name := self._keys.base_name(one.key))
        ]
        return sorted(infos, key=lambda info: info.name)

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        return await self._delete(self._keys.base(name), fence, deadline) if fence > 0 else False

    async def _described(self, name: str, there: Sequence[Entry], deadline: float) -> LockInfo:
        holders = []
        for one in there:
            remaining = await self._leases.remaining(one.lease, deadline)
            kind = Ticketed(one.key, one.created, exclusive=True, limit=1, is_ours=True)
            holders.append(described(one, remaining, granted=True, ticketed=kind))
        return LockInfo(name, tuple(holders), ())

    async def close(self) -> None:
        self._wakeups.wake_all()
        # What was lost and not given back keeps others out for its delay.
        keeping = {held.lease for held in self._held.values() if held.ticket.delay}
        await self._leases.close(self._runtime.now() + CLOSING_MAX, keeping=keeping)
        await self._port.close()

    def abandon(self) -> None:
        self._port.abandon()

    def _forget(self, nonce: str) -> None:
        self._stop_waiting(nonce)
        self._held.pop(nonce, None)
        self._unheard.pop(nonce, None)

    def _stop_waiting(self, nonce: str) -> None:
        self._seen.pop(nonce, None)
        if self._wakeups.forget(nonce):
            self._port.unfollow(nonce)
