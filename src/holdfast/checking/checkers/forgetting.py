"""Which grants fall under what a server forgot: those that were on their way when it did count as given before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.checking.history import AcquireFailed, AcquireStarted, ServerGranted, StateLost
from holdfast.checking.promises import Promises


class OnTheirWay:
    """Tickets that the server may have let in while their clients do not know yet.

    With the server's own events they are few and certain. Without, everybody who had asked before counts.
    """

    def __init__(self, promises: Promises) -> None:
        self._begun: dict[int, ServerGranted | AcquireStarted] = {}
        self._excused: dict[
            int, int | None
        ] = {}  # with the fence that the server had let it in with, where that is seen
        began = ServerGranted if promises.sees_server else AcquireStarted
        self.on: dict[type, Callable[[Any], None]] = {began: self._began, AcquireFailed: self._gave_up}

    def arrived(self, ticket: int, fence: int) -> bool:
        """The grant reached its client; True if the server had forgotten about it by then.

        If the server has let the ticket in again since, the grant is what it says, unless it has the fence from before:
        in an old copy of the data the same ticket can be in with an older fence.
        """
        begun = self._begun.pop(ticket, None)
        if ticket not in self._excused:
            return False
        forgotten = self._excused.pop(ticket)
        return begun is None or (isinstance(begun, ServerGranted) and begun.fence != fence == forgotten)

    def forgot(self, event: StateLost) -> None:
        """Moves each ticket at most once, so this is paid for by the tickets."""
        hit = [ticket for ticket, begun in self._begun.items() if event.lock in (None, begun.lock)]
        for ticket in hit:
            begun = self._begun.pop(ticket)
            self._excused[ticket] = begun.fence if isinstance(begun, ServerGranted) else None

    def _began(self, event: ServerGranted | AcquireStarted) -> None:
        self._begun[event.ticket] = event

    def _gave_up(self, event: AcquireFailed) -> None:
        self._begun.pop(event.ticket, None)
