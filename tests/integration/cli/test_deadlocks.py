"""Hazard: `holdfast deadlocks` misses a deadlock, reports one that does not exist, or ends with the wrong status."""

from __future__ import annotations

from tests.integration.cli.conftest import CliStore
from tests.support.memcached import shared as memcached
from tests.support.processes import WorkerPool


def deadlock(store: CliStore, pool: WorkerPool, first: str, second: str) -> None:
    for host, held, awaited in (("web-1", first, second), ("web-2", second, first)):
        holder = pool.start(store.url)
        holder.call("impersonate", host=host)
        holder.call("hold_and_wait", held=held, awaited=awaited)
    for lock in (first, second):
        store.await_waiters(lock, 1)


def test_a_deadlock_of_two_processes_is_listed_with_its_locks_and_fences(store: CliStore, pool: WorkerPool) -> None:
    deadlock(store, pool, "stock", "order")
    fences = {lock: store.fences(lock)[0] for lock in ("stock", "order")}

    result = store.run("deadlocks")

    heading, *waits = result.lines
    assert (result.status, result.errors, heading) == (1, "", "deadlock of 2:")
    assert len(waits) == 2
    text = {line.split("/")[0].strip(): line for line in waits}
    assert "(worker) waits for order, held by web-2/" in text["web-1"]
    assert "(worker) waits for stock, held by web-1/" in text["web-2"]
    assert text["web-1"].endswith(f"(worker), fence {fences['order']}")


def test_json_has_both_tickets_of_every_wait(store: CliStore, pool: WorkerPool) -> None:
    deadlock(store, pool, "stock", "order")

    result = store.run("deadlocks", "--json")

    (cycle,) = result.json
    assert result.status == 1
    assert {edge["lock"] for edge in cycle} == {"stock", "order"}
    first, second = cycle
    assert first["waiter"]["caller"] == second["blocker"]["caller"] != second["waiter"]["caller"]


def test_waiters_without_a_cycle_are_no_deadlock(store: CliStore, pool: WorkerPool) -> None:
    holder = pool.start(store.url)
    holder.call("hold_and_wait", held="b", awaited="a")
    holder.call("hold", lock="a")  # on another thread than the one that waits
    store.await_waiters("a", 1)

    assert store.run("deadlocks") == (0, "", f"no deadlock ({store.url})\n")
    assert store.run("deadlocks", "--json").json == []


def test_a_deadlock_of_locks_with_another_prefix_is_not_listed(store: CliStore, pool: WorkerPool) -> None:
    deadlock(store, pool, "stock", "order")

    assert store.run("deadlocks", "x").status == 0


def test_hostile_names_are_printed_as_text(store: CliStore, pool: WorkerPool) -> None:
    deadlock(store, pool, "a\n\x1b[31mred", "b")

    result = store.run("deadlocks")

    assert result.status == 1
    assert len(result.lines) == 3
    assert "\x1b" not in result.out


def test_a_store_whose_waiters_leave_no_record_is_refused(store: CliStore) -> None:
    result = store.run("deadlocks", "--url", memcached.fresh_url())

    assert result.status == 2
    assert "its waiters leave no record" in result.errors
