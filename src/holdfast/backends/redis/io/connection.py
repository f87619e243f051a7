"""The interface between the topology of a deployment (topology/) and its connections (sockets.py, pipeline.py).

All methods raise BackendUnavailable if nothing was sent, and OutcomeUnknown if something was. Error replies are not
raised: they are returned as ErrorReply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from holdfast.errors import BackendError, BackendUnavailable, HoldfastError

if TYPE_CHECKING:
    from holdfast.backends.redis.port import Reply
    from holdfast.url_parts import Node


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed commands for one server, sent together."""

    node: Node
    request: bytes
    count: int  # number of replies to read


class Connection(Protocol):
    """One connection."""

    async def exchange_many(self, request: bytes, count: int, deadline: float) -> list[Reply]:
        """Send several packed commands and read `count` replies."""

    def close(self) -> None: ...


# Called with each new connection before its first use. Its exceptions reach the caller that needed the connection.
OnConnect = Callable[[Connection, "Node", float], Awaitable[None]]


class Connections(Protocol):
    """Connections to servers with the same login, opened on demand."""

    def exchange_now(
        self, node: Node, around: tuple[bytes, bytes], nonce: str, now: float, deadline: float
    ) -> int | Awaitable[Reply]:
        """One command, one reply, with as little code as possible. `around` are the parts before and after the nonce.

        Returns the reply if it is an int and no other task has to run until it arrives, otherwise an awaitable of it.
        """

    async def exchange(self, node: Node, request: bytes, deadline: float) -> Reply:
        """One command, one reply."""

    async def exchange_batch(self, batch: Batch, deadline: float, *, alone: bool = False) -> list[Reply]:
        """The replies to a batch. `alone`: it blocks its connection, so no other request may be on it."""

    async def exchange_batches(
        self, batches: Sequence[Batch], deadline: float, *, alone: bool = False
    ) -> list[list[Reply] | HoldfastError]:
        """Send all batches before the first reply is read, so a server that is slow does not delay the others."""

    def drop(self, node: Node) -> None:
        """Close its connections; those in use after their current exchange."""

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: drop the connections without sending anything on them."""


async def introduce(connection: Connection, node: Node, on_connect: OnConnect | None, deadline: float) -> None:
    """Call `on_connect` with a new connection. If it fails, close the connection.

    Raises:
        BackendUnavailable: it raised this or another BackendError. The caller's request was not sent yet.
    """
    try:
        if on_connect is not None:
            await on_connect(connection, node, deadline)
    except BaseException as error:
        connection.close()
        if isinstance(error, BackendError):
            raise BackendUnavailable(backend=error.backend, problem=error.problem) from error
        raise
