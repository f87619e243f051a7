"""Hazard: a thread per lease, or a keeper that is too slow for thousands of leases and lets some expire."""

from __future__ import annotations

import pytest

from tests.integration.sqlite.conftest import Store
from tests.support.intervals import report
from tests.support.processes import PATIENCE, WorkerPool

TTL = 6.0


@pytest.mark.slow
def test_one_keeper_thread_renews_10_000_leases_of_one_client(pool: WorkerPool, store: Store) -> None:
    worker = pool.start(store.url)

    taking = worker.call("hold_many", count=10_000, ttl=TTL)["seconds"]
    worker.send("keep_many", seconds=3 * TTL)
    kept = worker.receive(within=3 * TTL + PATIENCE)

    report(
        f"10,000 leases taken in {taking:.2f} s; keeping them takes {kept['cpu']:.1%} of a core at a ttl of {TTL:g} s"
    )
    assert kept["lost"] == 0
    assert kept["keepers"] == 1
    assert store.tickets == 10_000
    worker.release()
    assert store.tickets == 0
