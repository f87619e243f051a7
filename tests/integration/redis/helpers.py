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
    """Call it on a new thread; the future gets its result or error."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def acquiring(lock: holdfast.Lock, *, timeout: float | None = PATIENCE) -> Future[holdfast.Lease]:
    """Acquire it on a new thread; a timeout is an error."""

    def acquire() -> holdfast.Lease:
        lease = lock.acquire(timeout=timeout)
        assert lease is not None, f"lock {lock.name!r} was busy for {timeout} s"
        return lease

    return in_background(acquire)


def waiting(
    client: holdfast.Client, name: str, *, ttl: float = 30, timeout: float | None = PATIENCE
) -> Future[holdfast.Lease]:
    """Acquire it on a new thread; returns when the client knows that it waits.

    The server lists the waiter before its reply has arrived, and without a reply an outage would end the wait.
    """
    has_to_wait = threading.Event()
    unsubscribe = client.subscribe(lambda event: has_to_wait.set() if event.kind == "queued" else None)
    coming = acquiring(client.lock(name, ttl=ttl), timeout=timeout)
    assert has_to_wait.wait(PATIENCE)
    unsubscribe()
    return coming


def take(lock: holdfast.Lock, *, timeout: float | None = PATIENCE) -> holdfast.Lease:
    """Acquire it; a timeout is an error."""
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
        ours, theirs = primary.info("replication"), replica.info("replication")
        return ours["master_repl_offset"] == theirs["slave_repl_offset"]

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
