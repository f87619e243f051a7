"""Hazard: a clock that is taken to go while it stands still; or the other way round, so that nobody gets in."""

from __future__ import annotations

import math

import pytest

from holdfast.backends.memcached.port import Life
from holdfast.backends.memcached.protocol.clock_check import EARLY, QUIET, SECONDS_MAX, SLACK, Pulse, seconds_for
from holdfast.errors import ConfigurationError

LIFE, OTHER = Life(1_000_000, 1), Life(1_000_500, 1)
WALL = 1_000_100.0  # ours, when our clock shows 0


@pytest.fixture
def pulse() -> Pulse:
    """Of a server with a clock like ours, at time 0."""
    pulse = Pulse()
    pulse.was_heard(0.0, LIFE)
    assert pulse.is_in_doubt(0.0)
    assert look(pulse, 0.0)
    assert not pulse.is_in_doubt(QUIET)
    return pulse


def look(pulse: Pulse, now: float, *, behind: float = 0.0, took: float = 0.0, ahead: float = 0.0) -> bool:
    return pulse.is_going(math.floor(WALL + ahead + now - behind), now - took, now, WALL + now)


def test_what_is_heard_keeps_it_out_of_doubt_and_silence_does_not(pulse: Pulse) -> None:
    for step in range(1, 20):
        pulse.was_heard(step * QUIET, LIFE)
    assert not pulse.is_in_doubt(20 * QUIET)

    pulse.was_heard(25 * QUIET, LIFE)  # an answer, but who knows what happened in between
    assert pulse.is_in_doubt(25 * QUIET)


def test_it_is_asked_now_and_then_although_it_is_heard(pulse: Pulse) -> None:
    now = 0.0
    while not pulse.is_in_doubt(now) and now < 1000:
        now += QUIET
        pulse.was_heard(now, LIFE)
    assert 30 < now < 100


@pytest.mark.parametrize("behind", [SLACK + 1, 10.0, 1000.0])
def test_a_clock_that_stood_still_is_not_believed_until_it_goes(pulse: Pulse, behind: float) -> None:
    assert not look(pulse, 2000.0, behind=behind + 0.01 * 2000)
    assert pulse.is_in_doubt(2000.0)
    assert look(pulse, 2000.02)
    assert not pulse.is_in_doubt(2000.02)


def test_a_coarse_clock_is_believed_at_every_moment_of_its_second(pulse: Pulse) -> None:
    for step in range(1000):
        assert look(pulse, 10.0 + step * 0.77, behind=(step % 100) / 100)


def test_a_clock_that_is_a_little_slow_is_believed(pulse: Pulse) -> None:
    for now in range(0, 100_000, 50):
        assert look(pulse, float(now), behind=now * 0.005)


def test_an_answer_that_took_long_says_nothing(pulse: Pulse) -> None:
    assert not look(pulse, 10.0, took=QUIET * 1.1)
    assert look(pulse, 11.0, took=QUIET * 0.9)


@pytest.mark.parametrize("ahead", [-500.0, 500.0])
def test_a_stranger_whose_wall_clock_differs_is_watched_for_a_moment(ahead: float) -> None:
    pulse = Pulse()
    pulse.was_heard(0.0, LIFE)

    looks = [look(pulse, step * 0.02, ahead=ahead + 0.5) for step in range(20)]

    assert looks[0] is False
    assert looks[-1] is True


def test_the_time_for_which_a_stranger_has_answered_counts_from_its_first_answer() -> None:
    """A server that stood still when it was first asked: `holdfast simulate --backend memcached`, seed 7671."""
    pulse = Pulse()
    pulse.was_heard(6.75, LIFE)
    assert not look(pulse, 7.2, behind=6.2, took=0.45)

    assert not look(pulse, 7.22, behind=6.22)
    assert look(pulse, 7.5, behind=6.5)


def test_watching_begins_anew_after_a_silence() -> None:
    pulse = Pulse()
    pulse.was_heard(0.0, LIFE)
    assert not look(pulse, 0.1, ahead=-500.0)

    assert not look(pulse, 9.0, ahead=-508.9), "the same time as nine seconds ago: it stands still"
    assert not look(pulse, 9.1, ahead=-500.0, took=QUIET * 2)


def test_a_server_that_was_started_anew_may_have_any_other_time(pulse: Pulse) -> None:
    pulse.was_heard(10.0, OTHER)

    assert pulse.is_in_doubt(10.0)
    assert any(look(pulse, 10.0 + step * 0.02, ahead=-3600.0) for step in range(20))


@pytest.mark.parametrize(("ttl", "seconds"), [(0.1, 1 + EARLY), (1.0, 1 + EARLY), (1.01, 2 + EARLY), (30, 30 + EARLY)])
def test_seconds_are_rounded_up_and_have_room_for_all_that_a_clock_can_be_behind(ttl: float, seconds: int) -> None:
    assert seconds_for(ttl) == seconds
    assert EARLY >= 2 * (SLACK + QUIET)


def test_what_memcached_would_take_for_a_date_is_refused() -> None:
    assert seconds_for(SECONDS_MAX - EARLY) == SECONDS_MAX
    with pytest.raises(ConfigurationError, match="ttl"):
        seconds_for(SECONDS_MAX - EARLY + 0.5)
