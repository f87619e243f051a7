"""method=advisory: a waiter waits in PostgreSQL for an advisory lock; the lease in the tables is the truth.

The advisory lock belongs to a session, and a session can end while its client works on, or outlive it. So a ticket that
gets the advisory lock is granted only if the last lease was released or has expired. A holder that loses its connection
does not lose the lock: the lease stays and is renewed on another connection. If a session keeps the advisory lock
without a lease, for example because its process is stopped, the waiters terminate that session.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.postgresql.port import PostgresqlPort, Statement, WaiterSession
from holdfast.backends.postgresql.protocol.guarantees import GUARANTEES, LACKS
from holdfast.backends.postgresql.protocol.queue import PostgresqlBackend, encode_name
from holdfast.backends.sql_protocol import GRANULARITY, refused, us
from holdfast.core.clock import lease_deadline
from holdfast.core.events import logger
from holdfast.core.notifications import UNSUBSCRIBED_POLL
from holdfast.core.one_by_one import OneByOne, result_or_error
from holdfast.core.tickets import (
    POLL_INTERVAL,
    POLL_INTERVAL_BEHIND,
    Claim,
    Granted,
    LeaseGone,
    Live,
    Waiting,
    may_have_happened,
    process_text,
)
from holdfast.errors import BackendError, HoldfastError, Unsupported

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime

_TRY_ACQUIRE = Statement(
    "holdfast_pass",
    "SELECT * FROM {schema}.holdfast_pass("
    "$1::text, $2::text, $3::bigint, $4::bigint, $5::boolean, $6::boolean, $7::text, $8::text)",
)
# One statement removes the lease and releases the advisory lock. The next holder of the advisory lock waits for the
# row until this statement is committed, and finds no lease.
_RELEASE = Statement(
    "holdfast_return",
    "UPDATE {schema}.holdfast_locks l SET nonce = NULL WHERE l.nonce = $2::text AND l.ctid = ("
    "SELECT n.ctid FROM {schema}.holdfast_locks n WHERE n.name = $1::text ORDER BY n.generation DESC LIMIT 1) "
    "RETURNING l.expires > {schema}.holdfast_clock(), pg_advisory_unlock($3::bigint)",
)
# Only a process that runs our own query: the process may have ended, and its id may have been reused.
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
# Terminates the session that has the advisory lock. That is always safe, because the lease is the truth.
_TERMINATE_HOLDER = Statement(
    "holdfast_terminate_holder",
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND (classid::bigint << 32 | objid::bigint) = $1::bigint",
)
_TERMINATE_MAX = 1.0  # seconds for a session to end
_TERMINATE_POLL = 0.01  # seconds between checks that it has


class _State:
    """The state of a claim that waits or holds."""

    def __init__(self, port: PostgresqlPort) -> None:
        # At the end of the process another port releases the claim, which cannot use the session of this one.
        self.port = port

    session: WaiterSession | None = None
    holder: str | None = None  # the last known one, for error messages
    drawn_when_free: str | None = None  # the last number that the lock had drawn, if the last poll found no lease


class AdvisoryBackend(OneByOne, PostgresqlBackend):
    """Locks in one database, granted in the order of PostgreSQL's lock queue."""

    nominal_guarantees = GUARANTEES["advisory"]
    lacks = LACKS["advisory"]

    def __init__(self, url: str, port: PostgresqlPort, runtime: Runtime, *, schema: str) -> None:
        super().__init__(url, port, runtime)
        self._schema = schema

    def prepare_requests(self, claim: Claim) -> None:
        """None: a lease needs a session of its own."""

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        if not claim.exclusive or claim.owner:
            raise Unsupported(
                backend="postgresql with method=advisory",
                what="an owner" if claim.owner else "readers and semaphores",
                others=("postgresql with method=queue",),
            )
        state: _State = claim.state or _State(self._port)
        session = state.session
        if session is None or not session.is_open:
            session = state.session = await self._port.open_waiter_session(deadline=deadline)
            claim.state = state
        if session.is_waiting:
            await self._check_holder(claim, session, state, deadline)
            return Waiting(POLL_INTERVAL_BEHIND, state.holder)
        values = (
            *(encode_name(claim.name), claim.nonce, us(claim.ttl), self._key(claim.name)),
            *(session.has_advisory_lock, queue, claim.agent.replace("\0", ""), claim.info),
        )
        was_unanswered, claim.unanswered = claim.unanswered, True
        sent = self._runtime.now()
        try:
            (row,) = await session.execute(_TRY_ACQUIRE, values, deadline=deadline)
        except BaseException as error:
            session.close()  # it may have the advisory lock by now
            if not may_have_happened(error) and not was_unanswered:
                claim.unanswered, state.session = False, None
            raise
        outcome, fence, remaining, other, is_locked = row
        claim.unanswered = was_unanswered
        session.has_advisory_lock = is_locked == "t"
        if outcome == "in":
            return Granted(int(fence or 0), lease_deadline(sent, claim.ttl, GRANULARITY))
        if not session.has_advisory_lock and not (outcome == "wait" and queue):
            state.session = None
            self._port.return_waiter_session(session)
        if outcome != "wait":
            raise refused(outcome, claim, None, other, self.url)
        lease_ends_in = int(remaining or 0) / 1e6
        poll_after = max(0.0, min(POLL_INTERVAL, lease_ends_in)) if session.has_advisory_lock else POLL_INTERVAL
        if other:
            state.holder = process_text(other)
        return Waiting(poll_after, state.holder)

    async def wait(self, claim: Claim, until: float) -> None:
        session = self._session(claim)
        if session is None or not session.is_open:
            await self._pause(min(until, self._runtime.now() + UNSUBSCRIBED_POLL))
        elif session.has_advisory_lock:
            await self._pause(until)
        else:
            with contextlib.suppress(BackendError):  # the next poll reports it
                await session.wait(self._wait_sql(claim.name), until)

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> Sequence[bool | BackendError]:
        return [await result_or_error(self._release(claim, deadline)) for claim in claims]

    async def _release(self, claim: Claim, deadline: float) -> bool:
        name, nonce = encode_name(claim.name), claim.nonce
        session, claim.state = self._session(claim), None
        if session is not None:
            try:
                if session.has_advisory_lock and not claim.unanswered:
                    values = (name, nonce, self._key(claim.name))
                    for was_held, _ in await session.execute(_RELEASE, values, deadline=deadline):
                        session.has_advisory_lock = False
                        self._port.return_waiter_session(session)
                        return was_held == "t"
            except BaseException:
                session.close()
                raise
            await self._close_session(session, claim.name, deadline)
        is_released = await super()._release(claim, deadline)
        claim.unanswered = False
        return is_released

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone]:
        outcomes = await super().renew(claims, deadline=deadline)
        for claim in claims:
            if claim.is_final:  # the lease stays, and the next session with the advisory lock waits for its end
                session, claim.state = self._session(claim), None
                if session is not None:
                    session.close()
        return outcomes

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        is_broken = await super().break_lock(name, fence, deadline=deadline)
        if is_broken:
            await self._terminate_holder(name, deadline)
        return is_broken

    async def _check_holder(self, claim: Claim, session: WaiterSession, state: _State, deadline: float) -> None:
        """Terminate the session that has the advisory lock if two polls found no lease, and none was granted between.

        Also close our own session then: its connection may have ended without our knowledge, for example after a
        failure of the network. The ticket then waits in another session.
        """
        rows = await self._port.execute(_POLL, (encode_name(claim.name),), deadline=deadline)
        # The row of a lock that was unused for long is removed.
        drawn, is_held, info, _ = rows[0] if rows else ("", "f", None, None)
        if is_held == "t":
            state.drawn_when_free, state.holder = None, process_text(info or "")
        elif state.drawn_when_free == drawn:
            await self._terminate_holder(claim.name, deadline)
            await self._close_session(session, claim.name, deadline)
        else:
            state.drawn_when_free = drawn or ""

    async def _close_session(self, session: WaiterSession, name: str, deadline: float) -> None:
        """Close the session, which releases its advisory lock. If it waits for one, cancel the wait on the server."""
        session.close()
        if session.is_waiting:
            with contextlib.suppress(BackendError):  # the server notices the closed connection a second later
                await self._port.execute(_CANCEL, (session.pid, self._wait_sql(name)), deadline=deadline)

    async def _terminate_holder(self, name: str, deadline: float) -> None:
        """Terminate the session that has the advisory lock; return when it has ended, or after _TERMINATE_MAX."""
        until, values = min(deadline, self._runtime.now() + _TERMINATE_MAX), (self._key(name),)
        try:
            while (
                await self._port.execute(_TERMINATE_HOLDER, values, deadline=deadline) and self._runtime.now() < until
            ):
                await self._pause(self._runtime.now() + _TERMINATE_POLL)
        except HoldfastError as error:
            logger().warning("a session keeps the advisory lock of lock %r, and cannot be ended: %s", name, error)

    async def _pause(self, until: float) -> None:
        await self._runtime.sleep(max(0.0, until - self._runtime.now()))

    def _session(self, claim: Claim) -> WaiterSession | None:
        state: _State | None = claim.state
        return state.session if state is not None and state.port is self._port else None

    def _wait_sql(self, name: str) -> str:
        return f"SELECT pg_advisory_lock({self._key(name)})"

    def _key(self, name: str) -> int:
        """64 bits. Two names with the same key by chance wait for each other, but their leases stay separate."""
        digest = hashlib.sha256(f"{self._schema}\0{name}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)
