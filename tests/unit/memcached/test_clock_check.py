"""Hazard: a clock that is taken to go while it stands still; or the other way round, so that nobody gets in."""

from __future__ import annotations

import math

import pytest

from holdfast.backends.memcached.port import ServerRun
from holdfast.backends.memcached.protocol.clock_check import (
    MARGIN,
    SECONDS_MAX,
    SILENCE_MAX,
    SLACK,
    ClockCheck,
    seconds_for,
)
from holdfast.errors import ConfigurationError

LIFE, OTHER = ServerRun(1_000_000, 1), ServerRun(1_000_500, 1)
WALL = 1_000_100.0  # ours, when our clock shows 0


@pytest.fixture
def clock() -> ClockCheck:
    """Of a server with a clock like ours, at time 0."""
    clock = ClockCheck()
    clock.answered(0.0, LIFE)
    assert clock.needs_check(0.0)
    assert look(clock, 0.0)
    assert not clock.needs_check(SILENCE_MAX)
    return clock


def look(clock: ClockCheck, now: float, *, behind: float = 0.0, took: float = 0.0, ahead: float = 0.0) -> bool:
    return clock.is_ticking(math.floor(WALL + ahead + now - behind), now - took, now, WALL + now)


def test_what_is_heard_keeps_it_out_of_doubt_and_silence_does_not(clock: ClockCheck) -> None:
    for step in range(1, 20):
        clock.answered(step * SILENCE_MAX, LIFE)
    assert not clock.needs_check(20 * SILENCE_MAX)

    clock.answered(25 * SILENCE_MAX, LIFE)  # an answer, but who knows what happened in between
    assert clock.needs_check(25 * SILENCE_MAX)


def test_it_is_asked_now_and_then_although_it_is_heard(clock: ClockCheck) -> None:
    now = 0.0
    while not clock.needs_check(now) and now < 1000:
        now += SILENCE_MAX
        clock.answered(now, LIFE)
    assert 30 < now < 100


@pytest.mark.parametrize("behind", [SLACK + 1, 10.0, 1000.0])
def test_a_clock_that_stood_still_is_not_believed_until_it_goes(clock: ClockCheck, behind: float) -> None:
    assert not look(clock, 2000.0, behind=behind + 0.01 * 2000)
    assert clock.needs_check(2000.0)
    assert look(clock, 2000.02)
    assert not clock.needs_check(2000.02)


def test_a_coarse_clock_is_believed_at_every_moment_of_its_second(clock: ClockCheck) -> None:
    for step in range(1000):
        assert look(clock, 10.0 + step * 0.77, behind=(step % 100) / 100)


def test_a_clock_that_is_a_little_slow_is_believed(clock: ClockCheck) -> None:
    for now in range(0, 100_000, 50):
        assert look(clock, float(now), behind=now * 0.005)


def test_an_answer_that_took_long_says_nothing(clock: ClockCheck) -> None:
    assert not look(clock, 10.0, took=SILENCE_MAX * 1.1)
    assert look(clock, 11.0, took=SILENCE_MAX * 0.9)


@pytest.mark.parametrize("ahead", [-500.0, 500.0])
def test_a_stranger_whose_wall_clock_differs_is_watched_for_a_moment(ahead: float) -> None:
    clock = ClockCheck()
    clock.answered(0.0, LIFE)

    looks = [look(clock, step * 0.02, ahead=ahead + 0.5) for step in range(20)]

    assert looks[0] is False
    assert looks[-1] is True


def test_the_time_for_which_a_stranger_has_answered_counts_from_its_first_answer() -> None:
    """A server that stood still when it was first asked: `holdfast simulate --backend memcached`, seed 7671."""
    clock = ClockCheck()
    clock.answered(6.75, LIFE)
    assert not look(clock, 7.2, behind=6.2, took=0.45)

    assert not look(clock, 7.22, behind=6.22)
    assert look(clock, 7.5, behind=6.5)


def test_watching_begins_anew_after_a_silence() -> None:
    clock = ClockCheck()
    clock.answered(0.0, LIFE)
    assert not look(clock, 0.1, ahead=-500.0)

    assert not look(clock, 9.0, ahead=-508.9), "the same time as nine seconds ago: it stands still"
    assert not look(clock, 9.1, ahead=-500.0, took=SILENCE_MAX * 2)


def test_a_server_that_was_started_anew_may_have_any_other_time(clock: ClockCheck) -> None:
    clock.answered(10.0, OTHER)

    assert clock.needs_check(10.0)
    assert any(look(clock, 10.0 + step * 0.02, ahead=-3600.0) for step in range(20))


@pytest.mark.parametrize(
    ("ttl", "seconds"), [(0.1, 1 + MARGIN), (1.0, 1 + MARGIN), (1.01, 2 + MARGIN), (30, 30 + MARGIN)]
)
def test_seconds_are_rounded_up_and_have_room_for_all_that_a_clock_can_be_behind(ttl: float, seconds: int) -> None:
    assert seconds_for(ttl) == seconds
    assert MARGIN >= 2 * (SLACK + SILENCE_MAX)


def test_what_memcached_would_take_for_a_date_is_refused() -> None:
    assert seconds_for(SECONDS_MAX - MARGIN) == SECONDS_MAX
    with pytest.raises(ConfigurationError, match="ttl"):
        seconds_for(SECONDS_MAX - MARGIN + 0.5)
