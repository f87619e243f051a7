"""Hazard: a thread per lease, or a keeper that is too slow for thousands of leases and lets some expire."""

from __future__ import annotations

import pytest

from tests.integration.sqlite.conftest import Store
from tests.support.intervals import report
from tests.support.processes import PATIENCE, WorkerPool

TTL = 6.0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_keeper_thread_renews_4_000_leases_of_one_client(pool: WorkerPool, store: Store) -> None:
    probe, worker = pool.start_many(2, store.url)
    # The ttl is three times the time that it takes to acquire all leases one by one. To renew them takes less, so there
    # is time for three attempts, even on a busy machine.
    ttl = max(TTL, 3 * 4 * probe.call("hold_many", count=1000, ttl=60.0)["seconds"])
    probe.release()

    worker.send("hold_many", count=4000, ttl=ttl)
    acquire_seconds = worker.receive(within=100 * ttl)["seconds"]
    worker.send("keep_many", seconds=3 * ttl)
    kept = worker.receive(within=3 * ttl + PATIENCE)

    report(
        f"4,000 leases acquired in {acquire_seconds:.2f} s; "
        f"keeping them takes {kept['cpu']:.1%} of a core at a ttl of {ttl:g} s"
    )
    assert kept["lost"] == 0
    assert kept["keepers"] == 1
    assert store.tickets == 4000
    worker.release()
    assert store.tickets == 0
