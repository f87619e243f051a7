"""Hazard: a late notification, or one for an earlier queue entry, counts as a grant."""

from __future__ import annotations

import pytest

from holdfast.core.clock import lease_deadline
from holdfast.core.handovers import SPENT_MAX, Handover, QueueEntry, notification_of
from holdfast.core.tickets import Notification
from tests.support.wakeups import claim_of

GRANULARITY = 0.002
CLAIM = claim_of("n1")
SENT, NUMBER = 100.0, 1_700_000_000_000_000


def grant(fence: int, now: float) -> Handover | None:
    entry = QueueEntry(SENT, NUMBER)
    entry.fence = fence
    return entry.grant(CLAIM, now, GRANULARITY)


def test_the_lease_counts_from_the_last_poll_not_from_the_notification() -> None:
    handover = grant(NUMBER + 5, SENT + 2.5)

    assert handover is not None
    assert handover.granted.fence == NUMBER + 5
    assert handover.granted.deadline == lease_deadline(SENT, CLAIM.ttl, GRANULARITY)
    assert handover.polled_at == SENT


@pytest.mark.parametrize("fence", [0, 1, NUMBER - 1, NUMBER])
def test_a_fence_that_is_not_newer_than_the_queue_entry_is_not_trusted(fence: int) -> None:
    assert grant(fence, SENT + 0.1) is None


def test_a_hand_over_is_not_used_when_too_much_of_its_lease_has_passed() -> None:
    assert grant(NUMBER + 5, SENT + SPENT_MAX * CLAIM.ttl + 0.001) is None


@pytest.mark.parametrize(
    "payload", ["", "x", "-1", "1 x", "1 -2", "1 2 3", f"1 {'9' * 21}", f"{NUMBER + 5}.0", "²", "9" * 21]
)
def test_a_payload_that_is_not_a_fence_only_wakes_the_ticket(payload: str) -> None:
    assert notification_of(f"n1 {payload}".encode()) == Notification("n1", 0)


def test_a_message_has_the_nonce_and_may_have_the_fence_and_the_number_of_reserved_ones() -> None:
    assert notification_of(b"n1") == Notification("n1", 0)
    assert notification_of(b"n1 %d" % NUMBER) == Notification("n1", NUMBER)
    assert notification_of(b"n1 %d 7" % NUMBER) == Notification("n1", NUMBER, 7)
