"""The watches of one client: the changes that its waiting tickets wait for, and the connections that receive them.

wanted ──▶ opened ──▶ a message of the server: tickets are notified
    ▲         │ connection lost or refused
    └─ pause ◀┘

A connection to a server that does not answer requests is replaced at once, or at the end of a pause that an earlier
failure has begun.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from holdfast.backends.net.connection import PolledConnection
from holdfast.backends.net.listener import IDLE_MAX, Listener
from holdfast.backends.net.poller import READ, Background, Poller
from holdfast.backends.net.waker import Waker
from holdfast.core.events import logger
from holdfast.core.ports import Runtime
from holdfast.errors import HoldfastError
from holdfast.url_parts import Node

OPENING_MAX = 3.0  # seconds for opening a connection
PAUSE_MIN, PAUSE_MAX = 0.05, 1.0  # seconds between attempts to open connections


class WatchConnection(Protocol):
    """A connection, and what is watched on it."""

    connection: PolledConnection

    def read(self) -> Awaitable[Sequence[Any]]:
        """The messages that have arrived. Raises OSError, ValueError or HoldfastError if the connection has failed."""


W = TypeVar("W")
S = TypeVar("S", bound=WatchConnection)


class BaseWatcher(Listener, Generic[W, S]):
    """A subclass opens the connections, and handles their messages."""

    def __init__(self, source: str, poller: Poller, background: Background, runtime: Runtime) -> None:
        """`source` names what is watched, for the log."""
        super().__init__(poller, background, runtime)
        self._source = source
        self._wanted: dict[str, W] = {}  # by nonce
        self._avoided: set[Node] = set()  # servers that did not answer a request: their connections are replaced
        self._has_warned = False

    @abstractmethod
    async def _open_missing(self, streams: list[S], wanted: dict[str, W]) -> None:
        """Add connections until all that is wanted is watched. Raises OSError or HoldfastError."""

    @abstractmethod
    async def _handle(self, streams: list[S], stream: S, message: Any) -> None:
        """Handle a message. Raises as `WatchConnection.read` does."""

    @abstractmethod
    def _lost(self, stream: S, error: Exception) -> None:
        """A connection has failed. It is closed after this."""

    def _is_watched(self, known: W, watched: W) -> bool:
        """Whether the present watch of a ticket, `known`, also covers this one."""
        return known == watched

    def _receive_max(self, streams: Sequence[S]) -> float:
        """Seconds after which `_open_missing` has to be called again."""
        return IDLE_MAX / 2

    def watch(self, nonce: str, watched: W) -> None:
        with self._mutex:
            known = self._wanted.get(nonce)
            if self._closed or (known is not None and self._is_watched(known, watched)):
                return
            self._wanted[nonce] = watched
            if not self._start() and self._waker is not None:
                self._waker.wake()

    def unwatch(self, nonce: str) -> None:
        with self._mutex:
            self._wanted.pop(nonce, None)
            self._idle_since = self._runtime.now()

    def avoid(self, node: Node) -> None:
        """This server does not answer: watch on another one."""
        with self._mutex:
            if self._waker is not None:
                self._avoided.add(node)
                self._waker.wake()

    def _has_waiters(self) -> bool:
        return bool(self._wanted)

    # ── on its own thread or task ────────────────────────────────────────────────────────────────────────────────

    async def _run(self, waker: Waker) -> None:
        streams: list[S] = []
        pause, not_before = PAUSE_MIN, 0.0
        try:
            while not self._is_done(waker):
                now = self._runtime.now()
                succeeded, until = True, not_before
                if now >= not_before:
                    succeeded, until = await self._open(streams), now + self._receive_max(streams)
                if succeeded:
                    succeeded = await self._receive(streams, waker, until)
                if not succeeded:
                    not_before = self._runtime.now() + pause
                    pause = min(2 * pause, PAUSE_MAX)
                elif now >= not_before + PAUSE_MAX:
                    pause = PAUSE_MIN
        finally:
            for stream in streams:
                stream.connection.close()
            with self._mutex:
                self._close_waker(waker)

    async def _open(self, streams: list[S]) -> bool:
        """Close the connections to avoided servers, and open the missing ones; False if that failed."""
        with self._mutex:
            wanted, avoided, self._avoided = dict(self._wanted), self._avoided, set()
        for stream in list(streams):
            if stream.connection.node in avoided:
                self._close_stream(streams, stream)
        try:
            await self._open_missing(streams, wanted)
        except (OSError, HoldfastError) as error:
            self._warn(error)
            return False
        return True

    async def _receive(self, streams: list[S], waker: Waker, until: float) -> bool:
        """Handle messages until a connection or the waker is ready; False if a connection was closed."""
        polled = [(waker.fileno(), READ), *((stream.connection.fileno(), READ) for stream in streams)]
        ready = await self._poller.poll(polled, until)
        if waker.fileno() in ready:
            waker.drain()
        before = len(streams)
        for stream in [stream for stream in streams if stream.connection.fileno() in ready]:
            try:
                for message in await stream.read():
                    await self._handle(streams, stream, message)
            except (OSError, ValueError, HoldfastError) as error:
                self._lost(stream, error)
                self._close_stream(streams, stream)
        return len(streams) == before

    def _close_stream(self, streams: list[S], stream: S) -> None:
        stream.connection.close()
        if stream in streams:
            streams.remove(stream)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            logger().warning("cannot watch %s, so waiters have to poll: %s", self._source, error)
        self._has_warned = True
