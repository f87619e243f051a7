"""The tables of locks and tickets and every step on them: see schema.sql, statements.py and version.py.

A step is atomic here. On the server every step locks the row of its lock first. So the model does not contain what
depends on InnoDB's row locks, such as reading the clock again after a wait for a row.

NULL is None, and every comparison with it is false; answers are text, as from the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.backends.mysql.port import Answer
from holdfast.backends.mysql.sql import FENCE_IDLE, REAP_ROWS, WOKEN
from holdfast.backends.sql_protocol import us
from holdfast.core.tickets import WAITER_LEASE
from holdfast_lab.sim.servers.database import by_number
from holdfast_lab.sim.servers.mysql.values import Values

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import Statement, Value

WAITER_US, WOKEN_US = us(WAITER_LEASE), us(WOKEN)
_A_BIT_LATER = us(10.0)


@dataclass(slots=True)
class Lock:
    """A row of holdfast_locks."""

    id: bytes
    name: str
    method: str
    drawn: int
    tickets: bool = False
    nonce: str | None = None
    fence: int = 0
    expires: int = 0
    renewed: int = 0
    since: int = 0
    agent: str = ""
    info: str | None = None
    departed: tuple[str, ...] | None = None
    departed_until: int = 0


@dataclass(slots=True)
class Ticket:
    """A row of holdfast_tickets."""

    id: bytes
    number: int
    name: str
    nonce: str
    fence: int | None
    exclusive: bool
    limit: int | None
    expires: int
    since: int
    agent: str
    info: str
    owner: str = ""
    client: str = ""
    renewed: int = 0


class Tables(Values[Lock, Ticket]):
    """One database. The key of a row is its id, and for a ticket its number too."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock, FENCE_IDLE)
        self.unconfirmed: set[str] = set()  # nonces that are not granted: their rows are new, but there are tickets

    def run(self, statement: Statement, values: Sequence[Value]) -> Answer:
        """The answer of the server."""
        step: Callable[..., Answer] = getattr(self, statement.name + "_answer")
        return step(*values)

    # ── the statements of version.py ─────────────────────────────────────────────────────────────────────────────

    def create_answer(self, key: bytes, name: str) -> Answer:
        if key in self.locks:
            return Answer()
        self.locks[key] = Lock(key, name, "version", self.clock())
        return Answer(1)

    def cas_acquire_answer(  # noqa: PLR0917  (the parameters of the statement)
        self, key: bytes, nonce: str, version: int, ttl: int, agent: str, info: str
    ) -> Answer:
        now = self.clock()
        lock = self.locks.get(key)
        if lock is None or not self.has_version(lock, version):
            return Answer()
        if lock.nonce not in {None, nonce} and lock.expires > now:
            return Answer()
        return self._hold(lock, nonce, now, ttl, "version", agent, info)

    def has_version(self, lock: Lock, version: int) -> bool:
        return lock.drawn == version

    def cas_release_answer(self, key: bytes, nonce: str) -> Answer:
        now = self.clock()
        lock = self.locks.get(key)
        if lock is None or not self.is_holder(lock, nonce) or lock.expires <= now:
            return Answer()
        lock.drawn, lock.nonce = self.draw(lock, now), None
        return Answer(1, lock.drawn)

    def is_holder(self, lock: Lock, nonce: str) -> bool:
        return lock.nonce == nonce

    def bump_version_answer(self, key: bytes, nonce: str, remembered: int) -> Answer:
        lock, now = self.locks.get(key), self.clock()
        if lock is None:
            return Answer()
        lock.drawn = self.draw(lock, now)
        if lock.nonce == nonce:
            lock.nonce = None
        kept = (lock.departed or ()) if lock.departed_until > now else ()
        lock.departed, lock.departed_until = (*kept, nonce), now + remembered
        return Answer(1)

    # ── the statements of statements.py ────────────────────────────────────────────────────────────────────────────

    def fast_acquire_answer(  # noqa: PLR0917  (the parameters of the statement)
        self, key: bytes, name: str, nonce: str, ttl: int, agent: str, info: str, method: str
    ) -> Answer:
        now = self.clock()
        lock = self.locks.get(key)
        if lock is None:
            lock = self.locks[key] = Lock(key, name, method, now)
            lock.nonce, lock.fence, lock.expires, lock.renewed, lock.since, lock.agent, lock.info = (
                *(nonce, now, now + ttl),
                *(now, now, agent, info),
            )
            if self.has_tickets(key):
                self.unconfirmed.add(nonce)
            return Answer(1, now)
        if self.is_free(lock, now) or lock.nonce == nonce:
            held = self._hold(lock, nonce, now, ttl, method, agent, info)
            return Answer(2, held.number)
        return Answer()

    def confirm_new_answer(self, keys: tuple[bytes, ...], nonces: tuple[str, ...], fences: tuple[int, ...]) -> Answer:
        ours = [lock for lock in self.locks.values() if lock.id in keys and lock.nonce in nonces]
        self.unconfirmed -= {*nonces}
        for lock in ours:
            if self.hides_tickets(lock.id) and lock.fence in fences:
                lock.nonce, lock.tickets = None, True
        return Answer(rows=[(lock.nonce,) for lock in ours if lock.nonce is not None])

    def hides_tickets(self, key: bytes) -> bool:
        """Whether there are tickets that the lock's row does not show: an operator may have deleted the old row."""
        return self.has_tickets(key)

    def is_free(self, lock: Lock, now: int) -> bool:
        """It has no holder, no tickets and no remembered releases."""
        return (lock.nonce is None or lock.expires <= now) and not lock.tickets and lock.departed_until <= now

    def fast_acquire_all_answer(self, ttl: int, agent: str, info: str, *locks: Any) -> Answer:
        fences, changes = "", ""
        continues = True
        for at in range(0, len(locks), 3):
            key, name, nonce = locks[at : at + 3]
            answer = self.fast_acquire_answer(key, name, nonce, ttl, agent, info, "unique") if continues else Answer()
            continues = continues and answer.number > 0
            fences, changes = f"{fences}{answer.number},", f"{changes}{answer.changed},"
        return Answer(rows=[(fences, changes)])

    def fast_release_all_answer(self, keys: tuple[bytes, ...], nonces: tuple[str, ...]) -> Answer:
        now = self.clock()
        rows = []
        for lock in self.locks.values():
            if lock.id in keys and lock.nonce in nonces and lock.expires > now:
                rows.append((lock.nonce, _text(not lock.tickets)))
                if not lock.tickets:
                    lock.nonce = None
        shared = [
            entry for entry in self.tickets if entry.id in keys and entry.nonce in nonces and entry.fence is not None
        ]
        rows += [(entry.nonce, "0") for entry in shared if entry.expires > now]
        return Answer(rows=rows)

    def release_all_answer(self, *tickets: Any) -> Answer:
        answers = [self.release_answer(*tickets[at : at + 4]) for at in range(0, len(tickets), 4)]
        return Answer(rows=[row for answer in answers for row in answer.rows])

    def fast_release_answer(self, key: bytes, nonce: str) -> Answer:
        lock = self.locks.get(key)
        if lock is None or not self.is_holder(lock, nonce) or lock.tickets or lock.expires <= self.clock():
            return Answer()
        lock.nonce = None
        return Answer(1)

    def renew_last_answer(self, keys: tuple[bytes, ...], nonces: tuple[str, ...], ttl: int) -> Answer:
        return self.renew_answer(keys, nonces, ttl, a_bit_later=0)

    def renew_answer(
        self, keys: tuple[bytes, ...], nonces: tuple[str, ...], ttl: int, a_bit_later: int = _A_BIT_LATER
    ) -> Answer:
        now = self.clock()
        end = now + ttl
        theirs: list[Lock | Ticket] = [lock for lock in self.locks.values() if lock.id in keys and lock.nonce in nonces]
        theirs += [
            entry for entry in self.tickets if entry.id in keys and entry.nonce in nonces and entry.fence is not None
        ]
        for row in theirs:
            if row.expires > now and not end < row.expires < end + a_bit_later:
                row.expires, row.renewed = end, now
        return Answer(rows=[(row.nonce,) for row in theirs if row.expires >= end])

    def poll_answer(self, key: bytes, nonce: str) -> Answer:
        now = self.clock()
        lock = self.locks.get(key)
        if lock is None:
            return Answer(rows=[(None, "0", None, None, "0")])
        mine = self._ticket(key, nonce)
        ahead = [] if mine is None else [t for t in self._queue(key) if t.number < mine.number and t.expires > now]
        is_held = None if lock.nonce is None and lock.expires > now else lock.nonce not in {None, nonce}
        excluding = max((ticket.exclusive for ticket in ahead), default=None)
        waiting = sum(ticket.fence is None for ticket in ahead)
        is_queued = 0 if mine is None else max(1, len(ahead))
        row = (is_held and lock.expires > now, len(ahead), excluding, waiting, is_queued)
        return Answer(rows=[tuple(map(_text, row))])

    def poll_owned_answer(self, key: bytes, nonce: str, owner: str) -> Answer:
        ((*row, is_queued),) = self.poll_answer(key, nonce).rows
        if key not in self.locks:
            return Answer(rows=[(*row, is_queued, "0")])
        now = self.clock()
        same_owner = [entry for entry in self.same_owner(key, owner) if entry.nonce != nonce and entry.expires > now]
        return Answer(rows=[(*row, is_queued, str(len(same_owner)))])

    def state_answer(self, key: bytes) -> Answer:
        now = self.clock()
        lock = self.locks.get(key)
        if lock is None:
            return Answer()
        has_tickets = any(ticket.expires > now for ticket in self._queue(key))
        renewed = lock.renewed if lock.renewed > now else None
        row = (lock.drawn, lock.method, lock.nonce, lock.expires - now, lock.info, has_tickets, renewed)
        return Answer(rows=[tuple(map(_text, row))])

    def rebase_answer(self, key: bytes, renewed: int) -> Answer:
        lock, now = self.locks.get(key), self.clock()
        if lock is None or lock.renewed != renewed or lock.renewed <= now:
            return Answer()
        lock.expires, lock.renewed = lock.expires - lock.renewed + now, now
        return Answer(1)

    def inspect_answer(self, key: bytes) -> Answer:
        return self._described(lambda row: row.id == key)

    def locks_answer(self, prefix: bytes) -> Answer:
        return self._described(lambda row: row.name.encode().startswith(prefix))

    def _described(self, is_wanted: Callable[[Lock | Ticket], bool]) -> Answer:
        now = self.clock()
        rows: list[tuple[Any, ...]] = [
            (lock.name, lock.fence, True, 1, lock.expires - now, lock.since, lock.agent, lock.info, 0)
            for lock in self.locks.values()
            if lock.nonce is not None and lock.expires > now and is_wanted(lock)
        ]
        rows += [
            (
                *(entry.name, entry.fence, entry.exclusive, entry.limit, entry.expires - now),
                *(entry.since, entry.agent, entry.info, entry.number),
            )
            for entry in sorted(self.tickets, key=by_number)
            if entry.expires > now and is_wanted(entry)
        ]
        return Answer(rows=[tuple(map(_text, row)) for row in rows])

    # ── the procedures of schema.sql ─────────────────────────────────────────────────────────────────────────────

    def wake(self, key: bytes, now: int) -> None:
        self._remove([ticket for ticket in self._queue(key) if self.has_expired(ticket.expires, now)])
        next_ones = []
        for ahead, ticket in enumerate(self._queue(key)):
            if ticket.fence is None:
                if ticket.limit is not None and ahead >= ticket.limit:
                    break
                next_ones.append(ticket)
            if ticket.exclusive:
                break
        for ticket in self._queue(key):
            if ticket.fence is None and self.is_woken(ticket, next_ones):
                ticket.expires = self.woken(ticket.expires, now)

    def is_woken(self, ticket: Ticket, next_ones: Sequence[Ticket]) -> bool:
        """Whether the ticket or another ticket of its client is next."""
        return ticket in next_ones or (
            ticket.client != "" and any(entry.client == ticket.client for entry in next_ones)
        )

    def woken(self, expires: int, now: int) -> int:
        """When the shortened lease of a woken waiter expires."""
        return min(expires, now + WOKEN_US)

    def try_acquire_answer(  # noqa: PLR0917  (the parameters of the procedure)
        self,
        key: bytes,
        name: str,
        method: str,
        nonce: str,
        ttl: int,
        exclusive: bool,  # noqa: FBT001  (a parameter of the statement)
        limit: int | None,
        queue: bool,  # noqa: FBT001  (likewise)
        agent: str,
        info: str,
        client: str,
    ) -> Answer:
        now = self.clock()
        lock, is_new = self._drawn(key, name, method, now)
        row = Ticket(
            *(key, lock.drawn, name, nonce, None),
            exclusive=exclusive,
            limit=limit,
            expires=now + WAITER_US,
            since=now,
            agent=agent,
            info=info,
            client=client,
            renewed=now,
        )
        self.rebase(lock, self._queue(key), now)
        outcome = self._step(lock, row, method, now, ttl, queue=queue)
        lock.tickets = self.has_tickets(key)
        number = outcome.number
        ahead = [
            entry for entry in self._queue(key) if entry.fence is None and (number is None or entry.number < number)
        ]
        answer = (outcome.outcome, lock.drawn, len(ahead), outcome.remaining, outcome.limit, outcome.other, is_new)
        return Answer(rows=[tuple(map(_text, answer))])

    def _drawn(self, key: bytes, name: str, method: str, now: int) -> tuple[Lock, bool]:
        """The lock with its next number, and whether its row is new."""
        lock, is_new = self.locks.get(key), False
        if lock is None:
            lock, is_new = Lock(key, name, method, now), True
            self.locks[key] = lock
        else:
            lock.drawn = self.draw(lock, now)
        lock.drawn = max([lock.drawn, *(max(entry.number, entry.fence or 0) + 1 for entry in self._queue(key))])
        return lock, is_new

    def rebase(self, lock: Lock, tickets: Sequence[Ticket], now: int) -> None:
        """After the clock was set back, a lease lasts as long from now as it did from its renewal."""
        rows: list[Lock | Ticket] = [lock, *tickets]
        for row in rows:
            if row.renewed > now:
                row.expires, row.renewed = row.expires - row.renewed + now, now

    def _step(self, lock: Lock, row: Ticket, method: str, now: int, ttl: int, *, queue: bool) -> _Outcome:
        """The body of holdfast_try_acquire."""
        nonce, had_tickets, has_purged = row.nonce, lock.tickets or self.hides_tickets(lock.id), False
        was_departed = lock.departed_until > now and nonce in (lock.departed or ())
        expires, info = lock.expires, lock.info
        if lock.nonce not in {None, nonce} and self.has_expired(expires, now):
            lock.nonce, has_purged = None, True
        mine = None
        if had_tickets:
            dead = [
                entry for entry in self._queue(lock.id) if entry.nonce != nonce and self.has_expired(entry.expires, now)
            ]
            self._remove(dead)
            has_purged = has_purged or bool(dead)
            mine = self._ticket(lock.id, nonce)
            if lock.nonce == nonce and any(entry.fence is not None for entry in self._queue(lock.id)):
                lock.nonce = None
        number = None if mine is None else mine.number
        if had_tickets and self._queue(lock.id):
            lock.method = "unique"
        if lock.method != method:
            if lock.nonce is not None or (had_tickets and self._queue(lock.id)):
                return _Outcome("method", number, other=lock.method)
            lock.method = method
        if was_departed and mine is None and lock.nonce != nonce:
            return _Outcome("gone", number)
        if had_tickets and not row.exclusive:
            others = [
                entry
                for entry in self._queue(lock.id)
                if not entry.exclusive and entry.limit != row.limit and entry.nonce != nonce
            ]
            if others:
                limit = min((entry.limit for entry in others if entry.limit is not None), default=None)
                return _Outcome("limit", number, limit=limit, other=min(entry.info for entry in others))

        outcome = _Outcome("in", number)
        if lock.nonce not in {None, nonce}:
            outcome = _Outcome("wait", number, expires - now, other=info)
        elif lock.nonce is None and had_tickets:
            blocker = self.blocker(
                [entry for entry in self._queue(lock.id) if mine is None or entry.number < mine.number], row
            )
            if blocker is not None:
                outcome = _Outcome("wait", number, blocker.expires - now, other=blocker.info)

        if outcome.outcome == "in":
            if row.exclusive:
                self._grant(lock, row, now, ttl)
                self._remove([] if mine is None else [mine])
            elif mine is None:
                self.tickets.append(replace(row, fence=lock.drawn, expires=now + ttl))
            else:
                mine.fence, mine.expires, mine.renewed, mine.since = lock.drawn, now + ttl, now, now
        elif queue:
            if mine is None:
                outcome = outcome.at(lock.drawn)
                self.tickets.append(row)
            else:
                mine.fence, mine.expires, mine.renewed = None, row.expires, now
        if lock.nonce is None and (has_purged or (outcome.outcome == "wait" and queue)):
            self.wake(lock.id, now)
        return outcome

    def try_acquire_owned_answer(  # noqa: PLR0917  (the parameters of the procedure)
        self,
        key: bytes,
        name: str,
        nonce: str,
        ttl: int,
        queue: bool,  # noqa: FBT001  (likewise)
        agent: str,
        info: str,
        owner: str,
        client: str,
    ) -> Answer:
        now = self.clock()
        lock, is_new = self._drawn(key, name, "unique", now)
        row = Ticket(
            *(key, lock.drawn, name, nonce, None),
            exclusive=True,
            limit=1,
            expires=now + WAITER_US,
            since=now,
            agent=agent,
            info=info,
            owner=owner,
            client=client,
            renewed=now,
        )
        self.rebase(lock, self._queue(key), now)
        outcome, fence = self._step_owned(lock, row, now, ttl, queue=queue)
        lock.tickets = self.has_tickets(key)
        number = outcome.number
        ahead = [
            entry for entry in self._queue(key) if entry.fence is None and (number is None or entry.number < number)
        ]
        fence = lock.drawn if fence is None else fence
        answer = (outcome.outcome, fence, len(ahead), outcome.remaining, None, outcome.other, is_new)
        return Answer(rows=[tuple(map(_text, answer))])

    def _step_owned(self, lock: Lock, row: Ticket, now: int, ttl: int, *, queue: bool) -> tuple[_Outcome, int | None]:
        """The body of holdfast_try_acquire_owned; and the fence, if the ticket is granted."""
        was_departed = lock.departed_until > now and row.nonce in (lock.departed or ())
        has_purged = lock.nonce is not None and self.has_expired(lock.expires, now)
        if has_purged:
            lock.nonce = None
        dead = [
            entry for entry in self._queue(lock.id) if entry.nonce != row.nonce and self.has_expired(entry.expires, now)
        ]
        self._remove(dead)
        has_purged = has_purged or bool(dead)
        mine = self._ticket(lock.id, row.nonce)
        own_number = None if mine is None else mine.number
        if lock.method != "unique":
            if lock.nonce is not None:
                return _Outcome("method", own_number, other=lock.method), None
            lock.method = "unique"
        if was_departed and mine is None:
            return _Outcome("gone", own_number), None

        outcome, fence = _Outcome("in", own_number), lock.drawn
        number = lock.drawn if mine is None else mine.number
        same_owner = self.same_owner(lock.id, row.owner)
        blocker = self.blocker([entry for entry in self._queue(lock.id) if mine is None or entry.number < number], row)
        if same_owner:
            fence = self.fence_of(same_owner, fence)
            if mine is None or mine.fence is None:
                number = self._queue(lock.id)[0].number - 1
        elif lock.nonce is not None:
            outcome = _Outcome("wait", own_number, lock.expires - now, other=lock.info)
        elif blocker is not None:
            outcome = _Outcome("wait", own_number, blocker.expires - now, other=blocker.info)

        if outcome.outcome == "in":
            if mine is None:
                self.tickets.append(replace(row, number=number, fence=fence, expires=now + ttl))
            else:
                mine.number, mine.fence, mine.expires, mine.since = number, fence, now + ttl, now
                mine.renewed = now
        elif queue:
            if mine is None:
                outcome = outcome.at(lock.drawn)
                self.tickets.append(row)
            else:
                mine.fence, mine.expires, mine.renewed = None, row.expires, now
        if lock.nonce is None and (has_purged or (outcome.outcome == "wait" and queue)):
            self.wake(lock.id, now)
        return outcome, fence if outcome.outcome == "in" else None

    def same_owner(self, key: bytes, owner: str) -> list[Ticket]:
        """The granted tickets of this owner."""
        return [ticket for ticket in self._queue(key) if ticket.fence is not None and ticket.owner == owner]

    def fence_of(self, same_owner: Sequence[Ticket], drawn: int) -> int:
        """The fence of a ticket that is granted because of these."""
        return max(entry.fence or 0 for entry in same_owner)

    def blocker(self, ahead: list[Ticket], row: Ticket) -> Ticket | None:
        """The first ticket before this one that blocks it."""
        for position, ticket in enumerate(ahead, 1):
            if ticket.exclusive or position == row.limit:
                return ticket
        return None

    def _grant(self, lock: Lock, row: Ticket, now: int, ttl: int) -> None:
        lock.nonce, lock.fence, lock.expires, lock.since = row.nonce, lock.drawn, now + ttl, now
        lock.renewed = now
        self.unconfirmed.discard(row.nonce)
        lock.agent, lock.info = row.agent, row.info

    def release_answer(self, key: bytes, name: str, nonce: str, unanswered: bool) -> Answer:  # noqa: FBT001  (likewise)
        now = self.clock()
        if unanswered:
            self.remember_departed(key, name, nonce, now)
        lock = self.locks.get(key)
        was_held, is_gone = False, False
        if lock is not None and lock.nonce == nonce:
            lock.nonce = None
            was_held, is_gone = lock.expires > now, True
        else:
            mine = [ticket for ticket in self._queue(key) if ticket.nonce == nonce]
            is_gone = bool(mine)
            was_held = any(ticket.fence is not None and ticket.expires > now for ticket in mine)
            self._remove(mine)
        if is_gone and (lock is None or lock.nonce is None or lock.expires <= now):
            self.wake(key, now)
        if is_gone and lock is not None:
            lock.tickets = self.has_tickets(key)
        return Answer(rows=[(_text(was_held),)])

    def remember_departed(self, key: bytes, name: str, nonce: str, now: int) -> None:
        """Remember a release: the first statement of holdfast_leave."""
        lock = self.locks.get(key)
        if lock is None:
            lock = self.locks[key] = Lock(key, name, "unique", now)
        else:
            lock.drawn = self.draw(lock, now)
        kept = (lock.departed or ()) if lock.departed_until > now else ()
        lock.departed, lock.departed_until = (*kept, nonce), now + WAITER_US

    def adopt_answer(self, key: bytes, old: str, nonce: str, ttl: int, agent: str, info: str) -> Answer:  # noqa: PLR0917  (the parameters of the statement)
        lock, now = self.locks.get(key), self.clock()
        if lock is None or lock.nonce != old or lock.expires <= now:
            return Answer()
        if lock.departed_until > now and nonce in (lock.departed or ()):
            return Answer()
        return self._hold(lock, nonce, now, ttl, lock.method, agent, info)

    def extend_turn_answer(  # noqa: PLR0917  (the parameters of the statement)
        self,
        key: bytes,
        nonce: str,
        fences: int,
        may_stay: bool,  # noqa: FBT001  (likewise)
        ttl: int,
        agent: str,
        info: str,
    ) -> Answer:
        lock, now = self.locks.get(key), self.clock()
        if lock is None or not self.is_extendable(lock, nonce, now) or (lock.tickets and not may_stay):
            return Answer()
        lock.fence = self.draw(lock, now)
        lock.drawn = self.last_reserved(lock.fence, fences)
        self.prolong(lock, now, ttl)
        lock.since, lock.agent, lock.info = now, agent, info
        return Answer(1, lock.fence)

    def is_extendable(self, lock: Lock, nonce: str, now: int) -> bool:
        """The ticket holds the lock."""
        return lock.nonce == nonce and lock.expires > now

    def last_reserved(self, first: int, fences: int) -> int:
        return first + fences - 1

    def prolong(self, lock: Lock, now: int, ttl: int) -> None:
        """The lease ends its ttl from now, unless it ends later already."""
        if lock.expires <= now + ttl:
            lock.expires, lock.renewed = now + ttl, now

    def renew_alone_answer(self, key: bytes, nonce: str, fence: int, ttl: int, agent: str, info: str) -> Answer:  # noqa: PLR0917  (the parameters of the statement)
        lock, now = self.locks.get(key), self.clock()
        if lock is None or not self.is_extendable(lock, nonce, now):
            return Answer()
        if lock.fence <= fence <= lock.drawn:
            lock.fence, lock.agent, lock.info = fence, agent, info
        self.prolong(lock, now, ttl)
        return Answer(1, lock.fence)

    def holder_fence_answer(self, key: bytes, nonce: str) -> Answer:
        lock = self.locks.get(key)
        is_holder = lock is not None and lock.nonce == nonce and lock.expires > self.clock()
        return Answer(rows=[(_text(lock.fence),)] if lock is not None and is_holder else [])

    def break_answer(self, key: bytes, fence: int) -> Answer:
        lock = self.locks.get(key)
        is_gone = False
        if lock is not None and lock.nonce is not None and lock.fence == fence:
            lock.nonce, is_gone = None, True
        else:
            broken = [ticket for ticket in self._queue(key) if ticket.fence == fence]
            self._remove(broken)
            is_gone = bool(broken)
        if is_gone:
            self.wake(key, self.clock())
        if is_gone and lock is not None:
            lock.tickets = self.has_tickets(key)
        return Answer(rows=[(_text(is_gone),)])

    def reap_answer(self, start: bytes) -> Answer:
        now = self.clock()
        for key in sorted(key for key in self.locks if key >= start)[:REAP_ROWS]:
            if self.is_idle(self.locks[key], now):
                self._remove(self._queue(key))
                del self.locks[key]
        return Answer()

    def is_idle(self, lock: Lock, now: int) -> bool:
        if lock.drawn >= now - self.fence_idle or (lock.nonce is not None and lock.expires > now):
            return False
        return not any(ticket.expires > now for ticket in self._queue(lock.id))

    # ── shared ──────────────────────────────────────────────────────────────────────────────────

    def has_tickets(self, key: bytes) -> bool:
        return bool(self._queue(key))

    def _hold(  # noqa: PLR0917  (the parameters of the statements)
        self, lock: Lock, nonce: str, now: int, ttl: int, method: str, agent: str, info: str
    ) -> Answer:
        """Grant the lock with a new number as its fence."""
        lock.drawn = lock.fence = self.draw(lock, now)
        lock.nonce, lock.method, lock.expires, lock.since = nonce, method, now + ttl, now
        lock.renewed = now
        lock.agent, lock.info = agent, info
        return Answer(1, lock.fence)

    def _queue(self, key: bytes) -> list[Ticket]:
        return sorted((ticket for ticket in self.tickets if ticket.id == key), key=by_number)

    def _ticket(self, key: bytes, nonce: str) -> Ticket | None:
        return next((ticket for ticket in reversed(self._queue(key)) if ticket.nonce == nonce), None)

    def _remove(self, tickets: list[Ticket]) -> None:
        self.tickets = [entry for entry in self.tickets if all(entry is not ticket for ticket in tickets)]


@dataclass(slots=True, frozen=True)
class _Outcome:
    """The result of holdfast_try_acquire."""

    outcome: str
    number: int | None  # its number in the queue
    remaining: int | None = None
    limit: int | None = None
    other: str | None = None

    def at(self, number: int) -> _Outcome:
        return replace(self, number=number)


def _text(value: str | int | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return str(int(value))
