"""method=queue, the default: a FIFO queue in tables, each step one function inside the server.

The functions in schema.sql are the protocol; this module decides which of them to call. A waiter whose turn it is gets
a notification by NOTIFY. Notifications may be lost, so a waiter also polls, and polls at once after a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.postgresql.port import PostgresqlPort, Row, Statement, Value
from holdfast.backends.postgresql.protocol.guarantees import GUARANTEES, LACKS
from holdfast.backends.sql_protocol import (
    GRANULARITY,
    SqlBackend,
    keep_us,
    lock_infos,
    record_in,
    refused,
    us,
)
from holdfast.core.clock import lease_deadline
from holdfast.core.local_handover import with_fences
from holdfast.core.notifications import Notifications
from holdfast.core.ports import PreparedRequests
from holdfast.core.tickets import (
    POLL_INTERVAL,
    POLL_INTERVAL_BEHIND,
    Claim,
    Granted,
    LeaseGone,
    Live,
    LockInfo,
    Waiting,
    may_have_happened,
    process_text,
)
from holdfast.errors import BackendError, ConfigurationError

if TYPE_CHECKING:
    from holdfast.core.ports import Record, Runtime

# Waiters with a smaller `ahead` poll often: the first one, and the one that notices if the client of the first one has
# stopped.
_POLL_OFTEN = 2

# Every parameter has an explicit type, so that a function that another user created with the same name and other
# parameter types is never called.
#
# The fast path, tried first: acquire a free lock without waiters. It returns no row otherwise.
_FAST_ACQUIRE = Statement(
    "holdfast_fast_acquire",
    """
    WITH clock AS (SELECT {schema}.holdfast_clock() AS now),
    newest AS (
        SELECT n.ctid AS row_at FROM {schema}.holdfast_locks n WHERE n.name = $1::text
        ORDER BY n.generation DESC LIMIT 1
    ),
    acquired AS (
        UPDATE {schema}.holdfast_locks l SET
            method = 'queue', drawn = greatest(l.drawn + 1, c.now), nonce = $2::text,
            generation = CASE
                WHEN greatest(l.drawn + 1, c.now) & 31 = 0 THEN greatest(l.drawn + 1, c.now) ELSE l.generation
            END,
            fence = greatest(l.drawn + 1, c.now), expires = c.now + $3::bigint, renewed = c.now,
            renewed_fence = greatest(l.drawn + 1, c.now), since = c.now, agent = $4::text, info = $5::text
        FROM clock c
        WHERE l.ctid = (SELECT n.row_at FROM newest n) AND l.nonce IS NULL AND NOT l.queued AND l.departed IS NULL
        RETURNING l.fence
    )
    SELECT a.fence FROM acquired a
    UNION ALL
    SELECT c.fence FROM (
        SELECT {schema}.holdfast_create(
            $1::text, 'queue', true, $2::text, $3::bigint, $4::text, $5::text
        ) AS fence WHERE NOT EXISTS (SELECT 1 FROM newest) OFFSET 0
    ) AS c WHERE c.fence IS NOT NULL
    """,
    in_order=True,
)
# The fast path of the exclusive holder: release the lock and wake the next waiter. It returns no row if the ticket is
# not the holder, and possibly none if another client changes the row at the same moment.
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
# The ticket with nonce $3 is queued before the one with nonce $2 is released: a function in the SELECT list is called
# for a row that the one in FROM has returned.
_RELEASE_AND_QUEUE = Statement(
    "holdfast_leave_and_queue",
    "SELECT {schema}.holdfast_leave($1::text, $2::text, e.outcome IS NULL), e.outcome FROM {schema}.holdfast_enter("
    "$1::text, $3::text, $4::bigint, true, 1, true, $5::text, $6::text, $7::text) AS e",
)
_RENEW = Statement("holdfast_renew", "SELECT {schema}.holdfast_renew($1::text, $2::text, $3::bigint)")
_BREAK = Statement("holdfast_break", "SELECT {schema}.holdfast_break($1::text, $2::bigint)", reads=True)
# The exclusive holder with nonce $2 is replaced by the one with nonce $3. It returns no row if there is none, and
# possibly none if another client changes the row at the same moment.
_ADOPT = Statement(
    "holdfast_adopt",
    """
    UPDATE {schema}.holdfast_locks l SET
        drawn = greatest(l.drawn + 1, c.now), fence = greatest(l.drawn + 1, c.now), nonce = $3::text,
        expires = c.now + $4::bigint, renewed = c.now, renewed_fence = greatest(l.drawn + 1, c.now), since = c.now,
        agent = $5::text, info = $6::text
    FROM (SELECT {schema}.holdfast_clock() AS now) AS c
    WHERE l.nonce = $2::text AND l.expires > c.now AND l.method = 'queue'
    AND NOT coalesce(l.departed_until > c.now AND $3::text = ANY (l.departed), false) AND l.ctid = (
        SELECT n.ctid FROM {schema}.holdfast_locks n WHERE n.name = $1::text ORDER BY n.generation DESC LIMIT 1
    )
    RETURNING l.fence
    """,
)
# For a client that passes its lease on between its callers: start the ttl again, and reserve $3 fences, with a new
# agent and info. If $4 is false, this is done only if `queued` is false. It returns no row if the ticket does not hold
# the lock. The columns are the first fence, or NULL if nothing was changed, and whether `queued` is the reason. If it
# is not, another client has changed the row at the same moment. A later `expires` was set by a concurrent renewal, or
# before the clock was set back, and stays.
_EXTEND_TURN = Statement(
    "holdfast_extend_turn",
    """
    WITH clock AS (SELECT {schema}.holdfast_clock() AS now),
    newest AS (
        SELECT n.ctid AS row_at, n.nonce, n.expires, n.queued FROM {schema}.holdfast_locks n WHERE n.name = $1::text
        ORDER BY n.generation DESC LIMIT 1
    ),
    extended AS (
        UPDATE {schema}.holdfast_locks l SET
            drawn = greatest(l.drawn + 1, c.now) + $3::bigint - 1, fence = greatest(l.drawn + 1, c.now),
            generation = CASE
                WHEN greatest(l.drawn + 1, c.now) & 31 = 0 THEN greatest(l.drawn + 1, c.now) ELSE l.generation
            END,
            expires = greatest(l.expires, c.now + $5::bigint),
            renewed = CASE WHEN l.expires > c.now + $5::bigint THEN l.renewed ELSE c.now END,
            renewed_fence = greatest(l.drawn + 1, c.now), since = c.now, agent = $6::text, info = $7::text
        FROM clock c
        WHERE l.ctid = (SELECT n.row_at FROM newest n) AND l.nonce = $2::text AND l.expires > c.now
        AND ($4::boolean OR NOT l.queued)
        RETURNING l.fence
    )
    SELECT (SELECT e.fence FROM extended e), n.queued AND NOT $4::boolean FROM newest n, clock c
    WHERE n.nonce = $2::text AND n.expires > c.now
    """,
)
# The same client uses only the fence $3 from now on. A request that arrives late does not replace later fences. It
# returns no row if the ticket does not hold the lock, and possibly none if another client changes the row at the same
# moment.
_RENEW_ALONE = Statement(
    "holdfast_renew_alone",
    """
    UPDATE {schema}.holdfast_locks l SET
        fence = CASE WHEN $3::bigint BETWEEN l.fence AND l.drawn THEN $3::bigint ELSE l.fence END,
        renewed_fence = CASE WHEN $3::bigint BETWEEN l.fence AND l.drawn THEN $3::bigint ELSE l.fence END,
        agent = CASE WHEN $3::bigint BETWEEN l.fence AND l.drawn THEN $5::text ELSE l.agent END,
        info = CASE WHEN $3::bigint BETWEEN l.fence AND l.drawn THEN $6::text ELSE l.info END,
        expires = greatest(l.expires, c.now + $4::bigint),
        renewed = CASE WHEN l.expires > c.now + $4::bigint THEN l.renewed ELSE c.now END
    FROM (SELECT {schema}.holdfast_clock() AS now) AS c
    WHERE l.nonce = $2::text AND l.expires > c.now AND l.ctid = (
        SELECT n.ctid FROM {schema}.holdfast_locks n WHERE n.name = $1::text ORDER BY n.generation DESC LIMIT 1
    )
    RETURNING l.fence
    """,
)
_HOLDER = Statement(
    "holdfast_holder",
    "SELECT l.nonce, l.fence FROM {schema}.holdfast_locks l "
    "WHERE l.name = $1::text AND l.expires > {schema}.holdfast_clock() ORDER BY l.generation DESC LIMIT 1",
)
# For several tickets, in the order of their names, so that two clients that lock several rows never deadlock.
_TRY_ACQUIRE_ALL = Statement(
    "holdfast_enter_all",
    "SELECT * FROM {schema}.holdfast_enter_all("
    "$1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text)",
)
_RELEASE_ALL = Statement(
    "holdfast_leave_all",
    "SELECT t.nonce, {schema}.holdfast_leave(t.name, t.nonce, t.unanswered) "
    "FROM unnest($1::text[], $2::text[], $3::boolean[]) AS t (name, nonce, unanswered)",
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
# It returns no row if another call has advanced the register as far already. One new register in 256 triggers the
# removal of expired ones.
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
_SWAP_RECORD = Statement(
    "holdfast_swap_record",
    "SELECT * FROM {schema}.holdfast_swap_record($1::text, $2::text, $3::text, $4::text, $5::bigint)",
)
_READ_RECORD = Statement(
    "holdfast_read_record",
    "SELECT r.nonce, r.payload FROM {schema}.holdfast_records r "
    "WHERE r.name = $1::text AND r.expires > {schema}.holdfast_clock()",
    reads=True,
    is_added=True,
)


_BOOLEANS: dict[str | None, int] = {"t": 1, "f": 0}


class _Prepared(NamedTuple):
    """A statement of the fast path with its values, but for the nonce between them."""

    statement: Statement
    before: tuple[Value, ...]
    after: tuple[Value, ...]


class PostgresqlBackend(SqlBackend):
    """Locks in one database, in FIFO order."""

    nominal_guarantees = GUARANTEES["queue"]
    lacks = LACKS["queue"]
    _port: PostgresqlPort

    def __init__(self, url: str, port: PostgresqlPort, runtime: Runtime, *, local_handover: bool = False) -> None:
        super().__init__(url, port, runtime)
        self.hands_over_locally = local_handover
        self._notifications = Notifications(port.subscriber, runtime, url)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._port.warnings

    def prepare_requests(self, claim: Claim) -> PreparedRequests | None:
        """The statements of the fast path. If one returns no row, the general path continues.

        An acquire continues with holdfast_enter. A release is sent again, then with holdfast_leave.
        """
        name, about = encode_name(claim.name), (us(claim.ttl), _agent(claim), claim.info)
        acquire = _Prepared(_FAST_ACQUIRE, (name,), about)
        lifetime = lease_deadline(0.0, claim.ttl, GRANULARITY)
        release = _Prepared(_FAST_RELEASE, (name,), ())
        return PreparedRequests(self._execute_prepared, acquire, acquire, release, lifetime, (), _note_blocked)

    async def _execute_prepared(self, request: _Prepared, nonce: str, now: float, deadline: float) -> int | None:
        values = (*request.before, nonce, *request.after)
        for answer, *_ in await self._port.execute(request.statement, values, deadline=deadline):
            return _BOOLEANS[answer] if answer in _BOOLEANS else int(answer or 0)
        return None

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        nonce, channel, agent = claim.nonce, self._port.channel, _agent(claim)
        if queue:
            self._notifications.expect(claim, channel)
        # Before it is sent: the client may be closed, and release, before the answer.
        was_unanswered, claim.unanswered = claim.unanswered, True
        sent = self._runtime.now()
        try:
            is_first = not claim.queued and not was_unanswered and not claim.was_blocked
            if is_first and claim.exclusive and not claim.owner:
                values: tuple[Value, ...] = (encode_name(claim.name), nonce, us(claim.ttl), agent, claim.info)
                for (fence,) in await self._port.execute(_FAST_ACQUIRE, values, deadline=deadline):
                    claim.unanswered = False
                    self._notifications.stop(claim)
                    return Granted(int(fence or 0), lease_deadline(sent, claim.ttl, GRANULARITY))
                sent = self._runtime.now()
            name, ttl, about = encode_name(claim.name), us(claim.ttl), (agent, claim.info, channel)
            statement, values = _TRY_ACQUIRE, (name, nonce, ttl, claim.exclusive, claim.limit, queue, *about)
            if claim.owner:
                statement, values = _TRY_ACQUIRE_OWNER, (name, nonce, ttl, queue, *about, encode_name(claim.owner))
            (row,) = await self._port.execute(statement, values, deadline=deadline)
        except BaseException as error:
            if not may_have_happened(error) and not was_unanswered:
                self._forget_refused(claim)
            raise
        claim.unanswered = was_unanswered
        try:
            return self._outcome(claim, row, sent, queue=queue)
        except ConfigurationError:
            if not was_unanswered:
                self._forget_refused(claim)
            raise

    def _forget_refused(self, claim: Claim) -> None:
        """The server has done nothing for this ticket, so the engine may never use it again."""
        claim.unanswered = False
        if not claim.queued:
            self._notifications.stop(claim)

    async def try_acquire_all(self, claims: Sequence[Claim], *, deadline: float) -> list[Granted | Waiting]:
        arrays = (
            _array([encode_name(claim.name) for claim in claims]),
            _array([claim.nonce for claim in claims]),
            _array([str(us(claim.ttl)) for claim in claims]),
            _array([_agent(claim) for claim in claims]),
            _array([claim.info for claim in claims]),
            _array([encode_name(claim.owner) for claim in claims]),
        )
        before = [claim.unanswered for claim in claims]
        for claim in claims:
            claim.unanswered = True
        sent = self._runtime.now()
        try:
            rows = await self._port.execute(_TRY_ACQUIRE_ALL, (*arrays, self._port.channel), deadline=deadline)
        except BaseException as error:
            if not may_have_happened(error):
                _set_unanswered(claims, before)
            raise
        _set_unanswered(claims, before)
        return [self._outcome(claim, row, sent, queue=False) for claim, row in zip(claims, rows, strict=False)]

    def _outcome(self, claim: Claim, row: Row, sent: float, *, queue: bool) -> Granted | Waiting:
        """The result of holdfast_enter."""
        outcome, fence, ahead, remaining, limit, other = row
        match outcome:
            case "in":
                self._notifications.stop(claim)
                claim.queued = False
                return Granted(int(fence or 0), lease_deadline(sent, claim.ttl, GRANULARITY))
            case "wait":
                claim.queued = claim.queued or queue
                return _waiting(int(ahead or 0), int(remaining or 0), other)
            case _:
                raise refused(outcome, claim, limit, other, self.url)

    async def wait(self, claim: Claim, until: float) -> None:
        await self._notifications.wait(claim, self._port.channel, until)

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> Sequence[bool | BackendError]:
        if len(claims) == 1:
            released = {claims[0].nonce: await self._release(claims[0], deadline)}
        else:
            ordered = _sorted_by_name(claims)
            arrays = (
                _array([encode_name(claim.name) for claim in ordered]),
                _array([claim.nonce for claim in ordered]),
                _array(["t" if claim.unanswered else "f" for claim in ordered]),
            )
            released = _by_nonce(await self._port.execute(_RELEASE_ALL, arrays, deadline=deadline))
        for claim in claims:
            self._notifications.stop(claim)
            claim.unanswered = claim.queued = False
        return [released[claim.nonce] for claim in claims]

    async def _release(self, claim: Claim, deadline: float) -> bool:
        name, nonce = encode_name(claim.name), claim.nonce
        if claim.exclusive and not claim.owner and not claim.queued and not claim.unanswered:
            for was_held, _ in await self._port.execute(_FAST_RELEASE, (name, nonce), deadline=deadline):
                return was_held == "t"
        ((was_held,),) = await self._port.execute(_RELEASE, (name, nonce, claim.unanswered), deadline=deadline)
        return was_held == "t"

    async def release_and_queue(self, claim: Claim, following: Claim, *, deadline: float) -> tuple[bool, bool]:
        channel = self._port.channel
        self._notifications.expect(following, channel)
        following.unanswered = True
        about = (us(following.ttl), _agent(following), following.info, channel)
        values = (encode_name(claim.name), claim.nonce, following.nonce, *about)
        try:
            ((was_held, outcome),) = await self._port.execute(_RELEASE_AND_QUEUE, values, deadline=deadline)
        except BaseException as error:
            if not may_have_happened(error):
                self._forget_refused(following)
            raise
        following.unanswered = False
        following.queued = outcome == "wait"
        self._notifications.stop(claim)
        claim.unanswered = claim.queued = False
        is_known = outcome in ("wait", "in")
        if not is_known:
            self._notifications.stop(following)
        return was_held == "t", is_known

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone]:
        sent = self._runtime.now()
        if len(claims) == 1:
            claim = claims[0]
            values = (encode_name(claim.name), claim.nonce, us(claim.ttl))
            ((is_live,),) = await self._port.execute(_RENEW, values, deadline=deadline)
            renewed = {claim.nonce: is_live == "t"}
        else:
            ordered = _sorted_by_name(claims)
            arrays = (
                _array([encode_name(claim.name) for claim in ordered]),
                _array([claim.nonce for claim in ordered]),
                _array([str(us(claim.ttl)) for claim in ordered]),
            )
            renewed = _by_nonce(await self._port.execute(_RENEW_ALL, arrays, deadline=deadline))
        return [
            Live(lease_deadline(sent, claim.ttl, GRANULARITY)) if renewed[claim.nonce] else LeaseGone()
            for claim in claims
        ]

    async def adopt(self, nonce: str, claim: Claim, *, deadline: float) -> Granted | LeaseGone:
        name = encode_name(claim.name)
        values = (name, nonce, claim.nonce, us(claim.ttl), _agent(claim), claim.info)
        while True:
            sent = self._runtime.now()
            for (fence,) in await self._port.execute(_ADOPT, values, deadline=deadline):
                return Granted(int(fence or 0), lease_deadline(sent, claim.ttl, GRANULARITY))
            rows = await self._port.execute(_HOLDER, (name,), deadline=deadline)
            holder, fence = rows[0] if rows else (None, None)
            if holder == claim.nonce:  # a repeated call
                (outcome,) = await self.renew([claim], deadline=deadline)
                return Granted(int(fence or 0), outcome.deadline) if isinstance(outcome, Live) else outcome
            if holder != nonce:
                return LeaseGone()

    async def extend_turn(
        self, claim: Claim, successor: Claim, fences: int, *, may_stay: bool, deadline: float
    ) -> Granted | Waiting | LeaseGone:
        about = (_agent(successor), with_fences(successor.info, fences))
        values = (encode_name(claim.name), claim.nonce, fences, may_stay, us(claim.ttl), *about)
        while True:
            sent = self._runtime.now()
            rows = await self._port.execute(_EXTEND_TURN, values, deadline=deadline)
            if not rows:
                return LeaseGone()
            ((fence, others_wait),) = rows
            if fence is not None:
                return Granted(int(fence), lease_deadline(sent, claim.ttl, GRANULARITY))
            if others_wait == "t":
                return Waiting(0.0)

    async def renew_alone(self, claim: Claim, holder: Claim, fence: int, *, deadline: float) -> Live | LeaseGone:
        name = encode_name(claim.name)
        values = (name, claim.nonce, fence, us(claim.ttl), _agent(holder), holder.info)
        while True:
            sent = self._runtime.now()
            if await self._port.execute(_RENEW_ALONE, values, deadline=deadline):
                return Live(lease_deadline(sent, claim.ttl, GRANULARITY))
            rows = await self._port.execute(_HOLDER, (name,), deadline=deadline)
            if not rows or rows[0][0] != claim.nonce:
                return LeaseGone()

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        infos = _lock_infos(await self._port.execute(_INSPECT, (encode_name(name),), deadline=deadline))
        return infos[0] if infos else LockInfo(name, (), ())

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        return _lock_infos(await self._port.execute(_LOCKS, (encode_name(prefix),), deadline=deadline))

    async def _break(self, name: str, fence: int, deadline: float) -> bool:
        ((broken,),) = await self._port.execute(_BREAK, (encode_name(name), fence), deadline=deadline)
        return broken == "t"

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        values = (encode_name(name), number, nonce, keep_us(keep))
        return bool(await self._port.execute(_ADVANCE_REGISTER, values, deadline=deadline))

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        encoded = [encode_name(name) for name in names]
        rows = await self._port.execute(_READ_REGISTERS, (_array(encoded),), deadline=deadline)
        numbers = {name: int(number or 0) for name, number in rows}
        return [numbers.get(name, 0) for name in encoded]

    async def swap_record(
        self, name: str, expected: str, record: Record | None, *, keep: float, deadline: float
    ) -> Record | None:
        if not expected and record is None:
            return record_in(await self._port.execute(_READ_RECORD, (encode_name(name),), deadline=deadline))
        nonce, payload = (None, None) if record is None else record
        values = (encode_name(name), expected, nonce, payload, keep_us(keep))
        return record_in(await self._port.execute(_SWAP_RECORD, values, deadline=deadline))

    async def close(self) -> None:
        self._notifications.wake_all()
        await super().close()


def _note_blocked(claim: Claim, _reply: None, _sent: float) -> None:
    """Note that the fast path has not granted this ticket: `try_acquire` omits it then."""
    claim.was_blocked = True


def encode_name(name: str) -> str:
    r"""The name as the tables store it: a zero byte, which PostgreSQL's text cannot hold, is \0, and a backslash \\."""
    return name.replace("\\", "\\\\").replace("\0", "\\0")


