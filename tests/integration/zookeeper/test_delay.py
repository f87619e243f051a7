"""A lock's delay on ZooKeeper: what was lost keeps others out for as long as its session lives, and no shorter."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.core.tickets import Granted, Waiting
from holdfast.runtimes import system
from tests.integration.zookeeper.roads import Bench, bench, ticket
from tests.support.processes import eventually


def test_a_client_that_is_closed_leaves_its_session_to_the_servers_while_something_lost_is_in_its_delay(
    url: str,
) -> None:
    holder = Bench(f"{url}?session_timeout=4")
    granted = holder.try_acquire(ticket("lost", ttl=30, delay=1))
    assert isinstance(granted, Granted)

    holder.close()

    with bench(url) as other:
        assert isinstance(other.try_acquire(ticket("lost")), Waiting)
        eventually(lambda: isinstance(other.try_acquire(ticket("lost")), Granted), within=20)
    assert system.now() > granted.deadline


def test_what_was_given_back_or_has_no_delay_goes_with_the_client(url: str) -> None:
    holder = Bench(f"{url}?session_timeout=20")
    released = ticket("released", delay=2)
    holder.try_acquire_all([ticket("plain"), released])
    holder.release([released])

    holder.close()

    with bench(url) as other:
        assert isinstance(other.try_acquire(ticket("plain")), Granted)
        assert isinstance(other.try_acquire(ticket("released")), Granted)


@pytest.mark.parametrize("together", [False, True])
def test_a_delay_that_the_session_cannot_carry_is_refused(url: str, *, together: bool) -> None:
    with bench(f"{url}?session_timeout=4") as ours:
        one = ticket("a", delay=1.1)
        with pytest.raises(holdfast.ConfigurationError, match=r"session_timeout of 4\.4"):
            ours.try_acquire_all([ticket("0"), one]) if together else ours.try_acquire(one)

        assert isinstance(ours.try_acquire(ticket("a", delay=1.0)), Granted)


def test_a_holder_with_the_longest_delay_is_not_lost_while_all_goes_well(url: str) -> None:
    with (
        holdfast.Client(f"{url}?session_timeout=4") as client,
        client.lock("a", ttl=3, lock_delay=1) as lease,
    ):
        assert not lease.wait_lost(6)
        assert lease.remaining > 0
