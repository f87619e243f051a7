"""`method=row`: a waiter waits in the database for a lock on a row; a lease in another row is the truth.

    gate row, locked on connection A          waiters wait for this lock inside the server, which wakes them
    lease row, committed on connection B      the holder; written before the grant, removed before the row lock

A connection that drops releases its row lock at once, while its holder may work on unaware. So the next ticket that
gets the row lock reads the lease, and waits until it has expired. If a holder whose lease has expired keeps its row
lock (it is stopped or cut off), the waiters kill its connection. A holder notices the loss of its row lock at the next
renewal.

A stopped waiter also gets the row lock when its turn comes. So every waiter regularly checks, on another connection,
that the ticket with the row lock has a lease. If it has none for LEASELESS_MAX, all connections of its client that wait
for this gate row or have it locked are killed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.mysql.port import PeriodicCheck
from holdfast.backends.mysql.protocol.guarantees import ROW, ROW_LACKS
from holdfast.backends.mysql.protocol.plain import PlainBackend
from holdfast.backends.mysql.protocol.statements import FAST_ACQUIRE, FAST_RELEASE, INSERTED, RELEASE, TRY_ACQUIRE
from holdfast.backends.mysql.sql import AGENT_MAX, lock_id
from holdfast.backends.sql_protocol import GRANULARITY, refused, us
from holdfast.core.clock import lease_deadline
from holdfast.core.engine import IO_TIMEOUT_MIN
from holdfast.core.tickets import POLL_INTERVAL, Granted, LeaseGone, Live, Ticket, Waiting, process_text
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import MysqlPort, WaiterSessionsPort
    from holdfast.backends.mysql.protocol.plain import State
    from holdfast.core.ports import Runtime

WAIT_MAX = 60.0  # seconds in the server's queue, after which the waiter joins it again at its end
CHECK_EVERY = 1.0  # seconds between the checks of a waiter
LEASELESS_MAX = 2.0  # seconds for which a ticket may have the row lock without a lease
_LEASELESS_KEPT = 100  # gate rows for which that is recorded


class RowBackend(PlainBackend):
    """Locks granted in the order in which the server grants row locks."""

    method = "row"
    nominal_guarantees = ROW
    lacks = ROW_LACKS

    def __init__(self, url: str, port: MysqlPort, sessions: WaiterSessionsPort, runtime: Runtime) -> None:
        super().__init__(url, port, runtime)
        self._sessions = sessions
        # By gate row: the ticket that had it locked without a lease at the last check, and when that was first seen.
        # Kept for the next attempt, because an attempt may be shorter than LEASELESS_MAX.
        self._leaseless: dict[bytes, tuple[str, float]] = {}
        self._lease_ends: dict[str, float] = {}  # by nonce of a waiter: when the lease that blocks it expires

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        try:
            outcome = await super().try_acquire(ticket, queue=queue, deadline=deadline)
        except HoldfastError as error:
            if not isinstance(error, OutcomeUnknown):  # else it is repeated or released
                await self._release_session(ticket.nonce, deadline)
            raise
        if isinstance(outcome, Granted) and not self._sessions.has_row_lock(ticket.nonce):
            # This took longer than LEASELESS_MAX, so a waiter killed the connection. The next renewal would report a
            # loss.
            await self._undo(ticket, deadline)
            return await self.try_acquire(ticket, queue=queue, deadline=deadline)
        if isinstance(outcome, Waiting) and not queue:
            await self._release_session(ticket.nonce, deadline)
        return outcome

    async def _undo(self, ticket: Ticket, deadline: float) -> None:
        try:
            await self._port.execute(FAST_RELEASE, (lock_id(ticket.name), ticket.nonce), deadline=deadline)
        except BaseException as error:
            self._unanswered.add(ticket.nonce)
            if isinstance(error, BackendUnavailable):  # for this request, but the lock was acquired
                raise OutcomeUnknown(backend=error.backend, problem=error.problem) from error
            raise

    async def _try_acquire(self, ticket: Ticket, deadline: float) -> Granted | Waiting:
        key = lock_id(ticket.name)
        if not self._sessions.has_row_lock(ticket.nonce) and not await self._sessions.try_acquire(
            key, ticket.nonce, deadline=deadline
        ):
            return await self._check_holder(ticket, key, deadline)
        self._leaseless.pop(key, None)
        agent, ttl = ticket.agent[:AGENT_MAX], us(ticket.ttl)
        if ticket.nonce not in self._unanswered:  # else it may hold the lock, which only TRY_ACQUIRE checks
            sent = self._runtime.now()
            values = (key, ticket.name, ticket.nonce, ttl, agent, ticket.info, self.method)
            answer = await self._port.execute(FAST_ACQUIRE, values, deadline=deadline)
            is_new = answer.changed == INSERTED
            if answer.number and (not is_new or await self._confirm_new([ticket], deadline)):
                if is_new:
                    await self._reap_for_new(ticket.name, answer.number, deadline)
                return Granted(answer.number, lease_deadline(sent, ticket.ttl, GRANULARITY))
        sent = self._runtime.now()
        step = (key, ticket.name, self.method, ticket.nonce, ttl, True, 1, False, agent, ticket.info, self._client)
        ((outcome, fence, _, remaining, _, other, _),) = (
            await self._port.execute(TRY_ACQUIRE, step, deadline=deadline)
        ).rows
        match outcome:
            case "in":
                return Granted(int(fence or 0), lease_deadline(sent, ticket.ttl, GRANULARITY))
            case "wait":  # the holder has lost its connection, and may not have noticed
                return Waiting(min(POLL_INTERVAL, int(remaining or 0) / 1e6), process_text(other or ""))
            case _:
                raise refused(outcome, ticket, None, other, self.url)

    async def _check_holder(self, ticket: Ticket, key: bytes, deadline: float) -> Waiting:
        """Another ticket has the row lock. Normally it also has a lease, or is about to get or has just released it."""
        self._lease_ends.pop(ticket.nonce, None)
        state = await self._state(ticket.name, deadline)
        # An earlier try_acquire without an answer may still be executed, and acquire the lock while the ticket waits
        # here.
        longest = POLL_INTERVAL if ticket.nonce in self._unanswered else WAIT_MAX
        if state is not None and state.is_held:
            self._lease_ends[ticket.nonce] = self._runtime.now() + state.remaining
            self._leaseless.pop(key, None)
            if await self._release_own_lease(ticket, state, deadline):
                return Waiting(POLL_INTERVAL)
            return Waiting(longest, process_text(state.info))
        holder = await self._sessions.holder(key, deadline=deadline)
        if holder is None or holder == ticket.nonce:
            return Waiting(longest)  # just released, or locked by an operator; or it is our turn
        if state is not None and state.nonce == holder:
            await self._sessions.terminate(holder, deadline=deadline)  # its lease has expired
            return Waiting(longest, process_text(state.info))
        seen, since = self._leaseless.pop(key, ("", 0.0))
        if seen != holder:
            since = self._runtime.now()
        elif self._runtime.now() - since >= LEASELESS_MAX:
            await self._sessions.terminate_client(key, holder, deadline=deadline)
            return Waiting(longest)
        while len(self._leaseless) >= _LEASELESS_KEPT:
            del self._leaseless[next(iter(self._leaseless))]
        self._leaseless[key] = (holder, since)
        return Waiting(longest)

    async def _release_own_lease(self, ticket: Ticket, state: State, deadline: float) -> bool:
        """Release a lease from an unanswered try_acquire of this ticket: the ticket with the row lock waits for it."""
        if state.nonce != ticket.nonce:
            return False
        await self._port.execute(FAST_RELEASE, (lock_id(ticket.name), ticket.nonce), deadline=deadline)
        return True

    async def wait(self, ticket: Ticket, until: float) -> None:
        if self._sessions.has_row_lock(ticket.nonce):
            await self._runtime.sleep(max(0.0, until - self._runtime.now()))
            return
        key = lock_id(ticket.name)

        async def check() -> float:
            with contextlib.suppress(HoldfastError):  # the next try_acquire reports the error
                await self._check_holder(ticket, key, min(until, self._runtime.now() + IO_TIMEOUT_MIN))
            return self._next_check(ticket)

        with contextlib.suppress(BackendError):  # likewise
            await self._sessions.wait(key, ticket.nonce, until, PeriodicCheck(check, self._next_check(ticket)))

    def _next_check(self, ticket: Ticket) -> float:
        latest = self._runtime.now() + CHECK_EVERY
        return min(latest, self._lease_ends.get(ticket.nonce, latest))

    async def renew(self, tickets: Sequence[Ticket], *, deadline: float) -> Sequence[Live | LeaseGone | BackendError]:
        outcomes = await super().renew(tickets, deadline=deadline)
        return [
            LeaseGone("the connection with the row lock was lost")
            if isinstance(outcome, Live) and not await self._sessions.probe(ticket.nonce, deadline=deadline)
            else outcome
            for ticket, outcome in zip(tickets, outcomes, strict=True)
        ]

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        if not any(holder.fence == fence for holder in (await self.inspect(name, deadline=deadline)).holders):
            return False
        state = await self._state(name, deadline)
        is_broken = await super().break_lock(name, fence, deadline=deadline)
        if is_broken and state is not None and state.nonce is not None:
            await self._sessions.terminate(state.nonce, deadline=deadline)
        return is_broken

    async def close(self) -> None:
        self._sessions.close()
        await super().close()

    def abandon(self) -> None:
        self._sessions.abandon()
        super().abandon()

    async def _release(self, ticket: Ticket, deadline: float) -> bool:
        key, nonce = lock_id(ticket.name), ticket.nonce
        is_unanswered = nonce in self._unanswered
        # The lease first: the next ticket with the row lock must not find it.
        was_held = False
        if not is_unanswered:
            was_held = bool((await self._port.execute(FAST_RELEASE, (key, nonce), deadline=deadline)).changed)
        if not was_held:
            answer = await self._port.execute(RELEASE, (key, ticket.name, nonce, is_unanswered), deadline=deadline)
            was_held = answer.rows[0][0] == "1"
        await self._release_session(nonce, deadline)
        self._unanswered.discard(nonce)
        return was_held

    async def _reap(self, key: bytes, deadline: float) -> None:
        await super()._reap(key, deadline)
        await self._sessions.reap(key, deadline=deadline)

    async def _release_session(self, nonce: str, deadline: float) -> None:
        self._lease_ends.pop(nonce, None)
        with contextlib.suppress(BackendError):  # a connection that fails is closed, which releases its row lock
            await self._sessions.release(nonce, deadline=deadline)