def decode_name(name: str) -> str:
    """The inverse of `encode_name`."""
    return "\\".join(part.replace("\\0", "\0") for part in name.split("\\\\"))


def _set_unanswered(claims: Sequence[Claim], values: Sequence[bool]) -> None:
    for claim, value in zip(claims, values, strict=True):
        claim.unanswered = value


def _waiting(ahead: int, remaining_us: int, holder: str | None) -> Waiting:
    poll_after = POLL_INTERVAL_BEHIND
    if ahead < _POLL_OFTEN:
        # Poll when the ticket that blocks this one expires. For the second waiter that is the ticket of the first one,
        # which expires soon after it was woken, unless its client polls.
        poll_after = max(0.0, min(POLL_INTERVAL, remaining_us / 1e6))
    return Waiting(poll_after, process_text(holder) if holder else None)


def _lock_infos(rows: Sequence[Row]) -> list[LockInfo]:
    return lock_infos(rows, true="t", decode=decode_name)


def _agent(claim: Claim) -> str:
    """The agent without zero bytes, which PostgreSQL's text cannot hold."""
    return claim.agent.replace("\0", "")


def _sorted_by_name(claims: Sequence[Claim]) -> list[Claim]:
    return sorted(claims, key=lambda claim: claim.name)  # the order of `try_acquire_all` too


def _by_nonce(rows: Sequence[Row]) -> dict[str, bool]:
    return {nonce or "": answer == "t" for nonce, answer in rows}


def _array(values: Sequence[str]) -> str:
    """An array literal of PostgreSQL."""
    escaped = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in escaped) + "}"
