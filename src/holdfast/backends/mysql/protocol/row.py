"""`method=row`: the database's own lock on a row is what is waited for; a lease in another row is the truth.

    gate row, locked on connection A          who waits, waits here: inside the server, woken by it
    lease row, committed on connection B      who is in; written before the grant, removed before the gate is left

A connection that drops opens the gate at once, while its holder may go on for a while, unknowing. So whoever gets the
gate next looks at the lease, and waits until it has run out. A holder that has run out but keeps its gate (stopped,
say, or cut off) has its connection ended by those who wait. Loss of the gate is noticed when the lease is renewed.

A waiter that is stopped is given the gate all the same, when its turn comes. So every waiter checks now and then, on
another connection, that a gate which is not open has a lease behind it. If it has none for UNEXPLAINED_MAX, all
connections at this gate of the client that has it are ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.backends.mysql.io.connection import PeriodicCheck
from holdfast.backends.mysql.port import MysqlPort
from holdfast.backends.mysql.protocol.base import GRANULARITY, method_conflict
from holdfast.backends.mysql.protocol.guarantees import ROW, ROW_LACKS
from holdfast.backends.mysql.protocol.plain import PlainBackend
from holdfast.backends.mysql.protocol.statements import FAST_ACQUIRE, FAST_RELEASE, INSERTED, RELEASE, TRY_ACQUIRE
from holdfast.backends.mysql.protocol.values import AGENT_MAX, lock_id, us
from holdfast.core.clock import lease_deadline
from holdfast.core.engine import IO_TIMEOUT_MIN
from holdfast.core.tickets import POLL_INTERVAL, Granted, LeaseGone, Live, Ticket, Waiting, process_text
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.mysql.protocol.plain import State
    from holdfast.core.ports import Runtime

WAIT_MAX = 60.0  # seconds in the server's own queue, until its back is left for its end
CHECK_EVERY = 1.0  # seconds between the checks of a waiter
LEASELESS_MAX = 2.0  # seconds for which a client may have the gate without a lease
_LEASELESS_KEPT = 100  # gates of which that is known


class WaiterSessionsPort(Protocol):
    """The gates, as gates.py has them."""

    def has_row_lock(self, nonce: str) -> bool: ...
    async def try_acquire(self, key: bytes, nonce: str, *, deadline: float) -> bool: ...
    async def wait(self, key: bytes, nonce: str, until: float, meanwhile: PeriodicCheck) -> None: ...
    async def probe(self, nonce: str, *, deadline: float) -> bool: ...
    async def release(self, nonce: str, *, deadline: float) -> None: ...
    async def holder(self, key: bytes, *, deadline: float) -> str | None: ...
    async def terminate(self, nonce: str, *, deadline: float) -> None: ...
    async def terminate_client(self, key: bytes, nonce: str, *, deadline: float) -> None: ...
    async def reap(self, key: bytes, *, deadline: float) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


class RowBackend(PlainBackend):
    """Who waits is let in by the server, in its order."""

    method = "row"
    nominal_guarantees = ROW
    lacks = ROW_LACKS

    def __init__(self, url: str, port: MysqlPort, sessions: WaiterSessionsPort, runtime: Runtime) -> None:
        super().__init__(url, port, runtime)
        self._sessions = sessions
        # By gate: the ticket that had it without a lease when it was last checked, and when that was first seen. Kept
        # from one attempt to the next, since one may be shorter than UNEXPLAINED_MAX.
        self._leaseless: dict[bytes, tuple[str, float]] = {}
        self._lease_ends: dict[str, float] = {}  # by waiting ticket: when the lease ends that it waits for

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        try:
            outcome = await super().try_acquire(ticket, queue=queue, deadline=deadline)
        except HoldfastError as error:
            if not isinstance(error, OutcomeUnknown):  # then it is asked again, or taken back
                await self._release_session(ticket.nonce, deadline)
            raise
        if isinstance(outcome, Granted) and not self._sessions.has_row_lock(ticket.nonce):
            # This took longer than UNEXPLAINED_MAX, so a waiter ended the connection. The next renewal would be a loss.
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
            if isinstance(error, BackendUnavailable):  # of this request; but the lock was taken
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
        if (
            ticket.nonce not in self._unanswered
        ):  # else it may have been taken, which only the whole step looks at closely
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
            case "wait":  # a holder whose connection has dropped, and who may not know it yet
                return Waiting(min(POLL_INTERVAL, int(remaining or 0) / 1e6), process_text(other or ""))
            case "method":
                raise method_conflict(ticket.name, other or "")
            case _:
                raise OutcomeUnknown(backend=self.url, problem=f"ticket {ticket.nonce} was withdrawn before")

    async def _check_holder(self, ticket: Ticket, key: bytes, deadline: float) -> Waiting:
        """Another ticket has the gate. Normally it has a lease too, or is about to get it, or has just released it."""
        self._lease_ends.pop(ticket.nonce, None)
        state = await self._state(ticket.name, deadline)
        # An enter that had no answer may still come, and take the lock for us while we wait here.
        longest = POLL_INTERVAL if ticket.nonce in self._unanswered else WAIT_MAX
        if state is not None and state.is_held:
            self._lease_ends[ticket.nonce] = self._runtime.now() + state.remaining
            self._leaseless.pop(key, None)
            if await self._release_own_lease(ticket, state, deadline):
                return Waiting(POLL_INTERVAL)
            return Waiting(longest, process_text(state.info))
        holder = await self._sessions.holder(key, deadline=deadline)
        if holder is None or holder == ticket.nonce:
            return Waiting(longest)  # it has just left, or the row was locked by hand; or it is our turn
        if state is not None and state.nonce == holder:
            await self._sessions.terminate(holder, deadline=deadline)  # its lease has ended
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
        """The lease is our own, of an enter that had no answer. Who has the gate waits for it: so it is given back."""
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
            with contextlib.suppress(HoldfastError):  # to enter is to ask again, and to say so if that fails too
                await self._check_holder(ticket, key, min(until, self._runtime.now() + IO_TIMEOUT_MIN))
            return self._next_check(ticket)

        with contextlib.suppress(BackendError):  # likewise
            await self._sessions.wait(key, ticket.nonce, until, PeriodicCheck(check, self._next_check(ticket)))

    def _next_check(self, ticket: Ticket) -> float:
        in_a_while = self._runtime.now() + CHECK_EVERY
        return min(in_a_while, self._lease_ends.get(ticket.nonce, in_a_while))

    async def renew(self, tickets: Sequence[Ticket], *, deadline: float) -> Sequence[Live | LeaseGone | BackendError]:
        outcomes = await super().renew(tickets, deadline=deadline)
        return [
            LeaseGone("the connection that had locked the gate was lost")
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
        # The lease first: who gets the gate next must not find it.
        was_in = False
        if not is_unanswered:
            was_in = bool((await self._port.execute(FAST_RELEASE, (key, nonce), deadline=deadline)).changed)
        if not was_in:
            answer = await self._port.execute(RELEASE, (key, ticket.name, nonce, is_unanswered), deadline=deadline)
            was_in = answer.rows[0][0] == "1"
        await self._release_session(nonce, deadline)
        self._unanswered.discard(nonce)
        return was_in

    async def _reap(self, key: bytes, deadline: float) -> None:
        await super()._reap(key, deadline)
        await self._sessions.reap(key, deadline=deadline)

    async def _release_session(self, nonce: str, deadline: float) -> None:
        self._lease_ends.pop(nonce, None)
        with contextlib.suppress(BackendError):  # a connection that cannot be spoken to is closed, which does it too
            await self._sessions.release(nonce, deadline=deadline)
