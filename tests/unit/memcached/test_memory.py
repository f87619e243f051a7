"""Hazard: a client that is refused repeatedly uses more memory each time."""

from __future__ import annotations

import time

import pytest

from holdfast.backends.memcached.port import Answer, Batch, ServerRun
from holdfast.backends.memcached.protocol import meta
from holdfast.backends.memcached.protocol.item import MemcachedBackend
from holdfast.backends.memcached.protocol.meta import Reply
from holdfast.backends.memcached.protocol.values import FREE
from holdfast.core.tickets import Ticket, Waiting
from holdfast.errors import BackendUnavailable
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url_parts import Node

NODE = Node("here", 11211)
RUN = ServerRun(started=1, pid=7, evicts=False)


class Busy:
    """A server on which the lock is free at each read, and acquired by another client before each write."""

    is_down = False

    def request_now(self, node: Node, request: bytes, run: ServerRun, now: float, deadline: float) -> None:
        return None

    async def request(self, batch: Batch, *, deadline: float) -> Answer:
        (request,) = batch.requests
        if request == meta.STATS:
            return Answer(RUN, [Reply("LIST", lines=(b"STAT time %d" % time.time(), b"STAT evictions 0"))])
        if request.startswith(b"mg"):
            return Answer(RUN, [Reply("VA", version=3, seconds_left=4, value=FREE)])
        if self.is_down:
            raise BackendUnavailable(backend="here", problem="the connection was refused")
        return Answer(RUN, [Reply("EX")])


def test_an_acquire_that_is_refused_leaves_nothing_in_memory() -> None:
    port, runtime = Busy(), ThreadRuntime()
    backend = MemcachedBackend("memcached://here", port, runtime, prefix="", nodes=(NODE,))  # type: ignore[arg-type]

    def try_acquire() -> object:
        ticket = Ticket("a", runtime.nonce(), 30.0, 1, exclusive=True, agent="me", info="{}")
        return run_sync(backend.try_acquire(ticket, queue=False, deadline=system.now() + 5))

    assert isinstance(try_acquire(), Waiting)
    port.is_down = True
    with pytest.raises(BackendUnavailable):
        try_acquire()

    assert (backend._unanswered, backend._known, backend._pauses) == ({}, {}, {})
