"""`method=unique`, the default: a unique key on the lock's name excludes, a table of tickets keeps the order.

A lock that is free and that nobody waits for is taken by one statement, and given back by one. All else is done by the
procedures in schema.sql, step for step as on PostgreSQL; this file says when to call which.

Nobody tells a waiter that it is its turn, so it looks, with a query that locks nothing and writes nothing. The next in
line looks often, the one behind it less often, and so on with the square of the distance: however many wait, together
they look little more often than the first two. Only while the line moves fast do those behind look more often.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from holdfast.backends.mysql.marks import Marks
from holdfast.backends.mysql.port import Row
from holdfast.backends.mysql.schema import REAP_EVERY
from holdfast.backends.mysql.statements import (
    BREAK,
    ENTER,
    ENTER_OWNED,
    GIVE_BACK,
    GIVE_BACK_ALL,
    INSERTED,
    INSPECT,
    LEAVE,
    LOCKS,
    LOOK,
    LOOK_OWNED,
    REAP,
    RENEW,
    TAKE,
    leave_all,
    take_all,
)
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import (
    LOOK_AGAIN_BEHIND,
    Gone,
    Granted,
    Live,
    LockInfo,
    Ticket,
    TicketInfo,
    Waiting,
    who,
)
from holdfast.core.wakeups import Wakeups
from holdfast.errors import BackendError, ConfigurationError, HoldfastError, LimitConflict, NameConflict, OutcomeUnknown
from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast.primitives import Lacks, Primitive

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import MysqlPort, Value
    from holdfast.core.ports import Runtime

_UNIQUE = Guarantees(
    exclusion=Exclusion.DURABLE_AUTHORITY,
    fence=FenceOrder.CLOCK_BOUNDED,
    order=Order.FIFO,
    wake=Wake.POLL,
    scope=Scope.NETWORK,
)
# By method; the first is the default.
GUARANTEES = {
    "unique": _UNIQUE,
    "row": _UNIQUE._replace(order=Order.STORE, wake=Wake.PUSH),
    "version": _UNIQUE._replace(order=Order.NONE),
}

_ALONE = "its one row has room for one holder"
_ONE_CONNECTION = "one connection at a time has the row locked"
LACKS: Mapping[str, Lacks] = {
    "unique": {},
    "row": {Primitive.RWLOCK: _ALONE, Primitive.SEMAPHORE: _ALONE, Primitive.OWNER: _ONE_CONNECTION},
    "version": {Primitive.RWLOCK: _ALONE, Primitive.SEMAPHORE: _ALONE, Primitive.OWNER: _ALONE},
}

GRANULARITY = 0.0  # the server counts microseconds
AGENT_MAX = 255  # characters
BATCH = 128  # locks in one request, at most: it, and the transaction that it is, stay small
LOOK_MIN, LOOK_MAX = 0.002, 0.02  # seconds between looks of the next in line: often while things change, then less
_CALM = 8  # so many times the pause, without a change, until it grows
_EARLY = 4  # this part of the time until its turn, as it seems


class Turn:
    """How far a waiting ticket is from its turn, and how soon it is worth to look again."""

    __slots__ = ("_ahead", "_pace", "_since")

    def __init__(self, now: float) -> None:
        self._ahead = 0  # others who wait
        self._since = now  # when that was last seen to change
        self._pace = 0.0  # seconds that one of them took

    def move(self, ahead: int, now: float) -> None:
        """So many are ahead of it now."""
        if ahead != self._ahead:
            self._pace = (now - self._since) / max(1, self._ahead - ahead)
            self._ahead, self._since = ahead, now

    def pause(self, now: float) -> float:
        """Seconds: a part of what those ahead will take if they go on like this; no longer than the place allows."""
        places, quiet = self._ahead + 1, now - self._since
        by_pace = places * max(self._pace, quiet) / _EARLY
        by_place = places**2 * max(LOOK_MIN, min(LOOK_MAX, quiet / _CALM))
        return max(LOOK_MIN, min(by_pace, by_place))


class UniqueBackend(Marks):
    """Locks in one database, in order."""

    lacks = LACKS["unique"]
    troubles: tuple[str, ...] = ()  # it works, or it does not
    lifelines: tuple[int, ...] = ()  # the server cannot see that a holder has died

    def __init__(self, url: str, port: MysqlPort, runtime: Runtime) -> None:
        self.url = url
        self._port = port
        self._runtime = runtime
        self._wakeups = Wakeups(runtime)
        self._unheard: set[str] = set()  # tickets of which an enter had no answer: it may still come
        self._turns: dict[str, Turn] = {}  # of tickets that wait
        self._leaving: set[str] = set()  # tickets that have tried to leave

    @property
    def guarantees(self) -> Guarantees:
        return promised("unique", self._port)

    async def enter(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        try:
            if ticket.exclusive and not ticket.owner and ticket.nonce not in self._turns:
                granted = await self._take(ticket, deadline)
                if granted is not None:
                    return granted
            return await self._enter(ticket, deadline, queue=queue)
        except BaseException as error:
            self._had_no_answer([ticket], error)
            raise

    def _had_no_answer(self, tickets: Sequence[Ticket], error: BaseException) -> None:
        """No answer, or cancelled or interrupted before it. Unless the server has refused it, it may still come."""
        if isinstance(error, OutcomeUnknown) or not isinstance(error, HoldfastError):
            self._unheard.update(ticket.nonce for ticket in tickets)

    async def enter_all(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Granted | Waiting]:
        """One request for all that are free; the first that is not is looked at more closely, by another one."""
        batch = _alike(tickets)
        taken: list[Granted | Waiting] = [*await self._take_all(batch, deadline)] if batch else []
        if batch and len(taken) == len(batch):
            return taken
        return [*taken, await self._look_closely(tickets[len(taken)], deadline)]

    async def _take_all(self, tickets: Sequence[Ticket], deadline: float) -> list[Granted]:
        """As many of them, in their order, as are free and waited for by nobody."""
        first = tickets[0]
        values: list[Value] = [us(first.ttl), first.agent[:AGENT_MAX], first.info]
        for ticket in tickets:
            values += (lock_id(ticket.name), ticket.name, ticket.nonce)
        sent = self._runtime.now()
        try:
            ((fences, changes),) = (await self._port.ask(take_all(len(tickets)), values, deadline=deadline)).rows
        except BaseException as error:
            self._had_no_answer(tickets, error)
            raise
        taken = [(int(fence), int(changed)) for fence, changed in zip(_listed(fences), _listed(changes), strict=True)]
        taken = [one for one in taken if one[0]]
        if any(changed == INSERTED and fence % REAP_EVERY == 0 for fence, changed in taken):
            await self._reap(lock_id(first.name), deadline)
        return [Granted(fence, lease_deadline(sent, first.ttl, GRANULARITY)) for fence, _ in taken]

    async def _look_closely(self, ticket: Ticket, deadline: float) -> Granted | Waiting:
        try:
            return await self._enter(ticket, deadline, queue=False)
        except BaseException as error:
            self._had_no_answer([ticket], error)
            raise

    async def _reap(self, key: bytes, deadline: float) -> None:
        # Somebody else will, some other time; who has no right to, and has just taken a lock, has it all the same.
        with contextlib.suppress(BackendError, ConfigurationError):
            await self._port.ask(REAP, (key,), deadline=deadline)

    async def _take(self, ticket: Ticket, deadline: float) -> Granted | None:
        key = lock_id(ticket.name)
        values = (key, ticket.name, ticket.nonce, us(ticket.ttl), ticket.agent[:AGENT_MAX], ticket.info, "unique")
        sent = self._runtime.now()
        answer = await self._port.ask(TAKE, values, deadline=deadline)
        if not answer.number:  # the count of rows depends on how the connection was made
            return None
        if answer.changed == INSERTED and answer.number % REAP_EVERY == 0:
            await self._reap(key, deadline)
        return Granted(answer.number, lease_deadline(sent, ticket.ttl, GRANULARITY))

    async def _enter(self, ticket: Ticket, deadline: float, *, queue: bool) -> Granted | Waiting:
        key, ttl, agent = lock_id(ticket.name), us(ticket.ttl), ticket.agent[:AGENT_MAX]
        statement = ENTER_OWNED
        values: tuple[Value, ...] = (key, ticket.name, ticket.nonce, ttl, queue, agent, ticket.info, ticket.owner)
        if not ticket.owner:
            statement = ENTER
            values = (key, ticket.name, "unique", ticket.nonce, ttl, ticket.exclusive, ticket.limit, queue)
            values += (agent, ticket.info)
        sent = self._runtime.now()
        answer = await self._port.ask(statement, values, deadline=deadline)
        ((outcome, fence, ahead, _, limit, other),) = answer.rows
        match outcome:
            case "in":
                self._stop(ticket.nonce)
                return Granted(int(fence or 0), lease_deadline(sent, ticket.ttl, GRANULARITY))
            case "wait":
                if queue:
                    self._turns.setdefault(ticket.nonce, Turn(sent)).move(int(ahead or 0), sent)
                return Waiting(LOOK_AGAIN_BEHIND, who(other) if other else None)
            case "limit":
                theirs = None if limit is None else int(limit)
                raise LimitConflict(lock=ticket.name, ours=ticket.limit, theirs=theirs, holder=who(other or ""))
            case "method":
                raise method_conflict(ticket.name, other or "")
            case _:
                raise OutcomeUnknown(backend=self.url, problem=f"ticket {ticket.nonce} was withdrawn before")

    async def wait(self, ticket: Ticket, until: float) -> None:
        """Look until it is worth to enter."""
        nonce, now = ticket.nonce, self._runtime.now
        self._wakeups.expect(nonce)
        while (turn := self._turns.get(nonce)) is not None:
            await self._wakeups.wait(nonce, min(until, now() + turn.pause(now())))
            if now() >= until or nonce not in self._turns:
                return
            look, whose = (LOOK_OWNED, (ticket.owner,)) if ticket.owner else (LOOK, ())
            try:
                (row,) = (await self._port.ask(look, (lock_id(ticket.name), nonce, *whose), deadline=until)).rows
            except BackendError:
                return  # to enter is to ask again, and to say so if that fails too
            is_held, ahead, excluding, waiting, is_there, *kin = (int(value or 0) for value in row)
            is_full = ticket.limit is not None and ahead >= ticket.limit
            if any(kin) or not is_there or not (is_held or excluding or is_full):
                return
            turn.move(waiting, now())

    async def leave(self, tickets: Sequence[Ticket], *, deadline: float) -> list[bool | BackendError]:
        if len(tickets) == 1:
            return [await self._leave(tickets[0], deadline)]
        answers: list[bool | BackendError] = []
        for start in range(0, len(tickets), BATCH):
            answers += await self._leave_all(tickets[start : start + BATCH], deadline)
        return answers

    async def _leave_all(self, tickets: Sequence[Ticket], deadline: float) -> list[bool | BackendError]:
        """One request for all that nobody waits for, and one for all others."""
        left: dict[str, bool | BackendError] = {}  # by nonce: whether it was in until now
        were_in: set[str] = set()
        new = [ticket for ticket in tickets if self._leaves_first(ticket)]
        try:
            if new:
                self._leaving.update(ticket.nonce for ticket in new)
                values = tuple(lock_id(ticket.name) for ticket in new), tuple(ticket.nonce for ticket in new)
                for nonce, is_out in (await self._port.ask(GIVE_BACK_ALL, values, deadline=deadline)).rows:
                    were_in.add(nonce or "")
                    if is_out == "1":
                        left[nonce or ""] = True
            rest = [ticket for ticket in tickets if ticket.nonce not in left]
            if rest:
                words: list[Value] = []
                for ticket in rest:
                    words += (lock_id(ticket.name), ticket.name, ticket.nonce, ticket.nonce in self._unheard)
                # The server may have been asked twice here, and a second answer knows nothing of the first.
                rows = (await self._port.ask(leave_all(len(rest)), words, deadline=deadline)).rows
                for ticket, row in zip(rest, rows, strict=True):
                    left[ticket.nonce] = row[0] == "1" or ticket.nonce in were_in
        except BackendError as error:
            left = {ticket.nonce: left.get(ticket.nonce, error) for ticket in tickets}
        for nonce, answer in left.items():
            if not isinstance(answer, BackendError):
                self._has_left(nonce)
        return [left[ticket.nonce] for ticket in tickets]

    def _leaves_first(self, ticket: Ticket) -> bool:
        """It has not tried before, and is in, as far as is known here."""
        nonce = ticket.nonce
        return nonce not in self._leaving and nonce not in self._unheard and nonce not in self._turns

    def _has_left(self, nonce: str) -> None:
        self._stop(nonce)
        self._unheard.discard(nonce)
        self._leaving.discard(nonce)

    async def _leave(self, ticket: Ticket, deadline: float) -> bool:
        key, nonce = lock_id(ticket.name), ticket.nonce
        is_unheard = nonce in self._unheard
        was_in = False
        # Who has to try again has no time to lose: to leave is one statement, which does it all, also if unanswered.
        if ticket.exclusive and not ticket.owner and self._leaves_first(ticket):
            self._leaving.add(nonce)
            was_in = bool((await self._port.ask(GIVE_BACK, (key, nonce), deadline=deadline)).changed)
        if not was_in:
            answer = await self._port.ask(LEAVE, (key, ticket.name, nonce, is_unheard), deadline=deadline)
            was_in = answer.rows[0][0] == "1"
        self._has_left(nonce)
        return was_in

    async def renew(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Live | Gone]:
        return await renewed(self._port, self._runtime, tickets, deadline)

    def intact(self, store: Hashable) -> bool:
        return True

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        found = described((await self._port.ask(INSPECT, (lock_id(name),), deadline=deadline)).rows)
        return found[0] if found else LockInfo(name, (), ())

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        answer = await self._port.ask(LOCKS, (prefix.encode(),), deadline=deadline)
        return sorted(described(answer.rows), key=_name)

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        if not 0 < fence < 2**63:
            return False  # no fence of ours
        answer = await self._port.ask(BREAK, (lock_id(name), fence), deadline=deadline)
        return answer.rows[0][0] == "1"

    async def close(self) -> None:
        self._wakeups.wake_all()
        await self._port.close()

    def abandon(self) -> None:
        self._port.abandon()

    def _stop(self, nonce: str) -> None:
        if self._turns.pop(nonce, None) is not None:
            self._wakeups.forget(nonce)


def promised(method: str, port: MysqlPort) -> Guarantees:
    """By what is known of the server so far."""
    base = GUARANTEES[method]
    return base._replace(exclusion=Exclusion.BEST_EFFORT) if port.is_forgetful else base


def lock_id(name: str) -> bytes:
    """What the tables know a name by."""
    return sha256(name.encode()).digest()


async def renewed(port: MysqlPort, runtime: Runtime, tickets: Sequence[Ticket], deadline: float) -> list[Live | Gone]:
    """Let each lease run for its ttl again: one request for all that have the same."""
    found: dict[str, float] = {}
    for ttl in sorted({ticket.ttl for ticket in tickets}):
        batch = [ticket for ticket in tickets if ticket.ttl == ttl]
        keys = tuple(lock_id(ticket.name) for ticket in batch)
        nonces = tuple(ticket.nonce for ticket in batch)
        sent = runtime.now()
        answer = await port.ask(RENEW, (keys, nonces, us(ttl)), deadline=deadline)
        found |= {nonce or "": sent for (nonce,) in answer.rows}
    return [
        Live(lease_deadline(found[ticket.nonce], ticket.ttl, GRANULARITY)) if ticket.nonce in found else Gone()
        for ticket in tickets
    ]


def method_conflict(lock: str, method: str) -> NameConflict:
    """The error for a lock that is in use with another method than ours."""
    return NameConflict(
        lock=lock,
        reason=f"it is in use with method={method}, and two methods need not exclude each other: "
        "give all programs the same method, or use another name",
    )


def described(rows: Sequence[Row]) -> list[LockInfo]:
    """Locks, from rows of who holds them and who waits, in order."""
    found: dict[str, tuple[list[TicketInfo], list[TicketInfo]]] = {}
    for name, fence, exclusive, limit, remaining, since, agent, info, _ in rows:
        one = TicketInfo.of(
            info=info or "",
            fence=None if fence is None else int(fence),
            agent=agent or "",
            since=int(since or 0) / 1e6,
            remaining=int(remaining or 0) / 1e6,
            exclusive=exclusive == "1",
            limit=None if limit is None else int(limit),
        )
        found.setdefault(name or "", ([], []))[fence is None].append(one)
    return [LockInfo(name, tuple(holders), tuple(waiters)) for name, (holders, waiters) in found.items()]


def us(seconds: float) -> int:
    """Microseconds, as the server counts."""
    return math.ceil(seconds * 1e6)


def _alike(tickets: Sequence[Ticket]) -> list[Ticket]:
    """As many from the first on as one request can be about: without an owner, and with the same words."""
    first, batch = tickets[0], []
    for ticket in tickets[:BATCH]:
        if ticket.owner or (ticket.ttl, ticket.agent, ticket.info) != (first.ttl, first.agent, first.info):
            break
        batch.append(ticket)
    return batch


def _listed(text: str | None) -> list[str]:
    return (text or "").split(",")[:-1]


def _name(info: LockInfo) -> str:
    return info.name
