"""What the memcached protocol needs of its servers: requests in, replies out, and which run of a server said them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast.backends.memcached.config import Node
from holdfast.backends.memcached.protocol.meta import Reply
from holdfast.errors import HoldfastError


class Life(NamedTuple):
    """One run of one server: versions of items count only within it, and are used anew in the next."""

    started: int  # Unix time by the server's own clock
    pid: int
    value_max: int = 1 << 20  # bytes that an item can have
    evicts: bool = True  # what it does when memory is full; else it refuses


class Errand(NamedTuple):
    """Requests for one server, sent at once. With a `life`, only to that run of it."""

    node: Node
    requests: Sequence[bytes]
    life: Life | None = None


class Answer(NamedTuple):
    """The replies, in order. None at all, and nothing was sent, if the server is on another life than was asked for."""

    life: Life
    replies: Sequence[Reply]


class MemcachedPort(Protocol):
    """Some servers, connected at first use.

    Every verb raises BackendUnavailable when nothing was changed, OutcomeUnknown when a request was sent and got no
    answer, and ConfigurationError for a server that cannot be used for locks as it is configured.
    """

    def at_once(self, node: Node, request: bytes, life: Life, now: float, deadline: float) -> Reply | None:
        """One request and its reply, without a coroutine in between, if a blocking connection to that life is at hand.

        None: there is none, and nothing was sent; then `ask`. What the time is now, the caller has just read.
        """

    async def ask(self, errand: Errand, *, deadline: float) -> Answer: ...

    async def ask_each(self, errands: Sequence[Errand], *, deadline: float) -> Sequence[Answer | HoldfastError]:
        """To different servers, before the first reply is read: one that is silent holds up no other's answer."""

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: drop inherited connections without a word on them."""
