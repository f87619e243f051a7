"""The lock protocol on PostgreSQL: first come first served, each step one function inside the server.

The functions in schema.sql are the protocol; this file says when to call which. A hint that it is somebody's turn comes
by NOTIFY, and is no more than a hint: whoever waits looks again in any case, and at once if hints may have been missed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from holdfast.backends.postgresql.port import Row, Statement, Value
from holdfast.backends.postgresql.protocol.guarantees import GUARANTEES, LACKS
from holdfast.core.clock import lease_deadline
from holdfast.core.notifications import Notifications
from holdfast.core.tickets import (
    POLL_INTERVAL,
    POLL_INTERVAL_BEHIND,
    Granted,
    LeaseGone,
    Live,
    LockInfo,
    Ticket,
    TicketInfo,
    Waiting,
    make_ticket_info,
    process_text,
)
from holdfast.errors import BackendError, ConfigurationError, HoldfastError, LimitConflict, NameConflict, OutcomeUnknown
from holdfast.guarantees import Exclusion, Guarantees

if TYPE_CHECKING:
    from holdfast.backends.postgresql.port import PostgresqlPort
    from holdfast.core.ports import Runtime


GRANULARITY = 0.0  # the server counts microseconds
# The first waiter of another client polls often too: should the client of the first waiter have stopped when its turn
# comes, this is the next one to notice.
_POLL_OFTEN = 2

# Every parameter has its type: a function of the same name that another user has created for other types is not called.
#
# The lock is free, and nobody waits: by far the most frequent case, so it comes first. It says nothing otherwise.
_FAST_ACQUIRE = Statement(
    "holdfast_fast_acquire",
    """
    WITH clock AS (SELECT {schema}.holdfast_clock() AS now),
    here AS (
        SELECT n.ctid AS place FROM {schema}.holdfast_locks n WHERE n.name = $1::text
        ORDER BY n.generation DESC LIMIT 1
    ),
    taken AS (
        UPDATE {schema}.holdfast_locks l SET
            method = 'queue', drawn = greatest(l.drawn + 1, c.now), nonce = $2::text,
            generation = CASE
                WHEN greatest(l.drawn + 1, c.now) & 31 = 0 THEN greatest(l.drawn + 1, c.now) ELSE l.generation
            END,
            fence = greatest(l.drawn + 1, c.now), expires = c.now + $3::bigint, renewed = c.now,
            renewed_fence = greatest(l.drawn + 1, c.now), since = c.now, agent = $4::text, info = $5::text
        FROM clock c
        WHERE l.ctid = (SELECT h.place FROM here h) AND l.nonce IS NULL AND NOT l.queued AND l.departed IS NULL
        RETURNING l.fence
    )
    SELECT t.fence FROM taken t
    UNION ALL
    SELECT c.fence FROM (
        SELECT {schema}.holdfast_create(
            $1::text, 'queue', true, $2::text, $3::bigint, $4::text, $5::text
        ) AS fence WHERE NOT EXISTS (SELECT 1 FROM here) OFFSET 0
    ) AS c WHERE c.fence IS NOT NULL
    """,
    in_order=True,
)
# The exclusive holder gives it back, and wakes who is next. It says nothing if it is not the holder; nor, perhaps, if
# another client changes the row at the same moment.
_FAST_RELEASE = Statement(
    "holdfast_fast_release",
    """
    UPDATE {schema}.holdfast_locks l SET nonce = NULL
    WHERE l.nonce = $2::text AND l.ctid = (
        SELECT n.ctid FROM {schema}.holdfast_locks n WHERE n.name = $1::text ORDER BY n.generation DESC LIMIT 1
    )
    RETURNING
        l.expires > {schema}.holdfast_clock(),
        CASE WHEN l.queued THEN {schema}.holdfast_wake(l.name, {schema}.holdfast_clock(), l.head) END
    """,
)
_TRY_ACQUIRE = Statement(
    "holdfast_enter",
    "SELECT * FROM {schema}.holdfast_enter("
    "$1::text, $2::text, $3::bigint, $4::boolean, $5::integer, $6::boolean, $7::text, $8::text, $9::text)",
    in_order=True,
)
_TRY_ACQUIRE_OWNER = Statement(
    "holdfast_enter_owner",
    "SELECT * FROM {schema}.holdfast_enter_owner("
    "$1::text, $2::text, $3::bigint, $4::boolean, $5::text, $6::text, $7::text, $8::text)",
    in_order=True,
)
_RELEASE = Statement("holdfast_leave", "SELECT {schema}.holdfast_leave($1::text, $2::text, $3::boolean)")
_RENEW = Statement("holdfast_renew", "SELECT {schema}.holdfast_renew($1::text, $2::text, $3::bigint)")
_BREAK = Statement("holdfast_break", "SELECT {schema}.holdfast_break($1::text, $2::bigint)", reads=True)
# Of many at once. In the order of their names, so that two who lock several rows never wait for each other.
_TRY_ACQUIRE_ALL = Statement(
    "holdfast_enter_all",
    "SELECT * FROM {schema}.holdfast_enter_all("
    "$1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text)",
)
_RELEASE_ALL = Statement(
    "holdfast_leave_all",
    "SELECT t.nonce, {schema}.holdfast_leave(t.name, t.nonce, t.unheard) "
    "FROM unnest($1::text[], $2::text[], $3::boolean[]) AS t (name, nonce, unheard)",
)
_RENEW_ALL = Statement(
    "holdfast_renew_all",
    "SELECT t.nonce, {schema}.holdfast_renew(t.name, t.nonce, t.ttl) "
    "FROM unnest($1::text[], $2::text[], $3::bigint[]) AS t (name, nonce, ttl)",
)
_TICKETS = (
    'SELECT t.name, t.fence, t.exclusive, t."limit", t.expires_us - {schema}.holdfast_clock(), t.since_us, t.agent, '
    "t.info FROM {schema}.holdfast_status t WHERE "
)
_INSPECT = Statement("holdfast_inspect", f"{_TICKETS} t.name = $1::text ORDER BY t.number", reads=True)
_LOCKS = Statement("holdfast_locks", f"{_TICKETS} starts_with(t.name, $1::text) ORDER BY t.name, t.number", reads=True)
# It says nothing if the mark was as high already, by another call. One new mark in 256 is the occasion to remove old
# ones.
_ADVANCE_REGISTER = Statement(
    "holdfast_advance_register",
    """
    INSERT INTO {schema}.holdfast_marks AS m (name, number, nonce, expires)
    SELECT $1::text, $2::bigint, $3::text, c.now + $4::bigint FROM (SELECT {schema}.holdfast_clock() AS now) AS c
    ON CONFLICT (name) DO UPDATE SET
        number = excluded.number, nonce = excluded.nonce, expires = greatest(m.expires, excluded.expires)
    WHERE m.number < excluded.number OR m.number = excluded.number AND m.nonce = excluded.nonce
    RETURNING CASE
        WHEN m.xmax = 0 AND (m.expires - $4::bigint) & 255 = 0 THEN {schema}.holdfast_reap_marks(m.expires - $4::bigint)
    END
    """,
)
_READ_REGISTERS = Statement(
    "holdfast_read_registers", "SELECT m.name, m.number FROM {schema}.holdfast_marks m WHERE m.name = ANY ($1::text[])"
)


class PostgresqlBackend:
    """Locks in one database, in order."""

    method = "queue"
    lacks = LACKS["queue"]
    liveness_fds: tuple[int, ...] = ()  # the server cannot see that a holder has died

    def __init__(self, url: str, port: PostgresqlPort, runtime: Runtime) -> None:
        self.url = url
        self._port = port
        self._runtime = runtime
        self._notifications = Notifications(port, runtime, url)
        self._unanswered: set[str] = set()  # tickets of which an enter has no answer: it may still come
        self._queued: set[str] = set()  # tickets that have a place in line

    @property
    def guarantees(self) -> Guarantees:
        promised = GUARANTEES[self.method]
        # With fsync or full_page_writes off, a crash of the machine can lose or damage what was committed.
        return promised if self._port.is_durable else promised._replace(exclusion=Exclusion.BEST_EFFORT)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._port.warnings

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        nonce, channel, agent = ticket.nonce, self._port.channel, _agent(ticket)
        if queue:
            self._notifications.expect(nonce, channel)
        was_unanswered = nonce in self._unanswered
        self._unanswered.add(nonce)  # from before it is sent: whoever closes the client may leave before it is answered
        sent = self._runtime.now()
        try:
            if ticket.exclusive and not ticket.owner and nonce not in self._queued and not was_unanswered:
                values: tuple[Value, ...] = (encode_name(ticket.name), nonce, us(ticket.ttl), agent, ticket.info)
                for (fence,) in await self._port.execute(_FAST_ACQUIRE, values, deadline=deadline):
                    self._unanswered.discard(nonce)
                    self._notifications.stop(nonce)
                    return Granted(int(fence or 0), lease_deadline(sent, ticket.ttl, GRANULARITY))
                sent = self._runtime.now()
            name, ttl, about = encode_name(ticket.name), us(ticket.ttl), (agent, ticket.info, channel)
            if ticket.owner:
                values = (name, nonce, ttl, queue, *about, encode_name(ticket.owner))
                (row,) = await self._port.execute(_TRY_ACQUIRE_OWNER, values, deadline=deadline)
            else:
                values = (name, nonce, ttl, ticket.exclusive, ticket.limit, queue, *about)
                (row,) = await self._port.execute(_TRY_ACQUIRE, values, deadline=deadline)
        except BaseException as error:
            # No answer, or cancelled or interrupted before it. Unless the server has refused it, it may still come.
            if not _may_have_happened(error) and not was_unanswered:
                self._refused(nonce)
            raise
        if not was_unanswered:
            self._unanswered.discard(nonce)
        try:
            return self._outcome(ticket, row, sent, queue=queue)
        except ConfigurationError:
            if not was_unanswered:
                self._refused(nonce)
            raise

    def _refused(self, nonce: str) -> None:
        """The server has done nothing for this ticket, so the engine may never mention it again."""
        self._unanswered.discard(nonce)
        if nonce not in self._queued:
            self._notifications.stop(nonce)

    async def try_acquire_all(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Granted | Waiting]:
        arrays = (
            _array([encode_name(ticket.name) for ticket in tickets]),
            _array([ticket.nonce for ticket in tickets]),
            _array([str(us(ticket.ttl)) for ticket in tickets]),
            _array([_agent(ticket) for ticket in tickets]),
            _array([ticket.info for ticket in tickets]),
            _array([encode_name(ticket.owner) for ticket in tickets]),
        )
        fresh = {ticket.nonce for ticket in tickets} - self._unanswered
        self._unanswered |= fresh
        sent = self._runtime.now()
        try:
            rows = await self._port.execute(_TRY_ACQUIRE_ALL, (*arrays, self._port.channel), deadline=deadline)
        except BaseException as error:
            if not _may_have_happened(error):
                self._unanswered -= fresh
            raise
        self._unanswered -= fresh
        return [self._outcome(ticket, row, sent, queue=False) for ticket, row in zip(tickets, rows, strict=False)]

    def _outcome(self, ticket: Ticket, row: Row, sent: float, *, queue: bool) -> Granted | Waiting:
        """What holdfast_enter says."""
        outcome, fence, ahead, remaining, limit, other = row
        match outcome:
            case "in":
                self._notifications.stop(ticket.nonce)
                self._queued.discard(ticket.nonce)
                return Granted(int(fence or 0), lease_deadline(sent, ticket.ttl, GRANULARITY))
            case "wait":
                if queue:
                    self._queued.add(ticket.nonce)
                return _waiting(int(ahead or 0), int(remaining or 0), other)
            case "limit":
                theirs = None if limit is None else int(limit)
                raise LimitConflict(
                    lock=ticket.name, ours=ticket.limit, theirs=theirs, holder=process_text(other or "")
                )
            case "method":
                raise method_conflict(ticket.name, other)
            case _:
                raise OutcomeUnknown(backend=self.url, problem=f"ticket {ticket.nonce} was withdrawn before")

    async def wait(self, ticket: Ticket, until: float) -> None:
        await self._notifications.wait(ticket.nonce, self._port.channel, until)

    async def release(self, tickets: Sequence[Ticket], *, deadline: float) -> Sequence[bool | BackendError]:
        if len(tickets) == 1:
            found = {tickets[0].nonce: await self._release(tickets[0], deadline)}
        else:
            ordered = _sorted_by_name(tickets)
            arrays = (
                _array([encode_name(ticket.name) for ticket in ordered]),
                _array([ticket.nonce for ticket in ordered]),
                _array(["t" if ticket.nonce in self._unanswered else "f" for ticket in ordered]),
            )
            found = _by_nonce(await self._port.execute(_RELEASE_ALL, arrays, deadline=deadline))
        for ticket in tickets:
            self._notifications.stop(ticket.nonce)
            self._unanswered.discard(ticket.nonce)
            self._queued.discard(ticket.nonce)
        return [found[ticket.nonce] for ticket in tickets]

    async def _release(self, ticket: Ticket, deadline: float) -> bool:
        name, nonce, is_unanswered = encode_name(ticket.name), ticket.nonce, ticket.nonce in self._unanswered
        if ticket.exclusive and not ticket.owner and nonce not in self._queued and not is_unanswered:
            for was_in, _ in await self._port.execute(_FAST_RELEASE, (name, nonce), deadline=deadline):
                return was_in == "t"
        ((was_in,),) = await self._port.execute(_RELEASE, (name, nonce, is_unanswered), deadline=deadline)
        return was_in == "t"

    async def renew(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Live | LeaseGone]:
        sent = self._runtime.now()
        if len(tickets) == 1:
            ticket = tickets[0]
            values = (encode_name(ticket.name), ticket.nonce, us(ticket.ttl))
            ((lives,),) = await self._port.execute(_RENEW, values, deadline=deadline)
            found = {ticket.nonce: lives == "t"}
        else:
            ordered = _sorted_by_name(tickets)
            arrays = (
                _array([encode_name(ticket.name) for ticket in ordered]),
                _array([ticket.nonce for ticket in ordered]),
                _array([str(us(ticket.ttl)) for ticket in ordered]),
            )
            found = _by_nonce(await self._port.execute(_RENEW_ALL, arrays, deadline=deadline))
        return [
            Live(lease_deadline(sent, ticket.ttl, GRANULARITY)) if found[ticket.nonce] else LeaseGone()
            for ticket in tickets
        ]

    def intact(self, store: Hashable) -> bool:
        return True

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        found = _lock_infos(await self._port.execute(_INSPECT, (encode_name(name),), deadline=deadline))
        return found[0] if found else LockInfo(name, (), ())

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        return sorted(
            _lock_infos(await self._port.execute(_LOCKS, (encode_name(prefix),), deadline=deadline)), key=_name
        )

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        if not 0 < fence < 2**63:
            return False  # no fence of ours
        ((broken,),) = await self._port.execute(_BREAK, (encode_name(name), fence), deadline=deadline)
        return broken == "t"

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        values = (encode_name(name), number, nonce, us(keep))
        return bool(await self._port.execute(_ADVANCE_REGISTER, values, deadline=deadline))

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        array = _array([encode_name(name) for name in names])
        found = {
            name: int(number or 0)
            for name, number in await self._port.execute(_READ_REGISTERS, (array,), deadline=deadline)
        }
        return [found.get(encode_name(name), 0) for name in names]

    async def close(self) -> None:
        self._notifications.wake_all()
        await self._port.close()

    def abandon(self) -> None:
        self._port.abandon()


def encode_name(name: str) -> str:
    r"""The name as the tables have it: PostgreSQL's text holds no zero byte, so it is \0, and a backslash is two."""
    return name.replace("\\", "\\\\").replace("\0", "\\0")


