"""People who hold and wait, on threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import holdfast
from tests.support.processes import eventually

TTL = 6.0


def taken(client: holdfast.Client, name: str, ttl: float = TTL) -> holdfast.Lease:
    lease = client.lock(name, ttl=ttl).acquire(timeout=10)
    assert lease is not None
    return lease


@contextlib.contextmanager
def waiting(client: holdfast.Client, name: str) -> Iterator[list[holdfast.Lease]]:
    """Somebody who waits for the lock, and has got it when the block ends; its lease is in the list then, released."""
    got: list[holdfast.Lease] = []

    def take() -> None:
        lease = client.lock(name, ttl=TTL).acquire(timeout=40)
        assert lease is not None
        got.append(lease)

    thread = threading.Thread(target=take)
    thread.start()
    eventually(lambda: len(client.inspect(name).waiters) == 1)
    yield got
    thread.join(50)
    assert got
    got[0].release()


@contextlib.contextmanager
def crowd(client_of: Callable[[], holdfast.Client], name: str, number: int) -> Iterator[list[int]]:
    """That many who wait, each with a turn by the end of the block; the list has their fences, in that order."""
    fences: list[int] = []

    def take(client: holdfast.Client) -> None:
        with client.lock(name, ttl=20, timeout=90) as lease:
            fences.append(lease.fence)

    clients = [client_of() for _ in range(5)]
    threads = [threading.Thread(target=take, args=(clients[index % 5],)) for index in range(number)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(clients[0].inspect(name).waiters) == number)
    yield fences
    for thread in threads:
        thread.join(100)
    assert len(fences) == number
