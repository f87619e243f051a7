"""The lock delay on ZooKeeper: a lost lease blocks the lock until its session ends."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.core.tickets import Granted, Waiting
from holdfast.runtimes import system
from tests.integration.zookeeper.harness import Harness, harness, ticket
from tests.support.processes import eventually


def test_a_closed_client_keeps_its_session_during_the_delay_of_a_lost_lease(url: str) -> None:
    holder = Harness(f"{url}?session_timeout=4")
    granted = holder.try_acquire(ticket("lost", ttl=30, delay=1))
    assert isinstance(granted, Granted)

    holder.close()

    with harness(url) as other:
        assert isinstance(other.try_acquire(ticket("lost")), Waiting)
        eventually(lambda: isinstance(other.try_acquire(ticket("lost")), Granted), within=20)
    assert system.now() > granted.deadline


def test_a_closed_client_deletes_tickets_that_were_released_or_have_no_delay(url: str) -> None:
    holder = Harness(f"{url}?session_timeout=20")
    released = ticket("released", delay=2)
    holder.try_acquire_all([ticket("plain"), released])
    holder.release([released])

    holder.close()

    with harness(url) as other:
        assert isinstance(other.try_acquire(ticket("plain")), Granted)
        assert isinstance(other.try_acquire(ticket("released")), Granted)


@pytest.mark.parametrize("together", [False, True])
def test_a_delay_is_refused_when_the_session_is_too_short(url: str, *, together: bool) -> None:
    with harness(f"{url}?session_timeout=4") as ours:
        claim = ticket("a", delay=1.1)
        with pytest.raises(holdfast.ConfigurationError, match=r"session_timeout of 4\.4"):
            ours.try_acquire_all([ticket("0"), claim]) if together else ours.try_acquire(claim)

        assert isinstance(ours.try_acquire(ticket("a", delay=1.0)), Granted)


def test_a_holder_with_the_longest_delay_keeps_its_lease_without_faults(url: str) -> None:
    with (
        holdfast.Client(f"{url}?session_timeout=4") as client,
        client.lock("a", ttl=3, lock_delay=1) as lease,
    ):
        assert not lease.wait_lost(6)
        assert lease.remaining > 0
