"""`method=unique`, the default: a unique key on the lock's name excludes, a table of tickets keeps the order.

A lock that is free and that nobody waits for is taken by one statement, and given back by one. All else is done by the
procedures in schema.sql, step for step as on PostgreSQL; this file says when to call which.

Nobody tells a waiter that it is its turn, so it looks, with a query that locks nothing and writes nothing. The next in
line looks often, the one behind it less often, and so on with the square of the distance: however many wait, together
they look little more often than the first two. Only while the line moves fast do those behind look more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.mysql.protocol.base import GRANULARITY, BaseMysqlBackend, method_conflict
from holdfast.backends.mysql.protocol.guarantees import UNIQUE, UNIQUE_LACKS
from holdfast.backends.mysql.protocol.statements import (
    FAST_ACQUIRE,
    FAST_RELEASE,
    FAST_RELEASE_ALL,
    INSERTED,
    POLL,
    POLL_OWNED,
    RELEASE,
    TRY_ACQUIRE,
    TRY_ACQUIRE_OWNED,
    fast_acquire_all,
    release_all,
)
from holdfast.backends.mysql.protocol.values import AGENT_MAX, lock_id, us
from holdfast.core.clock import lease_deadline
from holdfast.core.engine import IO_TIMEOUT_MIN
from holdfast.core.tickets import POLL_INTERVAL_BEHIND, Granted, Ticket, Waiting, process_text
from holdfast.core.wakeups import Wakeups
from holdfast.errors import BackendError, LimitConflict, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import MysqlPort, Value
    from holdfast.core.ports import Runtime

# By method; the first is the default.

BATCH = 128  # locks in one request, at most: it, and the transaction that it is, stay small
POLL_MIN, POLL_MAX = 0.002, 0.02  # seconds between looks of the next in line: often while things change, then less
_CALM = 8  # so many times the pause, without a change, until it grows
_EARLY = 4  # this part of the time until its turn, as it seems


class QueuePosition:
    """How far a waiting ticket is from its turn, and how soon it is worth to look again."""

    __slots__ = ("_ahead", "_pace", "_since", "blocker_ends", "reads")

    def __init__(self, now: float, reads: str = "") -> None:
        self.reads = reads  # the lock, of a reader: its turn comes with that of the readers before it
        self.blocker_ends = float("inf")  # when the lease or waiter lease ends that blocks it, unless it is renewed
        self._ahead = 0  # others who wait
        self._since = now  # when that was last seen to change
        self._pace = 0.0  # seconds that one of them took

    def update(self, ahead: int, now: float) -> None:
        """So many are ahead of it now."""
        if ahead != self._ahead:
            self._pace = (now - self._since) / max(1, self._ahead - ahead)
            self._ahead, self._since = ahead, now

    def poll_delay(self, now: float) -> float:
        """Seconds: a part of what those ahead will take if they go on like this; no longer than the place allows."""
        places, quiet = self._ahead + 1, now - self._since
        by_pace = places * max(self._pace, quiet) / _EARLY
        by_place = (places if self.reads else places**2) * max(POLL_MIN, min(POLL_MAX, quiet / _CALM))
        return max(POLL_MIN, min(by_pace, by_place))


class UniqueBackend(BaseMysqlBackend):
    """Locks in one database, in order."""

    nominal_guarantees = UNIQUE
    lacks = UNIQUE_LACKS

    def __init__(self, url: str, port: MysqlPort, runtime: Runtime) -> None:
        super().__init__(url, port, runtime)
        self._wakeups = Wakeups(runtime)
        self._positions: dict[str, QueuePosition] = {}  # of tickets that wait
        self._releasing: set[str] = set()  # tickets that have tried to leave

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        try:
            # A ticket that had no answer may have been taken, which only the whole step looks at closely.
            is_first = ticket.nonce not in self._positions and ticket.nonce not in self._unanswered
            if ticket.exclusive and not ticket.owner and is_first:
                granted = await self._fast_acquire(ticket, deadline)
                if granted is not None:
                    return granted
            return await self._try_acquire(ticket, deadline, queue=queue)
        except BaseException as error:
            self._note_unanswered([ticket], error)
            raise

    async def try_acquire_all(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Granted | Waiting]:
        """One request for all that are free; the first that is not is looked at more closely, by another one."""
        batch = _first_batch(tickets)
        taken: list[Granted | Waiting] = [*await self._fast_acquire_all(batch, deadline)] if batch else []
        if batch and len(taken) == len(batch):
            return taken
        return [*taken, await self._try_acquire_one(tickets[len(taken)], deadline)]

    async def _fast_acquire_all(self, tickets: Sequence[Ticket], deadline: float) -> list[Granted]:
        """As many of them, in their order, as are free and waited for by nobody."""
        first = tickets[0]
        values: list[Value] = [us(first.ttl), first.agent[:AGENT_MAX], first.info]
        for ticket in tickets:
            values += (lock_id(ticket.name), ticket.name, ticket.nonce)
        sent = self._runtime.now()
        try:
            ((fences, changes),) = (
                await self._port.execute(fast_acquire_all(len(tickets)), values, deadline=deadline)
            ).rows
            taken = _acquired(tickets, fences, changes)
            taken = await self._confirm(taken, deadline)
        except BaseException as error:
            self._note_unanswered(tickets, error)
            raise
        for ticket, fence, is_new in taken:
            if is_new:
                await self._reap_for_new(ticket.name, fence, deadline)
        return [Granted(fence, lease_deadline(sent, first.ttl, GRANULARITY)) for _, fence, _ in taken]

    async def _confirm(self, taken: list[tuple[Ticket, int, bool]], deadline: float) -> list[tuple[Ticket, int, bool]]:
        """Those before the first lock that turns out to be in use; what was taken from there on is given back."""
        new = [ticket for ticket, _, is_new in taken if is_new]
        undone = {ticket.nonce for ticket in new} - await self._confirm_new(new, deadline)
        for count, (ticket, _, _) in enumerate(taken):
            if ticket.nonce in undone:
                rest = [one for one, _, _ in taken[count:]]
                values = tuple(lock_id(one.name) for one in rest), tuple(one.nonce for one in rest)
                await self._port.execute(FAST_RELEASE_ALL, values, deadline=deadline)
                return taken[:count]
        return taken

    async def _try_acquire_one(self, ticket: Ticket, deadline: float) -> Granted | Waiting:
        try:
            return await self._try_acquire(ticket, deadline, queue=False)
        except BaseException as error:
            self._note_unanswered([ticket], error)
            raise

    async def _fast_acquire(self, ticket: Ticket, deadline: float) -> Granted | None:
        key = lock_id(ticket.name)
        values = (key, ticket.name, ticket.nonce, us(ticket.ttl), ticket.agent[:AGENT_MAX], ticket.info, "unique")
        sent = self._runtime.now()
        answer = await self._port.execute(FAST_ACQUIRE, values, deadline=deadline)
        if not answer.number:  # the count of rows depends on how the connection was made
            return None
        if answer.changed == INSERTED:
            if not await self._confirm_new([ticket], deadline):
                return None
            await self._reap_for_new(ticket.name, answer.number, deadline)
        return Granted(answer.number, lease_deadline(sent, ticket.ttl, GRANULARITY))

    async def _try_acquire(self, ticket: Ticket, deadline: float, *, queue: bool) -> Granted | Waiting:
        key, ttl, agent = lock_id(ticket.name), us(ticket.ttl), ticket.agent[:AGENT_MAX]
        statement = TRY_ACQUIRE_OWNED
        values: tuple[Value, ...] = (key, ticket.name, ticket.nonce, ttl, queue, agent, ticket.info, ticket.owner)
        if not ticket.owner:
            statement = TRY_ACQUIRE
            values = (key, ticket.name, "unique", ticket.nonce, ttl, ticket.exclusive, ticket.limit, queue)
            values += (agent, ticket.info)
        values += (self._client,)
        sent = self._runtime.now()
        answer = await self._port.execute(statement, values, deadline=deadline)
        ((outcome, fence, ahead, remaining, limit, other, is_new),) = answer.rows
        match outcome:
            case "in":
                self._stop(ticket.nonce)
                if ticket.limit is None:
                    self._wake_readers(ticket.name)
                if is_new == "1":
                    await self._reap_for_new(ticket.name, int(fence or 0), deadline)
                return Granted(int(fence or 0), lease_deadline(sent, ticket.ttl, GRANULARITY))
            case "wait":
                if queue:
                    position = self._positions.setdefault(
                        ticket.nonce, QueuePosition(sent, ticket.name if ticket.limit is None else "")
                    )
                    position.update(int(ahead or 0), sent)
                    left = int(remaining or 0) / 1e6
                    position.blocker_ends = self._runtime.now() + max(POLL_MIN, left) if left > 0 else float("inf")
                return Waiting(POLL_INTERVAL_BEHIND, process_text(other) if other else None)
            case "limit":
                theirs = None if limit is None else int(limit)
                raise LimitConflict(
                    lock=ticket.name, ours=ticket.limit, theirs=theirs, holder=process_text(other or "")
                )
            case "method":
                raise method_conflict(ticket.name, other or "")
            case _:
                raise OutcomeUnknown(backend=self.url, problem=f"ticket {ticket.nonce} was withdrawn before")

    async def wait(self, ticket: Ticket, until: float) -> None:
        """Look until it is worth to enter."""
        nonce, now, deadline = ticket.nonce, self._runtime.now, max(until, self._runtime.now() + IO_TIMEOUT_MIN)
        self._wakeups.expect(nonce)
        while (position := self._positions.get(nonce)) is not None:
            until = min(until, position.blocker_ends)
            await self._wakeups.wait(nonce, min(until, now() + position.poll_delay(now())))
            if now() >= until or nonce not in self._positions:
                return
            look, whose = (POLL_OWNED, (ticket.owner,)) if ticket.owner else (POLL, ())
            try:
                (row,) = (await self._port.execute(look, (lock_id(ticket.name), nonce, *whose), deadline=deadline)).rows
            except BackendError:
                return  # to enter is to ask again, and to say so if that fails too
            is_held, ahead, excluding, waiting, is_there, *same_owner = (int(value or 0) for value in row)
            is_full = ticket.limit is not None and ahead >= ticket.limit
            if any(same_owner) or not is_there or not (is_held or excluding or is_full):
                return
            position.update(waiting, now())

    async def release(self, tickets: Sequence[Ticket], *, deadline: float) -> list[bool | BackendError]:
        if len(tickets) == 1:
            return [await self._release(tickets[0], deadline)]
        answers: list[bool | BackendError] = []
        for start in range(0, len(tickets), BATCH):
            answers += await self._release_all(tickets[start : start + BATCH], deadline)
        return answers

    async def _release_all(self, tickets: Sequence[Ticket], deadline: float) -> list[bool | BackendError]:
        """One request for all that nobody waits for, and one for all others."""
        left: dict[str, bool | BackendError] = {}  # by nonce: whether it was in until now
        were_in: set[str] = set()
        new = [ticket for ticket in tickets if self._is_first_release(ticket)]
        try:
            if new:
                self._releasing.update(ticket.nonce for ticket in new)
                values = tuple(lock_id(ticket.name) for ticket in new), tuple(ticket.nonce for ticket in new)
                for nonce, is_out in (await self._port.execute(FAST_RELEASE_ALL, values, deadline=deadline)).rows:
                    were_in.add(nonce or "")
                    if is_out == "1":
                        left[nonce or ""] = True
            rest = [ticket for ticket in tickets if ticket.nonce not in left]
            if rest:
                words: list[Value] = []
                for ticket in rest:
                    words += (lock_id(ticket.name), ticket.name, ticket.nonce, ticket.nonce in self._unanswered)
                # The server may have been asked twice here, and a second answer knows nothing of the first.
                rows = (await self._port.execute(release_all(len(rest)), words, deadline=deadline)).rows
                for ticket, row in zip(rest, rows, strict=True):
                    left[ticket.nonce] = row[0] == "1" or ticket.nonce in were_in
        except BackendError as error:
            left = {ticket.nonce: left.get(ticket.nonce, error) for ticket in tickets}
        for nonce, answer in left.items():
            if not isinstance(answer, BackendError):
                self._forget(nonce)
        return [left[ticket.nonce] for ticket in tickets]

    def _is_first_release(self, ticket: Ticket) -> bool:
        """It has not tried before, and is in, as far as is known here."""
        nonce = ticket.nonce
        return nonce not in self._releasing and nonce not in self._unanswered and nonce not in self._positions

    def _forget(self, nonce: str) -> None:
        self._stop(nonce)
        self._unanswered.discard(nonce)
        self._releasing.discard(nonce)

    async def _release(self, ticket: Ticket, deadline: float) -> bool:
        key, nonce = lock_id(ticket.name), ticket.nonce
        is_unanswered = nonce in self._unanswered
        was_in = False
        # Who has to try again has no time to lose: to leave is one statement, which does it all, also if unanswered.
        if ticket.exclusive and not ticket.owner and self._is_first_release(ticket):
            self._releasing.add(nonce)
            was_in = bool((await self._port.execute(FAST_RELEASE, (key, nonce), deadline=deadline)).changed)
        if not was_in:
            answer = await self._port.execute(RELEASE, (key, ticket.name, nonce, is_unanswered), deadline=deadline)
            was_in = answer.rows[0][0] == "1"
        self._forget(nonce)
        return was_in

    async def close(self) -> None:
        self._wakeups.wake_all()
        await super().close()

    def _wake_readers(self, name: str) -> None:
        """A reader was granted this lock, so the readers of this client that wait for it may be granted it too."""
        for nonce, position in list(self._positions.items()):
            if position.reads == name:
                self._wakeups.wake(nonce)

    def _stop(self, nonce: str) -> None:
        if self._positions.pop(nonce, None) is not None:
            self._wakeups.forget(nonce)


def _first_batch(tickets: Sequence[Ticket]) -> list[Ticket]:
    """As many from the first on as one request can be about: without an owner, and with the same words."""
    first, batch = tickets[0], []
    for ticket in tickets[:BATCH]:
        if ticket.owner or (ticket.ttl, ticket.agent, ticket.info) != (first.ttl, first.agent, first.info):
            break
        batch.append(ticket)
    return batch


def _acquired(tickets: Sequence[Ticket], fences: str | None, changes: str | None) -> list[tuple[Ticket, int, bool]]:
    return [
        (ticket, int(fence), int(changed) == INSERTED)
        for ticket, fence, changed in zip(tickets, _split(fences), _split(changes), strict=True)
        if int(fence)
    ]


def _split(text: str | None) -> list[str]:
    return (text or "").split(",")[:-1]
