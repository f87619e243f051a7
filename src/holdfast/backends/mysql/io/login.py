"""Login: PyMySQL does the handshake and the authentication; after that the socket is ours.

This is the only module that uses PyMySQL. Its `Connection` is not used after the login: its timeouts are per read, not
per request, and asyncio would need another driver with different behaviour.
"""

from __future__ import annotations

import functools
import ssl
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.constants import CLIENT

from holdfast.backends.mysql.io.errors import error_from
from holdfast.backends.net.calls import BackgroundCall
from holdfast.backends.net.sockets import open_socket
from holdfast.backends.sql_connections import unavailable
from holdfast.errors import BackendUnavailable, ConfigurationError
from holdfast.runtimes import system

if TYPE_CHECKING:
    import socket

    from holdfast.backends.mysql.config import MysqlConfig
    from holdfast.backends.net.poller import Poller

_STEP_MIN = 0.05  # seconds


async def log_in(config: MysqlConfig, poller: Poller, deadline: float) -> socket.socket:
    """A socket after the login.

    PyMySQL runs on a thread of its own: its timeouts are per read, and a function of the user may have none.

    Raises:
        BackendUnavailable: the server could not be reached, or refused the login.
        ConfigurationError: there is no such database, or this user may not use it.
    """
    sock: socket.socket | None = None
    try:
        password = config.password
        if not isinstance(password, bytes):
            password = (await password.ask(config.url, poller, deadline)).encode()
        if config.connect is None and not config.socket:
            sock = await open_socket(config.host, config.port, poller, deadline)
        seconds = max(_STEP_MIN, deadline - system.now())
        call = BackgroundCall(
            lambda: _logged_in(config, password, sock, seconds), "login", discard=lambda late: late.close()
        )
        try:
            try:
                call.start()
            except OSError:
                if sock is not None:
                    sock.close()  # no thread has it
                raise
            if not await poller.wait_done(call, deadline):
                raise unavailable(config.url, "no answer in time")
        except BaseException:
            call.abandon()
            raise
        return call.result()
    except (pymysql.err.MySQLError, OSError, RuntimeError) as error:
        raise _translated(error, config.url) from error


def _logged_in(config: MysqlConfig, password: bytes, sock: socket.socket | None, seconds: float) -> socket.socket:
    if config.connect is None:
        return _socket_of(_connection(config, password, sock, seconds))
    connection = config.connect()
    _check(connection)
    return _socket_of(connection)


def _connection(config: MysqlConfig, password: bytes, sock: socket.socket | None, seconds: float) -> Any:
    arguments: dict[str, Any] = (
        {"unix_socket": config.socket} if config.socket else {"host": config.host, "port": config.port}
    )
    if config.tls is not None:
        arguments["ssl"] = config.tls
    elif not config.prefers_tls:
        arguments["ssl_disabled"] = True
    if config.user is not None:
        arguments["user"] = config.user
    connection = _Connection(
        password=password,
        database=config.database,
        charset="utf8mb4",
        client_flag=CLIENT.MULTI_STATEMENTS,
        autocommit=None,
        program_name="holdfast",
        connect_timeout=seconds,
        read_timeout=seconds,
        write_timeout=seconds,
        defer_connect=True,
        **arguments,
    )
    connection.connect(sock)
    return connection


class _Connection(pymysql.Connection):
    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        # With tls=preferred, PyMySQL reads the certificates of all authorities at each login, although it verifies
        # nothing with them. That takes 27 ms of CPU.
        context: ssl.SSLContext = sslp or _unverified_context()
        return context


@functools.cache
def _unverified_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _check(connection: object) -> None:
    """Raise if a connection that a user's function made cannot be used."""
    if not isinstance(connection, pymysql.connections.Connection):
        raise ConfigurationError(f"the function must return a connection of PyMySQL's, not {connection!r}")
    if connection.client_flag & (CLIENT.DEPRECATE_EOF | CLIENT.SESSION_TRACK | CLIENT.COMPRESS):
        raise ConfigurationError("the function must not ask for DEPRECATE_EOF, SESSION_TRACK or COMPRESS")


def _socket_of(connection: Any) -> socket.socket:
    # Closing the reader leaves the socket open. PyMySQL must not keep the socket, because its connection closes it.
    reader, connection._rfile = connection._rfile, None  # noqa: SLF001 (there is no public way to the socket)
    sock: socket.socket
    sock, connection._sock = connection._sock, None  # noqa: SLF001
    reader.close()
    sock.setblocking(False)  # noqa: FBT003 (its name says it)
    return sock


def _translated(error: Exception, url: str) -> Exception:
    if isinstance(error, pymysql.err.MySQLError) and len(error.args) > 1 and isinstance(error.args[0], int):
        translated = error_from(error.args[0], str(error.args[1]), url)
        if isinstance(translated, ConfigurationError):
            return translated
    words = " ".join(str(error.args[-1] if error.args else error).split()) or type(error).__name__
    return BackendUnavailable(backend=url, problem=words)
