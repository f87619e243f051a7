"""Journals become the histories of holdfast_lab.checking. Everything that only a simulator knows is adapted here.

`beliefs`   For each lease the interval in which it was *certainly* held: from its grant to the last check that found it
            held. The time of a check is read before it, and a lease that is not held is never held again, so a paused
            process cannot extend the interval. The checkers can miss an overlap, but never report a false one. A lease
            without such a check is left out.
`complete`  All events, for the other checkers. Deadlines are those that the library stated. There are no events of the
            server, but positions in the queue where a probe has seen them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast_lab.checking import history as h

_ENDS, _BEGINS, _EMPTY = 0, 1, 2  # at equal times ends come first, but an empty interval begins before it ends
_Timed = tuple[float, int, h.Event]


class Histories(NamedTuple):
    """The two histories of one run. A grant is the same object in both."""

    beliefs: h.History
    complete: h.History
    forks: int
    held_by_children: tuple[h.Checked, ...]  # leases of a parent that its child believed to hold
    problems: tuple[str, ...]  # of the load itself


@dataclass(slots=True)
class _Lease:
    """One call and its lease."""

    granted: h.Granted | None = None
    held_until: float | None = None
    deadline: float | None = None
    is_over: bool = False  # lost or being released


@dataclass
class _Merge:
    """Reads the observations in the order of time."""

    leases: dict[int, _Lease] = field(default_factory=dict)
    by_fence: dict[tuple[str, str, int], int] = field(default_factory=dict)
    events: list[_Timed] = field(default_factory=list)
    forks: int = 0
    held_by_children: list[h.Checked] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, line: dict[str, Any]) -> None:
        at, client, ticket = line["at"], line["client"], line.get("ticket", 0)
        lock = line.get("lock", "")
        match line["kind"]:
            case "started":
                self.leases[ticket] = _Lease()
                self._put(h.AcquireStarted(at, client, ticket, lock, line["timeout"]))
            case "granted":
                shape = {name: line[name] for name in ("limit", "exclusive", "group") if name in line}
                granted = h.Granted(at, client, ticket, lock, line["fence"] or 0, **shape)
                self.leases.setdefault(ticket, _Lease()).granted = granted
                self.by_fence.setdefault((client, lock, granted.fence), ticket)
                self._put(granted)
            case "failed":
                self._put(h.AcquireFailed(at, client, ticket, lock, line["outcome"], line["reason"]))
            case "held" | "not held" | "release" | "released":
                self._of_lease(line, self.leases[ticket])
            case "lost":
                self._loss_reported(at, client, lock, line["fence"])
            case "event":
                self._put(h.Delivered(at, client, line["attempt"], lock, line["event"], line["outcome"]))
            case "forked":
                self.forks += 1
                if line["held"]:
                    self.held_by_children.append(h.Checked(at, client, ticket, lock, held=True))
            case _:
                self.problems.append(line["text"])

    def _of_lease(self, line: dict[str, Any], lease: _Lease) -> None:
        granted = lease.granted
        if granted is None:
            return
        at, ticket = line["at"], granted.ticket
        client, lock = granted.client, granted.lock
        match line["kind"]:
            case "held":
                lease.held_until = max(at, granted.at)
                if line["deadline"] is not None and line["deadline"] != lease.deadline:
                    lease.deadline = line["deadline"]
                    self._put(h.Renewed(at, client, ticket, lock, line["deadline"]))
                self._put(h.Checked(at, client, ticket, lock, held=True))
            case "not held":
                self._lost(at, lease, granted)
            case "release":
                lease.is_over = True
                self._put(h.ReleaseStarted(at, client, ticket, lock))
            case _:
                self._put(h.ReleaseEnded(at, client, ticket, lock, line["outcome"]))

    def _lost(self, at: float, lease: _Lease, granted: h.Granted) -> None:
        if not lease.is_over:
            lease.is_over = True
            self._put(h.Lost(at, granted.client, granted.ticket, granted.lock))

    def _loss_reported(self, at: float, client: str, lock: str, fence: int) -> None:
        ticket = self.by_fence.get((client, lock, fence))
        granted = None if ticket is None else self.leases[ticket].granted
        if granted is None or ticket is None:
            return  # of a lease that the load did not record: one that it held while it forked
        self._lost(at, self.leases[ticket], granted)
        self._put(h.LossReported(at, client, ticket, lock))

    def _put(self, event: h.Event) -> None:
        self.events.append((event.at, _BEGINS, event))

    def beliefs(self) -> h.History:
        events: list[_Timed] = []
        for lease in self.leases.values():
            granted = lease.granted
            if granted is None or lease.held_until is None:
                continue
            end = lease.held_until
            events.append((granted.at, _BEGINS, granted))
            released = h.ReleaseStarted(end, granted.client, granted.ticket, granted.lock)
            events.append((end, _ENDS if end > granted.at else _EMPTY, released))
        return _sorted(events)


def merge(lines: Iterable[dict[str, Any]], others: Iterable[h.Event]) -> Histories:
    """The histories of these journals, in the order of time, and of the events that the parent recorded."""
    merged = _Merge()
    late: list[dict[str, Any]] = []
    for line in lines:
        # A loss can be reported before the call that acquired the lease has returned.
        if line["kind"] == "lost" and not _is_known(merged, line):
            late.append(line)
            continue
        merged.add(line)
        if line["kind"] == "granted" and late:
            late = _add_late(merged, late, line["at"])
    complete = merged.events + [(event.at, _BEGINS, event) for event in others]
    return Histories(
        beliefs=merged.beliefs(),
        complete=_sorted(complete),
        forks=merged.forks,
        held_by_children=tuple(merged.held_by_children),
        problems=tuple(merged.problems),
    )


def _is_known(merged: _Merge, line: dict[str, Any]) -> bool:
    return (line["client"], line["lock"], line["fence"]) in merged.by_fence


def _add_late(merged: _Merge, late: list[dict[str, Any]], at: float) -> list[dict[str, Any]]:
    """Add the reports whose leases are known now, at this time, and return the others."""
    for line in late:
        if _is_known(merged, line):
            merged.add({**line, "at": at})
    return [line for line in late if not _is_known(merged, line)]


def _sorted(events: list[_Timed]) -> h.History:
    events.sort(key=lambda entry: entry[:2])  # stable
    return [event for _, _, event in events]
