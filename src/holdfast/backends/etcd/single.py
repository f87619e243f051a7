"""`method=key`: the plain form. A lock is one key: who creates it has the lock, and everybody else waits for its end.

The key goes with its holder's lease, as in the default method. There is no queue, so all who wait try again when the
key has gone, and any of them may be next; and no readers or permits.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.etcd.guarantees import KEY, KEY_LACKS
from holdfast.backends.etcd.keys import Keys, Ticketed, after
from holdfast.backends.etcd.leases import GRANULARITY, LEASE_OVER, Lease, Leases
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
from holdfast.backends.etcd.port import ClusterChanged, LeaseNotFound, Watch
from holdfast.backends.etcd.records import METHOD_KEY, described, holder_of, record, written
from holdfast.core.clock import lease_deadline
from holdfast.core.stepwise import NoMarks, OneByOne
from holdfast.core.tickets import LOOK_AGAIN, Gone, Granted, Live, LockInfo, Ticket, Waiting
from holdfast.core.wakeups import Wakeups
from holdfast.errors import BackendError, HoldfastError, NameConflict, OutcomeUnknown, Unsupported

if TYPE_CHECKING:
    from holdfast.backends.etcd.port import EtcdPort
    from holdfast.core.ports import Runtime

CLOSING_MAX = 2.0  # seconds to give leases back


class Held(NamedTuple):
    """A key of ours, as far as it is known."""

    lease: Lease
    created: int
    ticket: Ticket
    believed: float  # until when


class KeyBackend(OneByOne, NoMarks):
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
        self._unheard: dict[str, Lease] = {}  # tickets of which an enter had no answer: it may still come
        port.listen(self._wakeups.wake)

    async def enter(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        if not ticket.exclusive:
            raise Unsupported(
                backend="etcd with method=key", what="readers and semaphores", others=("etcd with method=queue",)
            )
        if queue:
            self._wakeups.expect(ticket.nonce)
        while True:
            lease = await self._leases.fresh(ticket.ttl, deadline)
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
        base, folder, gone = self._keys.base(ticket.name), self._keys.folder(ticket.name), self._keys.gone(ticket.nonce)
        value = written(ticket, self._runtime.wall(), METHOD_KEY)
        request = txn(
            [absent(base), absent(gone)],
            [put(base, value, lease.id), first(folder, after(folder))],
            [get(base), get(gone, keys_only=True)],
        )
        sent = self._runtime.now()
        try:
            answer = await self._port.call("kv/txn", request, deadline=deadline)
        except BaseException as error:
            # No answer, or cancelled or interrupted before it. Unless the server has refused it, it may still come.
            if isinstance(error, OutcomeUnknown) or not isinstance(error, HoldfastError | LeaseNotFound):
                self._unheard[ticket.nonce] = lease
            raise
        if answer.repeated:
            self._unheard[ticket.nonce] = lease
        now = revision(answer.message)
        if succeeded(answer.message):
            if entries(answer.message, 1):
                self._granted(ticket, lease, now, sent)  # for now: whoever cannot give it back owes that
                (left,) = await self.leave([ticket], deadline=deadline)
                if isinstance(left, BackendError):
                    raise OutcomeUnknown(backend=left.backend, problem=left.problem)
                raise NameConflict(
                    lock=ticket.name, reason="it is in use without method=key: let all programs use the same method"
                )
            return self._granted(ticket, lease, now, sent)
        if entries(answer.message, 1):
            raise OutcomeUnknown(backend=self.url, problem=f"ticket {ticket.nonce} was withdrawn before")
        there = entries(answer.message, 0)
        known = record(there[0].value)
        if known.method != METHOD_KEY:
            raise NameConflict(lock=ticket.name, reason=f"etcd's key {base.decode()!r} holds something else")
        if known.nonce == ticket.nonce and there[0].lease == lease.id:  # from a request whose answer was lost
            return self._granted(ticket, lease, there[0].created, sent)
        self._seen[ticket.nonce] = now
        return Waiting(min(LOOK_AGAIN, lease.ttl / 4), holder_of(there))

    def _granted(self, ticket: Ticket, lease: Lease, created: int, sent: float) -> Granted:
        self._stop_waiting(ticket.nonce)
        believed = min(lease_deadline(sent, ticket.ttl, GRANULARITY), lease.deadline)
        self._held[ticket.nonce] = Held(lease, created, ticket, believed)
        return Granted(created, believed)

    async def wait(self, ticket: Ticket, until: float) -> None:
        seen = self._seen.get(ticket.nonce)
        if seen is not None:
            self._port.follow(ticket.nonce, (Watch(self._keys.base(ticket.name), seen + 1),))
        await self._wakeups.wait(ticket.nonce, until)

    async def leave(self, tickets: Sequence[Ticket], *, deadline: float) -> list[bool | BackendError]:
        found: list[bool | BackendError] = []
        for ticket in tickets:
            try:
                found.append(await self._leave(ticket, deadline))
            except BackendError as error:
                found.append(error)
            except ClusterChanged:
                found.append(False)
            else:
                self._stop_waiting(ticket.nonce)
                self._held.pop(ticket.nonce, None)
                self._unheard.pop(ticket.nonce, None)
        return found

    async def _leave(self, ticket: Ticket, deadline: float) -> bool:
        base = self._keys.base(ticket.name)
        lease = self._unheard.get(ticket.nonce)
        if lease is not None and not lease.is_over:
            try:  # what may still be on its way comes under the same lease as this mark: one ends with the other
                mark = txn([], [put(self._keys.gone(ticket.nonce), b"", lease.id)])
                await self._port.call("kv/txn", mark, deadline=deadline)
            except LeaseNotFound:
                self._leases.is_over(lease)
        held = self._held.get(ticket.nonce)
        if held is not None:
            return await self._delete(base, held.created, deadline)
        if lease is None:
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
        outcomes: list[Live | Gone | BackendError] = []
        for ticket in tickets:
            try:
                outcomes.append(await self._renew(ticket, deadline))
            except BackendError as error:
                outcomes.append(error)
            except ClusterChanged as error:
                outcomes.append(Gone(str(error)))
        return outcomes

    async def _renew(self, ticket: Ticket, deadline: float) -> Live | Gone:
        held = self._held.get(ticket.nonce)
        sent = self._runtime.now()
        if held is None or not await self._leases.keep(held.lease, deadline):
            return Gone(LEASE_OVER)
        request = txn([], [get(self._keys.base(ticket.name), keys_only=True)])
        answer = await self._port.call("kv/txn", request, deadline=deadline)
        if not any(one.created == held.created for one in entries(answer.message, 0)):
            return Gone()
        believed = min(lease_deadline(sent, ticket.ttl, GRANULARITY), held.lease.deadline)
        self._held[ticket.nonce] = held._replace(believed=believed)
        return Live(believed)

    def intact(self, store: Hashable) -> bool:
        return True

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
        await self._leases.close(self._runtime.now() + CLOSING_MAX)
        await self._port.close()

    def abandon(self) -> None:
        self._port.abandon()

    def _stop_waiting(self, nonce: str) -> None:
        self._seen.pop(nonce, None)
        if self._wakeups.forget(nonce):
            self._port.unfollow(nonce)
