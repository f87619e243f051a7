"""Is everybody served in turn, by the places that the server gave?"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict

from holdfast.checking.history import (
    AcquireFailed,
    Crashed,
    FaultEnded,
    FaultStarted,
    Granted,
    Lost,
    Paused,
    ReleaseStarted,
    ServerGranted,
    ServerQueued,
    ServerRemoved,
    StateLost,
)
from holdfast.checking.promises import Promises
from holdfast.guarantees import Order

from .base import Checker


class FairOrder(Checker):
    """Nobody who stayed in line is passed by a ticket that came later.

    The rule of core/tickets.py: an exclusive ticket has nobody waiting before it; a shared one no exclusive waiter, nor
    a waiter if as many are ahead as its limit. A ticket whose owner is in may pass everybody. Whoever gave up, died or
    lost the place is out of the line. Without the server's own events, places are compared as far as tickets have them,
    and whoever was in line during a fault or was paused is exempt, because the server may have let go of its place.
    """

    name = "fair order"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._lines: defaultdict[str, _Line] = defaultdict(_Line)
        self._spots: dict[int, _Spot] = {}
        # Who got in line since the client last crashed or, without the server's events, was paused.
        self._of_client: defaultdict[str, list[int]] = defaultdict(list)
        self._faults = 0
        self._joined = 0  # tickets that have joined a line so far
        # Who is in, of those with a named owner: a set of tickets for each. Only the server knows until when.
        self._owners: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._owned: dict[int, tuple[str, str]] = {}
        if promises.order is Order.FIFO:
            self.on = {
                ServerQueued: self._queued,
                ServerRemoved: self._has_left,
                AcquireFailed: self._out,
                ReleaseStarted: self._out,
                Lost: self._out,
                Crashed: self._all_out,
                StateLost: self._forgot,
            }
            if promises.sees_server:
                self.on[ServerGranted] = self._admitted
            else:
                self.on |= {
                    Granted: self._granted,
                    Paused: self._all_out,
                    FaultStarted: self._fault_began,
                    FaultEnded: self._fault_ended,
                }

    def _queued(self, event: ServerQueued) -> None:
        if self._faults or (event.position is None and not self.promises.sees_server):
            return
        if event.ticket in self._spots:
            self._out(event)
        self._stand(self._lines[event.lock], event)

    def _admitted(self, event: ServerGranted) -> None:
        line = self._lines[event.lock]
        spot = self._spots.get(event.ticket)
        since = None
        if spot is not None and spot.is_waiting and event.position is not None and event.position < spot.position:
            # A call has a second ticket on the server if its first one was late. It is granted by the place of either.
            self._out(event)
            spot = None
        if spot is None or not spot.is_waiting:
            if spot is not None:
                since = spot.joined
                self._out(event)
            spot = self._stand(line, event, since)
        self._let_in(line, spot, event, since)

    def _granted(self, event: Granted) -> None:
        spot = self._spots.get(event.ticket)
        if spot is not None:
            self._let_in(self._lines[event.lock], spot, event)

    def _let_in(self, line: _Line, spot: _Spot, event: ServerGranted | Granted, since: int | None = None) -> None:
        """`since`: it was in already, and asked again. A waiter that is back in its place since then was not passed."""
        passed = line.passed_by(spot)
        if passed is not None and since is not None and line.joined[passed] > since:
            passed = None
        if passed is not None and not (event.owner and self._is_owned(event)):
            queued = line.events[passed]
            what = f"{event.client} was let into {event.lock!r} before {queued.client}, which was ahead in the line"
            self.violated(event.at, event.lock, what, queued, event)
        line.stop_waiting(spot)
        if event.owner:
            self._owned[event.ticket] = (event.lock, event.owner)
            self._owners[event.lock, event.owner].add(event.ticket)

    def _is_owned(self, event: ServerGranted | Granted) -> bool:
        """Its owner is in already, as far as can be seen."""
        return not self.promises.sees_server or bool(self._owners[event.lock, event.owner])

    def _has_left(self, event: ServerRemoved) -> None:
        owned = self._owned.pop(event.ticket, None)
        if owned is not None:
            self._owners[owned].discard(event.ticket)
        self._out(event)

    def _stand(self, line: _Line, event: ServerQueued | ServerGranted, since: int | None = None) -> _Spot:
        """`since`: it was in already. However often it asks again, it joined the line before it was let in first."""
        position = line.last + 1 if event.position is None else event.position
        self._joined += 1
        joined = self._joined if since is None else since
        spot = self._spots[event.ticket] = _Spot(line, position, event, joined)
        line.add(spot, event)
        self._of_client[event.client].append(event.ticket)
        return spot

    def _out(self, event: ServerQueued | ServerGranted | ServerRemoved | AcquireFailed | ReleaseStarted | Lost) -> None:
        spot = self._spots.pop(event.ticket, None)
        if spot is not None:
            spot.line.remove(spot)

    def _all_out(self, event: Crashed | Paused) -> None:
        for ticket in self._of_client.pop(event.client, ()):
            spot = self._spots.pop(ticket, None)
            if spot is not None:
                spot.line.remove(spot)

    def _forgot(self, event: StateLost) -> None:
        """The line is gone; whoever still wants the lock gets in line again."""
        if event.what != "clock":
            for lock in [*self._lines] if event.lock is None else [event.lock]:
                for stood in self._lines[lock].events.values():
                    self._spots.pop(stood.ticket, None)
                self._lines[lock] = _Line()

    def _fault_began(self, _: FaultStarted) -> None:
        self._faults += 1
        self._spots.clear()
        self._lines.clear()
        self._of_client.clear()

    def _fault_ended(self, _: FaultEnded) -> None:
        self._faults -= 1


class _Spot:
    """A ticket's place in a line."""

    __slots__ = ("exclusive", "is_waiting", "joined", "limit", "line", "position")

    def __init__(self, line: _Line, position: int, event: ServerQueued | ServerGranted, joined: int) -> None:
        self.joined = joined
        self.line = line
        self.position = position
        self.limit = event.limit
        self.exclusive = event.exclusive
        self.is_waiting = True


