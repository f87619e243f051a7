"""Is an attempt ended as part of a deadlock only if there is one?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from holdfast_lab.checking.history import (
    AcquireFailed,
    AcquireStarted,
    Crashed,
    Granted,
    MemberGranted,
    Reentered,
    ReleaseStarted,
    ServerRemoved,
)
from holdfast_lab.checking.promises import Promises

from .base import Checker

_EventOfTicket = AcquireStarted | AcquireFailed | Granted | MemberGranted | Reentered | ReleaseStarted | ServerRemoved


class _Caller(NamedTuple):
    """A thread or task. It makes one call at a time."""

    client: str
    number: int


class _Lease(NamedTuple):
    caller: _Caller
    exclusive: bool


class _Cycle:
    """Attempts that wait for each other."""

    __slots__ = ("ended_at", "ended_by")

    def __init__(self) -> None:
        self.ended_at: float | None = None  # when one of the attempts ended
        self.ended_by: AcquireFailed | None = None  # the attempt that ended with this deadlock


class ProvenDeadlocks(Checker):
    """An attempt ends with a deadlock only if it waits in a cycle, and one attempt of a cycle does so.

    A cycle that ended less than `answer_max` ago counts, because the proof takes several requests. A lease counts until
    the server has removed it or its holder has begun to release it. A call for several locks waits for the first lock
    that it does not have, and holds the locks before it.
    """

    name = "proven deadlocks"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._callers: dict[int, _Caller] = {}  # by ticket, if its caller has a number
        self._waiting: dict[_Caller, AcquireStarted] = {}
        self._next: dict[int, AcquireStarted] = {}  # of a call for several locks: ticket -> the one after it
        self._last_member: dict[int, AcquireStarted] = {}  # by group
        self._leases: defaultdict[str, dict[int, _Lease]] = defaultdict(dict)  # by lock and ticket
        self._held_by: defaultdict[_Caller, dict[int, str]] = defaultdict(dict)  # the same, by caller and ticket
        self._cycles: defaultdict[int, list[_Cycle]] = defaultdict(list)  # by the tickets that wait
        self._was_tested = False
        self.on = {
            AcquireStarted: self._acquire_started,
            Granted: self._granted,
            MemberGranted: self._member_granted,
            Reentered: self._ended,
            AcquireFailed: self._acquire_failed,
            ReleaseStarted: self._removed,
            ServerRemoved: self._removed,
            Crashed: self._crashed,
        }

    @property
    def was_tested(self) -> bool:
        """Whether a caller requested a lock while it held another one."""
        return self._was_tested

    def _acquire_started(self, event: AcquireStarted) -> None:
        if event.caller:
            self._callers[event.ticket] = _Caller(event.client, event.caller)
        if event.group is not None:
            before = self._last_member.get(event.group)
            self._last_member[event.group] = event
            if before is not None:
                self._next[before.ticket] = event
                return
        self._waits(event)

    def _waits(self, event: AcquireStarted) -> None:
        caller = self._caller_of(event)
        self._waiting[caller] = event
        if not any(lock != event.lock for lock in self._held_by[caller].values()):
            return  # most calls; a caller that holds nothing closes no cycle
        self._was_tested = True
        for path in self._paths_back([event], caller):
            cycle = _Cycle()
            for waiting in path:
                self._cycles[waiting.ticket].append(cycle)

    def _granted(self, event: Granted) -> None:
        self._ended(event)
        self._hold(event, exclusive=event.exclusive)

    def _member_granted(self, event: MemberGranted) -> None:
        self._ended(event)
        self._hold(event, exclusive=True)
        following = self._next.get(event.ticket)
        if following is not None:
            self._waits(following)

    def _hold(self, event: Granted | MemberGranted, *, exclusive: bool) -> None:
        caller = self._caller_of(event)
        self._leases[event.lock][event.ticket] = _Lease(caller, exclusive)
        self._held_by[caller][event.ticket] = event.lock

    def _acquire_failed(self, event: AcquireFailed) -> None:
        caller = self._caller_of(event)
        waiting = self._waiting.get(caller)
        if event.outcome == "deadlock" and waiting is not None and waiting.ticket == event.ticket:
            self._judge(event)
        self._ended(event)
        self._leases[event.lock].pop(event.ticket, None)  # of a call for several locks
        self._held_by[caller].pop(event.ticket, None)

    def _removed(self, event: ReleaseStarted | ServerRemoved) -> None:
        granted = self._leases[event.lock].pop(event.ticket, None)
        self._held_by[self._caller_of(event)].pop(event.ticket, None)
        if granted is not None and granted.caller in self._waiting:
            self._end_cycles(self._waiting[granted.caller].ticket, event.at)

    def _crashed(self, event: Crashed) -> None:
        for caller in [caller for caller in self._held_by if caller.client == event.client]:
            del self._held_by[caller]
        for caller in [caller for caller in self._waiting if caller.client == event.client]:
            self._end_cycles(self._waiting.pop(caller).ticket, event.at)

    def _ended(self, event: Granted | MemberGranted | Reentered | AcquireFailed) -> None:
        caller = self._caller_of(event)
        waiting = self._waiting.get(caller)
        if waiting is not None and waiting.ticket == event.ticket:
            del self._waiting[caller]
        self._end_cycles(event.ticket, event.at)
        self._cycles.pop(event.ticket, None)

    def _end_cycles(self, ticket: int, at: float) -> None:
        for cycle in self._cycles.get(ticket, ()):
            if cycle.ended_at is None:
                cycle.ended_at = at

    def _judge(self, event: AcquireFailed) -> None:
        cycles = [
            cycle
            for cycle in self._cycles.get(event.ticket, ())
            if cycle.ended_at is None or cycle.ended_at >= event.at - self.promises.answer_max
        ]
        ended_before = [cycle.ended_by for cycle in cycles if cycle.ended_by is not None]
        if not cycles:
            message = f"{event.client}'s attempt for {event.lock!r} ended with a deadlock, but it was in none"
            self.violated(event.at, event.lock, message, self._waiting.get(self._caller_of(event)), event)
        elif len(ended_before) == len(cycles):
            message = f"{event.client}'s attempt for {event.lock!r} ended with a deadlock that had ended already"
            self.violated(event.at, event.lock, message, ended_before[0], event)
        for cycle in cycles:
            cycle.ended_by = cycle.ended_by or event

    def _paths_back(self, path: list[AcquireStarted], start: _Caller) -> Iterator[list[AcquireStarted]]:
        """Every path along the waits that leads back to this caller."""
        for caller in self._blockers(path[-1]):
            if caller == start:
                yield list(path)
            elif caller in self._waiting and all(self._caller_of(waiting) != caller for waiting in path):
                yield from self._paths_back([*path, self._waiting[caller]], start)

    def _blockers(self, waiting: AcquireStarted) -> set[_Caller]:
        """The callers that have to release the lock, or to acquire it first, before this attempt can be granted."""
        holders = {
            granted.caller for granted in self._leases[waiting.lock].values() if waiting.exclusive or granted.exclusive
        }
        if waiting.exclusive:
            return holders
        return holders | {
            caller for caller, other in self._waiting.items() if other.lock == waiting.lock and other.exclusive
        }

    def _caller_of(self, event: _EventOfTicket) -> _Caller:
        return self._callers.get(event.ticket) or _Caller(event.client, 0)
