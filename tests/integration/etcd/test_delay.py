"""A lock's delay on etcd: what was lost keeps others out until its etcd lease has ended, whatever the client does."""

from __future__ import annotations

import pytest

from holdfast.core.tickets import Granted, Waiting
from holdfast.runtimes import system
from holdfast.runtimes.threads import run_sync
from tests.integration.etcd.roads import Bench, bench, ticket
from tests.support.etcd import shared
from tests.support.etcd.servers import Server
from tests.support.processes import eventually


@pytest.fixture(params=["queue", "key"])
def url(request: pytest.FixtureRequest, server: Server) -> str:
    return shared.fresh_url(method=request.param)


@pytest.mark.parametrize("together", [False, True])
def test_a_client_that_is_closed_leaves_what_was_lost_in_its_delay(url: str, *, together: bool) -> None:
    lost, kept = ticket("lost", ttl=4, delay=2), ticket("kept", ttl=4)
    holder = Bench(url)
    sent = system.now()
    if together:
        holder.try_acquire_all([kept, lost])
    else:
        holder.try_acquire(lost)
        holder.try_acquire(kept)
    holder.release([kept])

    run_sync(holder.backend.close())

    with bench(url) as other:
        assert isinstance(other.try_acquire(ticket("lost")), Waiting)
        eventually(lambda: isinstance(other.try_acquire(ticket("lost")), Granted), within=20)
    assert system.now() - sent > 4


def test_what_was_given_back_or_has_no_delay_goes_with_the_client(url: str) -> None:
    released, plain = ticket("released", ttl=30, delay=20), ticket("plain", ttl=30)
    holder = Bench(url)
    holder.try_acquire_all([plain, released])
    holder.release([released])

    run_sync(holder.backend.close())

    with bench(url) as other:
        assert isinstance(other.try_acquire(ticket("plain")), Granted)
        assert isinstance(other.try_acquire(ticket("released")), Granted)


def test_a_delay_far_longer_than_the_ttl_leaves_most_of_the_ttl_to_every_lease(url: str) -> None:
    """The etcd lease is shared: it has to be fresh by what a holder may believe in, not by all of its time."""
    with bench(url) as ours:
        began = system.now()
        while system.now() < began + 1.5:
            one = ticket("a", ttl=20, delay=18)
            outcome = ours.try_acquire(one)
            assert isinstance(outcome, Granted)
            assert outcome.deadline - one.delay - system.now() > 1.0
            ours.release([one])

        assert "lease/keepalive" in ours.calls()
