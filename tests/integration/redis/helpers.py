"""Helpers of the tests in this folder: calls in the background, waiting for queues, checks of keys."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import pytest

import holdfast
from tests.support.processes import PATIENCE, eventually
from tests.support.redis.servers import Server

T = TypeVar("T")
PROMPT = 5.0  # seconds: far above what a hand-over takes, far below a ttl of 30


def in_background(function: Callable[[], T]) -> Future[T]:
    """Call the function on a new thread. The future gets its result or error."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def acquiring(lock: holdfast.Lock, *, timeout: float | None = PATIENCE) -> Future[holdfast.Lease]:
    """Acquire the lock on a new thread. A timeout is an error."""

    def acquire() -> holdfast.Lease:
        lease = lock.acquire(timeout=timeout)
        assert lease is not None, f"lock {lock.name!r} was busy for {timeout} s"
        return lease

    return in_background(acquire)


def waiting(
    client: holdfast.Client, name: str, *, ttl: float = 30, timeout: float | None = PATIENCE
) -> Future[holdfast.Lease]:
    """Acquire the lock on a new thread. Return when the client has received the reply that the lock is busy.

    The server lists the waiter earlier than that, but an outage before the reply would end the wait.
    """
    is_queued = threading.Event()
    unsubscribe = client.subscribe(lambda event: is_queued.set() if event.kind == "queued" else None)
    pending = acquiring(client.lock(name, ttl=ttl), timeout=timeout)
    assert is_queued.wait(PATIENCE)
    unsubscribe()
    return pending


def take(lock: holdfast.Lock, *, timeout: float | None = PATIENCE) -> holdfast.Lease:
    """Acquire the lock. A timeout is an error."""
    lease = lock.acquire(timeout=timeout)
    assert lease is not None, f"lock {lock.name!r} was busy for {timeout} s"
    return lease


def await_waiters(client: holdfast.Client, name: str, number: int) -> None:
    """Wait until the server reports exactly this many waiters. Errors are ignored."""

    def are_waiting() -> bool:
        with contextlib.suppress(holdfast.BackendError):
            return len(client.inspect(name).waiters) == number
        return False

    eventually(are_waiting)


def renews(lease: holdfast.Lease) -> bool:
    """Whether a renewal got a reply; a loss is an error."""
    try:
        lease.renew()
    except holdfast.BackendError:
        return False
    return True


def assert_lost(lease: holdfast.Lease) -> None:
    """The next renewal with a reply reports the loss."""
    with pytest.raises(holdfast.LockLost):
        eventually(lambda: renews(lease))


def await_replicated(primary: Server, replica: Server) -> None:
    """Wait until the replica has all writes of the primary."""

    def caught_up() -> bool:
        offset = primary.info("replication")["master_repl_offset"]
        return replica.info("replication")["slave_repl_offset"] == offset

    eventually(caught_up)


def keys_without_ttl(server: Server) -> set[str]:
    """Keys without a ttl, which would remain if all clients died now. There must be none.

    The watermark and the index of `method=queue` remain, one of each for the server or for a slot of a Cluster.
    """
    return {key for key in lock_keys(server) if server.call("PTTL", key) == -1}


def lock_keys(server: Server) -> set[str]:
    """All keys but the watermark and the index."""
    return {key for key in server.all_keys() if not key.endswith(("}:fence", "}:locks"))}


def assert_free_and_clean(server: Server, name: str, prefix: str = "holdfast:") -> None:
    """The lock's own key does not exist, and all of its other keys have a ttl."""
    assert prefix + name not in server.all_keys()
    assert keys_without_ttl(server) == set()
