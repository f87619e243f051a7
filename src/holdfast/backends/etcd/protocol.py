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

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.etcd.base import OPERATIONS_MAX, Place
from holdfast.backends.etcd.guarantees import KEY, KEY_LACKS, QUEUE, QUEUE_LACKS
from holdfast.backends.etcd.keys import Keys, Ticketed, after, read
from holdfast.backends.etcd.leases import Lease, Unheard
from holdfast.backends.etcd.messages import (
    Entry,
    absent,
    all_deleted,
    all_in_order,
    created_at,
    delete,
    empty,
    entries,
    entry,
    first,
    get,
    last,
    none_after,
    none_before,
    put,
    revision,
    succeeded,
    txn,
)
from holdfast.backends.etcd.port import ClusterChanged, LeaseNotFound, Message, Watch
from holdfast.backends.etcd.records import METHOD_KEY, described, holder_of, record, written
from holdfast.backends.etcd.slots import Slots
from holdfast.backends.etcd.together import FREE, Seen, Together
from holdfast.core.tickets import (
    LOOK_AGAIN,
    LOOK_AGAIN_BEHIND,
    Granted,
    LockInfo,
    Ticket,
    TicketInfo,
    Waiting,
)
from holdfast.errors import BackendUnavailable, LimitConflict, NameConflict, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.etcd.port import EtcdPort
    from holdfast.core.ports import Runtime

GUARANTEES = {"queue": QUEUE, "key": KEY}
LACKS = {"queue": QUEUE_LACKS, "key": KEY_LACKS}


class View(NamedTuple):
    """What a ticket sees ahead of it."""

    place: Place | None  # None: it has none, for it does not wait
    is_in: bool
    holder: str | None = None


