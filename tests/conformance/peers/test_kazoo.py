"""Hazard: a program written for kazoo's recipes has to work around holdfast: second acquires, reads, semaphores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import holdfast
from holdfast.primitives import Primitive
from tests.conformance.peers.adapters import KazooLock, KazooSemaphore, TimedOut
from tests.support.processes import eventually

WAIT = 0.1  # seconds


needs_shared_modes = pytest.mark.needs(Primitive.RWLOCK, Primitive.SEMAPHORE)


def test_the_same_object_does_not_get_a_lock_twice(client: holdfast.Client) -> None:
    lock = KazooLock(client.lock("a"))

    assert lock.acquire(blocking=False)
    assert not lock.acquire(blocking=False)
    with pytest.raises(TimedOut):
        lock.acquire(timeout=WAIT)

    lock.release()
    assert lock.acquire(timeout=60)
    lock.release()


def test_an_acquire_waits_until_another_object_of_the_same_client_releases_the_lock(client: holdfast.Client) -> None:
    first, second = KazooLock(client.lock("a")), KazooLock(client.lock("a"))
    queued: list[holdfast.Event] = []
    client.subscribe(lambda event: queued.append(event) if event.kind == "queued" else None)
    first.acquire()
    with ThreadPoolExecutor(1) as pool:

        def release_when_queued() -> None:
            eventually(lambda: bool(queued))
            first.release()

        releasing = pool.submit(release_when_queued)

        assert second.acquire(timeout=60)

        releasing.result()
    second.release()


@needs_shared_modes
def test_a_thread_that_reads_may_read_again_before_a_waiting_writer(
    client: holdfast.Client, other: holdfast.Client
) -> None:
    first, second = KazooLock(client.rwlock("a").read()), KazooLock(client.rwlock("a").read())
    first.acquire()
    with ThreadPoolExecutor(1) as pool:
        writer = KazooLock(other.rwlock("a").write())
        writing = pool.submit(writer.acquire, timeout=60)
        eventually(lambda: bool(client.inspect("a").waiters))

        assert second.acquire(timeout=60)

        second.release()
        assert not writing.done()
        first.release()
        assert writing.result()
        writer.release()


@needs_shared_modes
def test_a_reader_cannot_acquire_the_write_lock(client: holdfast.Client) -> None:
    reading, writing = KazooLock(client.rwlock("a").read()), KazooLock(client.rwlock("a").write())
    reading.acquire()

    assert not writing.acquire(blocking=False)
    with pytest.raises(TimedOut):
        writing.acquire(timeout=WAIT)

    reading.release()
    assert writing.acquire(timeout=60)
    writing.release()


@needs_shared_modes
def test_one_thread_may_acquire_several_permits(client: holdfast.Client) -> None:
    first, second, third = (KazooSemaphore(client, "a", max_leases=2) for _ in range(3))

    assert first.acquire(blocking=False)
    assert not first.lock.locked()  # one permit is free
    assert second.acquire(blocking=False)
    assert first.lock.locked()
    assert not third.acquire(blocking=False)
    assert not third.acquire(timeout=WAIT)
    assert len(third.lease_holders()) == 2

    first.release()
    assert not second.lock.locked()
    assert third.acquire(timeout=60)
    second.release()
    third.release()
    assert third.lease_holders() == []


@needs_shared_modes
def test_clients_must_agree_on_the_permits_of_a_semaphore(client: holdfast.Client, other: holdfast.Client) -> None:
    first = KazooSemaphore(client, "a", max_leases=1)
    first.acquire()

    with pytest.raises(holdfast.LimitConflict):
        KazooSemaphore(other, "a", max_leases=2).acquire(blocking=False)

    first.release()
