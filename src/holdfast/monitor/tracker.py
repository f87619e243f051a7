"""The state of a monitor between reads. Pure: it gets what was read and the time, and returns the changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from holdfast.core.tickets import LockInfo
from holdfast.core.wait_graph import WaitEdge, WaitGraph, wait_graph
from holdfast.errors import BackendError
from holdfast.monitor.changes import Change, HolderKey, by_key, diff
from holdfast.monitor.status import Holding, LockStatus, lock_status

HISTORY_MAX = 100  # past leases that are kept for each lock
FREE_MAX = 1000  # locks that are not in use any more whose past leases are kept


class Tracker:
    """The locks at the last read, the error of the last poll, and the leases of each lock so far."""

    def __init__(self, *, history_max: int = HISTORY_MAX, free_max: int = FREE_MAX) -> None:
        self.locks: tuple[LockStatus, ...] = ()  # the longest wait first, then the longest hold
        self.graph = WaitGraph((), ())  # its cycles are those that two successive reads found
        self.read_at = 0.0  # Unix time of the last read; 0 before the first one
        self.error: BackendError | None = None  # of the last poll
        self._history_max = history_max
        self._free_max = free_max
        self._infos: Mapping[str, LockInfo] = {}
        self._is_complete = False  # the last read covered all locks in use
        self._open: dict[str, dict[HolderKey, Holding]] = {}
        self._over: dict[str, deque[Holding]] = {}  # the lock whose lease ended last comes last

    def update(self, locks: Iterable[LockInfo], now: float, *, is_complete: bool = True) -> list[Change]:
        """Take the result of a read at the Unix time `now`, and return the changes.

        `is_complete` is False while a search has not reached the last key: a lock may be in use and not be found yet.
        """
        changes = [] if self.error is None else [Change(now, "available")]
        infos = {info.name: info for info in locks}
        changes += diff(self._infos, infos, now, is_complete=self._is_complete)
        self._infos, self._is_complete, self.read_at, self.error = infos, is_complete, now, None
        self._update_holdings(now)
        self._update_graph()
        statuses = [lock_status(info, [*self._open[name].values()], now) for name, info in infos.items()]
        self.locks = tuple(sorted(statuses, key=_longest_first))
        return changes

    def fail(self, error: BackendError, now: float) -> list[Change]:
        """Take the error of a poll. An outage is one change, however many polls fail."""
        is_new = self.error is None
        self.error = error
        return [Change(now, "unavailable", problem=str(error))] if is_new else []

    def history(self, name: str) -> tuple[Holding, ...]:
        """Return the leases of a lock: those that are over, the oldest first, then the present ones."""
        return (*self._over.get(name, ()), *self._open.get(name, {}).values())

    def _update_holdings(self, now: float) -> None:
        before, self._open = self._open, {}
        for name, info in self._infos.items():
            known = before.get(name, {})
            self._open[name] = {
                key: Holding(
                    ticket,
                    ttl=max(ticket.remaining, known[key].ttl if key in known else 0.0),
                    seen_from=known[key].seen_from if key in known else now,
                    seen_until=now,
                )
                for key, ticket in by_key(info.holders).items()
            }
        for name, holdings in before.items():
            present = self._open.get(name, {})
            self._keep(name, [holding for key, holding in holdings.items() if key not in present])
        free = [name for name in self._over if name not in self._infos]
        for name in free[: max(0, len(free) - self._free_max)]:
            del self._over[name]

    def _update_graph(self) -> None:
        # Locks are not read at the same time, so one read can show a cycle that never existed. If a second read shows
        # the same waiters and leases on every edge, none of them has changed between the reads, so the cycle exists.
        before, graph = self.graph.edges, wait_graph(self._infos.values())
        proven = set(map(_identity, before)) if graph.cycles else set()
        self.graph = graph._replace(
            cycles=tuple(cycle for cycle in graph.cycles if proven.issuperset(map(_identity, cycle)))
        )

    def _keep(self, name: str, ended: list[Holding]) -> None:
        if ended:
            past = self._over.pop(name, None) or deque(maxlen=self._history_max)
            past.extend(holding._replace(is_over=True) for holding in ended)
            self._over[name] = past


def _identity(edge: WaitEdge) -> tuple[str, str, float, str, int | None]:
    return edge.lock, edge.waiter.caller, edge.waiter.since, edge.blocker.caller, edge.blocker.fence


def _longest_first(status: LockStatus) -> tuple[float, float, str]:
    return -status.longest_wait, -status.held_for, status.name
