"""method=advisory: who wants the lock waits in PostgreSQL's own line, at an advisory lock; the lease is in the tables.

The advisory lock is a gate and no more. It belongs to a session, and a session can end while its client works on, or
the other way round: so whoever has come through the gate is in only if the lease of the last one has been given back,
or has run out. Losing the connection is no loss: the lease goes on, renewed on another one. And a session that keeps
the gate although no lease is left, as that of a stopped process does, is put out of it by those who wait.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.postgresql.port import Statement, WaiterSession
from holdfast.backends.postgresql.protocol.guarantees import LACKS
from holdfast.backends.postgresql.protocol.queue import (
    GRANULARITY,
    PostgresqlBackend,
    encode_name,
    method_conflict,
    us,
)
from holdfast.core.clock import lease_deadline
from holdfast.core.events import logger
from holdfast.core.notifications import UNSUBSCRIBED_POLL
from holdfast.core.one_by_one import OneByOne
from holdfast.core.tickets import POLL_INTERVAL, POLL_INTERVAL_BEHIND, Granted, Ticket, Waiting, process_text
from holdfast.errors import BackendError, HoldfastError, OutcomeUnknown, Unsupported

if TYPE_CHECKING:
    from holdfast.backends.postgresql.port import PostgresqlPort
    from holdfast.core.ports import Runtime

_TRY_ACQUIRE = Statement(
    "holdfast_pass",
    "SELECT * FROM {schema}.holdfast_pass("
    "$1::text, $2::text, $3::bigint, $4::bigint, $5::boolean, $6::boolean, $7::text, $8::text)",
)
# The lease first, then the gate: the next one through it waits for this statement's end, and finds no lease.
_RELEASE = Statement(
    "holdfast_return",
    "UPDATE {schema}.holdfast_locks l SET nonce = NULL WHERE l.nonce = $2::text AND l.ctid = ("
    "SELECT n.ctid FROM {schema}.holdfast_locks n WHERE n.name = $1::text ORDER BY n.generation DESC LIMIT 1) "
    "RETURNING l.expires > {schema}.holdfast_clock(), pg_advisory_unlock($3::bigint)",
)
# Only what we know to be ours: the process may have ended, and its number may be somebody else's by now.
_CANCEL = Statement(
    "holdfast_cancel",
    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity "
    "WHERE pid = $1::integer AND query = $2::text AND state = 'active'",
)
_POLL = Statement(
    "holdfast_poll",
    "SELECT l.drawn, l.nonce IS NOT NULL AND l.expires > {schema}.holdfast_clock(), l.info, CASE "
    "WHEN l.renewed > {schema}.holdfast_clock() AND l.nonce IS NOT NULL THEN {schema}.holdfast_set_right(l.name) END "
    "FROM {schema}.holdfast_locks l WHERE l.name = $1::text ORDER BY l.generation DESC LIMIT 1",
)
# Ends the session that has the gate. That is safe at any time: the gate is not the lock.
_TERMINATE_HOLDER = Statement(
    "holdfast_terminate_holder",
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND (classid::bigint << 32 | objid::bigint) = $1::bigint",
)
_TERMINATE_MAX = 1.0  # seconds for a session to end
_TERMINATE_POLL = 0.01  # seconds between looks whether it has


class AdvisoryBackend(OneByOne, PostgresqlBackend):
    """Locks in one database, in its own order."""

    method = "advisory"
    lacks = LACKS["advisory"]

    def __init__(self, url: str, port: PostgresqlPort, runtime: Runtime, *, schema: str) -> None:
        super().__init__(url, port, runtime)
        self._schema = schema
        self._sessions: dict[str, WaiterSession] = {}  # of each ticket that waits or is in
        self._holders: dict[str, str] = {}  # whom each that waits has seen last, for people
        self._seen_free: dict[
            str, str
        ] = {}  # those that wait and saw no lease when they looked last: the number drawn then

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        if not ticket.exclusive or ticket.owner:
            raise Unsupported(
                backend="postgresql with method=advisory",
                what="an owner" if ticket.owner else "readers and semaphores",
                others=("postgresql with method=queue",),
            )
        nonce = ticket.nonce
        session = self._sessions.get(nonce)
        if session is None or not session.is_open:
            session = self._sessions[nonce] = await self._port.open_waiter_session(deadline=deadline)
        if session.is_waiting:
            await self._check_holder(ticket, deadline)
            return Waiting(POLL_INTERVAL_BEHIND, self._holders.get(nonce))
        values = (
            *(
                encode_name(ticket.name),
                nonce,
                us(ticket.ttl),
                self._key(ticket.name),
                session.has_advisory_lock,
                queue,
            ),
            *(ticket.agent.replace("\0", ""), ticket.info),
        )
        was_unanswered = nonce in self._unanswered
        self._unanswered.add(nonce)
        sent = self._runtime.now()
        try:
            ((outcome, fence, remaining, other, has_advisory_lock),) = await session.execute(
                _TRY_ACQUIRE, values, deadline=deadline
            )
        except BaseException as error:
            session.close()  # it may have the gate by now
            if isinstance(error, HoldfastError) and not isinstance(error, OutcomeUnknown) and not was_unanswered:
                self._unanswered.discard(nonce)
                self._sessions.pop(nonce, None)  # closed: should the ticket come again, it opens another one
            raise
        if not was_unanswered:
            self._unanswered.discard(nonce)
        session.has_advisory_lock = has_advisory_lock == "t"
        if outcome == "in":
            return Granted(int(fence or 0), lease_deadline(sent, ticket.ttl, GRANULARITY))
        if not session.has_advisory_lock and not (outcome == "wait" and queue):
            del self._sessions[nonce]
            self._port.return_waiter_session(session)
        if outcome == "method":
            raise method_conflict(ticket.name, other)
        if outcome == "gone":
            raise OutcomeUnknown(backend=self.url, problem=f"ticket {nonce} was withdrawn before")
        left = int(remaining or 0) / 1e6
        poll_after = max(0.0, min(POLL_INTERVAL, left)) if session.has_advisory_lock else POLL_INTERVAL
        holder = process_text(other) if other else self._holders.get(nonce)
        if holder and queue:
            self._holders[nonce] = holder
        return Waiting(poll_after, holder)

    async def wait(self, ticket: Ticket, until: float) -> None:
        session = self._sessions.get(ticket.nonce)
        if session is None or not session.is_open:
            await self._pause(min(until, self._runtime.now() + UNSUBSCRIBED_POLL))
        elif session.has_advisory_lock:
            await self._pause(until)
        else:
            with contextlib.suppress(BackendError):  # the next look finds out
                await session.wait(self._wait_sql(ticket.name), until)

    async def release(self, tickets: Sequence[Ticket], *, deadline: float) -> Sequence[bool | BackendError]:
        answers: list[bool | BackendError] = []
        for ticket in tickets:
            try:
                answers.append(await self._release(ticket, deadline))
                self._unanswered.discard(ticket.nonce)
            except BackendError as error:
                answers.append(error)
        return answers

    async def _release(self, ticket: Ticket, deadline: float) -> bool:
        name, nonce = encode_name(ticket.name), ticket.nonce
        session = self._sessions.pop(nonce, None)
        self._holders.pop(nonce, None)
        self._seen_free.pop(nonce, None)
        try:
            if session is not None and session.has_advisory_lock and nonce not in self._unanswered:
                for was_in, _ in await session.execute(
                    _RELEASE, (name, nonce, self._key(ticket.name)), deadline=deadline
                ):
                    session.has_advisory_lock = False
                    self._port.return_waiter_session(session)
                    return was_in == "t"
        except BaseException:
            if session is not None:
                session.close()
            raise
        if session is not None:
            await self._close_session(session, ticket.name, deadline)
        return await super()._release(ticket, deadline)

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        broken = await super().break_lock(name, fence, deadline=deadline)
        if broken:
            await self._terminate_holder(name, deadline)
        return broken

    async def _check_holder(self, ticket: Ticket, deadline: float) -> None:
        """See to it that nobody keeps the gate without a lease: there was none, and since then nobody has got one.

        Nor may we wait on a connection that has ended without our knowing, as when a machine or a cable failed and no
        word came through: we come again on another one.
        """
        rows = await self._port.execute(_POLL, (encode_name(ticket.name),), deadline=deadline)
        # A row that nobody used for long was removed.
        drawn, is_taken, info, _ = rows[0] if rows else ("", "f", None, None)
        if is_taken == "t":
            self._seen_free.pop(ticket.nonce, None)
            self._holders[ticket.nonce] = process_text(info or "")
        elif self._seen_free.get(ticket.nonce) == drawn:
            await self._terminate_holder(ticket.name, deadline)
            await self._close_session(self._sessions[ticket.nonce], ticket.name, deadline)
        else:
            self._seen_free[ticket.nonce] = drawn or ""

    async def _close_session(self, session: WaiterSession, name: str, deadline: float) -> None:
        """Which opens the gate, or has the server wait there no longer."""
        session.close()
        if session.is_waiting:
            with contextlib.suppress(BackendError):  # then the server notices by itself, a second later
                await self._port.execute(_CANCEL, (session.pid, self._wait_sql(name)), deadline=deadline)

    async def _terminate_holder(self, name: str, deadline: float) -> None:
        """Put out who has the gate; returns when it is open, if that works out."""
        until = min(deadline, self._runtime.now() + _TERMINATE_MAX)
        try:
            while (
                await self._port.execute(_TERMINATE_HOLDER, (self._key(name),), deadline=deadline)
                and self._runtime.now() < until
            ):
                await self._pause(self._runtime.now() + _TERMINATE_POLL)
        except HoldfastError as error:
            logger().warning("a session keeps the gate of lock %r, and cannot be ended: %s", name, error)

    async def _pause(self, until: float) -> None:
        await self._runtime.sleep(max(0.0, until - self._runtime.now()))

    def _wait_sql(self, name: str) -> str:
        return f"SELECT pg_advisory_lock({self._key(name)})"

    def _key(self, name: str) -> int:
        """64 bits. Two names that have the same by chance would wait for each other, and no more than that."""
        digest = hashlib.sha256(f"{self._schema}\0{name}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)
