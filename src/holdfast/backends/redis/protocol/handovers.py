"""Hand-overs: a release lets in the next ticket by itself, and the hint that wakes it is the grant.

Why it can be believed, although a hint may come late or not at all. Who was told to wait had a entry in line then, and
was let in later than that: so its lease on the server cannot have begun before that look was sent, and its deadline
counts from there, as ever from before the server's own time began. And a hint from an earlier entry (the lease was
over before it came, and the ticket in line again) is told by its fence: places are numbered by the same counter, and
the number of the present one is greater.

A hint that cannot be believed, or whose lease would be a good deal shorter than was asked for, is a hint like others:
the ticket looks again, and is let in once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import POLL_INTERVAL_BEHIND, Granted

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime
    from holdfast.core.tickets import Ticket

WATCH = 1.25  # seconds between the polls of one waiter of each client
SPENT_MAX = 0.1  # of its ttl is what a lease may have used up when it begins


_DIGITS_MAX = 20  # of a fence


class Handover(NamedTuple):
    """A grant that came by message, and when its ticket had polled last."""

    granted: Granted
    polled_at: float


class _QueueEntry:
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
        self._entries: dict[str, _QueueEntry] = {}

    def expect(self, ticket: Ticket, sent: float, number: bytes) -> None:
        """It was told to wait in the entry of this number."""
        self._entries[ticket.nonce] = _QueueEntry(sent, int(number) if number.isdigit() else 0)

    def receive(self, ticket: Ticket, news: str) -> None:
        """What its hint said."""
        entry = self._entries.get(ticket.nonce)
        if entry is not None and news.isdecimal() and len(news) <= _DIGITS_MAX:
            entry.fence = int(news)

    def take(self, ticket: Ticket, now: float) -> Handover | None:
        """The grant, if it was heard and is to be believed."""
        if not self._entries:
            return None
        entry = self._entries.pop(ticket.nonce, None)
        if entry is None or entry.fence <= entry.number or now - entry.sent > SPENT_MAX * ticket.ttl:
            return None
        return Handover(Granted(entry.fence, lease_deadline(entry.sent, ticket.ttl, self._granularity)), entry.sent)

    def forget(self, ticket: Ticket) -> None:
        """It is in, or has gone."""
        if self._entries:
            self._entries.pop(ticket.nonce, None)


class Watchers:
    """Which waiter of this client polls often, for each lock; the others poll seldom.

    If a client whose turn it is does not answer, it is passed over at the first poll of another one after its second.
    One waiter of each client is enough for that. A new waiter polls often once, so that a client whose waiters come and
    go has one that does at any time.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._mutex = runtime.mutex()
        self._waiting: dict[str, dict[str, float]] = {}  # lock -> nonce -> when it polls; the last to poll comes last
        self._watching: dict[str, str] = {}  # lock -> nonce

    def next_poll(self, ticket: Ticket, now: float) -> float:
        """In how many seconds this waiter polls again."""
        with self._mutex:
            waiting = self._waiting.setdefault(ticket.name, {})
            is_new = waiting.pop(ticket.nonce, None) is None
            watcher = self._watching.setdefault(ticket.name, ticket.nonce)
            seconds = WATCH if is_new or watcher == ticket.nonce else POLL_INTERVAL_BEHIND
            waiting[ticket.nonce] = now + seconds
        return seconds

    def stop(self, ticket: Ticket, now: float) -> str | None:
        """This ticket does not wait any more. Returns another one that has to poll now in its entry, if need be."""
        if not self._waiting:
            return None
        with self._mutex:
            waiting = self._waiting.get(ticket.name, {})
            if waiting.pop(ticket.nonce, None) is None:
                return None
            if not waiting:
                del self._waiting[ticket.name], self._watching[ticket.name]
                return None
            if self._watching[ticket.name] != ticket.nonce:
                return None
            # The one that polled last is mostly the last in the queue, and so goes on waiting for the longest.
            successor, polls_at = next(reversed(waiting.items()))
            self._watching[ticket.name] = successor
            return successor if polls_at > now + WATCH else None
