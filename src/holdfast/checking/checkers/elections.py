"""Is there one leader in a term?"""

from __future__ import annotations

from holdfast.checking.history import Elected, StateLost
from holdfast.checking.promises import Promises
from holdfast.guarantees import FenceOrder

from .base import Checker
from .forgetting import OnTheirWay


class OneLeader(Checker):
    """Every leader of an election has a term of its own, greater than that of all before it.

    Whether two believe to lead at the same time is for "mutual exclusion": who leads has the lease. What the server
    forgot starts anew where its guarantees say that fences depend on it.
    """

    name = "growing terms"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._last: dict[str, Elected] = {}
        self._was_tested = False
        self._has_forgotten = False
        self._on_their_way = OnTheirWay(promises)
        self.on = {**self._on_their_way.on, Elected: self._elected, StateLost: self._forgot}

    @property
    def was_tested(self) -> bool:
        return self._was_tested

    def _elected(self, event: Elected) -> None:
        self._was_tested = True
        if self._on_their_way.arrived(event.ticket, event.term):
            return
        last = self._last.get(event.lock)
        if last is not None and event.term <= last.term:
            relation = "the same term as" if event.term == last.term else "an older term than"
            what = f"{event.client} leads {event.lock!r} in {relation} {last.client} before it, {event.term}"
            self.violated(event.at, event.lock, what, last, event)
        if last is None or event.term > last.term:
            self._last[event.lock] = event

    def _forgot(self, event: StateLost) -> None:
        """As "growing fences", but no guarantee that has an exception is held to more than the first of them."""
        if self.promises.fence is FenceOrder.BEST_EFFORT or event.what != "clock":
            self._on_their_way.forgot(event)
        is_promised = self.promises.fence is FenceOrder.UNCONDITIONAL and not event.restored
        if not is_promised and event.what != "lease" and event.majority:
            self._last.clear()
