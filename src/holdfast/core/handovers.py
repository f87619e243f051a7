"""Hand-overs: a release grants the lock to the next ticket itself, and the notification that wakes it is the grant.

Why such a notification can be trusted, although it may arrive late or not at all: a ticket that has to wait was queued
at its last poll and was granted after that. So its lease in the store did not begin before that poll was sent, and its
deadline counts from there, which is earlier than the store's own count. A notification for an earlier queue entry (the
lease expired before the message arrived, and the ticket was queued again) is recognised by its fence: entries and
fences are numbered by the same counter, and the number of the current entry is greater.

A notification that cannot be trusted, or whose lease has used more than SPENT_MAX of its ttl, only wakes the ticket,
which polls and is granted again. A ticket is handed the lock only if it has polled within POLLED_MAX, because a waiter
that has stopped would keep the lock for its whole ttl.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import Granted, Notification

if TYPE_CHECKING:
    from holdfast.core.tickets import Claim

POLLED_MAX = 1.0  # seconds since the last poll of a ticket that is handed the lock
SPENT_MAX = 0.1  # share of its ttl that a lease may have used when the hand-over arrives
_DIGITS_MAX = 20  # of a fence


class Handover(NamedTuple):
    """A grant that arrived as a notification, and the time of the ticket's last poll."""

    granted: Granted
    polled_at: float
    reserved: int  # how many fences after that of the grant are reserved


class QueueEntry:
    """The queue entry of a waiting ticket: the state of its claim."""

    __slots__ = ("fence", "number", "reserved", "sent", "store")

    def __init__(self, sent: float, number: int, store: Hashable = None) -> None:
        self.sent = sent  # when the last poll was sent that had to wait
        self.number = number
        self.store = store  # the incarnation of the store in which it is queued
        self.fence = self.reserved = 0  # from a notification since then

    def grant(self, claim: Claim, now: float, granularity: float) -> Handover | None:
        """The grant, if one arrived and can be trusted."""
        if self.fence <= self.number or now - self.sent > SPENT_MAX * claim.ttl:
            return None
        granted = Granted(self.fence, lease_deadline(self.sent, claim.ttl, granularity), self.store)
        return Handover(granted, self.sent, self.reserved)


def take_handover(claim: Claim, now: float, granularity: float) -> Handover | None:
    """The grant that a notification brought to this claim, if it can be trusted. It is used up."""
    entry: QueueEntry | None = claim.state
    claim.state = None
    return None if entry is None else entry.grant(claim, now, granularity)


def notification_of(message: bytes) -> Notification:
    """A message is the nonce of a ticket; if it was granted, also its fence, and how many are reserved after it."""
    nonce, _, numbers = message.decode(errors="replace").partition(" ")
    if numbers.isdecimal() and len(numbers) <= _DIGITS_MAX:
        return Notification(nonce, int(numbers))
    fence, _, reserved = numbers.partition(" ")
    if not fence.isdecimal() or not reserved.isdecimal() or max(len(fence), len(reserved)) > _DIGITS_MAX:
        return Notification(nonce)
    return Notification(nonce, int(fence), int(reserved))
