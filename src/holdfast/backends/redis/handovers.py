"""Hand-overs: a release lets in the next ticket by itself, and the hint that wakes it is the grant.

Why it can be believed, although a hint may come late or not at all. Who was told to wait had a place in line then, and
was let in later than that: so its lease on the server cannot have begun before that look was sent, and its deadline
counts from there, as ever from before the server's own time began. And a hint from an earlier place (the lease was
over before it came, and the ticket in line again) is told by its fence: places are numbered by the same counter, and
the number of the present one is greater.

A hint that cannot be believed, or whose lease would be a good deal shorter than was asked for, is a hint like others:
the ticket looks again, and is let in once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import Granted

if TYPE_CHECKING:
    from holdfast.core.tickets import Ticket

SPENT_MAX = 0.1  # of its ttl is what a lease may have used up when it begins


class _Place:
    """What a ticket in line knows of it."""

    __slots__ = ("fence", "number", "sent")

    def __init__(self, sent: float, number: int) -> None:
        self.sent = sent  # when it last asked, and was told to wait
        self.number = number
        self.fence = 0  # what a hint has said since


class Handovers:
    """The tickets of one client that wait for the lock to be handed to them, by nonce."""

    def __init__(self, granularity: float) -> None:
        self._granularity = granularity
        self._places: dict[str, _Place] = {}

    def expect(self, ticket: Ticket, sent: float, number: bytes) -> None:
        """It was told to wait in the place of this number."""
        self._places[ticket.nonce] = _Place(sent, int(number))

    def heard(self, ticket: Ticket, news: str) -> None:
        """What its hint said."""
        place = self._places.get(ticket.nonce)
        if place is not None and news.isdecimal():
            place.fence = int(news)

    def take(self, ticket: Ticket, now: float) -> Granted | None:
        """The grant, if it was heard and is to be believed."""
        if not self._places:
            return None
        place = self._places.pop(ticket.nonce, None)
        if place is None or place.fence <= place.number or now - place.sent > SPENT_MAX * ticket.ttl:
            return None
        return Granted(place.fence, lease_deadline(place.sent, ticket.ttl, self._granularity))

    def forget(self, ticket: Ticket) -> None:
        """It is in, or has gone."""
        if self._places:
            self._places.pop(ticket.nonce, None)
