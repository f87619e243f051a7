"""Does each leader have a term of its own?"""

from __future__ import annotations

from holdfast.guarantees import FenceOrder
from holdfast_lab.checking.history import Elected, StateLost
from holdfast_lab.checking.promises import Promises

from .base import Checker
from .in_flight import GrantsInFlight


class OneLeader(Checker):
    """Every leader of an election has a term of its own, greater than the terms of all leaders before it.

    "Mutual exclusion" checks that two clients do not lead at the same time, because a leader holds a lease. Terms may
    start again after the server lost its state, if its guarantees make fences depend on that state.
    """

    name = "growing terms"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._last: dict[str, Elected] = {}
        self._was_tested = False
        self._has_lost_state = False
        self._in_flight = GrantsInFlight(promises)
        self.on = {**self._in_flight.on, Elected: self._elected, StateLost: self._state_lost}

    @property
    def was_tested(self) -> bool:
        return self._was_tested

    def _elected(self, event: Elected) -> None:
        self._was_tested = True
        if self._in_flight.arrived(event.ticket, event.term):
            return
        last = self._last.get(event.lock)
        if last is not None and event.term <= last.term:
            relation = "the same term as" if event.term == last.term else "an older term than"
            message = f"{event.client} leads {event.lock!r} in {relation} {last.client} before it: {event.term}"
            self.violated(event.at, event.lock, message, last, event)
        if last is None or event.term > last.term:
            self._last[event.lock] = event

    def _state_lost(self, event: StateLost) -> None:
        """Like "growing fences", but every guarantee with an exception is treated as the weakest one."""
        if self.promises.fence is FenceOrder.BEST_EFFORT or event.kind != "clock":
            self._in_flight.state_lost(event)
        is_promised = self.promises.fence is FenceOrder.UNCONDITIONAL and not event.restored
        if not is_promised and event.kind != "lease" and event.majority:
            self._last.clear()
