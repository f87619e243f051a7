"""One connection of a pool (pool.py) for threads: requests are sent on a `Stream`, and their replies are read in order.

A connection is used again only after a complete exchange. Any exception between the first byte sent and the last one
read, KeyboardInterrupt included, closes it, so no thread ever reads the reply to another thread's request. For asyncio,
pipeline.py has the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from holdfast.backends.net.errors import no_answer, not_sent
from holdfast.backends.net.stream import NotSent, Stream

if TYPE_CHECKING:
    from holdfast.backends.net.pool import Probe
    from holdfast.core.ports import Runtime
    from holdfast.errors import BackendError, BackendUnavailable
    from holdfast.url_parts import Node

R = TypeVar("R")  # a reply


class StreamConnection(ABC, Generic[R]):
    """A subclass opens the stream, and parses the replies."""

    __slots__ = ("__weakref__", "_io_timeout", "_node", "_now", "_url", "probe", "stream", "used_at")

    def __init__(self, url: str, node: Node, runtime: Runtime, io_timeout: float) -> None:
        self._url, self._node, self._now, self._io_timeout = url, node, runtime.now, io_timeout
        self.stream: Stream | None = None  # None: not open
        self.used_at = 0.0
        self.probe: Probe | None = None

    @abstractmethod
    def _read(self, stream: Stream, count: int, deadline: float) -> list[R]:
        """The next replies. Raises an exception if they do not arrive, or are not of the protocol."""

    async def exchange_many(self, request: bytes, count: int, deadline: float) -> list[R]:
        """Send several packed requests and read `count` replies."""
        self.send(request, deadline)
        return self.receive(count, deadline)

    def send(self, request: bytes, deadline: float, *, is_one: bool = False) -> None:
        """The first half of an exchange. `is_one`: it is a single request, as `_failure` describes."""
        now = self._now()
        deadline = min(deadline, now + self._io_timeout)
        stream = self.stream
        if stream is None or deadline <= now:
            raise self._not_usable()
        self.used_at = now
        try:
            stream.send(request, deadline)
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                raise self._failure(error, is_one=is_one) from error
            raise

    def receive(self, count: int, deadline: float) -> list[R]:
        """The second half of an exchange: read the replies."""
        deadline = min(deadline, self.used_at + self._io_timeout)
        try:
            stream = self.stream
            if stream is None:
                raise ConnectionError("the connection was closed")
            return self._read(stream, count, deadline)
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                raise self._failure(error) from error
            raise

    @property
    def is_open(self) -> bool:
        return self.stream is not None

    def is_dead(self) -> bool:
        return self.stream is None or self.stream.is_dead()

    def close(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()

    def abandon(self) -> None:
        """In a forked child: close the descriptor only."""
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.abandon()

    def __del__(self) -> None:
        """Close a connection that an interrupt dropped, or whose client was never closed."""
        self.close()

    def _not_usable(self) -> BackendUnavailable:
        problem = "the client is closed" if self.stream is None else "there was no time left to send the request"
        return not_sent(self._url, self._node, problem)

    def _failure(self, error: Exception, *, is_one: bool = False) -> BackendError:
        """The error for an exchange that failed. `is_one`: it was a single request.

        The server does not execute a single request that was not sent completely. Of several, it may have executed
        the first ones.
        """
        if isinstance(error, NotSent):
            kind = not_sent if is_one else no_answer
            return kind(self._url, self._node, f"the request could not be sent: {error}")
        return no_answer(self._url, self._node, problem_of(error))


def problem_of(error: Exception) -> str:
    """The problem of an exchange that got no reply, for the message."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"the connection broke before the reply arrived: {str(error) or type(error).__name__}"
