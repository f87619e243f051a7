"""Hazard: a late notification, or one for an earlier queue entry, is taken for a grant."""

from __future__ import annotations

import pytest

from holdfast.backends.redis.protocol.handovers import SPENT_MAX, Handovers
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import Ticket

GRANULARITY = 0.002
TICKET = Ticket("one", "n1", ttl=30.0, limit=1, exclusive=True, agent="thread", info="{}")
SENT, NUMBER = 100.0, 1_700_000_000_000_000


@pytest.fixture
def handovers() -> Handovers:
    handovers = Handovers(GRANULARITY)
    handovers.expect(TICKET, SENT, b"%d" % NUMBER)
    return handovers


def test_the_lease_counts_from_the_last_poll_not_from_the_notification(handovers: Handovers) -> None:
    handovers.receive(TICKET, str(NUMBER + 5))

    handed = handovers.take(TICKET, SENT + 2.5)

    assert handed is not None
    assert handed.granted.fence == NUMBER + 5
    assert handed.granted.deadline == lease_deadline(SENT, TICKET.ttl, GRANULARITY)
    assert handed.polled_at == SENT


@pytest.mark.parametrize("fence", [0, 1, NUMBER - 1, NUMBER])
def test_a_fence_older_than_the_queue_entry_is_not_trusted(handovers: Handovers, fence: int) -> None:
    handovers.receive(TICKET, str(fence))

    assert handovers.take(TICKET, SENT + 0.1) is None


@pytest.mark.parametrize("payload", ["", "x", "-1", "1 2", f"{NUMBER + 5}.0", "²"])
def test_a_payload_that_is_not_a_number_is_not_trusted(handovers: Handovers, payload: str) -> None:
    handovers.receive(TICKET, payload)

    assert handovers.take(TICKET, SENT + 0.1) is None


def test_a_hand_over_is_not_used_when_too_much_of_its_lease_has_passed(handovers: Handovers) -> None:
    handovers.receive(TICKET, str(NUMBER + 5))

    assert handovers.take(TICKET, SENT + SPENT_MAX * TICKET.ttl + 0.001) is None


def test_a_hand_over_is_taken_once(handovers: Handovers) -> None:
    handovers.receive(TICKET, str(NUMBER + 5))

    assert handovers.take(TICKET, SENT) is not None
    assert handovers.take(TICKET, SENT) is None


def test_a_new_poll_invalidates_earlier_notifications(handovers: Handovers) -> None:
    handovers.receive(TICKET, str(NUMBER + 5))
    handovers.expect(TICKET, SENT + 10, b"%d" % (NUMBER + 9))

    assert handovers.take(TICKET, SENT + 10) is None


def test_a_withdrawn_ticket_gets_no_hand_over_and_leaves_no_state(handovers: Handovers) -> None:
    handovers.forget(TICKET)
    handovers.receive(TICKET, str(NUMBER + 5))

    assert handovers.take(TICKET, SENT) is None
    assert not handovers._entries
