"""Hazard: a program written for filelock has to work around holdfast: nested blocks, and timeouts in one thread."""

from __future__ import annotations

import time

import pytest

import holdfast
from tests.conformance.peers.adapters import FileLock, TimedOut

WAIT = 0.1  # seconds


def test_nested_blocks_release_the_lock_at_the_end_of_the_outer_one(
    client: holdfast.Client, other: holdfast.Client
) -> None:
    lock = FileLock(client, "a")
    with lock:
        with lock:
            assert lock.is_locked
        assert lock.is_locked
        with pytest.raises(TimedOut):
            FileLock(other, "a").acquire(timeout=0)

    assert not lock.is_locked
    FileLock(other, "a").acquire(timeout=60).release()


def test_a_forced_release_ends_all_acquisitions(client: holdfast.Client, other: holdfast.Client) -> None:
    lock = FileLock(client, "a")
    lock.acquire().acquire().acquire()

    lock.release(force=True)

    assert not lock.is_locked
    FileLock(other, "a").acquire(timeout=60).release()


def test_a_lock_of_another_client_in_the_same_thread_times_out(client: holdfast.Client, other: holdfast.Client) -> None:
    first, second = FileLock(client, "a"), FileLock(other, "a", timeout=WAIT)
    first.acquire()
    began = time.monotonic()

    with pytest.raises(TimedOut):
        second.acquire()  # with the timeout of the lock
    assert time.monotonic() - began >= WAIT
    with pytest.raises(TimedOut):
        second.acquire(timeout=0)
    with pytest.raises(TimedOut):
        second.acquire(blocking=False)

    assert not second.is_locked
    first.release()
    assert second.acquire(timeout=60).is_locked
    second.release()


def test_an_error_in_a_block_releases_the_lock(client: holdfast.Client, other: holdfast.Client) -> None:
    with pytest.raises(ValueError, match="of the body"), FileLock(client, "a"):
        raise ValueError("of the body")

    FileLock(other, "a").acquire(timeout=60).release()
