"""The seam between what a deployment is shaped like (topology/) and how bytes travel (blocking.py, aio.py).

Everything that raises here raises one of two: BackendUnavailable if nothing was sent, OutcomeUnknown if something was.
Error replies are not raised: they stand among the replies as ErrorReply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from holdfast.backends.redis.config import Node
    from holdfast.backends.redis.port import Reply
    from holdfast.errors import HoldfastError


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed commands for one server, sent at once."""

    node: Node
    request: bytes
    count: int  # of the replies that will come


class Connection(Protocol):
    """One connection."""

    async def exchange_many(self, request: bytes, count: int, deadline: float) -> list[Reply]: ...


# Called with a connection before anybody else uses it; what it raises is what the first who wanted it gets.
OnConnect = Callable[[Connection, "Node", float], Awaitable[None]]


NO_IDLE_CONNECTION = object()  # instead of a reply


class Connections(Protocol):
    """Connections to servers that let us in the same way, opened when needed."""

    def exchange_now(self, node: Node, request: bytes, deadline: float) -> Reply:
        """As `one`, without a coroutine in between, where a blocking connection is at hand; else NOT_AT_ONCE."""

    async def exchange(self, node: Node, request: bytes, deadline: float) -> Reply:
        """One command, one reply: the way that has to be fast."""

    async def exchange_batch(self, batch: Batch, deadline: float, *, alone: bool = False) -> list[Reply]:
        """As many replies as it says. `alone`: it holds up its connection, so nobody else's requests may be on it."""

    async def exchange_batches(
        self, batches: Sequence[Batch], deadline: float, *, alone: bool = False
    ) -> list[list[Reply] | HoldfastError]:
        """To all of them before the first reply is read: a server that is silent holds up no other's answer."""

    def drop(self, node: Node) -> None:
        """Let go of its connections, those in use when their exchange is over."""

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: without a word on any connection."""
