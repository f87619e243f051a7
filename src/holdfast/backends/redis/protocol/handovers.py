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
from holdfast.core.tickets import POLL_INTERVAL_BEHIND, Granted, Notification

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime
    from holdfast.core.tickets import Claim

WATCH = 1.25  # seconds between the polls of one waiter of each client
SPENT_MAX = 0.1  # share of its ttl that a lease may have used when the hand-over arrives
_DIGITS_MAX = 20  # of a fence


class Handover(NamedTuple):
    """A grant that arrived as a notification, and the time of the ticket's last poll."""

    granted: Granted
    polled_at: float


class QueueEntry:
    """The queue entry of a waiting ticket: the state of its claim."""

    __slots__ = ("fence", "number", "sent")

    def __init__(self, sent: float, number: bytes) -> None:
        self.sent = sent  # when the last poll was sent that had to wait
        self.number = int(number) if number.isdigit() else 0
        self.fence = 0  # from a notification since then

    def grant(self, claim: Claim, now: float, granularity: float) -> Handover | None:
        """The grant, if one arrived and can be trusted."""
        if self.fence <= self.number or now - self.sent > SPENT_MAX * claim.ttl:
            return None
        return Handover(Granted(self.fence, lease_deadline(self.sent, claim.ttl, granularity)), self.sent)


def notification_of(message: bytes) -> Notification:
    """A message is the nonce of a ticket, followed by a space and the fence if the ticket was granted."""
    nonce, _, fence = message.decode(errors="replace").partition(" ")
    return Notification(nonce, int(fence) if fence.isdecimal() and len(fence) <= _DIGITS_MAX else 0)


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

    def next_poll(self, claim: Claim, now: float) -> float:
        """Seconds until the next poll of this waiter."""
        with self._mutex:
            waiting = self._waiting.setdefault(claim.name, {})
            is_new = waiting.pop(claim.nonce, None) is None
            watcher = self._watching.setdefault(claim.name, claim.nonce)
            seconds = WATCH if is_new or watcher == claim.nonce else POLL_INTERVAL_BEHIND
            waiting[claim.nonce] = now + seconds
        return seconds

    def stop(self, claim: Claim, now: float) -> str | None:
        """The ticket no longer waits. Returns the nonce of another one that has to poll now instead, if any."""
        if not self._waiting:
            return None
        with self._mutex:
            waiting = self._waiting.get(claim.name, {})
            if waiting.pop(claim.nonce, None) is None:
                return None
            if not waiting:
                del self._waiting[claim.name], self._watching[claim.name]
                return None
            if self._watching[claim.name] != claim.nonce:
                return None
            # The one that polled last is usually the last in the queue, so it will wait the longest.
            successor, polls_at = next(reversed(waiting.items()))
            self._watching[claim.name] = successor
            return successor if polls_at > now + WATCH else None
