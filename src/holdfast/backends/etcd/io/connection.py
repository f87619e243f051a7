"""One HTTP connection to a member. It serves one request at a time, and is closed at the first error."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from typing import TYPE_CHECKING

from holdfast.backends.etcd.io.http import NotHttp, Response, encode_request
from holdfast.backends.net.poller import READ, WRITE, is_readable
from holdfast.backends.net.pool import wait_ready
from holdfast.backends.net.sockets import open_socket

if TYPE_CHECKING:
    from holdfast.backends.net.poller import Poller
    from holdfast.backends.net.pool import Probe
    from holdfast.core.ports import Runtime
    from holdfast.url_parts import Node

_READ_MAX = 1 << 16


class NotSent(Exception):
    """Nothing was written, so nothing was requested."""


class NotAnswered(Exception):
    """The request was written, at least in part, and had no answer."""


class Connection:
    """One connection."""

    __slots__ = ("__weakref__", "_now", "_poller", "_socket", "node", "probe", "used_at")

    def __init__(self, node: Node, poller: Poller, runtime: Runtime) -> None:
        self.node = node
        self._poller, self._now = poller, runtime.now
        self._socket: socket.socket | None = None
        self.used_at = 0.0
        self.probe: Probe | None = None

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    async def connect(self, tls: ssl.SSLContext | None, until: float) -> None:
        """Raises OSError if it fails."""
        self._socket = await open_socket(self.node.host, self.node.port, self._poller, until, tls)

    async def exchange(self, path: str, token: str, body: bytes, deadline: float) -> Response:
        """Send a request and read its whole answer.

        Raises:
            NotSent, NotAnswered: the connection is closed.
        """
        response = Response()
        try:
            await self.send(path, token, body, deadline)
            await self._read_all(response, deadline)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | NotHttp):
                raise NotAnswered(_error_text(error)) from error
            raise
        if response.is_last:
            self.close()
        return response

    async def _read_all(self, response: Response, deadline: float) -> None:
        while not response.is_complete:
            await self._wait(READ, deadline)
            self.read_into(response)

    async def send(self, path: str, token: str, body: bytes, deadline: float) -> None:
        """Raises NotSent if nothing was written, OSError if only a part was."""
        data = memoryview(encode_request(str(self.node), path, token, body))
        sent = 0
        if self._socket is None or deadline <= self._now():
            raise NotSent("no time was left" if self._socket else "the connection is closed")
        while sent < len(data):
            try:
                sent += self._socket.send(data[sent:])
            except (BlockingIOError, ssl.SSLWantWriteError):
                await self._wait(WRITE, deadline)
            except ssl.SSLWantReadError:
                await self._wait(READ, deadline)
            except OSError as error:
                if not sent:
                    raise NotSent(_error_text(error)) from error
                raise

    def read_into(self, response: Response) -> None:
        """Read what has arrived. Raises OSError or NotHttp if the connection has failed."""
        while self._socket is not None:
            try:
                data = self._socket.recv(_READ_MAX)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            response.feed(data)
            if response.is_complete or not isinstance(self._socket, ssl.SSLSocket) or not self._socket.pending():
                return

    def is_dead(self) -> bool:
        """The server has closed it, or has sent something without a request."""
        if self._socket is None:
            return True
        return is_readable(self._socket)

    def close(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def abandon(self) -> None:
        """In a forked child: close the descriptor only."""
        sock, self._socket = self._socket, None
        if sock is not None:
            with contextlib.suppress(OSError):
                os.close(sock.detach())

    async def _wait(self, events: int, until: float) -> None:
        if not await wait_ready(self, self._poller, self.fileno(), events, until):
            raise TimeoutError("no answer in time")


def _error_text(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
