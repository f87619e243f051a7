"""The port that the memcached protocol needs: requests, replies, and the server run that sent them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast.backends.base_backend import Port
from holdfast.backends.memcached.protocol.meta import Reply
from holdfast.errors import HoldfastError
from holdfast.url_parts import Node


class ServerRun(NamedTuple):
    """One run of one server process. Versions of items are valid only within it; the next run reuses the numbers."""

    started: int  # Unix time by the server's own clock
    pid: int
    value_max: int = 1 << 20  # the longest value of an item, in bytes
    evicts: bool = True  # what it does when its memory is full: evict items, or refuse new ones


class Batch(NamedTuple):
    """Requests for one server, sent together. With a `run`, they are sent only to that run of the server."""

    node: Node
    requests: Sequence[bytes]
    run: ServerRun | None = None


class Answer(NamedTuple):
    """The replies, in order. They are empty, and nothing was sent, if this is not the run of the batch."""

    run: ServerRun
    replies: Sequence[Reply]


class MemcachedPort(Port, Protocol):
    """Some servers, connected at first use.

    Every verb raises BackendUnavailable when nothing was changed, OutcomeUnknown when a request was sent and got no
    answer, and ConfigurationError for a server whose settings rule out locks.
    """

    def request_now(self, node: Node, request: bytes, run: ServerRun, now: float, deadline: float) -> Reply | None:
        """One request and its reply without a coroutine, if a blocking connection to that run is idle.

        None: there is no such connection, and nothing was sent; use `request`. The caller passes the current time.
        """

    async def request(self, batch: Batch, *, deadline: float) -> Answer: ...

    async def request_each(self, batches: Sequence[Batch], *, deadline: float) -> Sequence[Answer | HoldfastError]:
        """Send to several servers before the first reply is read, so that a silent server delays no other answer."""
