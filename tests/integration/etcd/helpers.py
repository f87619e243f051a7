"""Holders and waiters on threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import holdfast
from tests.support.processes import eventually

TTL = 6.0


def acquired(client: holdfast.Client, name: str, ttl: float = TTL) -> holdfast.Lease:
    lease = client.lock(name, ttl=ttl).acquire(timeout=10)
    assert lease is not None
    return lease


@contextlib.contextmanager
def waiting(client: holdfast.Client, name: str) -> Iterator[list[holdfast.Lease]]:
    """Start a waiter for the lock. After the block it has acquired and released the lock. The list has its lease."""
    leases: list[holdfast.Lease] = []

    def acquire() -> None:
        lease = client.lock(name, ttl=TTL).acquire(timeout=40)
        assert lease is not None
        leases.append(lease)

    thread = threading.Thread(target=acquire)
    thread.start()
    eventually(lambda: len(client.inspect(name).waiters) == 1)
    yield leases
    thread.join(50)
    assert leases
    leases[0].release()


@contextlib.contextmanager
def waiters_in_order(open_client: Callable[[], holdfast.Client], name: str, number: int) -> Iterator[list[int]]:
    """Start this many waiters. After the block each has held the lock, and the list has their fences in this order."""
    fences: list[int] = []

    def acquire(client: holdfast.Client) -> None:
        with client.lock(name, ttl=20, timeout=90) as lease:
            fences.append(lease.fence)

    clients = [open_client() for _ in range(5)]
    threads = [threading.Thread(target=acquire, args=(clients[index % 5],)) for index in range(number)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(clients[0].inspect(name).waiters) == number)
    yield fences
    for thread in threads:
        thread.join(100)
    assert len(fences) == number
