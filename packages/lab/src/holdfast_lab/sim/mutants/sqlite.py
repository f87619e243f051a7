"""The sqlite protocol with one bug each: fences and deaths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.backends.sqlite.protocol import queue
from holdfast_lab.sim.mutants.base import CountedFromNotification, Mutant, WithoutNumber
from holdfast_lab.sim.servers.sqlite import SimTransaction, SqliteServer

T = TypeVar("T")


class _FenceNotStored(SimTransaction):
    def change(self, sql: str, *values: Any) -> int:
        return 1 if sql == queue._SET_LAST_NUMBER else super().change(sql, *values)


class FenceNotStored(SqliteServer):
    transaction = _FenceNotStored


class _NoFloor(SimTransaction):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.wall = 0.0


class FenceWithoutFloor(SqliteServer):
    transaction = _NoFloor


class _PausedIsDead(SimTransaction):
    def is_dead(self, session: str) -> bool:
        return self._server.ports[session].process.is_paused or super().is_dead(session)


class PausedIsDead(SqliteServer):
    transaction = _PausedIsDead


class FenceAssignedWhenQueued(SqliteServer):
    """The number in the queue is the fence, as in an early version."""

    def transact(self, port: Any, step: Callable[[Any], T]) -> T:
        result: T = super().transact(port, lambda txn: _with_number_for_fence(txn, step(txn)))
        return result


def _with_number_for_fence(txn: Any, result: Any) -> Any:
    if not isinstance(result, tuple) or isinstance(result, queue._Blocked):
        return result
    fence, store = result
    (number,) = txn.row("SELECT number FROM tickets WHERE fence = ?", fence)
    txn.change("UPDATE tickets SET fence = number WHERE fence = ?", fence)
    return number, store


class _CountsFromNotification(queue.SqliteBackend):
    _entry_type = CountedFromNotification


class CountsFromNotification(SqliteServer):
    backend = _CountsFromNotification


class _TrustsOldNotifications(queue.SqliteBackend):
    _entry_type = WithoutNumber


class TrustsOldNotifications(SqliteServer):
    backend = _TrustsOldNotifications


SQLITE = [
    Mutant(
        name="fence-not-stored",
        mistake="the fence is taken from the clock alone, and not stored",
        backend="sqlite",
        server=FenceNotStored,
        kinds=frozenset({"step_clock"}),
    ),
    Mutant(
        name="fence-without-floor",
        mistake="the fence is a counter that starts again when the data is lost",
        backend="sqlite",
        server=FenceWithoutFloor,
    ),
    Mutant(
        name="fence-drawn-when-queued",
        mistake="the fence is assigned when the ticket is queued, and an old copy of the file brings old waiters back",
        backend="sqlite",
        server=FenceAssignedWhenQueued,
        kinds=frozenset({"old_data", "slow", "pause"}),
        budget=1000,
    ),
    Mutant(
        name="sqlite-hand-over-from-notification",
        mistake="the deadline of a hand-over counts from the notification, which can be late",
        backend="sqlite",
        server=CountsFromNotification,
        kinds=frozenset({"slow", "pause"}),
    ),
    Mutant(
        name="sqlite-hand-over-by-old-notification",
        mistake="a notification for an earlier queue entry is taken for a grant",
        backend="sqlite",
        server=TrustsOldNotifications,
        kinds=frozenset({"slow", "pause"}),
        budget=600,
    ),
    Mutant(
        name="paused-is-dead",
        mistake="a paused process is taken for dead",
        backend="sqlite",
        server=PausedIsDead,
    ),
]
