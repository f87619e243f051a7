"""Where threads meet other rules here than threading's: what stands in for CPython's cases that cannot run.

The hazard: leaving a case out, and with it the question that it asks.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from holdfast_lab.conformance.cases import Case
from tests.conformance.backends import BACKENDS

pytestmark = pytest.mark.cases(BACKENDS)  # not on each of their shapes and methods


def test_another_thread_gives_the_lock_back_through_the_lease_not_through_the_lock(case: Case, tmp_path: Path) -> None:
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


def test_a_thread_that_would_wait_for_itself_forever_gets_an_error_at_once_and_keeps_the_lock(
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
        _take_and_give_back(other, lock)


def test_an_attempt_whose_time_is_up_leaves_the_lock_in_order(case: Case, tmp_path: Path) -> None:
    """For LockTests.test_state_after_timeout."""
    with holdfast.Client(case.fresh_url(tmp_path)) as client, ThreadPoolExecutor(1) as other:
        lock = client.lock("a")
        with lock:
            assert other.submit(lambda: lock.acquire(timeout=0.01)).result() is None
            assert client.inspect("a").waiters == ()

        assert not lock.locked()
        _take_and_give_back(other, lock)
        with lock:
            assert lock.locked()


def _take_and_give_back(thread: ThreadPoolExecutor, lock: holdfast.Lock) -> None:
    def work() -> None:
        assert lock.acquire(timeout=0) is not None
        lock.release()

    thread.submit(work).result()
