"""The lock protocol in SQL. Every step is one short transaction, idempotent by the ticket's nonce.

A ticket is over when its `expires` has passed or its process has died; whoever comes across such a row removes it. With
a lock delay only its `expires` counts, once it is granted. The next in line attends to the processes in its way (the
others only to their predecessor), so a death wakes one waiter.

Tickets of one owner that are in together have numbers before all who wait, so these see them as they see any other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.sqlite.protocol.guarantees import GUARANTEES, LACKS
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
from holdfast.errors import BackendUnavailable, ConfigurationError, LimitConflict

if TYPE_CHECKING:
    from holdfast.backends.sqlite.port import SqlitePort, Transaction
    from holdfast.core.ports import Runtime


_NO_NUMBER = 2**63 - 1  # behind everybody
_NO_STATE = (0, True)  # somebody has emptied the table: then the clock alone is the floor
MARK_GRACE = 3600.0  # seconds that a mark is kept beyond its time, because wall clocks are set
ATTEND_MAX = 32  # sessions that one waiter attends to; beyond that, its look-again has to do

# No RETURNING: SQLite builds a table for it, which costs more than the statement (17 µs to 30 µs each, in 3.40).
_PLACES = (
    'SELECT number, nonce, session, fence, exclusive, "limit", expires, info, owner, delay FROM tickets WHERE name = ?'
)
_QUEUE = f"{_PLACES} ORDER BY number"
_AHEAD = f"{_PLACES} AND number < ? AND (exclusive OR ?) ORDER BY number"
_BEFORE = f"{_PLACES} AND number < ? ORDER BY number DESC"
_OTHER_LIMIT = f'{_PLACES} AND NOT exclusive AND "limit" IS NOT ?'
_KIN = f"{_PLACES} AND fence IS NOT NULL AND owner = ? AND nonce <> ? ORDER BY number"
_LOOK = "SELECT fence, EXISTS (SELECT 1 FROM tickets WHERE name = ?) FROM tickets WHERE name = '' AND number = 0"
_MINE = "SELECT number FROM tickets WHERE name = ? AND nonce = ?"
_DRAW = "UPDATE tickets SET fence = ? WHERE name = '' AND number = 0"
_INSERT = "INSERT INTO tickets VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
# The session too, in both: a client that had to make a new one keeps its place in the queue.
_GRANT = "UPDATE tickets SET fence = ?, expires = ?, since = ?, session = ? WHERE name = ? AND number = ?"
_FIRST = "SELECT min(number) FROM tickets WHERE name = ?"
_MOVE = "UPDATE tickets SET number = ? WHERE name = ? AND number = ?"
_STAY = "UPDATE tickets SET expires = ?, session = ? WHERE name = ? AND number = ?"
_SHORTEN = "UPDATE tickets SET expires = ? WHERE name = ? AND number = ?"
_REMOVE = "DELETE FROM tickets WHERE name = ? AND number = ?"
REMOVE_SESSION = "DELETE FROM tickets WHERE session = ? AND (fence IS NULL OR delay = 0)"  # a dead one's
_LEAVE = "DELETE FROM tickets WHERE name = ? AND nonce = ?"
_LEAVE_HELD = f"{_LEAVE} AND fence IS NOT NULL AND expires > ?"
# A lease of an earlier session of this client is not renewed: other processes may take it for a dead one's at any time.
_RENEW = "UPDATE tickets SET expires = ? WHERE name = ? AND nonce = ? AND session = ? AND fence IS NOT NULL"
_BREAK = "DELETE FROM tickets WHERE name = ? AND fence = ?"
_SOMEBODY_WAITS = "SELECT 1 FROM tickets WHERE name = ? AND fence IS NULL LIMIT 1"
_INSPECT = """SELECT name, fence, session, exclusive, "limit", expires, since, agent, info,
                     fence IS NOT NULL AND delay > 0 FROM tickets
              WHERE name <> '' AND (? IS NULL OR name = ?) ORDER BY name, number"""

_REAP_MARKS = "DELETE FROM marks WHERE until <= ? AND expires <= ?"
# Its own once more too, so that what a resend says is as durable as what it repeats.
_MARK = """INSERT INTO marks VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE
           SET number = excluded.number, nonce = excluded.nonce,
               until = max(until, excluded.until), expires = max(expires, excluded.expires)
           WHERE number < excluded.number OR (number = excluded.number AND nonce = excluded.nonce)"""
_MARKED = "SELECT number FROM marks WHERE name = ?"


class _Place(NamedTuple):
    """A row of the queue."""

    number: int
    nonce: str
    session: str
    fence: int | None
    exclusive: bool
    limit: int | None
    expires: float
    info: str
    owner: str
    delay: float

    @property
    def granted(self) -> bool:
        return self.fence is not None

    @property
    def outlives_its_process(self) -> bool:
        return self.fence is not None and self.delay > 0


class _InTheWay(NamedTuple):
    """What `try_acquire` found when it could not go in."""

    waiting: Waiting
    attend: tuple[str, ...]


class SqliteBackend:
    """Locks of one machine, in one file."""

    guarantees = GUARANTEES
    lacks = LACKS
    warnings: tuple[str, ...] = ()  # it works, or it does not

    def __init__(self, url: str, port: SqlitePort, runtime: Runtime) -> None:
        self.url = url
        self._port = port
        self._runtime = runtime
        self._wakeups = Wakeups(runtime)
        port.listen(self._wakeups.wake)

    @property
    def liveness_fds(self) -> tuple[int, ...]:
        return self._port.liveness_fds

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        sent = self._runtime.now()
        has_waited = queue and self._wakeups.expect(ticket.nonce)
        try:
            outcome = await self._port.transact(lambda txn: _try_acquire(txn, ticket, queue=queue), deadline=deadline)
        except (BackendUnavailable, ConfigurationError):
            if not has_waited:  # refused before it was queued: no release will follow
                self._wakeups.forget(ticket.nonce)
            raise
        if isinstance(outcome, _InTheWay):
            if queue:
                self._port.subscribe(ticket.nonce, outcome.attend)
            return outcome.waiting
        self._wakeups.forget(ticket.nonce)
        if has_waited:
            self._port.unsubscribe(ticket.nonce)
        fence, store = outcome
        return Granted(fence, lease_deadline(sent, ticket.ttl, 0.0), store)

    async def try_acquire_all(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Granted | Waiting]:
        sent = self._runtime.now()
        outcomes = await self._port.transact(lambda txn: _try_acquire_all(txn, tickets), deadline=deadline)
        return [
            outcome.waiting
            if isinstance(outcome, _InTheWay)
            else Granted(outcome[0], lease_deadline(sent, ticket.ttl, 0.0), outcome[1])
            for ticket, outcome in zip(tickets, outcomes, strict=False)
        ]

    async def wait(self, ticket: Ticket, until: float) -> None:
        await self._wakeups.wait(ticket.nonce, until)

    async def release(self, tickets: Sequence[Ticket], *, deadline: float) -> list[bool]:
        outcome = await self._port.transact(
            lambda txn: [_release(txn, ticket) for ticket in tickets], deadline=deadline
        )
        for ticket in tickets:
            if self._wakeups.forget(ticket.nonce):
                self._port.unsubscribe(ticket.nonce)
        return outcome

    async def renew(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Live | LeaseGone]:
        sent = self._runtime.now()
        alive = await self._port.transact(lambda txn: [_renew(txn, ticket) for ticket in tickets], deadline=deadline)
        return [
            Live(lease_deadline(sent, ticket.ttl, 0.0)) if still else LeaseGone()
            for ticket, still in zip(tickets, alive, strict=True)
        ]

    def intact(self, store: Hashable) -> bool:
        return self._port.intact(store)

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        found = await self._port.transact(lambda txn: _inspect(txn, name), deadline=deadline, creates=False)
        return found[0] if found else LockInfo(name, (), ())

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        found = await self._port.transact(lambda txn: _inspect(txn, None), deadline=deadline, creates=False)
        return [info for info in found if info.name.startswith(prefix)]

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        return await self._port.transact(lambda txn: _break(txn, name, fence), deadline=deadline, creates=False)

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        return await self._port.transact(
            lambda txn: _mark(txn, name, number, nonce, keep), deadline=deadline, durable=True
        )

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        return await self._port.transact(
            lambda txn: [(txn.row(_MARKED, name) or (0,))[0] for name in names], deadline=deadline
        )

    async def close(self) -> None:
        self._wakeups.wake_all()
        await self._port.close()

    def abandon(self) -> None:
        self._port.abandon()


# ── the steps, each inside one transaction ───────────────────────────────────────────────────────────────────────────


def _try_acquire(txn: Transaction, ticket: Ticket, *, queue: bool) -> tuple[int, Hashable] | _InTheWay:
    name = ticket.name
    number: int | None = None
    last_number, is_in_use = txn.row(_LOOK, name) or _NO_STATE
    if is_in_use:
        (number,) = txn.row(_MINE, name, ticket.nonce) or (None,)
        if not ticket.exclusive:
            _agree_on_limit(txn, ticket)
        if ticket.owner and (shared_fence := _fence_of_kin(txn, ticket)) is not None:
            return _join(txn, ticket, number, shared_fence)
        obstacle = first_blocker(ticket.limit, _live_ahead(txn, ticket, number))
        if obstacle is not None:
            return _stand_in_line(txn, ticket, number, obstacle, last_number, queue=queue)
    expires = txn.now + ticket.ttl
    # Once more if it was granted before: nobody has heard of that fence, and the row may be an old copy's.
    fence = _draw(txn, last_number)
    if number is None:
        _insert(txn, ticket, fence, fence=fence, expires=expires)
    else:
        txn.change(_GRANT, fence, expires, txn.wall, txn.session, name, number)
    if is_in_use and ticket.owner:
        _wake_next(txn, name)  # it may have others in the queue, who are in with this one
    return fence, txn.store


def _try_acquire_all(txn: Transaction, tickets: Sequence[Ticket]) -> list[tuple[int, Hashable] | _InTheWay]:
    outcomes: list[tuple[int, Hashable] | _InTheWay] = []
    for ticket in tickets:
        outcomes.append(_try_acquire(txn, ticket, queue=False))
        if isinstance(outcomes[-1], _InTheWay):
            break
    return outcomes


def _fence_of_kin(txn: Transaction, ticket: Ticket) -> int | None:
    """Of one that is in, of the same owner: with it this ticket is in too, whoever waits."""
    places = map(_Place._make, txn.rows(_KIN, ticket.name, ticket.owner, ticket.nonce))
    return next((place.fence for place in places if not _is_over(txn, ticket.name, place)), None)


def _join(txn: Transaction, ticket: Ticket, number: int | None, fence: int) -> tuple[int, Hashable]:
    """Go in with those that are in: with their fence, and a number before all who wait."""
    (first,) = txn.row(_FIRST, ticket.name) or (_NO_NUMBER,)
    expires = txn.now + ticket.ttl
    if number is None:
        _insert(txn, ticket, first - 1, fence=fence, expires=expires)
    else:
        txn.change(_MOVE, first - 1, ticket.name, number)
        txn.change(_GRANT, fence, expires, txn.wall, txn.session, ticket.name, first - 1)
    _wake_next(txn, ticket.name)
    return fence, txn.store


def _stand_in_line(
    txn: Transaction, ticket: Ticket, number: int | None, obstacle: _Place, last_number: int, *, queue: bool
) -> _InTheWay:
    holder = process_text(obstacle.info)
    if not queue:
        return _InTheWay(Waiting(POLL_INTERVAL, holder), ())
    expires = txn.now + WAITER_LEASE
    if number is None:
        number = _draw(txn, last_number)
        _insert(txn, ticket, number, fence=None, expires=expires)
    else:
        txn.change(_STAY, expires, txn.session, ticket.name, number)
    _wake_next(txn, ticket.name)  # in case something ahead of others has just been found over
    living = (
        place
        for place in map(_Place._make, txn.rows(_BEFORE, ticket.name, number))
        if not _is_over(txn, ticket.name, place)
    )
    before, before_that = next(living, None), next(living, None)
    if before is not None and not before.granted:
        # The second in line looks often too: should the first be stopped when its turn comes, it is the next to know.
        is_second = before_that is None or before_that.granted
        return _InTheWay(Waiting(POLL_INTERVAL if is_second else POLL_INTERVAL_BEHIND, holder), (before.session,))
    rows = zip(txn.rows(_AHEAD, ticket.name, number, 1), range(ATTEND_MAX), strict=False)
    ahead = {place.session for place in (_Place._make(row) for row, _ in rows) if not place.outlives_its_process}
    return _InTheWay(Waiting(max(0.0, min(POLL_INTERVAL, obstacle.expires - txn.now)), holder), tuple(ahead))


def _release(txn: Transaction, ticket: Ticket) -> bool:
    was_held = txn.change(_LEAVE_HELD, ticket.name, ticket.nonce, txn.now) == 1
    if was_held or txn.change(_LEAVE, ticket.name, ticket.nonce) == 1:
        _wake_next(txn, ticket.name)
    return was_held


def _renew(txn: Transaction, ticket: Ticket) -> bool:
    return txn.change(_RENEW, txn.now + ticket.ttl, ticket.name, ticket.nonce, txn.session) == 1


def _break(txn: Transaction, name: str, fence: int) -> bool:
    broken = txn.change(_BREAK, name, fence) > 0
    if broken:
        _wake_next(txn, name)
    return broken


def _draw(txn: Transaction, last_number: int) -> int:
    """The next number, greater than all before. It is drawn for a place in line, and once more for a fence.

    With the wall clock as floor, fences go on growing even if the file was lost, or an old copy of it is back: with
    the counter of then, and with waiters of then.
    """
    number = max(last_number + 1, int(txn.wall * 1e6))
    txn.change(_DRAW, number)
    return number


def _insert(txn: Transaction, ticket: Ticket, number: int, *, fence: int | None, expires: float) -> None:
    txn.change(
        _INSERT,
        ticket.name,
        number,
        ticket.nonce,
        txn.session,
        fence,
        ticket.exclusive,
        ticket.limit,
        expires,
        txn.wall,
        ticket.agent,
        ticket.info,
        ticket.owner,
        ticket.delay,
    )


def _live_ahead(txn: Transaction, ticket: Ticket, number: int | None) -> Iterator[_Place]:
    """The tickets in this one's way, in order, read as they are asked for; those that are over are removed.

    A reader does not mind readers ahead, so it need not find out whether they live.
    """
    minds_all = ticket.limit is not None
    rows = txn.rows(_AHEAD, ticket.name, _NO_NUMBER if number is None else number, minds_all)
    for place in map(_Place._make, rows):
        if not _is_over(txn, ticket.name, place):
            yield place


def _is_over(txn: Transaction, name: str, place: _Place) -> bool:
    if place.expires <= txn.now:
        txn.change(_REMOVE, name, place.number)
        return True
    if place.session != txn.session and not place.outlives_its_process and txn.is_dead(place.session):
        txn.change(REMOVE_SESSION, place.session)
        txn.bury(place.session)
        return True
    return False


def _agree_on_limit(txn: Transaction, ticket: Ticket) -> None:
    for place in map(_Place._make, txn.rows(_OTHER_LIMIT, ticket.name, ticket.limit)):
        if place.nonce != ticket.nonce and not _is_over(txn, ticket.name, place):
            raise LimitConflict(
                lock=ticket.name, ours=ticket.limit, theirs=place.limit, holder=process_text(place.info)
            )


def _wake_next(txn: Transaction, name: str) -> None:
    """Ring those waiters that the rule lets in now, in order, up to the first that it does not; and the owner's own."""
    if txn.row(_SOMEBODY_WAITS, name) is None:
        return
    ahead: list[_Place] = []
    owners: set[str] = set()  # of those that are in
    is_over = False
    for place in map(_Place._make, txn.rows(_QUEUE, name)):
        if place.granted:
            owners |= {place.owner} - {""}
        else:
            is_over = is_over or first_blocker(place.limit, ahead) is not None
            if is_over and place.owner not in owners:
                if not owners:
                    return
                continue
            if _is_over(txn, name, place):
                continue
            txn.change(_SHORTEN, min(place.expires, txn.now + WOKEN_LEASE), name, place.number)
            txn.ring(place.session, place.nonce)
        ahead.append(place)


def _inspect(txn: Transaction, name: str | None) -> list[LockInfo]:
    found: dict[str, tuple[list[TicketInfo], list[TicketInfo]]] = {}
    for row in txn.rows(_INSPECT, name, name):
        lock, fence, session, exclusive, limit, expires, since, agent, info, outlives_its_process = row
        if expires <= txn.now:
            continue
        if session != txn.session and not outlives_its_process and txn.is_dead(session):
            continue
        described = make_ticket_info(
            info=info,
            fence=fence,
            agent=agent,
            since=since,
            remaining=expires - txn.now,
            exclusive=bool(exclusive),
            limit=limit,
        )
        found.setdefault(lock, ([], []))[fence is None].append(described)
    return [LockInfo(lock, tuple(holders), tuple(waiters)) for lock, (holders, waiters) in found.items()]


def _mark(txn: Transaction, name: str, number: int, nonce: str, keep: float) -> bool:
    txn.change(_REAP_MARKS, txn.wall, txn.now)
    return txn.change(_MARK, name, number, nonce, txn.wall + keep + MARK_GRACE, txn.now + keep) == 1
