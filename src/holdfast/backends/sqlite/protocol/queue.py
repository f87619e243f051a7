"""The lock protocol in SQL. Every step is one short transaction, idempotent by the ticket's nonce.

A ticket has ended when its `expires` has passed or its process has died. Any client that reads such a row removes it.
For a granted ticket with a lock delay only `expires` counts. The first waiter watches the processes of all tickets that
block it; every other waiter watches only the process of its predecessor. So a death wakes one waiter.

Granted tickets of one owner have numbers before all waiters, so that the waiters treat them as any other tickets.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from holdfast.backends.sqlite.port import OldTables, SqlitePort, Transaction
from holdfast.backends.sqlite.protocol.guarantees import GUARANTEES, LACKS
from holdfast.core.clock import lease_deadline
from holdfast.core.handovers import POLLED_MAX, QueueEntry, take_handover
from holdfast.core.ports import Record, Runtime
from holdfast.core.tickets import (
    POLL_INTERVAL,
    POLL_INTERVAL_BEHIND,
    WAITER_LEASE,
    WOKEN_LEASE,
    Claim,
    Granted,
    LeaseGone,
    Live,
    LockInfo,
    Notification,
    TicketInfo,
    Waiting,
    first_blocker,
    make_ticket_info,
    process_text,
)
from holdfast.errors import BackendUnavailable, ConfigurationError, LimitConflict

_MAX_NUMBER = 2**63 - 1  # after all tickets
_NO_STATE = (0, True)  # another program has emptied the table: then only the clock is the floor
REGISTER_GRACE = 3600.0  # seconds for which a register is kept longer, because wall clocks are set
WATCH_MAX = 32  # sessions that one waiter watches; for more of them it relies on polling

# RETURNING is not used: SQLite builds a table for it, which costs more than the statement (17 µs to 30 µs in 3.40).
_ENTRIES = (
    'SELECT number, nonce, session, fence, exclusive, "limit", expires, info, owner, delay, ttl FROM tickets '
    "WHERE name = ?"
)
_QUEUE = f"{_ENTRIES} ORDER BY number"
_AHEAD = f"{_ENTRIES} AND number < ? AND (exclusive OR ?) ORDER BY number"
_BEFORE = f"{_ENTRIES} AND number < ? ORDER BY number DESC"
_OTHER_LIMIT = f'{_ENTRIES} AND NOT exclusive AND "limit" IS NOT ?'
_SAME_OWNER = f"{_ENTRIES} AND fence IS NOT NULL AND owner = ? AND nonce <> ? ORDER BY number"
_STATE = "SELECT fence, EXISTS (SELECT 1 FROM tickets WHERE name = ?) FROM tickets WHERE name = '' AND number = 0"
_OWN_NUMBER = "SELECT number FROM tickets WHERE name = ? AND nonce = ?"
_SET_LAST_NUMBER = "UPDATE tickets SET fence = ? WHERE name = '' AND number = 0"
_INSERT = "INSERT INTO tickets VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
# _GRANT and _KEEP_PLACE set the session too: a client that had to start a new one keeps its place in the queue.
_GRANT = "UPDATE tickets SET fence = ?, expires = ?, since = ?, session = ? WHERE name = ? AND number = ?"
_HAND_OVER = "UPDATE tickets SET fence = ?, expires = ?, since = ? WHERE name = ? AND number = ?"
_FIRST = "SELECT min(number) FROM tickets WHERE name = ?"
_MOVE = "UPDATE tickets SET number = ? WHERE name = ? AND number = ?"
_KEEP_PLACE = "UPDATE tickets SET expires = ?, session = ? WHERE name = ? AND number = ?"
_SHORTEN = "UPDATE tickets SET expires = ? WHERE name = ? AND number = ?"
_REMOVE = "DELETE FROM tickets WHERE name = ? AND number = ?"
REMOVE_SESSION = "DELETE FROM tickets WHERE session = ? AND (fence IS NULL OR delay = 0)"  # for a dead session
_RELEASE = "DELETE FROM tickets WHERE name = ? AND nonce = ?"
_RELEASE_HELD = f"{_RELEASE} AND fence IS NOT NULL AND expires > ?"
# A lease of an earlier session of this client is not renewed: other processes may reap it at any time as dead.
_RENEW = "UPDATE tickets SET expires = ? WHERE name = ? AND nonce = ? AND session = ? AND fence IS NOT NULL"
# The last renewal of a ticket: it stays until it expires, also after the end of its process.
_KEEP_TO_THE_END = """UPDATE tickets SET expires = ?, delay = max(delay, ?)
                      WHERE name = ? AND nonce = ? AND fence IS NOT NULL AND expires > ?"""
_ADOPT = """UPDATE tickets SET nonce = ?, session = ?, fence = ?, expires = ?, since = ?, agent = ?, info = ?, delay = ?
            WHERE name = ? AND nonce = ? AND fence IS NOT NULL AND expires > ?"""
_OWN_FENCE = "SELECT fence FROM tickets WHERE name = ? AND nonce = ? AND session = ? AND fence IS NOT NULL"
_BREAK = "DELETE FROM tickets WHERE name = ? AND fence = ?"
_HAS_WAITERS = "SELECT 1 FROM tickets WHERE name = ? AND fence IS NULL LIMIT 1"
_INSPECT = """SELECT name, fence, session, exclusive, "limit", expires, since, agent, info,
                     fence IS NOT NULL AND delay > 0 FROM tickets
              WHERE name <> '' AND (? IS NULL OR name = ?) ORDER BY name, number"""

_REAP_REGISTERS = "DELETE FROM marks WHERE until <= ? AND expires <= ?"
# A repeated call writes its own number again, so that its answer is as durable as that of the first call.
_ADVANCE_REGISTER = """INSERT INTO marks VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE
           SET number = excluded.number, nonce = excluded.nonce,
               until = max(until, excluded.until), expires = max(expires, excluded.expires)
           WHERE number < excluded.number OR (number = excluded.number AND nonce = excluded.nonce)"""
_READ_REGISTER = "SELECT number FROM marks WHERE name = ?"

# At most 100 in one call, because each can have 80 KiB.
_REAP_RECORDS = """DELETE FROM records WHERE name IN (
    SELECT name FROM records WHERE until <= ? AND NOT coalesce(expires > ?, FALSE) LIMIT 100)"""
_READ_RECORD = "SELECT nonce, payload FROM records WHERE name = ? AND coalesce(expires > ?, until > ?)"
_WRITE_RECORD = "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?)"
_REMOVE_RECORD = "DELETE FROM records WHERE name = ?"


class _QueueEntry(NamedTuple):
    """A row of the queue: a ticket, waiting or granted."""

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
    ttl: float

    @property
    def granted(self) -> bool:
        return self.fence is not None

    @property
    def outlives_process(self) -> bool:
        return self.fence is not None and self.delay > 0


class _Blocked(NamedTuple):
    """The ticket was not granted."""

    waiting: Waiting
    watch: tuple[str, ...] = ()  # sessions whose death can grant it
    entry: tuple[int, Hashable] | None = None  # its number in the queue, and the file; None if it is not queued


class SqliteBackend:
    """Locks of one machine in one file."""

    guarantees = GUARANTEES
    lacks = LACKS
    warnings: tuple[str, ...] = ()  # there is no state in which it works but is at risk
    _entry_type = QueueEntry

    def __init__(self, url: str, port: SqlitePort, runtime: Runtime) -> None:
        self.url = url
        self._port = port
        self._runtime = runtime
        self._wakeups = port.wakeups
        self.intact = port.intact

    @property
    def liveness_fds(self) -> tuple[int, ...]:
        return self._port.liveness_fds

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        sent = self._runtime.now()
        if claim.state is not None:
            handed = take_handover(claim, sent, 0.0)
            if handed is not None and self._port.intact(handed.granted.store):
                self._stop_waiting(claim)
                return handed.granted
        has_waited = queue and self._wakeups.expect(claim)
        try:
            outcome = await self._port.transact(partial(_try_acquire, claim=claim, queue=queue), deadline=deadline)
        except (BackendUnavailable, ConfigurationError):
            if not has_waited:  # it was refused before it was queued, so no release will follow
                self._wakeups.forget(claim)
            raise
        if isinstance(outcome, _Blocked):
            if outcome.entry is not None:
                claim.state = self._entry_type(sent, *outcome.entry)
                self._port.subscribe(claim.nonce, outcome.watch)
            return outcome.waiting
        self._wakeups.forget(claim)
        if has_waited:
            self._port.unsubscribe(claim.nonce)
        fence, store = outcome
        return Granted(fence, lease_deadline(sent, claim.ttl, 0.0), store)

    async def try_acquire_all(self, claims: Sequence[Claim], *, deadline: float) -> list[Granted | Waiting]:
        sent = self._runtime.now()
        outcomes = await self._port.transact(partial(_try_acquire_all, claims=claims), deadline=deadline)
        return [
            outcome.waiting
            if isinstance(outcome, _Blocked)
            else Granted(outcome[0], lease_deadline(sent, claim.ttl, 0.0), outcome[1])
            for claim, outcome in zip(claims, outcomes, strict=False)
        ]

    async def wait(self, claim: Claim, until: float) -> None:
        notification = await self._wakeups.wait(claim, until)
        entry: QueueEntry | None = claim.state
        if entry is not None and notification is not None and notification.fence:
            entry.fence = notification.fence

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> list[bool]:
        outcome = await self._port.transact(partial(_release, claims=claims), deadline=deadline)
        for claim in claims:
            claim.state = None
            self._stop_waiting(claim)
        return outcome

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone]:
        sent = self._runtime.now()
        renewed = await self._port.transact(lambda txn: [_renew(txn, claim) for claim in claims], deadline=deadline)
        return [
            Live(lease_deadline(sent, claim.ttl, 0.0)) if is_live else LeaseGone()
            for claim, is_live in zip(claims, renewed, strict=True)
        ]

    async def adopt(self, nonce: str, claim: Claim, *, deadline: float) -> Granted | LeaseGone:
        sent = self._runtime.now()
        adopted = await self._port.transact(partial(_adopt, nonce=nonce, claim=claim), deadline=deadline)
        return LeaseGone() if adopted is None else Granted(adopted[0], lease_deadline(sent, claim.ttl, 0.0), adopted[1])

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        infos = await self._port.transact(partial(_inspect, name=name), deadline=deadline, creates=False)
        return infos[0] if infos else LockInfo(name, (), ())

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        infos = await self._port.transact(partial(_inspect, name=None), deadline=deadline, creates=False)
        return [info for info in infos if info.name.startswith(prefix)]

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        return await self._port.transact(partial(_break, name=name, fence=fence), deadline=deadline, creates=False)

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        return await self._port.transact(
            partial(_advance_register, name=name, number=number, nonce=nonce, keep=keep),
            deadline=deadline,
            durable=True,
        )

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        return await self._port.transact(
            lambda txn: [(txn.row(_READ_REGISTER, name) or (0,))[0] for name in names], deadline=deadline
        )

    async def swap_record(
        self, name: str, expected: str, record: Record | None, *, keep: float, deadline: float
    ) -> Record | None:
        writes = bool(expected) or record is not None
        step = partial(_swap_record, name=name, expected=expected, record=record, keep=keep)
        try:
            return await self._port.transact(step, deadline=deadline, durable=writes, creates=writes)
        except OldTables:
            return None  # an older version kept no records

    async def close(self) -> None:
        self._wakeups.wake_all()
        await self._port.close()

    def abandon(self) -> None:
        self._port.abandon()

    def _stop_waiting(self, claim: Claim) -> None:
        """The ticket is granted or withdrawn."""
        if self._wakeups.forget(claim):
            self._port.unsubscribe(claim.nonce)


# ── the steps, each in one transaction ───────────────────────────────────────────────────────────────────────────────


def _try_acquire(txn: Transaction, claim: Claim, *, queue: bool) -> tuple[int, Hashable] | _Blocked:
    name = claim.name
    number: int | None = None
    last_number, is_in_use = txn.row(_STATE, name) or _NO_STATE
    if is_in_use:
        (number,) = txn.row(_OWN_NUMBER, name, claim.nonce) or (None,)
        if not claim.exclusive:
            _check_limit(txn, claim)
        if claim.owner and (shared_fence := _fence_of_same_owner(txn, claim)) is not None:
            return _join(txn, claim, number, shared_fence)
        blocker = first_blocker(claim.limit, _live_ahead(txn, claim, number))
        if blocker is not None:
            return _enqueue(txn, claim, number, blocker, last_number, queue=queue)
    expires = txn.now + claim.ttl
    # Assign a new fence even if the row has one: no client knows that fence, and the row may be from an old copy.
    fence = _next_number(txn, last_number)
    if number is None:
        _insert(txn, claim, fence, fence=fence, expires=expires)
    else:
        txn.change(_GRANT, fence, expires, txn.wall, txn.session, name, number)
    if is_in_use and claim.owner:
        _wake_next(txn, name)  # tickets of the same owner in the queue are granted with this one
    return fence, txn.store


def _try_acquire_all(txn: Transaction, claims: Sequence[Claim]) -> list[tuple[int, Hashable] | _Blocked]:
    outcomes: list[tuple[int, Hashable] | _Blocked] = []
    for claim in claims:
        outcomes.append(_try_acquire(txn, claim, queue=False))
        if isinstance(outcomes[-1], _Blocked):
            break
    return outcomes


def _fence_of_same_owner(txn: Transaction, claim: Claim) -> int | None:
    """The fence of a granted ticket of the same owner. This ticket is granted with it, even if others wait."""
    entries = _live(txn, claim.name, txn.rows(_SAME_OWNER, claim.name, claim.owner, claim.nonce))
    return next((entry.fence for entry in entries), None)


def _join(txn: Transaction, claim: Claim, number: int | None, fence: int) -> tuple[int, Hashable]:
    """Grant the ticket together with those of its owner: with their fence, and a number before all waiters."""
    (first,) = txn.row(_FIRST, claim.name) or (_MAX_NUMBER,)
    expires = txn.now + claim.ttl
    if number is None:
        _insert(txn, claim, first - 1, fence=fence, expires=expires)
    else:
        txn.change(_MOVE, first - 1, claim.name, number)
        txn.change(_GRANT, fence, expires, txn.wall, txn.session, claim.name, first - 1)
    _wake_next(txn, claim.name)
    return fence, txn.store


def _enqueue(
    txn: Transaction, claim: Claim, number: int | None, blocker: _QueueEntry, last_number: int, *, queue: bool
) -> _Blocked:
    holder = process_text(blocker.info)
    if not queue:
        return _Blocked(Waiting(POLL_INTERVAL, holder))
    expires = txn.now + WAITER_LEASE
    if number is None:
        number = _next_number(txn, last_number)
        _insert(txn, claim, number, fence=None, expires=expires)
    else:
        txn.change(_KEEP_PLACE, expires, txn.session, claim.name, number)
    _wake_next(txn, claim.name)  # reaping tickets may have unblocked others
    queued = (number, txn.store)
    live = _live(txn, claim.name, txn.rows(_BEFORE, claim.name, number))
    previous, second_previous = next(live, None), next(live, None)
    if previous is not None and not previous.granted:
        # The second waiter polls often too: if the first is stopped when it is woken, the second must notice.
        is_second = second_previous is None or second_previous.granted
        poll_after = POLL_INTERVAL if is_second else POLL_INTERVAL_BEHIND
        return _Blocked(Waiting(poll_after, holder), (previous.session,), queued)
    rows = zip(txn.rows(_AHEAD, claim.name, number, 1), range(WATCH_MAX), strict=False)
    ahead = {entry.session for entry in (_QueueEntry._make(row) for row, _ in rows) if not entry.outlives_process}
    return _Blocked(Waiting(max(0.0, min(POLL_INTERVAL, blocker.expires - txn.now)), holder), tuple(ahead), queued)


def _release(txn: Transaction, claims: Sequence[Claim]) -> list[bool]:
    released: list[bool] = []
    changed: dict[str, None] = {}  # names, in order
    for claim in claims:
        was_held = txn.change(_RELEASE_HELD, claim.name, claim.nonce, txn.now) == 1
        if was_held or txn.change(_RELEASE, claim.name, claim.nonce) == 1:
            changed[claim.name] = None
        released.append(was_held)
    for name in changed:  # after all are removed, so that none of them is granted the lock
        if txn.row(_HAS_WAITERS, name) is not None:  # else `_wake_next` reads all holders in vain
            _wake_next(txn, name)
    return released


def _renew(txn: Transaction, claim: Claim) -> bool:
    expires, name, nonce = txn.now + claim.ttl, claim.name, claim.nonce
    if claim.is_final:
        return txn.change(_KEEP_TO_THE_END, expires, claim.ttl, name, nonce, txn.now) == 1
    return txn.change(_RENEW, expires, name, nonce, txn.session) == 1


def _adopt(txn: Transaction, nonce: str, claim: Claim) -> tuple[int, Hashable] | None:
    name, expires = claim.name, txn.now + claim.ttl
    known = txn.row(_OWN_FENCE, name, claim.nonce, txn.session)
    if known is not None:  # a repeated call
        txn.change(_RENEW, expires, name, claim.nonce, txn.session)
        return known[0], txn.store
    last_number, _ = txn.row(_STATE, name) or _NO_STATE
    fence, delay = _next_number(txn, last_number), claim.delay or claim.min_hold
    own = (claim.nonce, txn.session, fence, expires, txn.wall, claim.agent, claim.info, delay)
    is_adopted = txn.change(_ADOPT, *own, name, nonce, txn.now) == 1
    return (fence, txn.store) if is_adopted else None


def _break(txn: Transaction, name: str, fence: int) -> bool:
    broken = txn.change(_BREAK, name, fence) > 0
    if broken:
        _wake_next(txn, name)
    return broken


def _next_number(txn: Transaction, last_number: int) -> int:
    """The next number, greater than all before. A ticket gets one for its place in the queue and one for its fence.

    The wall clock is the floor. So fences keep growing even if the file was lost, or was replaced by an old copy with
    its old counter and its old waiters.
    """
    number = max(last_number + 1, int(txn.wall * 1e6))
    txn.change(_SET_LAST_NUMBER, number)
    return number


def _insert(txn: Transaction, claim: Claim, number: int, *, fence: int | None, expires: float) -> None:
    txn.change(
        _INSERT,
        claim.name,
        number,
        claim.nonce,
        txn.session,
        fence,
        claim.exclusive,
        claim.limit,
        expires,
        txn.wall,
        claim.agent,
        claim.info,
        claim.owner,
        claim.delay or claim.min_hold,
        0.0 if claim.owner or claim.delay or claim.min_hold or not claim.exclusive else claim.ttl,
    )


def _live_ahead(txn: Transaction, claim: Claim, number: int | None) -> Iterator[_QueueEntry]:
    """The live tickets that may block this one, in order.

    Readers do not block a reader, so they are skipped without a check whether they are alive.
    """
    with_shared = claim.limit is not None
    rows = txn.rows(_AHEAD, claim.name, _MAX_NUMBER if number is None else number, with_shared)
    return _live(txn, claim.name, rows)


def _live(txn: Transaction, name: str, rows: Iterator[tuple[Any, ...]]) -> Iterator[_QueueEntry]:
    """The live tickets among these rows of a lock, read one by one. Ended tickets are removed."""
    for entry in map(_QueueEntry._make, rows):
        if not _reaped(txn, name, entry):
            yield entry


def _reaped(txn: Transaction, name: str, entry: _QueueEntry) -> bool:
    """Remove the ticket if it has ended, and with it all others of a dead session. Whether it was removed."""
    if entry.expires <= txn.now:
        txn.change(_REMOVE, name, entry.number)
        return True
    if entry.session != txn.session and not entry.outlives_process and txn.is_dead(entry.session):
        txn.change(REMOVE_SESSION, entry.session)
        txn.reap(entry.session)
        return True
    return False


def _check_limit(txn: Transaction, claim: Claim) -> None:
    for entry in map(_QueueEntry._make, txn.rows(_OTHER_LIMIT, claim.name, claim.limit)):
        if entry.nonce != claim.nonce and not _reaped(txn, claim.name, entry):
            raise LimitConflict(lock=claim.name, ours=claim.limit, theirs=entry.limit, holder=process_text(entry.info))


def _wake_next(txn: Transaction, name: str) -> None:
    """Wake the waiters that the rule grants now, up to the first blocked one, and waiters of owners that hold.

    If the first one excludes all others and has polled lately, it is granted the lock here.
    """
    ahead: list[_QueueEntry] = []
    owners: set[str] = set()  # of granted tickets
    is_blocked = False
    for entry in map(_QueueEntry._make, txn.rows(_QUEUE, name)):
        if entry.granted:
            owners |= {entry.owner} - {""}
        else:
            is_blocked = is_blocked or first_blocker(entry.limit, ahead) is not None
            if is_blocked and entry.owner not in owners:
                if not owners:
                    return
                continue
            if _reaped(txn, name, entry):
                continue
            if not ahead and entry.ttl and entry.expires - txn.now > WAITER_LEASE - POLLED_MAX:
                _hand_over(txn, name, entry)
                return
            txn.change(_SHORTEN, min(entry.expires, txn.now + WOKEN_LEASE), name, entry.number)
            txn.wake(entry.session, Notification(entry.nonce))
        ahead.append(entry)


def _hand_over(txn: Transaction, name: str, entry: _QueueEntry) -> None:
    """Grant the lock to a waiting ticket. Its notification is the grant."""
    last_number, _ = txn.row(_STATE, name) or _NO_STATE
    fence = _next_number(txn, last_number)
    txn.change(_HAND_OVER, fence, txn.now + entry.ttl, txn.wall, name, entry.number)
    txn.wake(entry.session, Notification(entry.nonce, fence))


def _inspect(txn: Transaction, name: str | None) -> list[LockInfo]:
    infos: dict[str, tuple[list[TicketInfo], list[TicketInfo]]] = {}
    for row in txn.rows(_INSPECT, name, name):
        lock, fence, session, exclusive, limit, expires, since, agent, info, outlives_process = row
        if expires <= txn.now:
            continue
        if session != txn.session and not outlives_process and txn.is_dead(session):
            continue
        entry = make_ticket_info(
            info=info,
            fence=fence,
            agent=agent,
            since=since,
            remaining=expires - txn.now,
            exclusive=bool(exclusive),
            limit=limit,
        )
        infos.setdefault(lock, ([], []))[fence is None].append(entry)
    return [LockInfo(lock, tuple(holders), tuple(waiters)) for lock, (holders, waiters) in infos.items()]


def _advance_register(txn: Transaction, name: str, number: int, nonce: str, keep: float) -> bool:
    txn.change(_REAP_REGISTERS, txn.wall, txn.now)
    return txn.change(_ADVANCE_REGISTER, name, number, nonce, txn.wall + keep + REGISTER_GRACE, txn.now + keep) == 1


def _swap_record(txn: Transaction, name: str, expected: str, record: Record | None, keep: float) -> Record | None:
    row = txn.row(_READ_RECORD, name, txn.now, txn.wall)
    current = None if row is None else Record(*row)
    nonce = "" if current is None else current.nonce
    # A repeated call writes its own record again, so that its answer is as durable as that of the first call.
    if nonce != expected and (record is None or nonce != record.nonce):
        return current
    if record is None:
        if expected:
            txn.change(_REMOVE_RECORD, name)
        return None
    txn.change(_REAP_RECORDS, txn.wall, txn.now)
    txn.change(_WRITE_RECORD, name, record.nonce, record.payload, txn.wall + keep, txn.now + keep)
    return record
