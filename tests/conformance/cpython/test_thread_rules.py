"""Tests in place of CPython's cases that cannot run, because the rules of our locks differ from threading's.

The hazard: a behaviour is not tested, because its case was left out.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from holdfast_lab.conformance.cases import Case
from tests.conformance.backends import BACKENDS

pytestmark = pytest.mark.cases(BACKENDS)  # only on the default method of each backend


def test_another_thread_can_release_the_lease_but_not_the_lock(case: Case, tmp_path: Path) -> None:
    """For LockTests.test_different_thread."""
    with holdfast.Client(case.fresh_url(tmp_path)) as client, ThreadPoolExecutor(1) as other:
        lock = client.lock("a")
        lease = lock.acquire()
        assert lease is not None

        with pytest.raises(holdfast.NotHeld):
            other.submit(lock.release).result()
        assert lock.held
        assert lock.locked()

        other.submit(lease.release).result()
        assert not lock.held
        assert not lock.locked()
        with pytest.raises(holdfast.NotHeld):
            lock.release()
        with lock:
            assert lock.locked()


def test_an_acquire_raises_and_the_lock_stays_held_when_the_thread_would_wait_for_itself_forever(
    case: Case, tmp_path: Path
) -> None:
    """For LockTests.test_reacquire."""
    with holdfast.Client(case.fresh_url(tmp_path)) as client, ThreadPoolExecutor(1) as other:
        lock = client.lock("a")
        with lock as lease:
            with pytest.raises(holdfast.WouldDeadlock) as caught:
                lock.acquire(timeout=None)
            assert caught.value.fence == lease.fence
            assert lock.acquire(timeout=0) is None
            assert lock.acquire(timeout=0.01) is None
            assert lease.held

        assert not lock.locked()
        assert client.inspect("a").waiters == ()
        _acquire_and_release(other, lock)


def test_a_lock_works_when_an_attempt_has_timed_out(case: Case, tmp_path: Path) -> None:
    """For LockTests.test_state_after_timeout."""
    with holdfast.Client(case.fresh_url(tmp_path)) as client, ThreadPoolExecutor(1) as other:
        lock = client.lock("a")
        with lock:
            assert other.submit(lambda: lock.acquire(timeout=0.01)).result() is None
            assert client.inspect("a").waiters == ()

        assert not lock.locked()
        _acquire_and_release(other, lock)
        with lock:
            assert lock.locked()


def _acquire_and_release(thread: ThreadPoolExecutor, lock: holdfast.Lock) -> None:
    def work() -> None:
        assert lock.acquire(timeout=0) is not None
        lock.release()

    thread.submit(work).result()