def decode_name(name: str) -> str:
    """The name that is stored like this."""
    return "\\".join(part.replace("\\0", "\0") for part in name.split("\\\\"))


def method_conflict(name: str, method: str | None) -> NameConflict:
    """Two methods do not wait for each other in the same place, so they are not to be mixed."""
    return NameConflict(lock=name, reason=f"it is held by method={method}, and this client uses another method")


def _waiting(ahead: int, remaining_us: int, holder: str | None) -> Waiting:
    if ahead >= _POLL_OFTEN:
        return Waiting(POLL_INTERVAL_BEHIND, process_text(holder) if holder else None)
    # Also the one behind the first waiter polls as soon as that one, which may have been woken, has to be gone.
    poll_after = max(0.0, min(POLL_INTERVAL, remaining_us / 1e6))
    return Waiting(poll_after, process_text(holder) if holder else None)


def _lock_infos(rows: Sequence[Row]) -> list[LockInfo]:
    found: dict[str, tuple[list[TicketInfo], list[TicketInfo]]] = {}
    for name, fence, exclusive, limit, remaining, since, agent, info in rows:
        described = make_ticket_info(
            info=info or "",
            fence=None if fence is None else int(fence),
            agent=agent or "",
            since=int(since or 0) / 1e6,
            remaining=int(remaining or 0) / 1e6,
            exclusive=exclusive == "t",
            limit=None if limit is None else int(limit),
        )
        found.setdefault(decode_name(name or ""), ([], []))[fence is None].append(described)
    return [LockInfo(name, tuple(holders), tuple(waiters)) for name, (holders, waiters) in found.items()]


def _agent(ticket: Ticket) -> str:
    """PostgreSQL's text holds no zero byte."""
    return ticket.agent.replace("\0", "")


def _may_have_happened(error: BaseException) -> bool:
    """Whether what was asked may have been done, or be done yet: all but what the server has refused."""
    return not isinstance(error, HoldfastError) or isinstance(error, OutcomeUnknown)


def _sorted_by_name(tickets: Sequence[Ticket]) -> list[Ticket]:
    return sorted(tickets, key=lambda ticket: ticket.name)  # as `try_acquire_all` is given them


def _name(info: LockInfo) -> str:
    return info.name


def _by_nonce(rows: Sequence[Row]) -> dict[str, bool]:
    return {nonce or "": answer == "t" for nonce, answer in rows}


def _array(values: Sequence[str]) -> str:
    """As PostgreSQL reads an array."""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"


def us(seconds: float) -> int:
    """Microseconds, rather one more than one less."""
    return math.ceil(seconds * 1e6)
