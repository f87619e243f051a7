"""Hazard: a stopped clock counts as running, or a running one as stopped, so that no client acquires."""

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

RUN, OTHER_RUN = ServerRun(1_000_000, 1), ServerRun(1_000_500, 1)
WALL = 1_000_100.0  # our wall clock when the monotonic clock is 0


@pytest.fixture
def clock() -> ClockCheck:
    """The clock of a server that agrees with ours, at time 0."""
    clock = ClockCheck()
    clock.answered(0.0, RUN)
    assert clock.needs_check(0.0)
    assert is_ticking(clock, 0.0)
    assert not clock.needs_check(SILENCE_MAX)
    return clock


def is_ticking(clock: ClockCheck, now: float, *, behind: float = 0.0, took: float = 0.0, ahead: float = 0.0) -> bool:
    return clock.is_ticking(math.floor(WALL + ahead + now - behind), now - took, now, WALL + now)


def test_a_clock_stays_confirmed_by_answers_and_not_by_silence(clock: ClockCheck) -> None:
    for step in range(1, 20):
        clock.answered(step * SILENCE_MAX, RUN)
    assert not clock.needs_check(20 * SILENCE_MAX)

    clock.answered(25 * SILENCE_MAX, RUN)  # an answer, but the server may have been paused before it
    assert clock.needs_check(25 * SILENCE_MAX)


def test_a_clock_is_checked_now_and_then_although_the_server_answers(clock: ClockCheck) -> None:
    now = 0.0
    while not clock.needs_check(now) and now < 1000:
        now += SILENCE_MAX
        clock.answered(now, RUN)
    assert 30 < now < 100


@pytest.mark.parametrize("behind", [SLACK + 1, 10.0, 1000.0])
def test_a_clock_that_was_stopped_is_not_confirmed_until_it_catches_up(clock: ClockCheck, behind: float) -> None:
    assert not is_ticking(clock, 2000.0, behind=behind + 0.01 * 2000)
    assert clock.needs_check(2000.0)
    assert is_ticking(clock, 2000.02)
    assert not clock.needs_check(2000.02)


def test_a_coarse_clock_is_confirmed_at_every_moment_of_its_second(clock: ClockCheck) -> None:
    for step in range(1000):
        assert is_ticking(clock, 10.0 + step * 0.77, behind=(step % 100) / 100)


def test_a_clock_that_is_a_little_slow_is_confirmed(clock: ClockCheck) -> None:
    for now in range(0, 100_000, 50):
        assert is_ticking(clock, float(now), behind=now * 0.005)


def test_a_slow_answer_does_not_confirm_the_clock(clock: ClockCheck) -> None:
    assert not is_ticking(clock, 10.0, took=SILENCE_MAX * 1.1)
    assert is_ticking(clock, 11.0, took=SILENCE_MAX * 0.9)


@pytest.mark.parametrize("ahead", [-500.0, 500.0])
def test_a_new_server_is_observed_for_a_moment_when_its_wall_clock_differs(ahead: float) -> None:
    clock = ClockCheck()
    clock.answered(0.0, RUN)

    results = [is_ticking(clock, step * 0.02, ahead=ahead + 0.5) for step in range(20)]

    assert results[0] is False
    assert results[-1] is True


def test_the_observation_of_a_new_server_starts_at_its_first_answer() -> None:
    """A server that was paused at the first request: `holdfast simulate --backend memcached`, seed 7671."""
    clock = ClockCheck()
    clock.answered(6.75, RUN)
    assert not is_ticking(clock, 7.2, behind=6.2, took=0.45)

    assert not is_ticking(clock, 7.22, behind=6.22)
    assert is_ticking(clock, 7.5, behind=6.5)


def test_the_observation_starts_again_after_a_silence() -> None:
    clock = ClockCheck()
    clock.answered(0.0, RUN)
    assert not is_ticking(clock, 0.1, ahead=-500.0)

    assert not is_ticking(clock, 9.0, ahead=-508.9), "the same time as nine seconds ago: the clock is stopped"
    assert not is_ticking(clock, 9.1, ahead=-500.0, took=SILENCE_MAX * 2)


def test_a_restarted_server_may_have_any_time(clock: ClockCheck) -> None:
    clock.answered(10.0, OTHER_RUN)

    assert clock.needs_check(10.0)
    assert any(is_ticking(clock, 10.0 + step * 0.02, ahead=-3600.0) for step in range(20))


@pytest.mark.parametrize(
    ("ttl", "seconds"), [(0.1, 1 + MARGIN), (1.0, 1 + MARGIN), (1.01, 2 + MARGIN), (30, 30 + MARGIN)]
)
def test_seconds_are_rounded_up_and_include_the_margin_of_the_clock(ttl: float, seconds: int) -> None:
    assert seconds_for(ttl) == seconds
    assert MARGIN >= 2 * (SLACK + SILENCE_MAX)


def test_a_ttl_is_refused_when_memcached_would_take_it_for_a_date() -> None:
    assert seconds_for(SECONDS_MAX - MARGIN) == SECONDS_MAX
    with pytest.raises(ConfigurationError, match="ttl"):
        seconds_for(SECONDS_MAX - MARGIN + 0.5)
