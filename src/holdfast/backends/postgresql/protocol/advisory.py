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

from holdfast.backends.postgresql.port import Gate, Statement
from holdfast.backends.postgresql.protocol.guarantees import LACKS
from holdfast.backends.postgresql.protocol.queue import (
    GRANULARITY,
    PostgresqlBackend,
    another_method,
    stored,
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

_PASS = Statement(
    "holdfast_pass",
    "SELECT * FROM {schema}.holdfast_pass("
    "$1::text, $2::text, $3::bigint, $4::bigint, $5::boolean, $6::boolean, $7::text, $8::text)",
)
# The lease first, then the gate: the next one through it waits for this statement's end, and finds no lease.
_RETURN = Statement(
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
_LOOK = Statement(
    "holdfast_look",
    "SELECT l.drawn, l.nonce IS NOT NULL AND l.expires > {schema}.holdfast_clock(), l.info, CASE "
    "WHEN l.renewed > {schema}.holdfast_clock() AND l.nonce IS NOT NULL THEN {schema}.holdfast_set_right(l.name) END "
    "FROM {schema}.holdfast_locks l WHERE l.name = $1::text ORDER BY l.generation DESC LIMIT 1",
)
# Ends the session that has the gate. That is safe at any time: the gate is not the lock.
_CLEAR = Statement(
    "holdfast_clear",
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND (classid::bigint << 32 | objid::bigint) = $1::bigint",
)
_CLEARED_MAX = 1.0  # seconds for a session to end
_CLEARED_LOOK = 0.01  # seconds between looks whether it has


class AdvisoryBackend(OneByOne, PostgresqlBackend):
    """Locks in one database, in its own order."""

    method = "advisory"
    lacks = LACKS["advisory"]

    def __init__(self, url: str, port: PostgresqlPort, runtime: Runtime, *, schema: str) -> None:
        super().__init__(url, port, runtime)
        self._schema = schema
        self._gates: dict[str, Gate] = {}  # of each ticket that waits or is in
        self._holders: dict[str, str] = {}  # whom each that waits has seen last, for people
        self._free: dict[str, str] = {}  # those that wait and saw no lease when they looked last: the number drawn then

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        if not ticket.exclusive or ticket.owner:
            raise Unsupported(
                backend="postgresql with method=advisory",
                what="an owner" if ticket.owner else "readers and semaphores",
                others=("postgresql with method=queue",),
            )
        nonce = ticket.nonce
        gate = self._gates.get(nonce)
        if gate is None or not gate.is_open:
            gate = self._gates[nonce] = await self._port.gate(deadline=deadline)
        if gate.is_asking:
            await self._look(ticket, deadline)
            return Waiting(POLL_INTERVAL_BEHIND, self._holders.get(nonce))
        values = (
            *(stored(ticket.name), nonce, us(ticket.ttl), self._key(ticket.name), gate.is_in, queue),
            *(ticket.agent.replace("\0", ""), ticket.info),
        )
        was_unheard = nonce in self._unheard
        self._unheard.add(nonce)
        sent = self._runtime.now()
        try:
            ((outcome, fence, remaining, other, is_gated),) = await gate.ask(_PASS, values, deadline=deadline)
        except BaseException as error:
            gate.close()  # it may have the gate by now
            if isinstance(error, HoldfastError) and not isinstance(error, OutcomeUnknown) and not was_unheard:
                self._unheard.discard(nonce)
                self._gates.pop(nonce, None)  # closed: should the ticket come again, it opens another one
            raise
        if not was_unheard:
            self._unheard.discard(nonce)
        gate.is_in = is_gated == "t"
        if outcome == "in":
            return Granted(int(fence or 0), lease_deadline(sent, ticket.ttl, GRANULARITY))
        if not gate.is_in and not (outcome == "wait" and queue):
            del self._gates[nonce]
            self._port.give_back(gate)
        if outcome == "method":
            raise another_method(ticket.name, other)
        if outcome == "gone":
            raise OutcomeUnknown(backend=self.url, problem=f"ticket {nonce} was withdrawn before")
        left = int(remaining or 0) / 1e6
        poll_after = max(0.0, min(POLL_INTERVAL, left)) if gate.is_in else POLL_INTERVAL
        holder = process_text(other) if other else self._holders.get(nonce)
        if holder and queue:
            self._holders[nonce] = holder
        return Waiting(poll_after, holder)

    async def wait(self, ticket: Ticket, until: float) -> None:
        gate = self._gates.get(ticket.nonce)
        if gate is None or not gate.is_open:
            await self._pause(min(until, self._runtime.now() + UNSUBSCRIBED_POLL))
        elif gate.is_in:
            await self._pause(until)
        else:
            with contextlib.suppress(BackendError):  # the next look finds out
                await gate.wait(self._wait_sql(ticket.name), until)

    async def release(self, tickets: Sequence[Ticket], *, deadline: float) -> Sequence[bool | BackendError]:
        answers: list[bool | BackendError] = []
        for ticket in tickets:
            try:
                answers.append(await self._release(ticket, deadline))
                self._unheard.discard(ticket.nonce)
            except BackendError as error:
                answers.append(error)
        return answers

    async def _release(self, ticket: Ticket, deadline: float) -> bool:
        name, nonce = stored(ticket.name), ticket.nonce
        gate = self._gates.pop(nonce, None)
        self._holders.pop(nonce, None)
        self._free.pop(nonce, None)
        try:
            if gate is not None and gate.is_in and nonce not in self._unheard:
                for was_in, _ in await gate.ask(_RETURN, (name, nonce, self._key(ticket.name)), deadline=deadline):
                    gate.is_in = False
                    self._port.give_back(gate)
                    return was_in == "t"
        except BaseException:
            if gate is not None:
                gate.close()
            raise
        if gate is not None:
            await self._hang_up(gate, ticket.name, deadline)
        return await super()._release(ticket, deadline)

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        broken = await super().break_lock(name, fence, deadline=deadline)
        if broken:
            await self._clear(name, deadline)
        return broken

    async def _look(self, ticket: Ticket, deadline: float) -> None:
        """See to it that nobody keeps the gate without a lease: there was none, and since then nobody has got one.

        Nor may we wait on a connection that has ended without our knowing, as when a machine or a cable failed and no
        word came through: we come again on another one.
        """
        rows = await self._port.ask(_LOOK, (stored(ticket.name),), deadline=deadline)
        # A row that nobody used for long was removed.
        drawn, is_taken, info, _ = rows[0] if rows else ("", "f", None, None)
        if is_taken == "t":
            self._free.pop(ticket.nonce, None)
            self._holders[ticket.nonce] = process_text(info or "")
        elif self._free.get(ticket.nonce) == drawn:
            await self._clear(ticket.name, deadline)
            await self._hang_up(self._gates[ticket.nonce], ticket.name, deadline)
        else:
            self._free[ticket.nonce] = drawn or ""

    async def _hang_up(self, gate: Gate, name: str, deadline: float) -> None:
        """Which opens the gate, or has the server wait there no longer."""
        gate.close()
        if gate.is_asking:
            with contextlib.suppress(BackendError):  # then the server notices by itself, a second later
                await self._port.ask(_CANCEL, (gate.pid, self._wait_sql(name)), deadline=deadline)

    async def _clear(self, name: str, deadline: float) -> None:
        """Put out who has the gate; returns when it is open, if that works out."""
        until = min(deadline, self._runtime.now() + _CLEARED_MAX)
        try:
            while await self._port.ask(_CLEAR, (self._key(name),), deadline=deadline) and self._runtime.now() < until:
                await self._pause(self._runtime.now() + _CLEARED_LOOK)
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
