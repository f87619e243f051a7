"""Hazard: a program that closes unknown descriptors (as some daemons do) makes us look dead to others."""

from __future__ import annotations

import os
import threading

import pytest

import holdfast
from tests.integration.sqlite.conftest import Store
from tests.support.processes import eventually


def test_a_holder_loses_the_lock_when_its_session_is_closed(store: Store) -> None:
    with holdfast.Client(store.url) as holder, holdfast.Client(store.url) as other:
        lease = holder.lock("one").acquire()
        assert lease is not None
        (session,) = (path for path in store.sessions.iterdir())

        _close_session(str(session))

        with other.lock("one", timeout=20) as successor:
            with pytest.raises(holdfast.LockLost, match="closed by another program"):
                lease.check()
            assert successor.fence > lease.fence


def test_a_client_whose_session_was_closed_makes_a_new_one_and_closes_no_other_descriptor(store: Store) -> None:
    with holdfast.Client(store.url) as client:
        with client.lock("one"):
            pass
        (session,) = (path for path in store.sessions.iterdir())
        number = _close_session(str(session))
        reused = os.open(os.devnull, os.O_RDONLY)
        os.dup2(reused, number)

        with client.lock("one", timeout=20) as lease:
            lease.check()

        os.fstat(number)  # it was not closed
        for descriptor in {reused, number}:
            os.close(descriptor)


def test_a_lease_of_a_closed_session_stays_lost_when_its_client_has_made_a_new_session(store: Store) -> None:
    with holdfast.Client(store.url) as holder, holdfast.Client(store.url) as other:
        lease = holder.lock("one").acquire()
        assert lease is not None
        (session,) = store.sessions.iterdir()
        _close_session(str(session))

        with holder.lock("two", timeout=20):  # with a new session, in the same file
            pass

        with other.lock("one", timeout=20) as successor:
            with pytest.raises(holdfast.LockLost):
                lease.check()
            assert successor.held


def test_a_waiter_whose_session_was_closed_is_granted_the_lock_under_its_new_session(store: Store) -> None:
    clients = [holdfast.Client(store.url) for _ in range(3)]
    holder, waiter, other = clients
    try:
        held = holder.lock("one").acquire()
        assert held is not None
        before = set(store.sessions.iterdir())
        granted: list[holdfast.Lease | None] = []
        thread = threading.Thread(target=lambda: granted.append(waiter.lock("one").acquire(timeout=20)))
        thread.start()
        eventually(lambda: len(holder.inspect("one").waiters) == 1)
        (session,) = set(store.sessions.iterdir()) - before

        _close_session(str(session))
        held.release()
        thread.join()

        (lease,) = granted
        assert lease is not None
        assert other.lock("one").acquire(timeout=0) is None
        lease.check()
        lease.release()
    finally:
        for client in clients:
            client.close()


def _close_session(path: str) -> int:
    for number in os.listdir("/proc/self/fd"):
        if os.path.islink(f"/proc/self/fd/{number}") and os.readlink(f"/proc/self/fd/{number}") == path:
            os.close(int(number))
            return int(number)
    raise AssertionError(f"{path} is not open here")
