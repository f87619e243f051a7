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

from holdfast.backends.mysql.port import MysqlPort, PeriodicCheck, WaiterSessionsPort
from holdfast.backends.mysql.protocol.guarantees import GUARANTEES, LACKS
from holdfast.backends.mysql.protocol.plain import PlainBackend, State
from holdfast.backends.mysql.protocol.statements import FAST_RELEASE, TRY_ACQUIRE
from holdfast.backends.mysql.sql import AGENT_MAX, lock_id
from holdfast.backends.sql_protocol import GRANULARITY, refused, us
from holdfast.core.clock import lease_deadline
from holdfast.core.engine import IO_TIMEOUT_MIN
from holdfast.core.tickets import POLL_INTERVAL, Claim, Granted, LeaseGone, Live, Waiting, process_text
from holdfast.errors import AccessDenied, BackendError, BackendUnavailable, HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime

WAIT_MAX = 60.0  # seconds in the server's queue, after which the waiter joins it again at its end
CHECK_EVERY = 1.0  # seconds between the checks of a waiter
LEASELESS_MAX = 2.0  # seconds for which a ticket may have the row lock without a lease
_LEASELESS_KEPT = 100  # gate rows for which that is recorded


class RowBackend(PlainBackend):
    """Locks granted in the order in which the server grants row locks."""

    method = "row"
    nominal_guarantees = GUARANTEES["row"]
    lacks = LACKS["row"]

    def __init__(self, url: str, port: MysqlPort, sessions: WaiterSessionsPort, runtime: Runtime) -> None:
        super().__init__(url, port, runtime)
        self._sessions = sessions
        # By gate row: the ticket that had it locked without a lease at the last check, and when that was first seen.
        # Kept for the next attempt, because an attempt may be shorter than LEASELESS_MAX.
        self._leaseless: dict[bytes, tuple[str, float]] = {}

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        try:
            outcome = await super().try_acquire(claim, queue=queue, deadline=deadline)
        except HoldfastError as error:
            if not isinstance(error, OutcomeUnknown):  # else it is repeated or released
                await self._release_session(claim, deadline)
            raise
        if isinstance(outcome, Granted) and not self._sessions.has_row_lock(claim.nonce):
            # This took longer than LEASELESS_MAX, so a waiter killed the connection. The next renewal would report a
            # loss.
            await self._undo(claim, deadline)
            return await self.try_acquire(claim, queue=queue, deadline=deadline)
        if isinstance(outcome, Waiting) and not queue:
            await self._release_session(claim, deadline)
        return outcome

    async def _undo(self, claim: Claim, deadline: float) -> None:
        try:
            await self._port.execute(FAST_RELEASE, (lock_id(claim.name), claim.nonce), deadline=deadline)
        except BaseException as error:
            claim.unanswered = True
            if isinstance(error, BackendUnavailable):  # for this request, but the lock was acquired
                raise OutcomeUnknown(backend=error.backend, problem=error.problem) from error
            raise

    async def _try_acquire(self, claim: Claim, deadline: float) -> Granted | Waiting:
        key = lock_id(claim.name)
        if not self._sessions.has_row_lock(claim.nonce) and not await self._sessions.try_acquire(
            key, claim.nonce, deadline=deadline
        ):
            return await self._check_holder(claim, key, deadline)
        self._leaseless.pop(key, None)
        if not claim.unanswered:  # else it may hold the lock, which only TRY_ACQUIRE checks
            granted = await self._fast_acquire(claim, deadline)
            if granted is not None:
                return granted
        agent, ttl = claim.agent[:AGENT_MAX], us(claim.ttl)
        sent = self._runtime.now()
        step = (key, claim.name, self.method, claim.nonce, ttl, True, 1, False, agent, claim.info, self._client)
        ((outcome, fence, _, remaining, _, other, _),) = (
            await self._port.execute(TRY_ACQUIRE, step, deadline=deadline)
        ).rows
        match outcome:
            case "in":
                return Granted(int(fence or 0), lease_deadline(sent, claim.ttl, GRANULARITY))
            case "wait":  # the holder has lost its connection, and may not have noticed
                return Waiting(min(POLL_INTERVAL, int(remaining or 0) / 1e6), process_text(other or ""))
            case _:
                raise refused(outcome, claim, None, other, self.url)

    async def _check_holder(self, claim: Claim, key: bytes, deadline: float) -> Waiting:
        """Check the ticket that has the row lock. Normally it has a lease, gets one soon, or has just released one."""
        claim.state = None
        state = await self._state(claim.name, deadline)
        # An earlier try_acquire without an answer may still be executed, and acquire the lock while the ticket waits
        # here.
        poll_after = POLL_INTERVAL if claim.unanswered else WAIT_MAX
        if state is not None and state.is_held:
            claim.state = self._runtime.now() + state.remaining  # when the lease that blocks it expires
            self._leaseless.pop(key, None)
            if await self._release_own_lease(claim, state, deadline):
                return Waiting(POLL_INTERVAL)
            return Waiting(poll_after, process_text(state.info))
        holder = await self._sessions.holder(key, deadline=deadline)
        if holder is None or holder == claim.nonce:
            return Waiting(poll_after)  # just released, or locked by an operator; or this ticket has the row lock
        if state is not None and state.nonce == holder:
            await self._sessions.terminate(holder, deadline=deadline)  # its lease has expired
            return Waiting(poll_after, process_text(state.info))
        previous, since = self._leaseless.pop(key, ("", 0.0))
        if previous != holder:
            since = self._runtime.now()
        elif self._runtime.now() - since >= LEASELESS_MAX:
            await self._sessions.terminate_client(key, holder, deadline=deadline)
            return Waiting(poll_after)
        while len(self._leaseless) >= _LEASELESS_KEPT:
            del self._leaseless[next(iter(self._leaseless))]
        self._leaseless[key] = (holder, since)
        return Waiting(poll_after)

    async def _release_own_lease(self, claim: Claim, state: State, deadline: float) -> bool:
        """Release a lease from an unanswered try_acquire of this ticket: the ticket with the row lock waits for it."""
        if state.nonce != claim.nonce:
            return False
        await self._port.execute(FAST_RELEASE, (lock_id(claim.name), claim.nonce), deadline=deadline)
        return True

    async def wait(self, claim: Claim, until: float) -> None:
        if self._sessions.has_row_lock(claim.nonce):
            await self._runtime.sleep(max(0.0, until - self._runtime.now()))
            return
        key = lock_id(claim.name)

        async def check() -> float:
            try:
                await self._check_holder(claim, key, min(until, self._runtime.now() + IO_TIMEOUT_MIN))
            except AccessDenied:
                raise  # this ends the wait, so that the next try_acquire reports the error
            except HoldfastError:
                pass  # the next try_acquire reports the error
            return self._next_check(claim)

        with contextlib.suppress(BackendError):  # the next try_acquire reports the error
            await self._sessions.wait(key, claim.nonce, until, PeriodicCheck(check, self._next_check(claim)))

    def _next_check(self, claim: Claim) -> float:
        latest = self._runtime.now() + CHECK_EVERY
        return latest if claim.state is None else min(latest, claim.state)

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone]:
        outcomes = await super().renew(claims, deadline=deadline)
        for claim in claims:
            if claim.is_final:  # the lease stays, and the next ticket with the row lock waits for its end
                await self._release_session(claim, deadline)
        return [
            LeaseGone("the connection with the row lock was lost")
            if isinstance(outcome, Live)
            and not claim.is_final
            and not await self._sessions.probe(claim.nonce, deadline=deadline)
            else outcome
            for claim, outcome in zip(claims, outcomes, strict=True)
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

    async def _release(self, claim: Claim, deadline: float) -> bool:
        # The lease first: the next ticket with the row lock must not find it.
        was_held = await self._release_lease(claim, deadline, is_fast=not claim.unanswered)
        await self._release_session(claim, deadline)
        claim.unanswered = False
        return was_held

    async def _reap(self, key: bytes, deadline: float) -> None:
        await super()._reap(key, deadline)
        await self._sessions.reap(key, deadline=deadline)

    async def _release_session(self, claim: Claim, deadline: float) -> None:
        claim.state = None
        with contextlib.suppress(BackendError):  # a connection that fails is closed, which releases its row lock
            await self._sessions.release(claim.nonce, deadline=deadline)
