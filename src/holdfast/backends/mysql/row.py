"""`method=row`: the database's own lock on a row is what is waited for; a lease in another row is the truth.

    gate row, locked on connection A          who waits, waits here: inside the server, woken by it
    lease row, committed on connection B      who is in; written before the grant, removed before the gate is left

A connection that drops opens the gate at once, while its holder may go on for a while, unknowing. So whoever gets the
gate next looks at the lease, and waits until it has run out. A holder that has run out but keeps its gate (stopped,
say, or cut off) has its connection ended by those who wait. Loss of the gate is noticed when the lease is renewed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.backends.mysql.base import GRANULARITY, method_conflict
from holdfast.backends.mysql.guarantees import ROW, ROW_LACKS
from holdfast.backends.mysql.plain import PlainBackend
from holdfast.backends.mysql.port import MysqlPort
from holdfast.backends.mysql.statements import ENTER, GIVE_BACK, INSERTED, LEAVE, TAKE
from holdfast.backends.mysql.values import AGENT_MAX, lock_id, us
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import LOOK_AGAIN, Gone, Granted, Live, Ticket, Waiting, who
from holdfast.errors import BackendError, HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.mysql.plain import State
    from holdfast.core.ports import Runtime

WAIT_MAX = 60.0  # seconds in the server's own queue, until its back is left for its end
UNEXPLAINED_MAX = 5.0  # seconds for which somebody may have the gate without a lease in sight
_UNEXPLAINED_LOOK = 0.25


class GatePort(Protocol):
    """The gates, as gates.py has them."""

    def is_in(self, nonce: str) -> bool: ...
    async def enter(self, key: bytes, nonce: str, *, deadline: float) -> bool: ...
    async def wait(self, key: bytes, nonce: str, until: float) -> None: ...
    async def probe(self, nonce: str, *, deadline: float) -> bool: ...
    async def leave(self, nonce: str, *, deadline: float) -> None: ...
    async def holder(self, key: bytes, *, deadline: float) -> str | None: ...
    async def expel(self, nonce: str, *, deadline: float) -> None: ...
    async def reap(self, key: bytes, *, deadline: float) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


class RowBackend(PlainBackend):
    """Who waits is let in by the server, in its order."""

    method = "row"
    promises = ROW
    lacks = ROW_LACKS

    def __init__(self, url: str, port: MysqlPort, gates: GatePort, runtime: Runtime) -> None:
        super().__init__(url, port, runtime)
        self._gates = gates
        self._unexplained: dict[str, tuple[str, float]] = {}  # ticket -> who has its gate without a lease, since when

    async def enter(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        try:
            outcome = await super().enter(ticket, queue=queue, deadline=deadline)
        except HoldfastError as error:
            if not isinstance(error, OutcomeUnknown):  # then it is asked again, or taken back
                await self._leave_gate(ticket.nonce, deadline)
            raise
        if isinstance(outcome, Waiting) and not queue:
            await self._leave_gate(ticket.nonce, deadline)
        return outcome

    async def _enter(self, ticket: Ticket, deadline: float) -> Granted | Waiting:
        key = lock_id(ticket.name)
        if not self._gates.is_in(ticket.nonce) and not await self._gates.enter(key, ticket.nonce, deadline=deadline):
            return await self._outside(ticket, key, deadline)
        self._unexplained.pop(ticket.nonce, None)
        agent, ttl = ticket.agent[:AGENT_MAX], us(ticket.ttl)
        if ticket.nonce not in self._unheard:  # else it may have been taken, which only the whole step looks at closely
            sent = self._runtime.now()
            values = (key, ticket.name, ticket.nonce, ttl, agent, ticket.info, self.method)
            answer = await self._port.ask(TAKE, values, deadline=deadline)
            is_new = answer.changed == INSERTED
            if answer.number and (not is_new or await self._confirm_new([ticket], deadline)):
                if is_new:
                    await self._reap_for_new(ticket.name, answer.number, deadline)
                return Granted(answer.number, lease_deadline(sent, ticket.ttl, GRANULARITY))
        sent = self._runtime.now()
        step = (key, ticket.name, self.method, ticket.nonce, ttl, True, 1, False, agent, ticket.info, self._client)
        ((outcome, fence, _, remaining, _, other, _),) = (await self._port.ask(ENTER, step, deadline=deadline)).rows
        match outcome:
            case "in":
                return Granted(int(fence or 0), lease_deadline(sent, ticket.ttl, GRANULARITY))
            case "wait":  # a holder whose connection has dropped, and who may not know it yet
                return Waiting(min(LOOK_AGAIN, int(remaining or 0) / 1e6), who(other or ""))
            case "method":
                raise method_conflict(ticket.name, other or "")
            case _:
                raise OutcomeUnknown(backend=self.url, problem=f"ticket {ticket.nonce} was withdrawn before")

    async def _outside(self, ticket: Ticket, key: bytes, deadline: float) -> Waiting:
        """Somebody else has the gate. Normally there is a lease to say who, and for how long."""
        state = await self._state(ticket.name, deadline)
        if state is not None and state.is_held:
            self._unexplained.pop(ticket.nonce, None)
            if await self._is_own(ticket, state, deadline):
                return Waiting(LOOK_AGAIN)
            # An enter that had no answer may still come, and take the lock for us while we wait here.
            longest = LOOK_AGAIN if ticket.nonce in self._unheard else WAIT_MAX
            return Waiting(min(longest, state.remaining), who(state.info))
        holder = await self._gates.holder(key, deadline=deadline)
        if holder is None:
            return Waiting(_UNEXPLAINED_LOOK)  # just gone; or somebody has locked the row by hand
        seen, since = self._unexplained.get(ticket.nonce, ("", 0.0))
        now = self._runtime.now()
        if state is not None and state.nonce == holder:
            await self._gates.expel(holder, deadline=deadline)  # it has run out
            return Waiting(_UNEXPLAINED_LOOK, who(state.info))
        if seen != holder:
            self._unexplained[ticket.nonce] = (holder, now)
        elif (
            now - since > UNEXPLAINED_MAX
        ):  # just before its lease, or just after: that takes no time, unless it stands
            await self._gates.expel(holder, deadline=deadline)
        return Waiting(_UNEXPLAINED_LOOK)

    async def _is_own(self, ticket: Ticket, state: State, deadline: float) -> bool:
        """The lease is our own, of an enter that had no answer. Who has the gate waits for it: so it is given back."""
        if state.nonce != ticket.nonce:
            return False
        await self._port.ask(GIVE_BACK, (lock_id(ticket.name), ticket.nonce), deadline=deadline)
        return True

    async def wait(self, ticket: Ticket, until: float) -> None:
        if self._gates.is_in(ticket.nonce):
            await self._runtime.sleep(max(0.0, until - self._runtime.now()))
            return
        with contextlib.suppress(BackendError):  # to enter is to ask again, and to say so if that fails too
            await self._gates.wait(lock_id(ticket.name), ticket.nonce, until)

    async def renew(self, tickets: Sequence[Ticket], *, deadline: float) -> Sequence[Live | Gone | BackendError]:
        outcomes = await super().renew(tickets, deadline=deadline)
        return [
            Gone("the connection that had locked the gate was lost")
            if isinstance(outcome, Live) and not await self._gates.probe(ticket.nonce, deadline=deadline)
            else outcome
            for ticket, outcome in zip(tickets, outcomes, strict=True)
        ]

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        state = await self._state(name, deadline)
        is_broken = await super().break_lock(name, fence, deadline=deadline)
        if is_broken and state is not None and state.nonce is not None:
            await self._gates.expel(state.nonce, deadline=deadline)
        return is_broken

    async def close(self) -> None:
        self._gates.close()
        await super().close()

    def abandon(self) -> None:
        self._gates.abandon()
        super().abandon()

    async def _give_back(self, ticket: Ticket, deadline: float) -> bool:
        key, nonce = lock_id(ticket.name), ticket.nonce
        is_unheard = nonce in self._unheard
        # The lease first: who gets the gate next must not find it.
        was_in = False
        if not is_unheard:
            was_in = bool((await self._port.ask(GIVE_BACK, (key, nonce), deadline=deadline)).changed)
        if not was_in:
            answer = await self._port.ask(LEAVE, (key, ticket.name, nonce, is_unheard), deadline=deadline)
            was_in = answer.rows[0][0] == "1"
        await self._leave_gate(nonce, deadline)
        self._unheard.discard(nonce)
        return was_in

    async def _reap(self, key: bytes, deadline: float) -> None:
        await super()._reap(key, deadline)
        await self._gates.reap(key, deadline=deadline)

    async def _leave_gate(self, nonce: str, deadline: float) -> None:
        self._unexplained.pop(nonce, None)
        with contextlib.suppress(BackendError):  # a connection that cannot be spoken to is closed, which does it too
            await self._gates.leave(nonce, deadline=deadline)
