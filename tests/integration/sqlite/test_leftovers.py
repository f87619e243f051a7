"""Hazard: rows and FIFOs that are not needed any more accumulate beside the lock file."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.backends.sqlite.protocol.queue import SqliteBackend
from tests.integration.sqlite.conftest import Observer, Store
from tests.support.processes import WorkerPool


def test_nothing_is_left_when_all_clients_have_closed(pool: WorkerPool, aio_pool: WorkerPool, store: Store) -> None:
    workers = [*pool.start_many(3, store.url), aio_pool.start(store.url)]
    for number, worker in enumerate(workers):
        worker.call("acquire", lock="contended", timeout=0)
        worker.call("acquire", lock=f"own-{number}")

    for worker in workers:
        worker.release()

    assert store.tickets == 0
    assert list(store.sessions.iterdir()) == []
    names = {path.name for path in store.path.parent.iterdir()}
    assert names == {store.path.name, store.sessions.name}  # the last client has removed -wal and -shm


def test_a_waiter_that_gives_up_leaves_no_ticket(pool: WorkerPool, store: Store) -> None:
    holder, waiter = pool.start_many(2, store.url)
    holder.call("acquire", lock="one")

    assert waiter.call("acquire", lock="one", timeout=0.2)["acquired"] is None

    assert store.tickets == 1


def test_the_next_client_cleans_up_after_all_others_were_killed(
    pool: WorkerPool, aio_pool: WorkerPool, store: Store, observer: Observer
) -> None:
    workers = [*pool.start_many(3, store.url), aio_pool.start(store.url)]
    holder, *waiters = workers
    holder.call("acquire", lock="contended", ttl=300)
    for number, waiter in enumerate(waiters, start=1):
        waiter.call("acquire", lock=f"own-{number}", ttl=300)
        waiter.send("acquire", lock="contended", ttl=300)
        observer.await_queue("contended", *(queued.pid for queued in waiters[:number]))

    for worker in reversed(workers):
        worker.kill()
    other = pool.start(store.url)
    other.call("acquire", lock="contended", timeout=0)

    assert store.tickets == 1
    other.call("close")
    assert store.tickets == 0
    assert len(list(store.sessions.iterdir())) == 1  # the session of the observer


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_a_ticket_that_a_client_could_not_release_ends_with_its_process(
    ending: str, pool: WorkerPool, store: Store
) -> None:
    # The file is busy while the client closes, so its ticket remains; but others see that its session has ended.
    holder, stuck, other = pool.start_many(3, store.url)
    holder.call("acquire", lock="one", ttl=300)
    stuck.call("begin_raw")

    if ending == "close":
        holder.call("close")
    holder.kill()
    stuck.call("commit_raw")

    assert other.call("acquire", lock="one", timeout=5)["acquired"] is not None


def test_closing_a_client_ends_the_waits_of_its_other_threads(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, waiter = pool.start_many(2, store.url)
    holder.call("acquire", lock="one")
    waiter.call("acquire_in_background", lock="one")
    observer.await_queue("one", waiter.pid)

    waiter.call("close")
    outcome = waiter.call("background_outcome", timeout=10)["outcome"]

    assert outcome in {"UsageError", "BackendUnavailable"}
    assert store.tickets == 1


def test_a_refused_acquire_leaves_nothing_in_memory(store: Store) -> None:
    with holdfast.Client(store.url) as holder, holdfast.Client(store.url) as client:
        with holder.semaphore("one", limit=3):
            for _ in range(3):
                with pytest.raises(holdfast.LimitConflict):
                    client.semaphore("one", limit=4).acquire(timeout=5)

        backend = client._engine.backend
        assert isinstance(backend, SqliteBackend)
        assert not backend._wakeups.expected()