class _Line:
    """The places of one lock, each list sorted. Almost always a place is added at the end and removed at the front."""

    __slots__ = ("events", "exclusive", "joined", "last", "shared", "waiting")

    def __init__(self) -> None:
        self.last = 0
        self.events: dict[int, ServerQueued | ServerGranted] = {}
        self.joined: dict[int, int] = {}
        self.waiting: list[int] = []
        self.exclusive: list[int] = []  # that wait
        self.shared: list[int] = []  # that wait or are in

    def passed_by(self, spot: _Spot) -> int | None:
        """The place of a waiter before whom this one must not be let in."""
        position = spot.position
        if not self.waiting or self.waiting[0] >= position:
            return None
        if spot.exclusive:
            return self.waiting[0]
        if self.exclusive and self.exclusive[0] < position:
            return self.exclusive[0]
        if spot.limit is not None and bisect_left(self.shared, position) >= spot.limit:
            return self.waiting[0]
        return None

    def add(self, spot: _Spot, event: ServerQueued | ServerGranted) -> None:
        position = spot.position
        self.last = max(self.last, position)
        self.events[position], self.joined[position] = event, spot.joined
        insort(self.waiting, position)
        insort(self.exclusive if spot.exclusive else self.shared, position)

    def stop_waiting(self, spot: _Spot) -> None:
        if spot.is_waiting:
            spot.is_waiting = False
            _discard(self.waiting, spot.position)
            if spot.exclusive:
                _discard(self.exclusive, spot.position)

    def remove(self, spot: _Spot) -> None:
        self.stop_waiting(spot)
        if not spot.exclusive:
            _discard(self.shared, spot.position)
        self.events.pop(spot.position, None)


def _discard(places: list[int], position: int) -> None:
    index = bisect_left(places, position)
    if index < len(places) and places[index] == position:
        del places[index]
