"""Detection of deadlocks: a waiter finds the cycle of callers that it is part of, and the youngest of them gives up.

A ticket with `detect_deadlocks` stores the number of the attempt and the leases that its caller held when it began to
wait. So a waiter can walk against the edges of the wait-for graph (wait_graph.py) by `inspect` alone: from its own
leases to the tickets that wait for them, from these tickets to the leases of their callers, and so on. If the walk
reaches its own ticket, the waiter is part of a cycle.

One walk proves nothing: the locks are read one after the other, and a record can outlive the wait that it stands for,
for example if the process was killed, or if the withdrawal of a ticket got no answer. So an attempt ends only if all
of this is true:

1. Two walks, one after the other, found the same cycle: the same attempts, and the same leases by their fences.
2. Each other attempt of the cycle has confirmed twice, after the first walk, that it still waits. An attempt that finds
   itself in a cycle confirms after each of its walks that it waits: it raises a register by one. The name of the
   register has the caller and the attempt. The attempt raises it again only after the store has answered. So if this
   attempt reads n after the first walk and n + 2 later, the other one sent its last confirmation after that first
   reading.
3. It is the youngest of the cycle, by its number and then by its caller. The number is the time of its client when the
   attempt began. It is in the record, so all members of a cycle see the same number, on every node of a quorum too.

Then the deadlock existed at the end of the first walk. At that moment each attempt was waiting: it began before,
because the first walk shows its ticket, and it confirmed later. A caller that waits acquires and releases nothing, so
the list of its leases was still right. Each of these leases existed: both walks show it, and a fence is never used
twice. And each of them blocked the next attempt, by the rule of the queue.

This relies on callers that do nothing else while they wait. Tickets for which that is not known are not part of a
cycle: those of other programs, of clients without `detect_deadlocks`, of acquires that run in a task of their own, and
the permits of semaphores. A lease counts as a lease of the thread or task that acquired it, even if another one will
release it. A cycle that a timeout, `max_hold` or an operator would end later is a cycle until then.

A lease is recognised by the number of its attempt. After a store has lost data, for example by a failover, a lease can
have another fence there than its client knows. Only a lease of a lock without `detect_deadlocks`, which has no such
number, is recognised by its fence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.tickets import Claim, TicketInfo, make_ticket_info
from holdfast.core.wait_graph import WaitEdge, edges_of
from holdfast.errors import BackendError, WouldDeadlock

if TYPE_CHECKING:
    from holdfast.core.engine import Engine
    from holdfast.core.ports import Caller

FIRST_WALK = 1.0  # seconds of waiting before the first walk
WALK_INTERVAL = 1.0  # seconds between two walks, and up to twice as much
SUSPECT_INTERVAL = 0.1  # the same after a walk that found a cycle,
SUSPECTS_MAX = 10  # for this many walks
CONFIRMED = "wait:"  # prefix of a register: how often this attempt has confirmed that it waits
CONFIRMATION_KEPT = 60.0  # seconds
HOLDS_MAX = 32  # leases in the record of a ticket
LOCKS_MAX = 100  # locks that one walk reads, and
WALK_MAX = 1.0  # seconds after which it reads no more, because the ticket has to poll

Cycle = tuple[WaitEdge, ...]


def wait_json(engine: Engine[Any], caller: Caller) -> str:
    """For the `info` of a ticket: the number of the attempt, and the leases that its caller holds in this store."""
    import json

    # The time of this client, so that all observers agree which attempt is the youngest. It serves only as an order.
    caller.last_attempt = max(caller.last_attempt + 1, int(engine.runtime.wall() * 1e6))
    leases = [lease for ref in list(caller.leases.values()) if (lease := ref()) is not None and lease.held]
    url = engine.backend.url
    holds = {lease.name: lease._claim.number or lease.fence for lease in leases if lease._engine.backend.url == url}
    return f'"attempt": {caller.last_attempt}, "holds": {json.dumps(dict(list(holds.items())[:HOLDS_MAX]))}'


class WaitingAttempt(NamedTuple):
    """A waiting ticket of a cycle."""

    caller: str
    number: int

    @property
    def register(self) -> str:
        return f"{CONFIRMED}{self.caller}:{self.number}"


class DeadlockDetector:
    """Searches for a cycle through one waiting ticket."""

    def __init__(self, engine: Engine[Any], claim: Claim) -> None:
        self.claim = claim
        self.next_walk = engine.runtime.now() + FIRST_WALK
        self._engine = engine
        self._me = make_ticket_info(
            info=claim.info,
            fence=None,
            agent=claim.agent,
            since=0.0,
            remaining=0.0,
            exclusive=claim.exclusive,
            limit=claim.limit,
        )
        self._suspected: Cycle = ()  # the cycle of the last walk
        self._suspects = 0  # walks that found a cycle
        self._first_read: dict[WaitingAttempt, int] = {}  # the confirmations of the others after the first walk
        self._confirmed = 0
        self._nonce = ""  # of a confirmation without an answer

    async def find(self, give_up: float) -> Cycle:
        """The cycle that this attempt has to break; empty if there is none, or no walk is due."""
        runtime = self._engine.runtime
        if runtime.now() < self.next_walk:
            return ()
        try:
            cycle = await self._walk(give_up)
            is_proven = bool(cycle) and await self._confirm(cycle, give_up)
        except BackendError:
            cycle, is_proven = (), False
        if not cycle:
            self._suspected = ()
        self._suspects = self._suspects + 1 if cycle else 0
        interval = SUSPECT_INTERVAL if 0 < self._suspects <= SUSPECTS_MAX else WALK_INTERVAL
        self.next_walk = runtime.now() + interval * (1.0 + runtime.jitter())
        return cycle if is_proven and self._is_youngest(cycle) else ()

    async def _walk(self, give_up: float) -> Cycle:
        """A shortest cycle through this ticket, according to the records. Follows the edges against their direction."""
        edges_at: dict[str, list[WaitEdge]] = {}
        me, ends = attempt_of(self._me), self._engine.runtime.now() + WALK_MAX
        next_edges: dict[WaitingAttempt, tuple[WaitEdge, WaitingAttempt]] = {}  # the next step towards this ticket
        queue = deque([(self.claim.name, self._me)])
        while queue:
            lock, ticket = queue.popleft()
            for name in (lock, *(ticket.holds or ())):
                if name not in edges_at:
                    if len(edges_at) == LOCKS_MAX or self._engine.runtime.now() >= ends:
                        return ()
                    info = await self._engine.operators.inspect(name, min(give_up, ends))
                    # Only edges of cycles that may end an attempt.
                    certain = [edge for edge in edges_of(info) if edge.is_certain]
                    edges_at[name] = [edge for edge in certain if edge.waiter.holds is not None]
                for edge in edges_at[name]:
                    waiter = attempt_of(edge.waiter)
                    if not _is_blocked_by(edge, ticket, lock) or waiter in next_edges:
                        continue
                    next_edges[waiter] = (edge, attempt_of(ticket))
                    if waiter == me:
                        return tuple(_edges_of_cycle(me, next_edges))
                    queue.append((edge.lock, edge.waiter))
        return ()

    async def _confirm(self, cycle: Cycle, give_up: float) -> bool:
        """Confirm that this attempt waits. Returns whether all others have done so twice since the first walk."""
        engine = self._engine
        if not self._nonce:
            self._confirmed += 1
            self._nonce = engine.runtime.nonce()
        me = attempt_of(self._me)
        await engine.backend.advance_register(
            me.register,
            self._confirmed,
            nonce=self._nonce,
            keep=CONFIRMATION_KEPT,
            deadline=engine.request_deadline(give_up),
        )
        self._nonce = ""
        others = [attempt for edge in cycle if (attempt := attempt_of(edge.waiter)) != me]
        registers = [attempt.register for attempt in others]
        numbers = (
            await engine.backend.read_registers(registers, deadline=engine.request_deadline(give_up)) if others else ()
        )
        confirmed = dict(zip(others, numbers, strict=True))
        if [edge.identity for edge in cycle] != [edge.identity for edge in self._suspected]:
            self._suspected, self._first_read = cycle, confirmed
            return False
        return all(number >= self._first_read[attempt] + 2 for attempt, number in confirmed.items())

    def _is_youngest(self, cycle: Cycle) -> bool:
        youngest = max((edge.waiter for edge in cycle), key=lambda waiter: (waiter.attempt, waiter.caller))
        return attempt_of(youngest) == attempt_of(self._me)


def deadlock_error(lock: str, cycle: Cycle) -> WouldDeadlock:
    return WouldDeadlock(lock=lock, fence=cycle[0].blocker.fence, cycle=tuple(map(str, cycle)))


def attempt_of(ticket: TicketInfo) -> WaitingAttempt:
    return WaitingAttempt(ticket.caller, ticket.attempt)


def _is_blocked_by(edge: WaitEdge, ticket: TicketInfo, lock: str) -> bool:
    """Whether a lease of this waiter's caller blocks the edge, or the ticket itself, which waits for `lock`."""
    blocker = edge.blocker
    if blocker.caller != ticket.caller:
        return False
    if blocker.fence is None:
        return edge.lock == lock and blocker.attempt == ticket.attempt
    return (ticket.holds or {}).get(edge.lock) == (blocker.attempt or blocker.fence)


def _edges_of_cycle(
    start: WaitingAttempt, next_edges: dict[WaitingAttempt, tuple[WaitEdge, WaitingAttempt]]
) -> Iterator[WaitEdge]:
    """The edges of the path from this attempt back to it."""
    edge, attempt = next_edges[start]
    yield edge
    while attempt != start:
        edge, attempt = next_edges[attempt]
        yield edge
