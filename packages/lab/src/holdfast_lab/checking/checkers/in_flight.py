"""Grants in flight when the server loses its state: they count as granted before the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast_lab.checking.history import AcquireFailed, AcquireStarted, Passed, ServerGranted, StateLost
from holdfast_lab.checking.promises import Promises

from .base import NEVER


class GrantsInFlight:
    """Tickets that the server may have granted while their clients have no answer yet.

    With the server's events these are known exactly. Without them, every call that has started counts. A lease that a
    client passes on between its callers within `pass_contact_max` after the loss counts as granted before it too.
    """

    def __init__(self, promises: Promises) -> None:
        self._begun: dict[int, ServerGranted | AcquireStarted] = {}
        self._excused: dict[int, int | None] = {}  # ticket -> fence of the grant, if the server is seen
        self._lost_at: dict[str | None, float] = {}  # by lock: the last loss
        self._passed: set[tuple[int, int]] = set()  # tickets and fences: passed on just after a loss
        self._contact_max = promises.pass_contact_max * (1 + promises.drift) + promises.clock_error
        began = ServerGranted if promises.sees_server else AcquireStarted
        self.on: dict[type, Callable[[Any], None]] = {
            began: self._began,
            AcquireFailed: self._acquire_failed,
            Passed: self._on_passed,
        }

    def arrived(self, ticket: int, fence: int) -> bool:
        """The grant reached its client; True if the server had lost it by then.

        If the server has granted the ticket again since, the grant is valid, unless it has the fence from before: in an
        old copy of the data the same ticket can be granted with an older fence.
        """
        begun = self._begun.pop(ticket, None)
        if (ticket, fence) in self._passed:
            self._excused.pop(ticket, None)
            return True
        if ticket not in self._excused:
            return False
        lost_fence = self._excused.pop(ticket)
        return begun is None or (isinstance(begun, ServerGranted) and begun.fence != fence == lost_fence)

    def state_lost(self, event: StateLost) -> None:
        """Excuse all tickets in flight. Each ticket is moved at most once, so the amortised cost is constant."""
        self._lost_at[event.lock] = event.at
        hit = [ticket for ticket, begun in self._begun.items() if event.lock in (None, begun.lock)]
        for ticket in hit:
            begun = self._begun.pop(ticket)
            self._excused[ticket] = begun.fence if isinstance(begun, ServerGranted) else None

    def _began(self, event: ServerGranted | AcquireStarted) -> None:
        self._begun[event.ticket] = event

    def _on_passed(self, event: Passed) -> None:
        lost_at = max(self._lost_at.get(None, NEVER), self._lost_at.get(event.lock, NEVER))
        if event.at <= lost_at + self._contact_max:
            self._passed.add((event.ticket, event.fence))

    def _acquire_failed(self, event: AcquireFailed) -> None:
        self._begun.pop(event.ticket, None)
