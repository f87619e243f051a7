"""Are tickets granted in the order of their positions in the queue?"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict

from holdfast_lab.checking.history import (
    AcquireFailed,
    AcquireStarted,
    Crashed,
    FaultEnded,
    FaultStarted,
    Granted,
    Lost,
    Passed,
    Paused,
    ReleaseStarted,
    ServerGranted,
    ServerQueued,
    ServerRemoved,
    StateLost,
    TakenOver,
)
from holdfast_lab.checking.promises import IN_ORDER, Promises

from .base import Checker


class FairOrder(Checker):
    """No waiter that stays in the queue is overtaken by a ticket that was queued later.

    The rule of core/tickets.py: no ticket waits before an exclusive one that is granted; before a shared one no
    exclusive ticket waits, nor any if as many tickets as its limit are queued before it. A ticket whose owner holds the
    lock may overtake all, and so may one that takes over the lease of the holder, or to which a caller of the same
    client passes it on. A client that gave up, died or lost its position is no longer in the queue. Without the events
    of the server, positions are compared where tickets have them, and a waiter that was queued during a fault or was
    paused is exempt, because the server may have removed it.
    """

    name = "fair order"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._queues: defaultdict[str, _Queue] = defaultdict(_Queue)
        self._entries: dict[int, _Entry] = {}
        # Granted tickets whose release has begun, until the server removes them: when they joined the queue.
        self._releasing: dict[int, int] = {}
        # Tickets queued since the client's last crash or, without the server's events, its last pause.
        self._of_client: defaultdict[str, list[int]] = defaultdict(list)
        self._faults = 0
        self._joined = 0  # number of tickets that have joined a queue
        # Granted tickets of each named owner. Only the server's events show when they end.
        self._owners: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._owned: dict[int, tuple[str, str]] = {}
        # Tickets of leases that are transferred, of calls that adopt them, and of calls to which one was passed on.
        self._moving: set[int] = set()
        if promises.order in IN_ORDER:
            self.on = {
                AcquireStarted: self._acquire_started,
                Passed: self._moved,
                TakenOver: self._moved,
                ServerQueued: self._server_queued,
                ServerRemoved: self._server_removed,
                AcquireFailed: self._leave,
                ReleaseStarted: self._release_started,
                Lost: self._leave,
                Crashed: self._client_left,
                StateLost: self._state_lost,
            }
            if promises.sees_server:
                self.on[ServerGranted] = self._server_granted
            else:
                self.on |= {
                    Granted: self._granted,
                    Paused: self._client_left,
                    FaultStarted: self._fault_began,
                    FaultEnded: self._fault_ended,
                }

    def _acquire_started(self, event: AcquireStarted) -> None:
        if event.adopts is not None:
            self._moving.add(event.ticket)

    def _moved(self, event: Passed | TakenOver) -> None:
        self._moving.add(event.ticket)

    def _release_started(self, event: ReleaseStarted) -> None:
        entry = self._entries.get(event.ticket)
        if entry is not None and not entry.is_waiting:
            self._releasing[event.ticket] = entry.joined
        self._leave(event)
        if event.within is not None:
            self._moving.add(event.ticket)

    def _server_queued(self, event: ServerQueued) -> None:
        if self._faults or (event.position is None and not self.promises.sees_server):
            return
        if event.ticket in self._entries:
            self._leave(event)
        self._join(self._queues[event.lock], event)

    def _server_granted(self, event: ServerGranted) -> None:
        queue = self._queues[event.lock]
        entry = self._entries.get(event.ticket)
        since = None if entry is not None else self._releasing.get(event.ticket)
        if entry is not None and entry.is_waiting and event.position is not None and event.position < entry.position:
            # A call has a second ticket if the answer to the first was late. It is granted by the position of either.
            self._leave(event)
            entry = None
        if entry is None or not entry.is_waiting:
            if entry is not None:
                since = entry.joined
                self._leave(event)
            entry = self._join(queue, event, since)
        self._judge_grant(queue, entry, event, since)

    def _granted(self, event: Granted) -> None:
        entry = self._entries.get(event.ticket)
        if entry is not None:
            self._judge_grant(self._queues[event.lock], entry, event)

    def _judge_grant(
        self, queue: _Queue, entry: _Entry, event: ServerGranted | Granted, since: int | None = None
    ) -> None:
        """`since`: the ticket was granted before and is renewed here. Waiters that joined later are not overtaken."""
        overtaken = queue.overtaken_by(entry)
        if overtaken is not None and since is not None and queue.joined[overtaken] > since:
            overtaken = None
        may_overtake = event.ticket in self._moving or (event.owner and self._is_owned(event))
        if overtaken is not None and not may_overtake:
            queued = queue.events[overtaken]
            message = f"{event.client} was granted {event.lock!r} before {queued.client}, which was queued before it"
            self.violated(event.at, event.lock, message, queued, event)
        queue.stop_waiting(entry)
        if event.owner:
            self._owned[event.ticket] = (event.lock, event.owner)
            self._owners[event.lock, event.owner].add(event.ticket)

    def _is_owned(self, event: ServerGranted | Granted) -> bool:
        """Whether its owner holds the lock already, as far as can be seen."""
        return not self.promises.sees_server or bool(self._owners[event.lock, event.owner])

    def _server_removed(self, event: ServerRemoved) -> None:
        self._releasing.pop(event.ticket, None)
        owned = self._owned.pop(event.ticket, None)
        if owned is not None:
            self._owners[owned].discard(event.ticket)
        self._leave(event)

    def _join(self, queue: _Queue, event: ServerQueued | ServerGranted, since: int | None = None) -> _Entry:
        """`since`: the ticket was granted before, and keeps the number with which it joined the queue first."""
        position = queue.last + 1 if event.position is None else event.position
        self._joined += 1
        joined = self._joined if since is None else since
        entry = self._entries[event.ticket] = _Entry(queue, position, event, joined)
        queue.add(entry, event)
        self._of_client[event.client].append(event.ticket)
        return entry

    def _leave(
        self, event: ServerQueued | ServerGranted | ServerRemoved | AcquireFailed | ReleaseStarted | Lost
    ) -> None:
        entry = self._entries.pop(event.ticket, None)
        if entry is not None:
            entry.queue.remove(entry)

    def _client_left(self, event: Crashed | Paused) -> None:
        for ticket in self._of_client.pop(event.client, ()):
            entry = self._entries.pop(ticket, None)
            if entry is not None:
                entry.queue.remove(entry)

    def _state_lost(self, event: StateLost) -> None:
        """The queue is lost; clients that still want the lock queue again."""
        if event.kind != "clock":
            self._releasing.clear()
            for lock in [*self._queues] if event.lock is None else [event.lock]:
                for queued in self._queues[lock].events.values():
                    self._entries.pop(queued.ticket, None)
                self._queues[lock] = _Queue()

    def _fault_began(self, _: FaultStarted) -> None:
        self._faults += 1
        self._entries.clear()
        self._queues.clear()
        self._of_client.clear()

    def _fault_ended(self, _: FaultEnded) -> None:
        self._faults -= 1


class _Entry:
    """A ticket in a queue."""

    __slots__ = ("exclusive", "is_waiting", "joined", "limit", "position", "queue")

    def __init__(self, queue: _Queue, position: int, event: ServerQueued | ServerGranted, joined: int) -> None:
        self.joined = joined
        self.queue = queue
        self.position = position
        self.limit = event.limit
        self.exclusive = event.exclusive
        self.is_waiting = True


class _Queue:
    """The queue of one lock as sorted lists of positions. Almost all are added at the end and removed at the front."""

    __slots__ = ("events", "exclusive", "joined", "last", "shared", "waiting")

    def __init__(self) -> None:
        self.last = 0
        self.events: dict[int, ServerQueued | ServerGranted] = {}
        self.joined: dict[int, int] = {}
        self.waiting: list[int] = []
        self.exclusive: list[int] = []  # waiting
        self.shared: list[int] = []  # waiting or granted

    def overtaken_by(self, entry: _Entry) -> int | None:
        """The position of a waiter that must be granted before this ticket, or None."""
        position = entry.position
        if not self.waiting or self.waiting[0] >= position:
            return None
        if entry.exclusive:
            return self.waiting[0]
        if self.exclusive and self.exclusive[0] < position:
            return self.exclusive[0]
        if entry.limit is not None and bisect_left(self.shared, position) >= entry.limit:
            return self.waiting[0]
        return None

    def add(self, entry: _Entry, event: ServerQueued | ServerGranted) -> None:
        position = entry.position
        self.last = max(self.last, position)
        self.events[position], self.joined[position] = event, entry.joined
        insort(self.waiting, position)
        insort(self.exclusive if entry.exclusive else self.shared, position)

    def stop_waiting(self, entry: _Entry) -> None:
        if entry.is_waiting:
            entry.is_waiting = False
            _discard(self.waiting, entry.position)
            if entry.exclusive:
                _discard(self.exclusive, entry.position)

    def remove(self, entry: _Entry) -> None:
        self.stop_waiting(entry)
        if not entry.exclusive:
            _discard(self.shared, entry.position)
        self.events.pop(entry.position, None)


def _discard(positions: list[int], position: int) -> None:
    index = bisect_left(positions, position)
    if index < len(positions) and positions[index] == position:
        del positions[index]
