"""Does every call make progress after all faults have ended?"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from holdfast_lab.checking.history import (
    AcquireFailed,
    AcquireStarted,
    Crashed,
    Granted,
    Healed,
    Lost,
    MemberGranted,
    Paused,
    Reentered,
    ReleaseStarted,
    Resumed,
    ServerRemoved,
)
from holdfast_lab.checking.promises import Promises

from .base import Checker

# Events that may leave a lock idle.
_Ends: TypeAlias = ReleaseStarted | Lost | Crashed | MemberGranted | AcquireFailed | Reentered | ServerRemoved


class SteadyProgress(Checker):
    """In a healed world every call ends in time, none finds the server unreachable, and no lock stays idle.

    A lock is idle if no client believes to hold it while another waits for it. A call for several locks waits for one
    after the other and keeps the ones that it has. Nothing is checked before Healed.
    """

    name = "steady progress"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._healed: float | None = None
        self._waiting: dict[int, AcquireStarted] = {}
        self._believed: dict[int, str] = {}  # ticket: lock
        self._locks: defaultdict[str, _Lock] = defaultdict(_Lock)
        self._of_client: defaultdict[str, list[int]] = defaultdict(list)  # calls since the client's last crash
        self._paused: set[str] = set()
        self._groups: defaultdict[int, list[AcquireStarted]] = defaultdict(list)
        self._not_waiting: set[int] = set()  # tickets of a group that it does not wait for now
        self._collected_by: dict[int, int] = {}  # ticket -> group, of members that a call keeps while it waits
        self.on = {
            AcquireStarted: self._acquire_started,
            MemberGranted: self._member_granted,
            ServerRemoved: self._server_removed,
            Granted: self._granted,
            Reentered: self._ended,
            AcquireFailed: self._ended,
            ReleaseStarted: self._belief_ended,
            Lost: self._belief_ended,
            Crashed: self._crashed,
            Paused: self._was_paused,
            Resumed: self._was_resumed,
            Healed: self._was_healed,
        }

    def _acquire_started(self, event: AcquireStarted) -> None:
        self._waiting[event.ticket] = event
        self._of_client[event.client].append(event.ticket)
        if event.group is not None:
            self._groups[event.group].append(event)
            if len(self._groups[event.group]) > 1:
                self._not_waiting.add(event.ticket)
                return
        self._begin_waiting(event.lock, event)

    def _begin_waiting(self, name: str, event: AcquireStarted | MemberGranted) -> None:
        lock = self._locks[name]
        lock.waiting += 1
        if lock.idle_since is None and not lock.believed:
            lock.idle_since = event

    def _stop_waiting(self, ticket: int, lock: _Lock) -> None:
        if ticket in self._not_waiting:
            self._not_waiting.discard(ticket)
        else:
            lock.waiting -= 1

    def _member_granted(self, event: MemberGranted) -> None:
        """The call keeps this lock and waits for the next. Later members, from an earlier attempt, are not kept."""
        started = self._waiting.get(event.ticket)
        if started is None or started.group is None:
            return
        group = self._groups[started.group]
        index = next(number for number, member in enumerate(group) if member.ticket == event.ticket)
        lock = self._locks[event.lock]
        if self._healed is not None and event.ticket not in self._not_waiting:
            self._judge_idle(lock, event.lock, event.at, event)
        for member in group[index:]:
            self._give_up_waiting(member, event)
        lock.idle_since = None
        lock.believed += 1
        self._believed[event.ticket] = event.lock
        self._collected_by[event.ticket] = started.group
        if index + 1 < len(group):
            self._not_waiting.discard(group[index + 1].ticket)
            self._begin_waiting(group[index + 1].lock, event)

    def _give_up_waiting(self, member: AcquireStarted, event: MemberGranted | ServerRemoved) -> None:
        """The call neither keeps this member of its group nor waits for it now."""
        if self._collected_by.pop(member.ticket, None) is not None:
            self._end_belief(member.ticket, event)
        elif member.ticket not in self._not_waiting:
            lock = self._locks[member.lock]
            lock.waiting -= 1
            if not lock.waiting:
                lock.idle_since = None
        self._not_waiting.add(member.ticket)

    def _server_removed(self, event: ServerRemoved) -> None:
        """A kept lock is gone: the call starts again when it notices. Which lock it waits for now is unknown."""
        group = self._collected_by.get(event.ticket)
        if group is not None:
            for member in self._groups[group]:
                if member.ticket in self._waiting:
                    self._give_up_waiting(member, event)

    def _granted(self, event: Granted) -> None:
        started = self._waiting.pop(event.ticket, None)
        lock = self._locks.get(event.lock)
        if started is None or lock is None:
            return
        self._stop_waiting(event.ticket, lock)
        if self._collected_by.pop(event.ticket, None) is None:
            lock.believed += 1
        self._believed[event.ticket] = event.lock
        if self._healed is not None:
            self._judge_wait(started, event.at, event)
            self._judge_idle(lock, event.lock, event.at, event)
        lock.idle_since = None

    def _ended(self, event: AcquireFailed | Reentered) -> None:
        started = self._waiting.pop(event.ticket, None)
        if started is None:
            return
        lock = self._locks[event.lock]
        self._stop_waiting(event.ticket, lock)
        if self._healed is not None:
            self._judge_wait(started, event.at, event)
            if isinstance(event, AcquireFailed):
                self._judge_reach(started, event)
        if self._collected_by.pop(event.ticket, None) is not None:
            self._end_belief(event.ticket, event)
        elif not lock.waiting:
            if self._healed is not None:
                self._judge_idle(lock, event.lock, event.at, event)
            lock.idle_since = None

    def _belief_ended(self, event: ReleaseStarted | Lost) -> None:
        self._end_belief(event.ticket, event)

    def _end_belief(self, ticket: int, event: _Ends) -> None:
        name = self._believed.pop(ticket, None)
        if name is None:
            return
        lock = self._locks[name]
        lock.believed -= 1
        if lock.waiting and not lock.believed:
            lock.idle_since = event

    def _crashed(self, event: Crashed) -> None:
        self._paused.discard(event.client)
        for ticket in self._of_client.pop(event.client, ()):
            started = self._waiting.pop(ticket, None)
            if started is not None:
                lock = self._locks[started.lock]
                self._stop_waiting(ticket, lock)
                if not lock.waiting:
                    lock.idle_since = None
            if started is None or self._collected_by.pop(ticket, None) is not None:
                self._end_belief(ticket, event)

    def _was_paused(self, event: Paused) -> None:
        self._paused.add(event.client)

    def _was_resumed(self, event: Resumed) -> None:
        self._paused.discard(event.client)

    def _was_healed(self, event: Healed) -> None:
        self._healed = event.at

    @property
    def was_tested(self) -> bool:
        return self._healed is not None

    def finish(self, at: float) -> None:
        if self._healed is None:
            return
        for started in self._waiting.values():
            if started.client not in self._paused:
                self._judge_wait(started, at, None)
        for name, lock in self._locks.items():
            self._judge_idle(lock, name, at, None)

    # ── judging ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _judge_wait(
        self, started: AcquireStarted, at: float, outcome: Granted | AcquireFailed | Reentered | None
    ) -> None:
        since = max(started.at, self._healed or 0.0)
        if at - since > self.promises.wait_max:
            healed = ", all in a healed world" if since == started.at else " since the world was healed"
            still = "" if outcome else " and still does"
            message = f"{started.client} waited {at - since:.3g} s for {started.lock!r}{still}{healed}"
            self.violated(at, started.lock, message, started, outcome)

    def _judge_idle(
        self, lock: _Lock, name: str, at: float, event: Granted | MemberGranted | AcquireFailed | Reentered | None
    ) -> None:
        start = lock.idle_since
        if start is None:
            return
        idle = at - max(start.at, self._healed or 0.0)
        if idle > self.promises.idle_max:
            message = f"no client held {name!r} for {idle:.3g} s although one waited for it"
            self.violated(at, name, message, start, event)

    def _judge_reach(self, started: AcquireStarted, event: AcquireFailed) -> None:
        if (
            event.outcome in ("unavailable", "unknown")
            and started.at - (self._healed or 0.0) > self.promises.settle_max
        ):
            message = f"{event.client} found the server of {event.lock!r} {event.outcome} in a healed world"
            self.violated(event.at, event.lock, message, started, event)


class _Lock:
    """How many calls wait for one lock or believe to hold it, and the event that left it idle."""

    __slots__ = ("believed", "idle_since", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.believed = 0
        self.idle_since: AcquireStarted | _Ends | None = None
