"""The tables and every step on them, to be read beside schema.sql and the statements in protocol/queue.py.

A step is atomic here. On the server every step locks the row of its lock first. So the model does not contain what
depends on PostgreSQL's row locks, such as reading the clock again after a wait for a lock.

NULL is None, and every comparison with it is false; answers are text, as from the server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.backends.postgresql.sql import FENCE_IDLE
from holdfast.backends.sql_protocol import us
from holdfast.core.tickets import WAITER_LEASE, WOKEN_LEASE
from holdfast_lab.sim.servers.database import DatabaseTables, by_number

if TYPE_CHECKING:
    from holdfast.backends.postgresql.port import Row, Statement, Value

WAITER_US, WOKEN_US = us(WAITER_LEASE), us(WOKEN_LEASE)
REAPED_MAX = 1000
_ITEM = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


@dataclass(slots=True)
class Lock:
    """A row of holdfast_locks."""

    name: str
    method: str
    drawn: int
    queued: bool
    nonce: str | None = None
    fence: int | None = None
    expires: int | None = None
    since: int | None = None
    agent: str | None = None
    info: str | None = None
    departed: tuple[str, ...] | None = None
    departed_until: int | None = None
    generation: int = 0
    head: int = 0
    renewed: int | None = None
    renewed_fence: int | None = None


@dataclass(slots=True)
class Ticket:
    """A row of holdfast_tickets."""

    name: str
    number: int
    nonce: str
    fence: int | None
    exclusive: bool
    limit: int | None
    expires: int
    since: int
    agent: str | None
    info: str | None
    channel: str
    owner: str | None = None
    renewed: int | None = None


@dataclass(slots=True)
class Register:
    """A row of holdfast_marks."""

    name: str
    number: int
    nonce: str
    expires: int


@dataclass(slots=True)
class StoredRecord:
    """A row of holdfast_records."""

    name: str
    nonce: str
    payload: str
    expires: int


class Tables(DatabaseTables[str, Lock, Ticket, Register, StoredRecord]):
    """One database. The key of a row is its name, and for a ticket its number too.

    `is_gone` says whether the client of a channel, which last polled at this time, has no session any more.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        notify: Callable[[str, str], object],
        is_gone: Callable[[str, int | None], bool],
    ) -> None:
        super().__init__(clock, FENCE_IDLE)
        self.notify = notify
        self.is_gone = is_gone
        self.caller: str | None = None  # the channel of the client whose statement is executed

    def run(self, statement: Statement, values: Sequence[Value]) -> list[Row]:
        """The rows that the server returns."""
        step: Callable[..., list[Row]] = getattr(self, statement.name.removeprefix("holdfast_") + "_rows")
        return step(*values)

    # ── the statements of protocol/ ────────────────────────────────────────────────────────────────────────────────

    def fast_acquire_rows(self, name: str, nonce: str, ttl: int, agent: str, info: str) -> list[Row]:
        taken = self.take(name, nonce, ttl, (agent, info))
        if taken is None:
            return []
        fence, reaps_at = taken
        if reaps_at is not None:
            self.reap(reaps_at)
        return [(_text(fence),)]

    def take(
        self, name: str, nonce: str, ttl: int, agent_and_info: tuple[str, str]
    ) -> tuple[int | None, int | None] | None:
        """The fence, and the time if this triggers the removal of old locks; None if the lock is not free."""
        now = self.clock()
        lock = self.locks.get(name)
        is_new = lock is None
        if lock is None:
            if self.may_have_tickets() and self.has_tickets(name, 0):
                return None
            lock = self.locks[name] = Lock(name, "queue", self.draw(None, now), queued=False, generation=now)
        elif self.is_free(lock):
            lock.method, lock.drawn = "queue", self.draw(lock, now)
            lock.generation = _generation(lock, lock.drawn)
        else:
            return None
        self.hold(lock, nonce, now, ttl, agent_and_info)
        return lock.fence, lock.drawn if is_new and lock.drawn & 255 == 0 else None

    def is_free(self, lock: Lock) -> bool:
        """It has no holder, no tickets and no remembered releases."""
        return lock.nonce is None and not lock.queued and lock.departed is None

    def fast_release_rows(self, name: str, nonce: str) -> list[Row]:
        lock = self.locks.get(name)
        if lock is None or lock.nonce != nonce:
            return []
        lock.nonce = None
        woken = None
        if lock.queued:
            self.wake(name, self.clock(), lock.head)
            woken = ""  # the text of a void result
        return [(_text(_is_after(lock.expires, self.clock())), woken)]

    def enter_rows(self, *values: Any) -> list[Row]:
        return [self.try_acquire(*values)]

    def enter_owner_rows(self, *values: Any) -> list[Row]:
        return [self.try_acquire_owner(*values)]

    def enter_all_rows(self, *values: str) -> list[Row]:
        *arrays, channel = values
        rows: list[Row] = []
        reaps_at = None
        for name, nonce, ttl, agent, info, owner in zip(*map(items, arrays), strict=True):
            if owner:
                now = self.clock()
                if self.create(name, "queue", reaps=False) and now & 255 == 0:
                    reaps_at = now
                rows.append(self.try_acquire_owner(name, nonce, int(ttl), False, agent, info, channel, owner))  # noqa: FBT003
            elif (taken := self.take(name, nonce, int(ttl), (agent, info))) is not None:
                rows.append(_outcome_row("in", fence=taken[0]))
                reaps_at = taken[1] or reaps_at
            else:
                rows.append(self.try_acquire(name, nonce, int(ttl), True, 1, False, agent, info, channel))  # noqa: FBT003
            if rows[-1][0] != "in":
                break
        if reaps_at is not None:
            self.reap(reaps_at)
        return rows

    def advance_register_rows(self, name: str, number: int, nonce: str, keep: int) -> list[Row]:
        now = self.clock()
        register = self.registers.get(name)
        if register is None:
            self.registers[name] = Register(name, number, nonce, now + keep)
            return [(_text(self.reap_registers(now) if now & 255 == 0 else None),)]
        if not self.is_lower(register, number, nonce):
            return []
        register.number, register.nonce, register.expires = number, nonce, max(register.expires, now + keep)
        return [(None,)]

    def is_lower(self, register: Register, number: int, nonce: str) -> bool:
        """Whether the register is lower, or was advanced by an earlier request of the same call."""
        return register.number < number or (register.number, register.nonce) == (number, nonce)

    def read_registers_rows(self, names: str) -> list[Row]:
        return [
            (name, _text(self.registers[name].number)) for name in sorted({*items(names)}) if name in self.registers
        ]

    def swap_record_rows(
        self, name: str, expected: str, nonce: str | None, payload: str | None, keep: int
    ) -> list[Row]:
        now, is_new = self.clock(), name not in self.records
        row = None if nonce is None else StoredRecord(name, nonce, payload or "", now + keep)
        record = self.swap_record(name, expected, row)
        if is_new and record is not None and now & 255 == 0:
            self.reap_expired_records(REAPED_MAX)
        return _record_rows(record)

    def read_record_rows(self, name: str) -> list[Row]:
        return _record_rows(self.read_record(name))

    def leave_rows(self, name: str, nonce: str, unanswered: bool) -> list[Row]:  # noqa: FBT001  (a parameter of the statement)
        return [(_text(self.release(name, nonce, unanswered=unanswered)),)]

    def leave_and_queue_rows(  # noqa: PLR0917  (the parameters of the statement)
        self, name: str, nonce: str, following: str, ttl: int, agent: str, info: str, channel: str
    ) -> list[Row]:
        outcome, *_ = self.try_acquire(name, following, ttl, True, 1, True, agent, info, channel)  # noqa: FBT003
        return [(_text(self.release(name, nonce, unanswered=False)), outcome)]

    def leave_all_rows(self, names: str, nonces: str, unanswered: str) -> list[Row]:
        every = zip(items(names), items(nonces), items(unanswered), strict=True)
        return [
            (nonce, _text(self.release(name, nonce, unanswered=is_unanswered == "t")))
            for name, nonce, is_unanswered in every
        ]

    def renew_rows(self, name: str, nonce: str, ttl: int) -> list[Row]:
        return [(_text(self.renew(name, nonce, ttl)),)]

    def renew_all_rows(self, names: str, nonces: str, ttls: str) -> list[Row]:
        every = zip(items(names), items(nonces), items(ttls), strict=True)
        return [(nonce, _text(self.renew(name, nonce, int(ttl)))) for name, nonce, ttl in every]

    def adopt_rows(self, name: str, old: str, nonce: str, ttl: int, agent: str, info: str) -> list[Row]:  # noqa: PLR0917  (the parameters of the statement)
        lock, now = self.locks.get(name), self.clock()
        if lock is None or lock.nonce != old or lock.method != "queue" or not _is_after(lock.expires, now):
            return []
        if _is_after(lock.departed_until, now) and nonce in (lock.departed or ()):
            return []
        lock.drawn = self.draw(lock, now)
        self.hold(lock, nonce, now, ttl, (agent, info))
        return [(_text(lock.fence),)]

    def extend_turn_rows(  # noqa: PLR0917  (the parameters of the statement)
        self,
        name: str,
        nonce: str,
        fences: int,
        may_stay: bool,  # noqa: FBT001  (likewise)
        ttl: int,
        agent: str,
        info: str,
    ) -> list[Row]:
        lock, now = self.locks.get(name), self.clock()
        if lock is None or not self.is_extendable(lock, nonce, now):
            return []
        if lock.queued and not may_stay:
            return [(None, "t")]
        lock.fence = lock.renewed_fence = self.draw(lock, now)
        lock.generation = _generation(lock, lock.fence)
        lock.drawn = self.last_reserved(lock.fence, fences)
        self.prolong(lock, now, ttl)
        lock.since, lock.agent, lock.info = now, agent, info
        return [(_text(lock.fence), "f")]

    def is_extendable(self, lock: Lock, nonce: str, now: int) -> bool:
        """The ticket holds the lock."""
        return lock.nonce == nonce and _is_after(lock.expires, now)

    def last_reserved(self, first: int, fences: int) -> int:
        return first + fences - 1

    def prolong(self, lock: Lock, now: int, ttl: int) -> None:
        """The lease ends its ttl from now, unless it ends later already."""
        if not _is_after(lock.expires, now + ttl):
            lock.expires, lock.renewed = now + ttl, now

    def renew_alone_rows(self, name: str, nonce: str, fence: int, ttl: int, agent: str, info: str) -> list[Row]:  # noqa: PLR0917  (the parameters of the statement)
        lock, now = self.locks.get(name), self.clock()
        if lock is None or not self.is_extendable(lock, nonce, now):
            return []
        if (lock.fence or 0) <= fence <= lock.drawn:
            lock.fence, lock.agent, lock.info = fence, agent, info
        lock.renewed_fence = lock.fence
        self.prolong(lock, now, ttl)
        return [(_text(lock.fence),)]

    def holder_rows(self, name: str) -> list[Row]:
        lock = self.locks.get(name)
        return [(lock.nonce, _text(lock.fence))] if lock is not None and _is_after(lock.expires, self.clock()) else []

    def break_rows(self, name: str, fence: int) -> list[Row]:
        return [(_text(self.break_(name, fence)),)]

    def inspect_rows(self, name: str) -> list[Row]:
        return self._described(lambda known: known == name)

    def locks_rows(self, prefix: str) -> list[Row]:
        return self._described(lambda known: known.startswith(prefix))

    def _described(self, is_wanted: Callable[[str], bool]) -> list[Row]:
        """The rows of the view holdfast_status, in order."""
        now = self.clock()
        tickets = [
            Ticket(
                *(lock.name, 0, lock.nonce, lock.fence, True, 1),
                *(lock.expires or 0, lock.since or 0, lock.agent, lock.info, ""),
            )
            for lock in self.locks.values()
            if lock.nonce is not None
        ]
        tickets = [ticket for ticket in tickets + self.tickets if ticket.expires > now and is_wanted(ticket.name)]
        return [
            (
                *(ticket.name, _text(ticket.fence), _text(ticket.exclusive), _text(ticket.limit)),
                *(_text(ticket.expires - now), _text(ticket.since), ticket.agent, ticket.info),
            )
            for ticket in sorted(tickets, key=_sort_key)
        ]

    # ── the functions of schema.sql ──────────────────────────────────────────────────────────────────────────────

    def lapse(self, ticket: Ticket, now: int, head: int, caller: str | None) -> str | None:
        is_caller = ticket.channel == caller
        if self.has_expired(ticket.expires, now):
            self.tickets.remove(ticket)
            if is_caller or ticket.fence is not None or ticket.renewed is None:
                return "ticket"
            is_woken = ticket.expires < ticket.renewed + WAITER_US
            since = ticket.expires - WOKEN_US if is_woken else ticket.renewed
            others = [entry for entry in self._queue(ticket.name, head) if entry.channel == ticket.channel]
            if any(_is_after(entry.renewed, since) for entry in others):
                return "ticket"
        elif is_caller or ticket.fence is not None or not self.is_gone(ticket.channel, ticket.renewed):
            self._set_ticket_right(ticket, now)
            return None
        for entry in self.same_client(ticket, head):
            self.tickets.remove(entry)
        return "client"

    def same_client(self, ticket: Ticket, head: int) -> list[Ticket]:
        """The waiters of its client."""
        return [
            entry for entry in self._queue(ticket.name, head) if entry.channel == ticket.channel and entry.fence is None
        ]

    def _set_ticket_right(self, ticket: Ticket, now: int) -> None:
        if ticket.renewed is not None and self.is_set_back(ticket.renewed, now):
            ticket.expires, ticket.renewed = now + (ticket.expires - ticket.renewed), now

    def set_right(self, name: str) -> None:
        lock, now = self.locks.get(name), self.clock()
        if lock is None or lock.renewed is None or lock.expires is None or lock.renewed_fence != lock.fence:
            return
        if self.is_set_back(lock.renewed, now):
            lock.expires, lock.renewed = now + (lock.expires - lock.renewed), now

    def is_set_back(self, renewed: int, now: int) -> bool:
        """The clock was set back since this renewal."""
        return renewed > now

    def create(self, name: str, method: str, *, reaps: bool) -> bool:
        """Create the row of a lock. Returns whether there was none."""
        if name in self.locks:
            return False
        now = self.clock()
        self.locks[name] = Lock(name, method, now, queued=self.may_have_tickets(), generation=now)
        if reaps and now & 255 == 0:
            self.reap(now)
        return True

    def may_have_tickets(self) -> bool:
        """Whether a lock with a new row can have tickets: an operator may have deleted the old row."""
        return True

    def wake(self, name: str, now: int, head: int) -> None:
        ahead = 0
        dropped: set[str] = set()
        for ticket in self._queue(name, head):
            if ticket.fence is None and ticket.channel in dropped:
                continue
            lapsed = self.lapse(ticket, now, head, self.caller)
            if lapsed == "client":
                dropped.add(ticket.channel)
            if lapsed is not None:
                continue
            if ticket.fence is None:
                if ticket.limit is not None and ahead >= ticket.limit:
                    return
                if ticket.expires > now + WOKEN_US:
                    self.wake_waiter(ticket, now)
            if ticket.exclusive:
                return
            ahead += 1

    def wake_waiter(self, ticket: Ticket, now: int) -> None:
        ticket.expires = now + WOKEN_US
        self.notify(ticket.channel, ticket.nonce)

    def try_acquire(  # noqa: PLR0917  (the parameters of the function)
        self,
        name: str,
        nonce: str,
        ttl: int,
        exclusive: bool,  # noqa: FBT001  (a parameter of the statement)
        limit: int | None,
        queue: bool,  # noqa: FBT001  (likewise)
        agent: str,
        info: str,
        channel: str,
    ) -> Row:
        now = self.clock()
        self.create(name, "queue", reaps=True)
        lock = self.locks[name]
        if lock.nonce is not None and lock.nonce != nonce:
            self.set_right(name)
        drawn = self.draw(lock, now)
        holder, departed, head = lock.nonce, lock.departed, lock.head
        departed_until = None if lock.departed_until is None else min(lock.departed_until, now + WAITER_US)
        has_purged = False

        if holder is not None and holder != nonce and self.has_expired(lock.expires, now):
            holder = None
            has_purged = True
        if lock.method != "queue" and holder is not None:
            return _outcome_row("method", other=lock.method)

        mine = self._ticket(name, nonce, head) if lock.queued or not exclusive else None
        if _is_after(departed_until, now):
            if nonce in (departed or ()) and mine is None and holder != nonce:
                return _outcome_row("gone")
        else:
            departed = None

        if not exclusive:
            for ticket in self._queue(name, head):
                if not ticket.exclusive and ticket.limit != limit and ticket.nonce != nonce and ticket.expires > now:
                    if _is_after(ticket.renewed, now):
                        self.lapse(ticket, now, head, channel)
                    return _outcome_row("limit", other_limit=ticket.limit, other=ticket.info)

        outcome, remaining, other = "in", None, None
        if holder is not None and holder != nonce:
            outcome, remaining, other = "wait", (lock.expires or 0) - now, lock.info
        elif holder is None and lock.queued:
            position, first = 0, None
            dropped: set[str] = set()
            for ticket in self._queue(name, head):
                if mine is not None and ticket.number >= mine.number:
                    break
                if ticket.fence is None and ticket.channel in dropped:
                    continue
                lapsed = self.lapse(ticket, now, lock.head, channel)
                if lapsed == "client":
                    dropped.add(ticket.channel)
                if lapsed is not None:
                    has_purged = True
                    continue
                first = ticket.number if first is None else first
                position += 1
                if ticket.exclusive or position == limit:
                    outcome, remaining, other = "wait", ticket.expires - now, ticket.info
                    break
            head = first or (drawn if mine is None else mine.number)

        if outcome == "in" and exclusive:
            if mine in self.tickets:  # it may have lapsed with its client: another one polls for it now
                self.tickets.remove(mine)
            lock.method, lock.drawn, lock.generation, lock.head = "queue", drawn, _generation(lock, drawn), head
            lock.departed, lock.departed_until = departed, departed_until
            lock.queued = lock.queued and self.has_tickets(name, head)
            self.hold(lock, nonce, now, ttl, (agent, info))
            return _outcome_row("in", fence=lock.fence)
        row = Ticket(
            *(name, drawn, nonce, None, exclusive, limit),
            *(now + WAITER_US, now, agent, info, channel),
            renewed=now,
        )
        number = None if mine is None else mine.number
        fence = None
        if outcome == "in":
            fence = drawn
            if mine is None:
                self._insert(replace(row, fence=drawn, expires=now + ttl))
            else:
                mine.fence, mine.expires, mine.renewed, mine.since = drawn, now + ttl, now, now
        elif queue and mine is None:
            number = drawn
            self._insert(row)
        elif queue and mine is not None:
            mine.fence, mine.expires, mine.renewed, mine.channel = None, now + WAITER_US, now, channel
        if fence is not None or number == drawn or has_purged:
            lock.method, lock.drawn, lock.generation, lock.head = "queue", drawn, _generation(lock, drawn), head
            lock.departed, lock.departed_until, lock.nonce, lock.queued = departed, departed_until, holder, True
        if holder is None and (has_purged or (outcome == "wait" and queue)):
            self.wake(name, now, head)
        if outcome == "in":
            return _outcome_row("in", fence=fence)
        waiting = [entry for entry in self._queue(name, head) if number is None or entry.number < number]
        ahead = self.ahead([entry for entry in waiting if entry.fence is None], channel)
        return _outcome_row("wait", ahead=ahead, remaining=remaining, other=other)

    def ahead(self, waiting: list[Ticket], channel: str) -> int:
        """How often a waiter after these, of the client with this channel, polls: 0 and 1 mean often, 2 rarely."""
        if not waiting:
            return 0
        first, last = waiting[0], waiting[-1]
        return 1 if first is last or first.channel == last.channel != channel else 2

    def try_acquire_owner(  # noqa: PLR0917  (the parameters of the function)
        self,
        name: str,
        nonce: str,
        ttl: int,
        queue: bool,  # noqa: FBT001  (a parameter of the statement)
        agent: str,
        info: str,
        channel: str,
        owner: str,
    ) -> Row:
        now = self.clock()
        self.create(name, "queue", reaps=True)
        lock = self.locks[name]
        fence = self.owner_fence(lock, owner, now)
        mine = self._ticket(name, nonce, lock.head)
        if fence is not None:
            if _is_after(lock.departed_until, now) and nonce in (lock.departed or ()) and mine is None:
                return _outcome_row("gone")
            drawn = self.draw(lock, now)
        else:
            head = lock.head
            row = self.try_acquire(name, nonce, ttl, True, 1, queue, agent, info, channel)  # noqa: FBT003
            if row[0] == "wait" and queue:
                for ticket in self._queue(name, head):
                    ticket.owner = owner if ticket.nonce == nonce else ticket.owner
            if row[0] != "in":
                return row
            mine = self._ticket(name, nonce, lock.head)
            fence = drawn = int(row[1] or 0)
        first = self.first_number(lock, drawn)
        lock.nonce, lock.queued, lock.drawn, lock.head = None, True, drawn, first
        if mine is None:
            columns = (name, first, nonce, fence, True, 1)
            self._insert(Ticket(*columns, now + ttl, now, agent, info, channel, owner, now))
        else:
            mine.number = first if mine.fence is None else mine.number
            mine.fence, mine.expires, mine.renewed, mine.since = fence, now + ttl, now, now
        for ticket in self._queue(name, lock.head):
            if ticket.owner == owner and ticket.fence is None and ticket.expires > now:
                self.notify(ticket.channel, ticket.nonce)
        return _outcome_row("in", fence=fence)

    def owner_fence(self, lock: Lock, owner: str, now: int) -> int | None:
        """The fence of a granted ticket of this owner."""
        for ticket in self._queue(lock.name, lock.head) if lock.queued else ():
            if ticket.owner == owner and ticket.fence is not None and ticket.expires > now:
                return ticket.fence
        return None

    def first_number(self, lock: Lock, drawn: int) -> int:
        """A number before all others in the queue."""
        return min([drawn, *(ticket.number - 1 for ticket in self._queue(lock.name, lock.head))])

    def release(self, name: str, nonce: str, *, unanswered: bool) -> bool:
        now = self.clock()
        if unanswered:
            self.remember_departed(name, nonce, now)
        lock = self.locks.get(name)
        if lock is None:
            lock = Lock(name, "queue", now, queued=True)  # an operator has deleted the row; there may be tickets
        was_held = False
        if lock.nonce == nonce:
            was_held = _is_after(lock.expires, now)
            lock.nonce = None
        elif lock.queued:
            ticket = self._ticket(name, nonce, lock.head)
            if ticket is not None:
                self.tickets.remove(ticket)
                was_held = ticket.fence is not None and ticket.expires > now
            if ticket is None or (_is_after(lock.expires, now) and lock.nonce is not None):
                return False
        if lock.queued:
            self.wake(name, now, lock.head)
        return was_held

    def remember_departed(self, name: str, nonce: str, now: int) -> None:
        """Remember a release: the first statement of holdfast_leave."""
        self.create(name, "queue", reaps=True)
        lock = self.locks[name]
        lock.drawn = self.draw(lock, now)
        kept = (lock.departed or ()) if _is_after(lock.departed_until, now) else ()
        lock.departed, lock.departed_until = (*kept, nonce), now + WAITER_US

    def renew(self, name: str, nonce: str, ttl: int) -> bool:
        now = self.clock()
        lock = self.locks.get(name)
        if lock is not None and lock.nonce == nonce:
            if not _is_after(lock.expires, now):
                return False
            lock.expires, lock.renewed, lock.renewed_fence = now + ttl, now, lock.fence
            return True
        ticket = self._ticket(name, nonce, 0 if lock is None else lock.head)
        if ticket is None or ticket.fence is None or ticket.expires <= now:
            return False
        ticket.expires, ticket.renewed = now + ttl, now
        return True

    def break_(self, name: str, fence: int) -> bool:
        lock = self.locks.get(name)
        if lock is not None and lock.nonce is not None and lock.fence == fence:
            lock.nonce = None
        else:
            broken = [ticket for ticket in self._queue(name, 0 if lock is None else lock.head) if ticket.fence == fence]
            if not broken:
                return False
            for ticket in broken:
                self.tickets.remove(ticket)
        if lock is None or lock.queued:
            self.wake(name, self.clock(), 0 if lock is None else lock.head)
        return True

    def pass_(
        self, name: str, nonce: str, ttl: int, agent_and_info: tuple[str, str], *, has_advisory_lock: bool
    ) -> Row:
        """holdfast_pass without its advisory lock, which the session holds: outcome, fence, remaining, other."""
        now = self.clock()
        if has_advisory_lock:
            self.create(name, "advisory", reaps=True)
        lock = self.locks.get(name)
        if lock is None:
            return "wait", None, None, None
        if has_advisory_lock and lock.nonce is not None and lock.nonce != nonce:
            self.set_right(name)
        is_live = lock.nonce is not None and _is_after(lock.expires, now)
        if lock.method != "advisory" and is_live:
            return "method", None, None, lock.method
        if lock.queued and any(ticket.expires > now for ticket in self._queue(name, lock.head)):
            for ticket in self._queue(name, lock.head):
                self._set_ticket_right(ticket, now)
            return "method", None, None, "queue"
        is_remembered = _is_after(lock.departed_until, now)
        if nonce in (lock.departed or ()) and is_remembered and lock.nonce != nonce:
            return "gone", None, None, None
        if lock.nonce != nonce and (not has_advisory_lock or is_live):
            return "wait", None, _text(None if lock.expires is None else lock.expires - now), lock.info
        lock.method, lock.drawn, lock.queued = "advisory", self.draw(lock, now), False
        lock.generation = _generation(lock, lock.drawn)
        lock.departed = lock.departed if is_remembered else None
        self.hold(lock, nonce, now, ttl, agent_and_info)
        return "in", _text(lock.fence), None, None

    def poll_rows(self, name: str) -> list[Row]:
        lock = self.locks.get(name)
        if lock is None:
            return []
        is_held = lock.nonce is not None and _is_after(lock.expires, self.clock())
        is_set_back = lock.nonce is not None and _is_after(lock.renewed, self.clock())
        if is_set_back:
            self.set_right(name)
        return [(_text(lock.drawn), _text(is_held), lock.info, "" if is_set_back else None)]

    def poll_queue_rows(  # noqa: PLR0917  (the parameters of the statement)
        self, name: str, nonce: str, limit: int | None, counted: int | None, owner: str | None, woken: int
    ) -> list[Row]:
        now, lock = self.clock(), self.locks.get(name)
        ticket = None if lock is None else self._ticket(name, nonce, lock.head)
        if lock is None or ticket is None or ticket.fence is not None:
            return []
        queue = self._queue(name, lock.head)
        before = [entry for entry in queue if entry.number < ticket.number and entry.expires > now][:counted]
        is_held = lock.nonce is not None and _is_after(lock.expires, now)
        is_full = limit is not None and len(before) >= limit
        is_same_owner = owner is not None and any(
            entry.owner == owner and entry.fence is not None and entry.expires > now for entry in queue
        )
        is_blocked = is_held or is_full or any(entry.exclusive for entry in before)
        is_blocked = is_blocked and ticket.expires - now > woken and not is_same_owner
        return [(_text(is_blocked), _text(sum(entry.fence is None for entry in before)))]

    def reap(self, now: int) -> int:
        idle = now - self.fence_idle
        kept = {ticket.name for ticket in self.tickets if ticket.expires >= idle}
        old = [
            lock.name
            for lock in self.locks.values()
            if lock.drawn < idle and (lock.nonce is None or (lock.expires or 0) < idle) and lock.name not in kept
        ][:REAPED_MAX]
        self.tickets = [
            ticket
            for ticket in self.tickets
            if ticket.name not in old and (ticket.expires >= idle or ticket.name in self.locks)
        ]
        for name in old:
            del self.locks[name]
        return len(old)

    def reap_registers(self, now: int) -> int:
        old = [register.name for register in self.registers.values() if register.expires <= now][:REAPED_MAX]
        for name in old:
            del self.registers[name]
        return len(old)

    # ── shared ──────────────────────────────────────────────────────────────────────────────────

    def hold(self, lock: Lock, nonce: str, since: int, ttl: int, agent_and_info: tuple[str, str]) -> None:
        """Grant the lock with its last number as the fence."""
        lock.nonce, lock.fence, lock.expires, lock.since = nonce, lock.drawn, since + ttl, since
        lock.renewed, lock.renewed_fence = since, lock.drawn
        lock.agent, lock.info = agent_and_info

    def has_tickets(self, name: str, head: int) -> bool:
        return bool(self._queue(name, head))

    def _queue(self, name: str, head: int) -> list[Ticket]:
        """The tickets from the head on, as the functions read them."""
        return sorted((entry for entry in self.tickets if entry.name == name and entry.number >= head), key=by_number)

    def _ticket(self, name: str, nonce: str, head: int) -> Ticket | None:
        return next((ticket for ticket in self._queue(name, head) if ticket.nonce == nonce), None)

    def _insert(self, row: Ticket) -> None:
        if any(ticket.number == row.number for ticket in self._queue(row.name, 0)):
            raise AssertionError(f"two tickets of {row.name!r} have the number {row.number}")
        self.tickets.append(row)


def _outcome_row(
    outcome: str,
    *,
    fence: int | None = None,
    ahead: int | None = None,
    remaining: int | None = None,
    other_limit: int | None = None,
    other: str | None = None,
) -> Row:
    return outcome, _text(fence), _text(ahead), _text(remaining), _text(other_limit), other


def _record_rows(record: StoredRecord | None) -> list[Row]:
    return [] if record is None else [(record.nonce, record.payload)]


def _generation(lock: Lock, drawn: int) -> int:
    return drawn if drawn & 31 == 0 else lock.generation


def _is_after(moment: int | None, now: int) -> bool:
    return moment is not None and moment > now


def _sort_key(ticket: Ticket) -> tuple[bytes, int]:
    return ticket.name.encode(), ticket.number


def _text(value: str | int | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "t" if value else "f"
    return str(value)


def items(array: str) -> list[str]:
    """The items of an array literal that the protocol has written."""
    return [re.sub(r"\\(.)", r"\1", item, flags=re.DOTALL) for item in _ITEM.findall(array)]
