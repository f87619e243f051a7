"""`method=unique`, the default: a unique key on the name of the lock excludes, a table of tickets keeps the order.

One statement acquires a lock that is free and has no waiters, and one releases it. Everything else is done by the
procedures in schema.sql, with the same steps as on PostgreSQL; this module decides which of them to call.

Waiters get no notifications, so they poll, with a query that locks and writes nothing. The first waiter polls often,
and the interval grows with the square of the position in the queue. So all waiters together poll little more often than
the first two. Only while the queue moves fast do the waiters behind poll more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.mysql.protocol.base import BaseMysqlBackend
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
from holdfast.backends.mysql.sql import AGENT_MAX, lock_id
from holdfast.backends.sql_protocol import GRANULARITY, refused, us
from holdfast.core.clock import lease_deadline
from holdfast.core.engine import IO_TIMEOUT_MIN
from holdfast.core.tickets import POLL_INTERVAL_BEHIND, Granted, Ticket, Waiting, process_text
from holdfast.core.wakeups import Wakeups
from holdfast.errors import BackendError

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import MysqlPort, Value
    from holdfast.core.ports import Runtime

BATCH = 128  # locks in one request, at most, to keep it and its transaction small
POLL_MIN, POLL_MAX = 0.002, 0.02  # seconds between polls of the first waiter: often after a change, then less
_STEADY_POLLS = 8  # polls without a change until the interval grows
_EARLY = 4  # the interval is at most this fraction of the expected time until the grant


class QueuePosition:
    """The position of a waiter in the queue, and when its next poll is due."""

    __slots__ = ("_ahead", "_pace", "_since", "blocker_ends", "reads")

    def __init__(self, now: float, reads: str = "") -> None:
        self.reads = reads  # the lock, for a reader: it is granted together with the readers before it
        self.blocker_ends = float("inf")  # when the lease that blocks it expires, unless it is renewed
        self._ahead = 0  # waiters before it
        self._since = now  # when that number last changed, as far as polls have shown
        self._pace = 0.0  # seconds that one of them took, at the last change

    def update(self, ahead: int, now: float) -> None:
        """A poll has found this many waiters before it."""
        if ahead != self._ahead:
            self._pace = (now - self._since) / max(1, self._ahead - ahead)
            self._ahead, self._since = ahead, now

    def poll_delay(self, now: float) -> float:
        """Seconds until the next poll: a fraction of the expected wait, at most what the position allows."""
        position, quiet = self._ahead + 1, now - self._since
        by_pace = position * max(self._pace, quiet) / _EARLY
        weight = position if self.reads else position**2
        by_position = weight * max(POLL_MIN, min(POLL_MAX, quiet / _STEADY_POLLS))
        return max(POLL_MIN, min(by_pace, by_position))


class UniqueBackend(BaseMysqlBackend):
    """Locks in one database, in FIFO order."""

    nominal_guarantees = UNIQUE
    lacks = UNIQUE_LACKS

    def __init__(self, url: str, port: MysqlPort, runtime: Runtime) -> None:
        super().__init__(url, port, runtime)
        self._wakeups = Wakeups(runtime)
        self._positions: dict[str, QueuePosition] = {}  # by nonce of a waiter
        self._releasing: set[str] = set()  # tickets with a release that was sent before

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        try:
            # A ticket without an answer may hold the lock, which only TRY_ACQUIRE checks.
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
        """One request for all free locks, and TRY_ACQUIRE for the first that is not free."""
        batch = _first_batch(tickets)
        granted: list[Granted | Waiting] = [*await self._fast_acquire_all(batch, deadline)] if batch else []
        if batch and len(granted) == len(batch):
            return granted
        return [*granted, await self._try_acquire_one(tickets[len(granted)], deadline)]

    async def _fast_acquire_all(self, tickets: Sequence[Ticket], deadline: float) -> list[Granted]:
        """The first of them, in their order, that are free and have no waiters."""
        first = tickets[0]
        values: list[Value] = [us(first.ttl), first.agent[:AGENT_MAX], first.info]
        for ticket in tickets:
            values += (lock_id(ticket.name), ticket.name, ticket.nonce)
        sent = self._runtime.now()
        try:
            answer = await self._port.execute(fast_acquire_all(len(tickets)), values, deadline=deadline)
            ((fences, changes),) = answer.rows
            acquired = await self._confirm(_acquired(tickets, fences, changes), deadline)
        except BaseException as error:
            self._note_unanswered(tickets, error)
            raise
        for ticket, fence, is_new in acquired:
            if is_new:
                await self._reap_for_new(ticket.name, fence, deadline)
        return [Granted(fence, lease_deadline(sent, first.ttl, GRANULARITY)) for _, fence, _ in acquired]

    async def _confirm(
        self, acquired: list[tuple[Ticket, int, bool]], deadline: float
    ) -> list[tuple[Ticket, int, bool]]:
        """The tickets before the first one whose lock turns out to be in use; the others are released again."""
        new = [ticket for ticket, _, is_new in acquired if is_new]
        undone = {ticket.nonce for ticket in new} - await self._confirm_new(new, deadline)
        for count, (ticket, _, _) in enumerate(acquired):
            if ticket.nonce in undone:
                rest = [other for other, _, _ in acquired[count:]]
                values = tuple(lock_id(other.name) for other in rest), tuple(other.nonce for other in rest)
                await self._port.execute(FAST_RELEASE_ALL, values, deadline=deadline)
                return acquired[:count]
        return acquired

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
        if not answer.number:  # not `changed`, which depends on how the connection was opened
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
            case _:
                raise refused(outcome, ticket, limit, other, self.url)

    async def wait(self, ticket: Ticket, until: float) -> None:
        """Poll until the lock may be granted."""
        nonce, now, deadline = ticket.nonce, self._runtime.now, max(until, self._runtime.now() + IO_TIMEOUT_MIN)
        self._wakeups.expect(nonce)
        while (position := self._positions.get(nonce)) is not None:
            until = min(until, position.blocker_ends)
            await self._wakeups.wait(nonce, min(until, now() + position.poll_delay(now())))
            if now() >= until or nonce not in self._positions:
                return
            statement, owner = (POLL_OWNED, (ticket.owner,)) if ticket.owner else (POLL, ())
            try:
                answer = await self._port.execute(statement, (lock_id(ticket.name), nonce, *owner), deadline=deadline)
            except BackendError:
                return  # the next try_acquire reports the error
            held, ahead, exclusive, waiting, exists, *same_owner = (int(value or 0) for value in answer.rows[0])
            is_full = ticket.limit is not None and ahead >= ticket.limit
            if any(same_owner) or not exists or not (held or exclusive or is_full):
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
        """One request for all locks without waiters, and one for all others."""
        released: dict[str, bool | BackendError] = {}  # by nonce: whether it held the lock until now
        held: set[str] = set()
        new = [ticket for ticket in tickets if self._is_first_release(ticket)]
        try:
            if new:
                self._releasing.update(ticket.nonce for ticket in new)
                keys = tuple(lock_id(ticket.name) for ticket in new), tuple(ticket.nonce for ticket in new)
                for nonce, is_complete in (await self._port.execute(FAST_RELEASE_ALL, keys, deadline=deadline)).rows:
                    held.add(nonce or "")
                    if is_complete == "1":
                        released[nonce or ""] = True
            rest = [ticket for ticket in tickets if ticket.nonce not in released]
            if rest:
                values: list[Value] = []
                for ticket in rest:
                    values += (lock_id(ticket.name), ticket.name, ticket.nonce, ticket.nonce in self._unanswered)
                rows = (await self._port.execute(release_all(len(rest)), values, deadline=deadline)).rows
                for ticket, row in zip(rest, rows, strict=True):
                    # The request may have been repeated, and the answer to the second one says False.
                    released[ticket.nonce] = row[0] == "1" or ticket.nonce in held
        except BackendError as error:
            released = {ticket.nonce: released.get(ticket.nonce, error) for ticket in tickets}
        for nonce, answer in released.items():
            if not isinstance(answer, BackendError):
                self._forget(nonce)
        return [released[ticket.nonce] for ticket in tickets]

    def _is_first_release(self, ticket: Ticket) -> bool:
        """No release was sent before, and the ticket holds the lock, as far as this client knows."""
        nonce = ticket.nonce
        return nonce not in self._releasing and nonce not in self._unanswered and nonce not in self._positions

    def _forget(self, nonce: str) -> None:
        self._stop(nonce)
        self._unanswered.discard(nonce)
        self._releasing.discard(nonce)

    async def _release(self, ticket: Ticket, deadline: float) -> bool:
        key, nonce = lock_id(ticket.name), ticket.nonce
        is_unanswered = nonce in self._unanswered
        was_held = False
        # A repeated release uses RELEASE alone, which covers all cases, also that of an unanswered try_acquire.
        if ticket.exclusive and not ticket.owner and self._is_first_release(ticket):
            self._releasing.add(nonce)
            was_held = bool((await self._port.execute(FAST_RELEASE, (key, nonce), deadline=deadline)).changed)
        if not was_held:
            answer = await self._port.execute(RELEASE, (key, ticket.name, nonce, is_unanswered), deadline=deadline)
            was_held = answer.rows[0][0] == "1"
        self._forget(nonce)
        return was_held

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
    """The first tickets that fit in one request: without an owner, and with the same ttl, agent and info."""
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
