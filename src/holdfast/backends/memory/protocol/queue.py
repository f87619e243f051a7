"""The lock protocol over a dict. The reference for every other: it says in Python what they say in SQL or Lua."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.backends.memory.port import Mark, Place, Store
from holdfast.backends.memory.protocol.guarantees import GUARANTEES, LACKS
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import (
    POLL_INTERVAL,
    POLL_INTERVAL_BEHIND,
    WAITER_LEASE,
    WOKEN_LEASE,
    Granted,
    LeaseGone,
    Live,
    LockInfo,
    Ticket,
    TicketInfo,
    Waiting,
    first_blocker,
    make_ticket_info,
    process_text,
)
from holdfast.core.wakeups import Wakeups
from holdfast.errors import LimitConflict

if TYPE_CHECKING:
    from holdfast.backends.memory.port import MemoryPort
    from holdfast.core.ports import Runtime


_NO_MARK = Mark(0, "", 0.0)
_MARKS_REAPED_EACH = 256  # so many marks are the occasion to drop old ones

# The second in line looks often too: should the first be stopped when its turn comes, it is the next to know.
_LOOKS_OFTEN = 2


class MemoryBackend:
    """Locks that live and die with this process."""

    guarantees = GUARANTEES
    lacks = LACKS
    warnings: tuple[str, ...] = ()  # it works, or it does not
    liveness_fds: tuple[int, ...] = ()  # a process that dies takes its locks with it

    def __init__(self, url: str, port: MemoryPort, runtime: Runtime) -> None:
        self.url = url
        self._port = port
        self._runtime = runtime
        self._wakeups = Wakeups(runtime)
        port.listen(self._wakeups.wake)

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        sent = self._runtime.now()
        if queue:
            self._wakeups.expect(ticket.nonce)
        outcome = await self._port.change(
            lambda store: self._try_acquire(store, ticket, queue=queue), deadline=deadline
        )
        if isinstance(outcome, Waiting):
            return outcome
        self._wakeups.forget(ticket.nonce)
        return Granted(outcome, lease_deadline(sent, ticket.ttl, 0.0))

    async def try_acquire_all(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Granted | Waiting]:
        sent = self._runtime.now()
        outcomes = await self._port.change(lambda store: self._try_acquire_all(store, tickets), deadline=deadline)
        return [
            outcome if isinstance(outcome, Waiting) else Granted(outcome, lease_deadline(sent, ticket.ttl, 0.0))
            for ticket, outcome in zip(tickets, outcomes, strict=False)
        ]

    async def wait(self, ticket: Ticket, until: float) -> None:
        await self._wakeups.wait(ticket.nonce, until)

    async def release(self, tickets: Sequence[Ticket], *, deadline: float) -> list[bool]:
        for ticket in tickets:
            self._wakeups.forget(ticket.nonce)
        return await self._port.change(
            lambda store: [self._release(store, ticket) for ticket in tickets], deadline=deadline
        )

    async def renew(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Live | LeaseGone]:
        sent = self._runtime.now()
        alive = await self._port.change(
            lambda store: [self._renew(store, ticket) for ticket in tickets], deadline=deadline
        )
        return [
            Live(lease_deadline(sent, ticket.ttl, 0.0)) if still else LeaseGone()
            for ticket, still in zip(tickets, alive, strict=True)
        ]

    def intact(self, store: Hashable) -> bool:
        return True

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        return await self._port.change(lambda store: self._inspect(store, name), deadline=deadline)

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        infos = await self._port.change(
            lambda store: [self._inspect(store, name) for name in sorted(store.queues) if name.startswith(prefix)],
            deadline=deadline,
        )
        return [info for info in infos if info.holders or info.waiters]

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        return await self._port.change(lambda store: self._break(store, name, fence), deadline=deadline)

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        return await self._port.change(lambda store: self._mark(store, name, number, nonce, keep), deadline=deadline)

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        return await self._port.change(
            lambda store: [store.lasting.marks.get(name, _NO_MARK).number for name in names], deadline=deadline
        )

    async def close(self) -> None:
        self._wakeups.wake_all()  # the store itself belongs to the process

    def abandon(self) -> None:
        """Nothing was inherited that could be used: a child starts with empty stores."""

    # ── the steps, each run alone on the store ───────────────────────────────────────────────────────────────────

    def _try_acquire(self, store: Store, ticket: Ticket, *, queue: bool) -> int | Waiting:
        now = self._runtime.now()
        places = store.queues.setdefault(ticket.name, {})
        mine = places.get(ticket.nonce)
        if not ticket.exclusive:
            _agree_on_limit(ticket, places, now)
        kin = _kin(places, ticket, now)
        obstacle = None if kin else first_blocker(ticket.limit, _live_ahead(places, ticket.nonce, now))
        if obstacle is not None and not queue:
            return Waiting(POLL_INTERVAL, process_text(obstacle.ticket.info))
        if mine is None:
            store.lasting.last_number += 1
            mine = Place(ticket, store.lasting.last_number, now, self._port.ring)
            places[ticket.nonce] = mine
        if obstacle is None:
            if not mine.granted:
                mine.granted, mine.since = True, now
                mine.fence = kin.fence if kin else mine.number
                if kin:
                    _put_first(places, mine)
            mine.expires = now + ticket.ttl
            if ticket.owner:
                _wake_next(places, now)  # it may have others in the queue, who are in with this one
            return mine.fence
        mine.expires = now + WAITER_LEASE
        _wake_next(places, now)  # in case something ahead has just lapsed
        position = _position(places, mine)
        poll_after = POLL_INTERVAL if position < _LOOKS_OFTEN else POLL_INTERVAL_BEHIND
        if position == 0:
            poll_after = max(0.0, min(poll_after, obstacle.expires - now))
        return Waiting(poll_after, process_text(obstacle.ticket.info))

    def _try_acquire_all(self, store: Store, tickets: Sequence[Ticket]) -> list[int | Waiting]:
        outcomes: list[int | Waiting] = []
        for ticket in tickets:
            outcomes.append(self._try_acquire(store, ticket, queue=False))
            if isinstance(outcomes[-1], Waiting):
                break
        return outcomes

    def _release(self, store: Store, ticket: Ticket) -> bool:
        now = self._runtime.now()
        places = store.queues.get(ticket.name, {})
        place = places.pop(ticket.nonce, None)
        if place is None:
            return False
        _settle(store, ticket.name, now)
        return place.granted and place.expires > now

    def _renew(self, store: Store, ticket: Ticket) -> bool:
        place = store.queues.get(ticket.name, {}).get(ticket.nonce)
        if place is None or not place.granted:
            return False
        place.expires = self._runtime.now() + ticket.ttl
        return True

    def _break(self, store: Store, name: str, fence: int) -> bool:
        places = store.queues.get(name, {})
        broken = [nonce for nonce, place in places.items() if place.granted and place.fence == fence]
        for nonce in broken:
            del places[nonce]
        _settle(store, name, self._runtime.now())
        return bool(broken)

    def _mark(self, store: Store, name: str, number: int, nonce: str, keep: float) -> bool:
        now = self._runtime.now()
        there = store.lasting.marks.get(name, _NO_MARK)
        if there.number >= number:
            return (there.number, there.nonce) == (number, nonce)
        if len(store.lasting.marks) % _MARKS_REAPED_EACH == 0:
            for other in [one for one, mark in store.lasting.marks.items() if mark.ends <= now]:
                del store.lasting.marks[other]
        store.lasting.marks[name] = Mark(number, nonce, max(there.ends, now + keep))
        return True

    def _inspect(self, store: Store, name: str) -> LockInfo:
        now = self._runtime.now()
        live = [place for place in store.queues.get(name, {}).values() if place.expires > now]
        infos = [(place.granted, self._describe(place, now)) for place in live]
        return LockInfo(
            name,
            holders=tuple(info for granted, info in infos if granted),
            waiters=tuple(info for granted, info in infos if not granted),
        )

    def _describe(self, place: Place, now: float) -> TicketInfo:
        return make_ticket_info(
            info=place.ticket.info,
            fence=place.fence if place.granted else None,
            agent=place.ticket.agent,
            since=self._runtime.wall() - (now - place.since),
            remaining=place.expires - now,
            exclusive=place.ticket.exclusive,
            limit=place.ticket.limit,
        )


def _live_ahead(places: dict[str, Place], nonce: str, now: float) -> Iterator[Place]:
    """What stands before this ticket, in order; what has run out is removed on the way."""
    for other, place in list(places.items()):
        if other == nonce:
            return
        if place.expires > now:
            yield place
        else:
            del places[other]


def _kin(places: dict[str, Place], ticket: Ticket, now: float) -> Place | None:
    """One that is in, of the same owner: with it this ticket is in too, whoever waits."""
    if not ticket.owner:
        return None
    return next((place for place in places.values() if place.granted and _is_kin(place, ticket, now)), None)


def _is_kin(place: Place, ticket: Ticket, now: float) -> bool:
    other = place.ticket
    return other.owner == ticket.owner and other.nonce != ticket.nonce and place.expires > now


def _put_first(places: dict[str, Place], mine: Place) -> None:
    """Whoever is in stands before all who wait, or the first of them would not see it."""
    nonce = mine.ticket.nonce
    others = [(other, place) for other, place in places.items() if other != nonce]
    places.clear()
    places[nonce] = mine
    places.update(others)


def _agree_on_limit(ticket: Ticket, places: dict[str, Place], now: float) -> None:
    for place in places.values():
        if not place.exclusive and place.ticket.limit != ticket.limit and place.expires > now:
            raise LimitConflict(
                lock=ticket.name, ours=ticket.limit, theirs=place.ticket.limit, holder=process_text(place.ticket.info)
            )


def _position(places: dict[str, Place], mine: Place) -> int:
    """How many wait before it, up to as many as matter."""
    waiting = (place for place in places.values() if not place.granted)
    return next(
        (number for number, place in zip(range(_LOOKS_OFTEN), waiting, strict=False) if place is mine), _LOOKS_OFTEN
    )


def _wake_next(places: dict[str, Place], now: float) -> None:
    """Ring those waiters that the rule lets in now, in order, up to the first that it does not; and the owner's own."""
    owners = {place.ticket.owner for place in places.values() if place.granted and place.expires > now} - {""}
    ahead: list[Place] = []
    is_over = False
    for place in places.values():
        if place.expires <= now:
            continue
        if not place.granted:
            is_over = is_over or first_blocker(place.ticket.limit, ahead) is not None
            if is_over and place.ticket.owner not in owners:
                if not owners:
                    return
                continue
            place.expires = min(place.expires, now + WOKEN_LEASE)
            place.ring(place.ticket.nonce)
        ahead.append(place)


def _settle(store: Store, name: str, now: float) -> None:
    places = store.queues.get(name)
    if places:
        _wake_next(places, now)
    else:
        store.queues.pop(name, None)
