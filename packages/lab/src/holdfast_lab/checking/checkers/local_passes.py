"""May a client pass a lease on between its callers, without the server?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from holdfast_lab.checking.history import (
    Crashed,
    Granted,
    Lost,
    Passed,
    Paused,
    ReleaseStarted,
    ServerGranted,
    ServerQueued,
    ServerRemoved,
    StateLost,
    TurnBegan,
    TurnExtended,
)
from holdfast_lab.checking.promises import Promises

from .base import Checker


@dataclass(slots=True)
class _Turn:
    """The turn of a client: how often it may still pass the lease on although other clients wait."""

    passes_left: int = 0  # as many calls waited when the lease arrived, minus the passes since
    reserved: int = 0  # fences that are not used yet: the client checks for other waiters after it has used them

    @property
    def allowed(self) -> int:
        return max(0, self.passes_left, self.reserved)


class LocalPasses(Checker):
    """A client passes on only a lease that a caller has released, and stops when it is gone or other clients wait.

    The giver was granted the lease, has begun to release it, and has not lost it. The fence is greater than that of the
    giver. The server had the ticket until `pass_contact_max` ago at most. While a ticket of another client is queued,
    the lease is passed on at most as often as calls of its client waited when it arrived; or, if that ticket was queued
    later, as often as fences were reserved then. A waiter whose client is paused or has crashed, or that lost its
    place, does not count.
    """

    name = "local passes"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._granted: dict[int, Granted] = {}
        self._releasing: set[int] = set()
        self._lost: dict[int, Lost] = {}
        self._removed: dict[int, ServerRemoved] = {}
        self._turns: defaultdict[tuple[str, str], _Turn] = defaultdict(_Turn)  # by client and lock
        # By lock: the waiting tickets, each with the number of passes that each other client has left.
        self._waiting: defaultdict[str, dict[int, tuple[ServerQueued, dict[str, int]]]] = defaultdict(dict)
        self.on = {
            Granted: self._on_granted,
            ReleaseStarted: self._on_release,
            Lost: self._on_lost,
            ServerQueued: self._on_queued,
            ServerGranted: self._on_server_granted,
            ServerRemoved: self._on_removed,
            TurnBegan: self._on_turn_began,
            TurnExtended: self._on_turn_extended,
            Passed: self._on_passed,
            Crashed: self._on_stopped,
            Paused: self._on_stopped,
            StateLost: self._on_state_lost,
        }
        self._was_tested = False

    @property
    def was_tested(self) -> bool:
        return self._was_tested

    def _on_granted(self, event: Granted) -> None:
        self._granted[event.ticket] = event

    def _on_release(self, event: ReleaseStarted) -> None:
        self._releasing.add(event.ticket)

    def _on_lost(self, event: Lost) -> None:
        self._lost[event.ticket] = event

    def _on_queued(self, event: ServerQueued) -> None:
        left = {client: turn.allowed for (client, lock), turn in self._turns.items() if lock == event.lock}
        self._waiting[event.lock][event.ticket] = (event, left)

    def _on_server_granted(self, event: ServerGranted) -> None:
        self._waiting[event.lock].pop(event.ticket, None)
        self._removed.pop(event.ticket, None)

    def _on_removed(self, event: ServerRemoved) -> None:
        self._waiting[event.lock].pop(event.ticket, None)
        self._removed[event.ticket] = event

    def _on_stopped(self, event: Crashed | Paused) -> None:
        for waiting in self._waiting.values():
            for ticket in [ticket for ticket, (queued, _) in waiting.items() if queued.client == event.client]:
                del waiting[ticket]

    def _on_state_lost(self, event: StateLost) -> None:
        for lock in [*self._waiting] if event.lock is None else [event.lock]:
            self._waiting.pop(lock, None)

    def _on_turn_began(self, event: TurnBegan) -> None:
        self._turns[event.client, event.lock] = _Turn(event.waiting)
        for _, left in self._waiting[event.lock].values():
            left[event.client] = event.waiting

    def _on_turn_extended(self, event: TurnExtended) -> None:
        self._turns[event.client, event.lock].reserved = event.fences

    def _on_passed(self, event: Passed) -> None:
        self._was_tested = True
        granted, lost, removed = (
            self._granted.get(event.giver),
            self._lost.get(event.giver),
            self._removed.get(event.giver),
        )
        if granted is None or event.giver not in self._releasing:
            self._fail(event, f"ticket {event.giver} had not released it", granted)
        elif lost is not None:
            self._fail(event, f"ticket {event.giver} had lost it", granted, lost)
        elif event.fence <= granted.fence:
            self._fail(event, f"with fence {event.fence}, and ticket {event.giver} had {granted.fence}", granted)
        elif removed is not None and event.at > removed.at + self._contact_max:
            since = event.at - removed.at
            self._fail(event, f"{since:.3f} s after the server had removed its ticket", removed)
        self._count(event)

    @property
    def _contact_max(self) -> float:
        return self.promises.pass_contact_max * (1 + self.promises.drift) + self.promises.clock_error

    def _count(self, event: Passed) -> None:
        turn, waiting = self._turns[event.client, event.lock], self._waiting[event.lock]
        turn.passes_left -= 1
        turn.reserved -= 1
        for ticket, (queued, left) in list(waiting.items()):
            if queued.client == event.client:
                continue
            left[event.client] = left.get(event.client, 0) - 1
            if left[event.client] < 0:
                self._fail(event, f"although {queued.client} waited and its turn was over", queued)
                del waiting[ticket]

    def _fail(self, event: Passed, problem: str, *events: Granted | Lost | ServerRemoved | ServerQueued | None) -> None:
        self.violated(event.at, event.lock, f"{event.client} passed {event.lock!r} on {problem}", *events, event)
