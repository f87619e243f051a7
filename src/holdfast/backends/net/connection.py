"""One connection that is read and written with a poller, so the same code serves threads and asyncio.

It serves one request at a time, and is closed at the first error. A subclass adds the protocol.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl

from holdfast.backends.net.poller import READ, WRITE, Poller, is_readable
from holdfast.backends.net.pool import Probe, wait_ready
from holdfast.backends.net.sockets import open_socket
from holdfast.core.ports import Runtime
from holdfast.errors import BackendUnavailable
from holdfast.url_parts import Node

_READ_MAX = 1 << 16


class BaseConnection:
    """A socket that does not block. A subclass opens it, or gets it when it is open."""

    __slots__ = ("__weakref__", "_now", "_poller", "_socket", "_url", "probe", "used_at")

    def __init__(self, url: str, poller: Poller, runtime: Runtime, sock: socket.socket | None = None) -> None:
        self._url, self._poller, self._now = url, poller, runtime.now
        self._socket = sock
        self.used_at = 0.0
        self.probe: Probe | None = None

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def is_dead(self) -> bool:
        """The server has closed it, or has sent something without a request."""
        return self._socket is None or is_readable(self._socket)

    def close(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def abandon(self) -> None:
        """In a forked child: close the descriptor only, without the closing message of TLS."""
        sock, self._socket = self._socket, None
        if sock is not None:
            with contextlib.suppress(OSError):
                os.close(sock.detach())


class PolledConnection(BaseConnection):
    """One connection to a server of a list."""

    __slots__ = ("node",)

    def __init__(self, url: str, node: Node, poller: Poller, runtime: Runtime) -> None:
        super().__init__(url, poller, runtime)
        self.node = node

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    async def connect(self, tls: ssl.SSLContext | None, until: float) -> None:
        """Raises OSError if it fails."""
        self._socket = await open_socket(self.node.host, self.node.port, self._poller, until, tls)

    async def send(self, request: bytes, until: float, written: int = 0) -> None:
        """Send the rest of a request. Raises BackendUnavailable if nothing was written, OSError if only a part was."""
        if self._socket is None or (not written and until <= self._now()):
            problem = "no time was left" if self._socket else "the connection is closed"
            raise BackendUnavailable(backend=self._url, problem=f"{self.node}: {problem}")
        unsent = memoryview(request)[written:]
        while unsent:
            try:
                unsent = unsent[self._socket.send(unsent) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                await self._wait(WRITE, until)
            except ssl.SSLWantReadError:
                await self._wait(READ, until)
            except OSError as error:
                if len(unsent) == len(request):
                    raise BackendUnavailable(backend=self._url, problem=self._problem(error)) from error
                raise

    def receive(self) -> bytes | None:
        """Data that has arrived; None if there is none, b"" at the end of the connection. Raises OSError."""
        if self._socket is None:
            return b""
        try:
            return self._socket.recv(_READ_MAX)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None

    @property
    def has_more(self) -> bool:
        """TLS has decrypted data that was not read yet. poll() does not report it."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    async def _wait(self, events: int, until: float) -> None:
        if not await wait_ready(self, self._poller, self.fileno(), events, until):
            raise TimeoutError("no answer in time")

    def _problem(self, error: BaseException) -> str:
        return f"{self.node}: {' '.join(str(error).split()) or type(error).__name__}"
