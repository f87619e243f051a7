"""The parts of redis-py that are used: connecting, TLS, authentication and SELECT. Its retries and commands are not.

Of a connected blocking connection only the socket is kept, of an asyncio one the transport, because the layers above
them cost more time than the network. From redis-py 5.0 to 8.1 these are the private attributes `_sock` and `_writer`;
no other file uses them.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from redis import connection as redis_connection
from redis.asyncio import connection as asyncio_connection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from holdfast.backends.net.blocking import BlockingPoller
from holdfast.backends.net.sockets import open_socket
from holdfast.runtimes import system
from holdfast.runtimes.threads import run_sync

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Mapping

    from holdfast.backends.net.poller import Poller
    from holdfast.backends.redis.config import Login
    from holdfast.url_parts import Node

_TIMEOUT_MIN = 0.001  # seconds: 0 would mean a socket that does not block

# Exceptions of connecting, including a host name that cannot be encoded and a certificate file that cannot be read.
FAILURES = (RedisError, OSError, ValueError)


def connected_socket(login: Login, node: Node, *, db: int, until: float) -> socket.socket:
    """A socket to a server, authenticated. Raises one of FAILURES."""
    timeout = max(_TIMEOUT_MIN, until - system.now())
    kind = _class_of(login, node, _TcpConnection, _TlsConnection, redis_connection.UnixDomainSocketConnection)
    connection = kind(**_arguments(login, node, db=db, timeout=timeout, retry=Retry), parser_class=_PARSER)
    connection.until = until
    connection.connect()
    # Detach the socket: the connection would send a TLS shutdown on it when it is garbage-collected, also in a fork.
    sock: socket.socket = connection._sock
    connection._sock = None
    return sock


def new_connection(login: Login, node: Node, *, db: int, timeout: float, poller: Poller) -> Any:
    """A redis.asyncio connection, to be connected within `timeout`. Raises one of FAILURES."""
    unix = asyncio_connection.UnixDomainSocketConnection
    kind = _class_of(login, node, _AsyncTcpConnection, _AsyncTlsConnection, unix)
    arguments = _arguments(login, node, db=db, timeout=timeout, retry=AsyncRetry)
    connection = kind(**arguments, parser_class=_ASYNC_PARSER)
    connection.until, connection.poller = system.now() + timeout, poller
    return connection


class _TcpConnection(redis_connection.Connection):
    """Opens its socket with a deadline: redis-py itself resolves the host name without one."""

    until = 0.0

    def _connect(self) -> socket.socket:
        sock = run_sync(open_socket(self.host, self.port, BlockingPoller(), self.until))
        sock.settimeout(self.socket_timeout)
        return sock


class _TlsConnection(redis_connection.SSLConnection, _TcpConnection):
    """The same with TLS; the host name is checked."""


class _AsyncTcpConnection(asyncio_connection.Connection):
    """The same for asyncio."""

    until = 0.0
    poller: Poller
    _sock_to_use: socket.socket

    async def _connect(self) -> None:
        self._sock_to_use = await open_socket(self.host, self.port, self.poller, self.until)
        try:
            await super()._connect()  # type: ignore[no-untyped-call]  # redis-py gives it no types
        except BaseException:
            self._sock_to_use.close()
            raise

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {"sock": self._sock_to_use}


class _AsyncTlsConnection(asyncio_connection.SSLConnection, _AsyncTcpConnection):
    """The same with TLS; the host name is checked."""

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "server_hostname": self.host}


def _arguments(login: Login, node: Node, *, db: int, timeout: float, retry: Any) -> dict[str, Any]:
    address: dict[str, Any] = {"path": node.host}
    if node.port:
        address = {"host": node.host, "port": node.port, "socket_keepalive": False}  # open_socket has set it
    return {
        **address,
        **login.arguments,
        **_NO_INTRODUCTION,
        "db": db,
        "protocol": 2,
        "retry": retry(NoBackoff(), 0),
        "socket_connect_timeout": timeout,
        "socket_timeout": timeout,
    }


def _class_of(login: Login, node: Node, plain: Any, secure: Any, unix: Any) -> Any:
    if not node.port:
        return unix
    return secure if login.is_tls else plain


def _plain_errors(parser: Any) -> Any:
    """A subclass of this parser in which all error replies keep their code. redis-py removes some of the codes."""

    def parse_error(_: Any, response: str) -> ResponseError:
        return ResponseError(response)

    return type("PlainErrors", (parser,), {"parse_error": classmethod(parse_error)})


def transport_of(connection: Any) -> asyncio.Transport:
    """The transport of a connection. Keep the connection: when it is collected, it closes the transport."""
    transport: asyncio.Transport = connection._writer.transport
    return transport


def close_transport(connection: Any) -> None:
    """Close the transport, so that the connection does not warn about it when it is collected."""
    writer, connection._writer, connection._reader = connection._writer, None, None
    if writer is not None:
        writer.close()


_PARSER = _plain_errors(redis_connection.DefaultParser)
_ASYNC_PARSER = _plain_errors(asyncio_connection.DefaultParser)
# Without this, redis-py sends two commands with its name and version, and waits for each reply.
_PARAMETERS = inspect.signature(redis_connection.AbstractConnection.__init__).parameters
_NO_INTRODUCTION: dict[str, Any] = (
    {"driver_info": None} if "driver_info" in _PARAMETERS else {"lib_name": None, "lib_version": None}
)
