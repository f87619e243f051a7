"""Hand-overs: a release grants the lock to the next ticket itself, and the notification that wakes it is the grant.

Why such a notification can be trusted, although it may arrive late or not at all: a ticket that has to wait was queued
at its last poll and was granted after that. So its lease on the server did not begin before that poll was sent, and its
deadline counts from there, which is earlier than the server's own count. A notification for an earlier queue entry (the
lease expired before the message arrived, and the ticket was queued again) is recognised by its fence: entries and
fences are numbered by the same counter, and the number of the current entry is greater.

A notification that cannot be trusted, or whose lease has lost more than SPENT_MAX of its ttl, only wakes the ticket: it
polls and is granted again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import POLL_INTERVAL_BEHIND, Granted

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime
    from holdfast.core.tickets import Ticket

WATCH = 1.25  # seconds between the polls of one waiter of each client
SPENT_MAX = 0.1  # share of its ttl that a lease may have used when the hand-over arrives
_DIGITS_MAX = 20  # of a fence


class Handover(NamedTuple):
    """A grant that arrived as a notification, and the time of the ticket's last poll."""

    granted: Granted
    polled_at: float


class _QueueEntry:
    """The queue entry of a ticket, as far as its client knows it."""

    __slots__ = ("fence", "number", "sent")

    def __init__(self, sent: float, number: int) -> None:
        self.sent = sent  # when the last poll was sent that had to wait
        self.number = number
        self.fence = 0  # from a notification since then


class Handovers:
    """The tickets of one client that wait for a hand-over, by nonce."""

    def __init__(self, granularity: float) -> None:
        self._granularity = granularity
        self._entries: dict[str, _QueueEntry] = {}

    def expect(self, ticket: Ticket, sent: float, number: bytes) -> None:
        """The ticket has to wait in the queue entry with this number."""
        self._entries[ticket.nonce] = _QueueEntry(sent, int(number) if number.isdigit() else 0)

    def receive(self, ticket: Ticket, payload: str) -> None:
        """Store the fence in the payload of a notification."""
        entry = self._entries.get(ticket.nonce)
        if entry is not None and payload.isdecimal() and len(payload) <= _DIGITS_MAX:
            entry.fence = int(payload)

    def take(self, ticket: Ticket, now: float) -> Handover | None:
        """The grant, if one arrived and can be trusted."""
        if not self._entries:
            return None
        entry = self._entries.pop(ticket.nonce, None)
        if entry is None or entry.fence <= entry.number or now - entry.sent > SPENT_MAX * ticket.ttl:
            return None
        return Handover(Granted(entry.fence, lease_deadline(entry.sent, ticket.ttl, self._granularity)), entry.sent)

    def forget(self, ticket: Ticket) -> None:
        """The ticket is granted or withdrawn."""
        if self._entries:
            self._entries.pop(ticket.nonce, None)


class Watchers:
    """The one waiter of this client for each lock that polls often; the others poll seldom.

    If the client whose turn it is does not respond within a second, the next poll of any other waiter skips it. One
    frequent poller per client is enough for that. Every new waiter polls soon once, so that a client whose waiters
    change has such a poller at any time.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._mutex = runtime.mutex()
        self._waiting: dict[str, dict[str, float]] = {}  # lock -> nonce -> next poll; in order of the last poll
        self._watching: dict[str, str] = {}  # lock -> nonce

    def next_poll(self, ticket: Ticket, now: float) -> float:
        """Seconds until the next poll of this waiter."""
        with self._mutex:
            waiting = self._waiting.setdefault(ticket.name, {})
            is_new = waiting.pop(ticket.nonce, None) is None
            watcher = self._watching.setdefault(ticket.name, ticket.nonce)
            seconds = WATCH if is_new or watcher == ticket.nonce else POLL_INTERVAL_BEHIND
            waiting[ticket.nonce] = now + seconds
        return seconds

    def stop(self, ticket: Ticket, now: float) -> str | None:
        """The ticket no longer waits. Returns the nonce of another one that has to poll now instead, if any."""
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
            # The one that polled last is usually the last in the queue, so it will wait the longest.
            successor, polls_at = next(reversed(waiting.items()))
            self._watching[ticket.name] = successor
            return successor if polls_at > now + WATCH else None
