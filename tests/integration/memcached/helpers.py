"""Helpers of the tests in this folder."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import holdfast
from holdfast.backends.memcached.protocol import meta
from holdfast.backends.memcached.protocol.keys import key_of
from holdfast.backends.memcached.protocol.meta import Reply
from tests.support.memcached.servers import Server

T = TypeVar("T")
TTL = 4.0  # seconds: long enough for renewals on a busy machine


def take(client: holdfast.Client, name: str, **options: float) -> holdfast.Lease:
    lease = client.lock(name, **{"ttl": TTL, **options}).acquire(timeout=0)  # type: ignore[arg-type]
    assert lease is not None, f"{name!r} is not free"
    return lease


def item(server: Server, name: str) -> Reply:
    """The item of a lock on the server; EN if there is none."""
    return server.call(meta.read(key_of("holdfast:", name)))


def in_background(function: Callable[[], T]) -> Future[T]:
    """Call the function on a new thread. Its result or error is in the future."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
