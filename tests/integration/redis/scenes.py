"""What the tests in this folder have in common: calls in the background, queues to wait for, keys to look at."""

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
    """Call it on a thread of its own; its result or its error is in the future."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def acquiring(lock: holdfast.Lock, *, timeout: float | None = PATIENCE) -> Future[holdfast.Lease]:
    """Acquire it on a thread of its own; not to get it in time is an error."""

    def acquire() -> holdfast.Lease:
        lease = lock.acquire(timeout=timeout)
        assert lease is not None, f"lock {lock.name!r} was busy for {timeout} s"
        return lease

    return in_background(acquire)


def waiting(
    client: holdfast.Client, name: str, *, ttl: float = 30, timeout: float | None = PATIENCE
) -> Future[holdfast.Lease]:
    """Acquire it on a thread of its own; returns when it has been told to wait.

    The server shows it in the queue before its answer has arrived; and to one that has no answer yet, down is down.
    """
    told = threading.Event()
    unsubscribe = client.subscribe(lambda event: told.set() if event.kind == "waiting" else None)
    coming = acquiring(client.lock(name, ttl=ttl), timeout=timeout)
    assert told.wait(PATIENCE)
    unsubscribe()
    return coming


def take(lock: holdfast.Lock, *, timeout: float | None = PATIENCE) -> holdfast.Lease:
    """Acquire it here; not to get it in time is an error."""
    lease = lock.acquire(timeout=timeout)
    assert lease is not None, f"lock {lock.name!r} was busy for {timeout} s"
    return lease


def await_waiters(client: holdfast.Client, name: str, number: int) -> None:
    """Until exactly that many wait for the lock, says the server; to get no answer is no answer."""

    def are_there() -> bool:
        with contextlib.suppress(holdfast.BackendError):
            return len(client.inspect(name).waiters) == number
        return False

    eventually(are_there)


def renews(lease: holdfast.Lease) -> bool:
    """Whether the server could be asked to renew it; a loss is an error."""
    try:
        lease.renew()
    except holdfast.BackendError:
        return False
    return True


def assert_told(lease: holdfast.Lease) -> None:
    """Its next renewal that is answered says that it is lost."""
    with pytest.raises(holdfast.LockLost):
        eventually(lambda: renews(lease))


def await_replicated(primary: Server, replica: Server) -> None:
    """Until the replica has all that the primary has."""

    def caught_up() -> bool:
        ours, theirs = primary.info("replication"), replica.info("replication")
        return ours["master_repl_offset"] == theirs["slave_repl_offset"]

    eventually(caught_up)


def immortal_keys(server: Server) -> set[str]:
    """Keys that would stay for ever if everybody died now: there must not be any."""
    return {key for key in server.all_keys() if server.call("PTTL", key) == -1}


def assert_free_and_clean(server: Server, name: str, prefix: str = "holdfast:") -> None:
    """The lock's own key is gone, and what is left of it will go by itself."""
    assert prefix + name not in server.all_keys()
    assert immortal_keys(server) == set()
