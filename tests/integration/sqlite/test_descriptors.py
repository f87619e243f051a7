"""A program that closes descriptors it does not know (as some do to become daemons) makes us look dead to others."""

from __future__ import annotations

import os

import pytest

import holdfast
from tests.integration.sqlite.conftest import Store


def test_a_holder_whose_session_was_closed_behind_its_back_has_lost_the_lock(store: Store) -> None:
    with holdfast.Client(store.url) as holder, holdfast.Client(store.url) as other:
        lease = holder.lock("one").acquire()
        assert lease is not None
        (session,) = (path for path in store.sessions.iterdir())

        _close_behind_our_back(str(session))

        with other.lock("one", timeout=20) as successor:
            with pytest.raises(holdfast.LockLost, match="closed by somebody else"):
                lease.check()
            assert successor.fence > lease.fence


def test_a_client_whose_session_was_closed_makes_a_new_one_and_closes_no_other_descriptor(store: Store) -> None:
    with holdfast.Client(store.url) as client:
        with client.lock("one"):
            pass
        (session,) = (path for path in store.sessions.iterdir())
        number = _close_behind_our_back(str(session))
        reused = os.open(os.devnull, os.O_RDONLY)
        os.dup2(reused, number)

        with client.lock("one", timeout=20) as lease:
            lease.check()

        os.fstat(number)  # not closed by mistake
        for descriptor in {reused, number}:
            os.close(descriptor)


def _close_behind_our_back(path: str) -> int:
    for number in os.listdir("/proc/self/fd"):
        if os.path.islink(f"/proc/self/fd/{number}") and os.readlink(f"/proc/self/fd/{number}") == path:
            os.close(int(number))
            return int(number)
    raise AssertionError(f"{path} is not open here")
