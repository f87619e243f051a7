"""Hazard: a program written for pottery's Redlock has to work around holdfast: own locks that expire, extensions."""

from __future__ import annotations

import time

import pytest

import holdfast
from tests.conformance.peers.adapters import NotOwned, PotteryRedlock, TimedOut

WAIT = 0.1  # seconds


def test_the_same_thread_waits_for_its_own_lock_until_the_timeout(client: holdfast.Client) -> None:
    lock = PotteryRedlock(client, "a")

    assert lock.acquire()
    assert not lock.acquire(blocking=False)
    assert not lock.acquire(timeout=WAIT)
    assert lock.locked()

    lock.release()
    assert not lock.locked()


def test_a_second_acquire_succeeds_when_the_first_has_expired(client: holdfast.Client) -> None:
    first, second = PotteryRedlock(client, "a", auto_release_time=0.5), PotteryRedlock(client, "a")
    assert first.acquire()

    assert second.acquire(timeout=60)

    assert not first.locked()
    assert second.locked()
    second.release()


def test_locked_returns_the_remaining_time(client: holdfast.Client) -> None:
    lock = PotteryRedlock(client, "a", auto_release_time=50)
    assert lock.locked() == 0

    lock.acquire()

    assert 0 < lock.locked() <= 50
    lock.release()
    assert lock.locked() == 0


def test_an_extension_begins_the_time_again(client: holdfast.Client) -> None:
    lock = PotteryRedlock(client, "a", auto_release_time=50, num_extensions=2)
    lock.acquire()

    for _ in range(2):
        before = time.monotonic() + lock.locked()  # not after the end of the lease
        lock.extend()
        assert lock.locked() + time.monotonic() > before - 0.001  # equal if the store has just renewed it anyway
        assert lock.locked() <= 50

    with pytest.raises(TimedOut, match="too many extensions"):
        lock.extend()
    lock.release()


def test_a_lock_that_is_not_held_is_neither_extended_nor_released(client: holdfast.Client) -> None:
    lock = PotteryRedlock(client, "a")

    with pytest.raises(NotOwned):
        lock.extend()
    with pytest.raises(NotOwned):
        lock.release()


def test_a_decorated_function_runs_under_the_lock(client: holdfast.Client, other: holdfast.Client) -> None:
    @client.locked("a", timeout=60)
    def synchronised() -> bool:
        return PotteryRedlock(other, "a").acquire(blocking=False)

    assert synchronised() is False
    assert synchronised() is False
    assert not client.lock("a").locked()
