"""Hazard: a program written for redis-py's Lock has to work around holdfast: waits, `extend`, `reacquire`."""

from __future__ import annotations

import time

import pytest

import holdfast
from holdfast.primitives import Primitive
from tests.conformance.peers.adapters import NotOwned, RedisPyLock, TimedOut

WAIT = 0.1  # seconds


needs_renew_ttl = pytest.mark.needs(Primitive.RENEW_TTL)


def test_a_second_object_of_the_same_thread_does_not_get_the_lock(client: holdfast.Client) -> None:
    first, second = RedisPyLock(client, "a"), RedisPyLock(client, "a")

    assert first.acquire(blocking=False)
    assert not second.acquire(blocking=False)
    assert (first.locked(), second.locked()) == (True, True)
    assert (first.owned(), second.owned()) == (True, False)
    first.release()

    assert second.acquire(blocking=False)
    second.release()
    assert not first.locked()


def test_a_blocking_timeout_runs_out_although_the_same_thread_holds_the_lock(client: holdfast.Client) -> None:
    first, second = RedisPyLock(client, "a"), RedisPyLock(client, "a")
    first.acquire(blocking=False)
    began = time.monotonic()

    assert not second.acquire(blocking_timeout=WAIT)

    assert time.monotonic() - began >= WAIT
    assert first.owned()
    first.release()


def test_a_with_block_raises_after_the_blocking_timeout_of_the_lock(client: holdfast.Client) -> None:
    with RedisPyLock(client, "a"), pytest.raises(TimedOut), RedisPyLock(client, "a", blocking_timeout=WAIT):
        pass


def test_a_thread_acquires_a_lock_again_when_its_own_lease_has_expired(client: holdfast.Client) -> None:
    first, second = RedisPyLock(client, "a", timeout=0.5), RedisPyLock(client, "a")
    first.acquire()

    assert second.acquire(blocking_timeout=60)

    assert not first.owned()
    with pytest.raises(NotOwned):
        first.release()
    second.release()


def test_a_lock_that_was_not_acquired_cannot_be_released(client: holdfast.Client) -> None:
    with pytest.raises(NotOwned):
        RedisPyLock(client, "a").release()


def test_a_lock_that_was_taken_away_cannot_be_released(client: holdfast.Client, other: holdfast.Client) -> None:
    lock = RedisPyLock(client, "a")
    lock.acquire()
    assert lock.lease is not None
    assert other.break_lock("a", lock.lease.fence)

    with pytest.raises(NotOwned):
        lock.release()


@needs_renew_ttl
def test_extend_adds_to_the_remaining_time(client: holdfast.Client, other: holdfast.Client) -> None:
    lock = RedisPyLock(client, "a", timeout=20)
    lock.acquire()
    assert lock.lease is not None
    before = lock.lease.remaining

    lock.extend(20)

    assert before < 20 < lock.lease.remaining <= 40
    assert other.lock("a").acquire(timeout=0) is None
    lock.release()


@needs_renew_ttl
def test_extend_can_replace_the_remaining_time(client: holdfast.Client) -> None:
    lock = RedisPyLock(client, "a", timeout=40)
    lock.acquire()

    lock.extend(20, replace_ttl=True)

    assert lock.lease is not None
    assert 0 < lock.lease.remaining <= 20
    lock.release()


@needs_renew_ttl
def test_reacquire_sets_the_time_of_the_lock_again(client: holdfast.Client) -> None:
    lock = RedisPyLock(client, "a", timeout=40)
    lock.acquire()
    lock.extend(20, replace_ttl=True)

    lock.reacquire()

    assert lock.lease is not None
    assert 20 < lock.lease.remaining <= 40
    lock.release()


def test_a_lock_that_is_not_held_cannot_be_extended(client: holdfast.Client) -> None:
    lock = RedisPyLock(client, "a")

    with pytest.raises(NotOwned):
        lock.extend(10)
    with pytest.raises(NotOwned):
        lock.reacquire()


@needs_renew_ttl
def test_a_lock_that_was_taken_away_cannot_be_extended(client: holdfast.Client, other: holdfast.Client) -> None:
    lock = RedisPyLock(client, "a")
    lock.acquire()
    assert lock.lease is not None
    assert other.break_lock("a", lock.lease.fence)

    with pytest.raises(holdfast.LockLost):
        lock.extend(10)
