"""Hazard: a hint that came late, or from another time, is taken for a grant."""

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


def test_the_lease_counts_from_the_last_look_not_from_the_hint(handovers: Handovers) -> None:
    handovers.receive(TICKET, str(NUMBER + 5))

    handed = handovers.take(TICKET, SENT + 2.5)

    assert handed is not None
    assert handed.granted.fence == NUMBER + 5
    assert handed.granted.deadline == lease_deadline(SENT, TICKET.ttl, GRANULARITY)
    assert handed.polled_at == SENT


@pytest.mark.parametrize("fence", [0, 1, NUMBER - 1, NUMBER])
def test_what_is_older_than_the_place_in_line_is_not_believed(handovers: Handovers, fence: int) -> None:
    handovers.receive(TICKET, str(fence))

    assert handovers.take(TICKET, SENT + 0.1) is None


@pytest.mark.parametrize("said", ["", "x", "-1", "1 2", f"{NUMBER + 5}.0", "²"])
def test_what_is_no_number_is_not_believed(handovers: Handovers, said: str) -> None:
    handovers.receive(TICKET, said)

    assert handovers.take(TICKET, SENT + 0.1) is None


def test_a_lease_of_which_too_much_is_gone_is_asked_for_anew(handovers: Handovers) -> None:
    handovers.receive(TICKET, str(NUMBER + 5))

    assert handovers.take(TICKET, SENT + SPENT_MAX * TICKET.ttl + 0.001) is None


def test_it_is_taken_once(handovers: Handovers) -> None:
    handovers.receive(TICKET, str(NUMBER + 5))

    assert handovers.take(TICKET, SENT) is not None
    assert handovers.take(TICKET, SENT) is None


def test_a_look_that_has_to_wait_again_makes_earlier_hints_old(handovers: Handovers) -> None:
    handovers.receive(TICKET, str(NUMBER + 5))
    handovers.expect(TICKET, SENT + 10, b"%d" % (NUMBER + 9))

    assert handovers.take(TICKET, SENT + 10) is None


def test_who_has_gone_is_handed_nothing_and_nothing_is_kept_of_it(handovers: Handovers) -> None:
    handovers.forget(TICKET)
    handovers.receive(TICKET, str(NUMBER + 5))

    assert handovers.take(TICKET, SENT) is None
    assert not handovers._entries