class EtcdBackend(Together):
    """Locks in one cluster, in order."""

    guarantees = QUEUE
    lacks = QUEUE_LACKS

    def __init__(self, url: str, port: EtcdPort, runtime: Runtime, keys: Keys) -> None:
        super().__init__(url, port, runtime, keys)
        self._left_unheard: set[str] = set()  # tickets of which a leave had no answer
        self._slots = Slots(runtime.nonce())
        self._occupied: set[str] = set()  # locks whose name is somebody's key, too

    # ── enter ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def enter(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        try:
            if ticket.nonce in self._places:
                return await self._enter(ticket, deadline, queue=queue)
            if queue:
                self._wakeups.expect(ticket.nonce)
            async with self._port.turn(ticket.name, deadline=deadline):
                return await self._enter(ticket, deadline, queue=queue)
        except BackendUnavailable as error:
            if ticket.nonce in self._places or ticket.nonce in self._unheard:
                # It is only the last of several requests of which nothing came.
                raise OutcomeUnknown(backend=error.backend, problem=error.problem) from error
            raise

    async def _enter(self, ticket: Ticket, deadline: float, *, queue: bool) -> Granted | Waiting:
        nonce = ticket.nonce
        while True:
            lease = await self._leases.fresh(ticket.ttl, deadline, delay=ticket.delay)
            place = self._places.get(nonce)
            sent = self._runtime.now()
            try:
                if place is not None and place.lease is lease:
                    view = await self._look(ticket, place, deadline)
                elif ticket.exclusive:
                    view = await self._come_alone(ticket, lease, deadline, queue=queue)
                else:
                    view = await self._come_to_share(ticket, lease, deadline, queue=queue)
            except LeaseNotFound:
                self._leases.is_over(lease)
                continue
            if view is None:
                continue  # what was seen had changed in between: once more
            if view.place is not None:
                self._places[nonce] = view.place
                if view.is_in:
                    return self._came(ticket, lease, view.place.created, sent)
            elif not queue:
                await self._turn_away(ticket, deadline)
            look_again = LOOK_AGAIN if view.place is None or view.place.is_next else LOOK_AGAIN_BEHIND
            return Waiting(min(look_again, lease.ttl / 4), view.holder)

    async def _turn_away(self, ticket: Ticket, deadline: float) -> None:
        """It does not wait, so nobody will withdraw it. But what another member was asked before may still come."""
        if ticket.nonce in self._unheard:
            await self.leave([ticket], deadline=deadline)
        else:
            self._turned_away(ticket)

    async def _come_alone(self, ticket: Ticket, lease: Lease, deadline: float, *, queue: bool) -> View | None:
        """As an exclusive ticket, to the end of the queue; or, if it is not to wait, only if nobody is there."""
        key, folder, end = self._where(ticket)
        if not queue:
            answer = await self._create(ticket, lease, only_if=empty(folder, end), deadline=deadline)
            if succeeded(answer):
                return View(Place(lease, revision(answer)), is_in=True)
            if found := await self._found(ticket, lease, answer, deadline):
                return found
            there = entries(answer, 3)
            return View(None, is_in=False, holder=holder_of(there)) if there else None
        answer = await self._create(
            ticket, lease, only_if=absent(key), then=[last(folder, end, 2)], deadline=deadline, explains=False
        )
        if not succeeded(answer):
            answer = (await self._port.call("kv/txn", txn([], self._why_not(ticket)), deadline=deadline)).message
            self._check_refusal(ticket, answer)
            return await self._found(ticket, lease, answer, deadline)
        place = Place(lease, revision(answer))
        if len(entries(answer, 1)) == 1:
            return View(place, is_in=True)
        self._places[ticket.nonce] = place
        return await self._look(ticket, place, deadline)

    async def _come_to_share(self, ticket: Ticket, lease: Lease, deadline: float, *, queue: bool) -> View | None:
        """As one of several: it takes a look first, since a limit has to be agreed on before anything is changed."""
        key, folder, end = self._where(ticket)
        answer = await self._create(ticket, lease, only_if=empty(folder, end), deadline=deadline)
        now = revision(answer)
        if succeeded(answer):
            return View(Place(lease, now), is_in=True)
        if found := await self._found(ticket, lease, answer, deadline):
            return found
        holder, ahead = holder_of(entries(answer, 3)), entries(answer, 4)
        self._check_limit(ticket, ahead, holder)
        if not queue and obstacle(ticket, tickets_in(ahead)):
            return View(None, is_in=False, holder=holder)
        # Who does not wait comes only if nobody has come since. Some may have gone, and that does no harm.
        guard = absent(key) if queue else none_after(folder, end, now)
        everybody = [all_in_order(folder, end), first(folder, end)]
        answer = await self._create(ticket, lease, only_if=guard, then=everybody, deadline=deadline)
        if not succeeded(answer):
            return None
        *ahead, _ = entries(answer, 1)
        try:
            self._check_limit(ticket, ahead, holder)
        except LimitConflict:  # with one who came at the same time
            await self.leave([ticket], deadline=deadline)
            raise
        return self._seen(ticket, Place(lease, revision(answer)), revision(answer), ahead, entries(answer, 2))

    async def _create(
        self,
        ticket: Ticket,
        lease: Lease,
        *,
        only_if: Message,
        then: Sequence[Message] = (),
        deadline: float,
        explains: bool = True,
    ) -> Message:
        """Create its key, unless it was withdrawn before, or the lock is in use by method=key.

        The answers to `then` begin with number 1. If it was not created they are those of `_why_not`, unless nobody
        wants to know.

        Raises:
            OutcomeUnknown: no answer; or it was withdrawn before.
            NameConflict: the lock is in use by method=key.
        """
        key = self._key(ticket)
        unheard = Unheard(lease, self._keys.gone(ticket.nonce))
        compare = [only_if, absent(unheard.note)]
        if ticket.name not in self._occupied:
            compare.append(absent(self._keys.base(ticket.name)))
        why_not = self._why_not(ticket) if explains else ()
        request = txn(compare, [put(key, written(ticket, self._runtime.wall()), lease.id), *then], why_not)
        answer = await self._ask_for([ticket.nonce], unheard, request, deadline)
        if explains and not succeeded(answer):
            self._check_refusal(ticket, answer)
        return answer

    def _why_not(self, ticket: Ticket) -> list[Message]:
        """Its own key; whether it was withdrawn; the other method's key; the first of all; and, if it shares, all."""
        key, folder, end = self._where(ticket)
        base, gone = self._keys.base(ticket.name), self._keys.gone(ticket.nonce)
        why_not = [get(key, keys_only=True), get(gone, keys_only=True), get(base), first(folder, end)]
        return why_not if ticket.exclusive else [*why_not, all_in_order(folder, end)]

    def _check_refusal(self, ticket: Ticket, answer: Message) -> None:
        if entries(answer, 1):
            raise OutcomeUnknown(backend=self.url, problem=f"ticket {ticket.nonce} was withdrawn before")
        self._check_method(ticket, entries(answer, 2))

    def _check_method(self, ticket: Ticket, there: Sequence[Entry]) -> None:
        for other in there:
            if record(other.value).method == METHOD_KEY:
                raise NameConflict(
                    lock=ticket.name, reason="it is in use with method=key: let all programs use the same method"
                )
            self._occupied.add(ticket.name)  # by something that is no lock: tickets find room below it

    async def _found(self, ticket: Ticket, lease: Lease, answer: Message, deadline: float) -> View | None:
        """What a ticket sees whose key is there already, from an earlier request whose answer was lost."""
        own = entries(answer, 0)
        if not own:
            return None
        if own[0].lease != lease.id:  # of a lease that is over: the key has to go first
            return View(None, is_in=False)
        return await self._look(ticket, Place(lease, own[0].created), deadline)

    async def _look(self, ticket: Ticket, place: Place, deadline: float) -> View | None:
        """Whether it is in by now. The next in line mostly is, and takes the lock in the same step."""
        key, folder, end = self._where(ticket)
        until = place.created - 1
        ahead = last(folder, end, 1, until=until) if ticket.exclusive else all_in_order(folder, end, until=until)
        looks = [get(key, keys_only=True), ahead, first(folder, end)]
        ours = created_at(key, place.created)
        take = put(key, written(ticket, self._runtime.wall()), place.lease.id)
        if place.is_next:
            request = txn([ours, none_before(folder, end, place.created)], [take], looks)
        else:
            request = txn([], looks)
        answer = (await self._port.call("kv/txn", request, deadline=deadline)).message
        if place.is_next and succeeded(answer):
            return View(place, is_in=True)
        if not any(
            one.created == place.created for one in entries(answer, 0)
        ):  # its lease has ended, or somebody deleted it: its place is lost
            self._places.pop(ticket.nonce, None)
            return None
        view = self._seen(ticket, place, revision(answer), entries(answer, 1), entries(answer, 2))
        if view.is_in:
            # Nobody can come in ahead of it any more. Its own key must be there still; and people see since when.
            answer = (await self._port.call("kv/txn", txn([ours], [take]), deadline=deadline)).message
            if not succeeded(answer):
                self._places.pop(ticket.nonce, None)
                return None
        return view

    def _seen(
        self, ticket: Ticket, place: Place, now: int, ahead: Sequence[Entry], first_of_all: Sequence[Entry]
    ) -> View:
        key, folder, end = self._where(ticket)
        before = tickets_in(ahead)
        blocked = obstacle(ticket, before)
        if blocked is None:
            return View(Place(place.lease, place.created), is_in=True)
        is_next = ticket.exclusive and blocked.key == first_of_all[0].key
        if not ticket.exclusive and not blocked.exclusive:
            # All permits are taken. The first who waits is in as soon as one of them is given back; the others move up
            # when the one before them is in, which then writes its key anew, or gives up.
            is_first = len(before) == ticket.limit
            watch = Watch(folder, now + 1, end=end) if is_first else Watch(before[-1].key, now + 1, puts=True)
        else:
            watch = Watch(blocked.key, now + 1)
        watches = (watch, Watch(key, now + 1))
        return View(Place(place.lease, place.created, is_next, watches), is_in=False, holder=holder_of(first_of_all))

    def _check_limit(self, ticket: Ticket, ahead: Sequence[Entry], holder: str | None) -> None:
        for other in tickets_in(ahead):
            if not other.exclusive and other.limit != ticket.limit:
                raise LimitConflict(lock=ticket.name, ours=ticket.limit, theirs=other.limit, holder=holder)

    # ── wait, leave ──────────────────────────────────────────────────────────────────────────────────────────────

    async def wait(self, ticket: Ticket, until: float) -> None:
        place = self._places.get(ticket.nonce)
        if place is not None:
            self._port.follow(ticket.nonce, place.watches)
        await self._wakeups.wait(ticket.nonce, until)

    async def leave(self, tickets: Sequence[Ticket], *, deadline: float) -> list[bool]:
        found: list[bool] = []
        for start in range(0, len(tickets), OPERATIONS_MAX // 2):
            found += await self._leave(tickets[start : start + OPERATIONS_MAX // 2], deadline)
        return found

    async def _leave(self, tickets: Sequence[Ticket], deadline: float) -> list[bool]:
        while True:
            unheard: set[Unheard] = set().union(*(self._unheard.get(ticket.nonce, ()) for ticket in tickets))
            # What may still be on its way comes under the same lease as this note: one ends with the other.
            notes = [put(one.note, b"", one.lease.id) for one in unheard if not one.lease.is_over]
            deletes = [delete(self._key(ticket)) for ticket in tickets]
            is_plain = len(deletes) == 1 and not notes  # nearly always
            method = "kv/deleterange" if is_plain else "kv/txn"
            request = deletes[0]["request_delete_range"] if is_plain else txn([], [*deletes, *notes])
            try:
                answer = (await self._port.call(method, request, deadline=deadline, once=True)).message
            except LeaseNotFound:
                for lease in {one.lease for one in unheard}:
                    await self._leases.keep(lease, deadline)  # to see which of them
                continue
            except ClusterChanged:
                found = [False] * len(tickets)
            except BaseException:
                self._left_unheard.update(ticket.nonce for ticket in tickets)
                raise
            else:
                found = [bool(int(answer.get("deleted", 0)))] if is_plain else all_deleted(answer, len(tickets))
            for ticket in tickets:
                self._forget(ticket.nonce)
            return found

    # ── several at once ──────────────────────────────────────────────────────────────────────────────────────────

    def _compares(self, ticket: Ticket) -> list[Message]:
        _, folder, end = self._where(ticket)
        nobody = empty(folder, end)
        return [nobody] if ticket.name in self._occupied else [nobody, absent(self._keys.base(ticket.name))]

    def _then(self, ticket: Ticket, lease: Lease) -> list[Message]:
        return [put(self._key(ticket), written(ticket, self._runtime.wall()), lease.id)]

    def _looks(self, ticket: Ticket) -> list[Message]:
        _, folder, end = self._where(ticket)
        return [first(folder, end), get(self._keys.base(ticket.name))]

    def _seen_of(self, ticket: Ticket, lease: Lease, answer: Message, number: int) -> Seen:
        if succeeded(answer):
            return Seen(created=revision(answer))
        self._check_method(ticket, entries(answer, 2 * number + 1))
        there = entries(answer, 2 * number)
        if not there:
            return FREE
        if there[0].key == self._key(ticket) and there[0].lease == lease.id:
            return Seen(created=there[0].created)
        return Seen(is_busy=True, holder=holder_of(there))

    def _turned_away(self, ticket: Ticket) -> None:
        self._slots.give_back(ticket.nonce)

    # ── for operators ────────────────────────────────────────────────────────────────────────────────────────────

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        return await self._described(name, await self._tickets(name, deadline), {}, deadline)

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        start = self._keys.starting(prefix)
        found = all_in_order(start, after(start), keys_only=False)["request_range"]
        answer = await self._port.call("kv/range", found, deadline=deadline)
        by_name: dict[str, list[Entry]] = {}
        for one in map(entry, answer.message.get("kvs", ())):
            name = self._keys.name_in(one.key)
            if name and name.startswith(prefix):
                by_name.setdefault(name, []).append(one)
        known: dict[int, float] = {}
        return [
            await self._described(name, there, known, deadline)
            for name, there in sorted(by_name.items())
            if self._keys.has_prefix or any(read(one.key, 0).is_ours for one in there)
        ]

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        there = await self._tickets(name, deadline)
        held = [one.key for one, is_in in zip(there, who_is_in(there), strict=True) if is_in and one.created == fence]
        if not held:
            return False
        request = txn([created_at(held[0], fence)], [delete(held[0])])
        return succeeded((await self._port.call("kv/txn", request, deadline=deadline, once=True)).message)

    async def _tickets(self, name: str, deadline: float) -> list[Entry]:
        folder = self._keys.folder(name)
        found = all_in_order(folder, after(folder), keys_only=False)["request_range"]
        answer = await self._port.call("kv/range", found, deadline=deadline)
        return [entry(one) for one in answer.message.get("kvs", ())]

    async def _described(self, name: str, there: Sequence[Entry], known: dict[int, float], deadline: float) -> LockInfo:
        holders: list[TicketInfo] = []
        waiters: list[TicketInfo] = []
        for one, is_in in zip(there, who_is_in(there), strict=True):
            if one.lease not in known:
                known[one.lease] = await self._leases.remaining(one.lease, deadline)
            (holders if is_in else waiters).append(described(one, known[one.lease], granted=is_in))
        return LockInfo(name, tuple(holders), tuple(waiters))

    # ── small things ─────────────────────────────────────────────────────────────────────────────────────────────

    def _forget(self, nonce: str) -> None:
        super()._forget(nonce)
        if nonce in self._unheard or nonce in self._left_unheard:
            self._unheard.pop(nonce, None)
            self._left_unheard.discard(nonce)
            self._slots.retire(nonce)
        else:
            self._slots.give_back(nonce)

    def _key(self, ticket: Ticket) -> bytes:
        slot = self._slots.of(ticket.nonce)
        return self._keys.ticket(ticket.name, slot, ticket.limit, exclusive=ticket.exclusive)

    def _where(self, ticket: Ticket) -> tuple[bytes, bytes, bytes]:
        folder = self._keys.folder(ticket.name)
        return self._key(ticket), folder, after(folder)


def tickets_in(found: Sequence[Entry]) -> list[Ticketed]:
    return [read(one.key, one.created) for one in found]


def obstacle(ticket: Ticket, ahead: Sequence[Ticketed]) -> Ticketed | None:
    """The last of those ahead because of which it has to wait: when that one goes it is worth to look again."""
    if ticket.exclusive:
        return ahead[-1] if ahead else None
    exclusive = [one for one in ahead if one.exclusive]
    if exclusive:
        return exclusive[-1]
    return ahead[-1] if ticket.limit is not None and len(ahead) >= ticket.limit else None


def who_is_in(there: Sequence[Entry]) -> list[bool]:
    """Of all tickets of a lock, in order: the rule."""
    is_in: list[bool] = []
    nobody_is_exclusive = True
    for number, one in enumerate(tickets_in(there)):
        is_free = number == 0 if one.exclusive else nobody_is_exclusive and (one.limit is None or number < one.limit)
        is_in.append(is_free)
        nobody_is_exclusive = nobody_is_exclusive and not one.exclusive
    return is_in
