"""What we take of redis-py: connecting, TLS, logging in, choosing the database. Its retries and its commands we leave.

Once connected, its connections are taken apart: of the blocking one we keep the socket, of the asyncio one the
transport, because what lies above them costs more than the network does. From redis-py 5.0 to 8.1 these are `_sock` and
`_writer`; nobody but this file knows.
"""

from __future__ import annotations

import inspect
import socket
from typing import TYPE_CHECKING, Any

from redis import connection as redis_connection
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

if TYPE_CHECKING:
    import asyncio

    from holdfast.backends.redis.address import Login, Node

# What connecting may raise: also a host name that cannot be encoded, a certificate file that cannot be read.
FAILURES = (RedisError, OSError, ValueError)

# Redis-py's own choice since 7.0: a dead peer is noticed after 45 s at the latest, also where nobody asks anything.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


def arguments(login: Login, node: Node, *, db: int, timeout: float, retry: Any) -> dict[str, Any]:
    """For one of redis-py's connections, blocking or not."""
    where: dict[str, Any] = {"path": node.host}
    if node.port:
        where = {
            "host": node.host,
            "port": node.port,
            "socket_keepalive": True,
            "socket_keepalive_options": {
                getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)
            },
        }
    return {
        **where,
        **login.arguments,
        **_NO_INTRODUCTION,
        "db": db,
        "protocol": 2,
        "retry": retry(NoBackoff(), 0),
        "socket_connect_timeout": timeout,
        "socket_timeout": timeout,
    }


def kind_of(module: Any, login: Login, node: Node) -> Any:
    """The class of connection for this server, in redis-py's blocking or asyncio module."""
    if not node.port:
        return module.UnixDomainSocketConnection
    return module.SSLConnection if login.is_tls else module.Connection


def plain_errors(parser: Any) -> Any:
    """The same parser, except that error replies keep their code, which redis-py cuts off from those it knows."""

    def parse_error(_: Any, response: str) -> ResponseError:
        return ResponseError(response)

    return type("PlainErrors", (parser,), {"parse_error": classmethod(parse_error)})


def take_socket(connection: Any) -> socket.socket:
    """Out of its hands: it would say goodbye on it when it is collected, in a forked child too."""
    sock: socket.socket = connection._sock
    connection._sock = None
    return sock


def transport_of(connection: Any) -> asyncio.Transport:
    """For as long as the connection is there: dropped, it would close the transport."""
    transport: asyncio.Transport = connection._writer.transport
    return transport


def let_go(connection: Any) -> None:
    """Close the transport, so that there is nothing left to close, or to complain of, when it is collected."""
    writer, connection._writer, connection._reader = connection._writer, None, None
    if writer is not None:
        writer.close()


# It would send two commands of its own, and wait for each, to say that it is redis-py.
_TAKEN = inspect.signature(redis_connection.AbstractConnection.__init__).parameters
_NO_INTRODUCTION: dict[str, Any] = (
    {"driver_info": None} if "driver_info" in _TAKEN else {"lib_name": None, "lib_version": None}
)
