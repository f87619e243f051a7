"""Hazards: a dead holder's lock is free later than its ttl, or a client uses up the servers' connections."""

from __future__ import annotations

import itertools

from holdfast.backends.zookeeper.protocol.session_classes import CLASSES_MAX, LAST_MAX, timeout_for


def opened(*ttls: float) -> list[float]:
    """The timeouts of the sessions that these tickets get, in this order, if no session is closed."""
    timeouts: list[float] = []
    for ttl in ttls:
        timeouts.append(timeout_for(ttl, set(timeouts)))
    return timeouts


def test_three_ttls_have_a_session_each_when_one_is_short() -> None:
    for ttls in itertools.permutations((3.0, 10.0, 30.0)):
        assert opened(*ttls) == list(ttls)


def test_the_last_of_three_long_ttls_gets_a_session_that_is_short_enough_for_others() -> None:
    assert opened(60.0, 30.0, 10.0) == [60.0, 30.0, LAST_MAX]


def test_no_session_is_longer_than_the_ttl_and_there_are_at_most_three() -> None:
    for ttls in itertools.permutations((4.0, 7.5, 12.0, 30.0, 45.0, 3600.0), 5):
        timeouts = opened(*ttls)

        assert all(timeout <= ttl for timeout, ttl in zip(timeouts, ttls, strict=True))
        assert len(set(timeouts)) <= CLASSES_MAX


def test_a_fourth_ttl_that_is_shorter_than_all_gets_the_shortest_session() -> None:
    assert opened(30.0, 10.0, 2.0, 1.0) == [30.0, 10.0, 2.0, 2.0]


def test_the_same_ttl_gets_the_same_session() -> None:
    assert opened(30.0, 3.0, 10.0, 30.0, 3.0, 10.0) == [30.0, 3.0, 10.0, 30.0, 3.0, 10.0]


def test_the_requested_timeout_has_limits() -> None:
    assert opened(0.05) == [0.5]
    assert opened(86400.0) == [3600.0]
