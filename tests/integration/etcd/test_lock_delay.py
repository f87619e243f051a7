"""The lock delay on etcd: a lost lease blocks the lock until its etcd lease has ended, even if the client is closed."""

from __future__ import annotations

import pytest

from holdfast.core.tickets import Granted, Waiting
from holdfast.runtimes import system
from holdfast.runtimes.threads import run_sync
from tests.integration.etcd.harness import Harness, harness, ticket
from tests.support.etcd import shared
from tests.support.etcd.servers import Server
from tests.support.processes import eventually


@pytest.fixture(params=["queue", "key"])
def url(request: pytest.FixtureRequest, server: Server) -> str:
    return shared.fresh_url(method=request.param)


@pytest.mark.parametrize("together", [False, True])
def test_a_closed_client_keeps_a_lost_lease_during_its_delay(url: str, *, together: bool) -> None:
    lost, kept = ticket("lost", ttl=4, delay=2), ticket("kept", ttl=4)
    holder = Harness(url)
    sent = system.now()
    if together:
        holder.try_acquire_all([kept, lost])
    else:
        holder.try_acquire(lost)
        holder.try_acquire(kept)
    holder.release([kept])

    run_sync(holder.backend.close())

    with harness(url) as other:
        assert isinstance(other.try_acquire(ticket("lost")), Waiting)
        eventually(lambda: isinstance(other.try_acquire(ticket("lost")), Granted), within=20)
    assert system.now() - sent > 4


def test_a_closed_client_deletes_tickets_that_were_released_or_have_no_delay(url: str) -> None:
    released, plain = ticket("released", ttl=30, delay=20), ticket("plain", ttl=30)
    holder = Harness(url)
    holder.try_acquire_all([plain, released])
    holder.release([released])

    run_sync(holder.backend.close())

    with harness(url) as other:
        assert isinstance(other.try_acquire(ticket("plain")), Granted)
        assert isinstance(other.try_acquire(ticket("released")), Granted)


def test_a_delay_much_longer_than_the_ttl_leaves_most_of_the_ttl_to_every_lease(url: str) -> None:
    """An acquire renews the shared etcd lease after a share of its ttl without the delay, not of its whole ttl."""
    with harness(url) as ours:
        began = system.now()
        while system.now() < began + 1.5:
            claim = ticket("a", ttl=20, delay=18)
            outcome = ours.try_acquire(claim)
            assert isinstance(outcome, Granted)
            assert outcome.deadline - claim.delay - system.now() > 1.0
            ours.release([claim])

        assert "lease/keepalive" in ours.calls()
