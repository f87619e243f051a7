"""The configuration in a mysql URL, checked: server, login, and the database of the locks."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.backends.local_handover import LOCAL_HANDOVER
from holdfast.backends.mysql.sql import database_of
from holdfast.backends.net.passwords import PasswordFunction, password_of
from holdfast.backends.net.pool import CONNECTIONS
from holdfast.backends.net.tls import tls_context, tls_options
from holdfast.errors import ConfigurationError
from holdfast.url_parts import Option, check_unix_sockets, choice, login_and_hosts, node_of, seconds, values_of

if TYPE_CHECKING:
    from holdfast.url import Address

_PORT = 3306

SETTINGS = (
    choice(
        "method",
        "unique",
        "`unique`: a queue in a table; `row`: the database's own row locks; `version`: one row, compared and set; "
        "clients exclude each other only with the same method",
        ("unique", "row", "version"),
    ),
    seconds("connect_timeout", "3", "seconds for connecting"),
    CONNECTIONS,
    LOCAL_HANDOVER,
)
_TLS = choice(
    "tls",
    "preferred",
    "`preferred`: if the server supports it, without verification of its certificate; `yes`: required; `no`",
    ("preferred", "yes", "no"),
)
OPTIONS = (
    *SETTINGS,
    Option("socket", None, "the path of a Unix socket, instead of a host"),
    Option("user", None, "the user, if it is not before the host"),
    Option("password", None, "the password, if it is not before the host"),
    _TLS,
    *tls_options(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlConfig:
    """A database, and how this client uses it."""

    url: str  # without a password
    method: str
    database: str
    host: str = ""
    port: int = _PORT
    socket: str = ""  # the path of a Unix socket; then host and port are not used
    user: str | None = None
    password: bytes | PasswordFunction = field(default=b"", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    prefers_tls: bool = False  # used if the server supports it; its certificate is not verified
    connect_timeout: float
    max_connections: int
    local_handover: bool
    connect: Callable[[], Any] | None = field(default=None, repr=False)  # makes connections; replaces the login


def config_of(address: Address) -> MysqlConfig:
    """The configuration of an address.

    Raises:
        ConfigurationError: names the part or the option that is wrong, and the fix.
    """
    if isinstance(address.client, MysqlConfig):
        return address.client
    options = address.options
    user, password, server = login_and_hosts(address.host, address.path)
    database = database_of(address)
    if password and "password" in options:
        raise ConfigurationError("url has a password before the host and as an option: give it once")
    socket = options.get("socket", "")
    if socket and server not in {"", "localhost"}:
        raise ConfigurationError(f"url has a host and the option 'socket': write {address.scheme}:///database?socket=…")
    if socket:
        check_unix_sockets("the option 'socket'")
    if "," in server:
        raise ConfigurationError("url must name one host: locks are on one server, the one that takes the writes")
    host, port = node_of(f"localhost{server}" if server[:1] in {"", ":"} else server, _PORT)
    tls, given = _TLS.value(options), password_of(address, password or options.get("password"))
    return MysqlConfig(
        url=address.redacted,
        database=database,
        host=host,
        port=port,
        socket=socket,
        user=user or options.get("user"),
        password=given.encode() if isinstance(given, str) else given or b"",
        tls=tls_context(options, is_on=tls == "yes"),
        prefers_tls=tls == "preferred" and not socket,
        **values_of(options, SETTINGS),
    )
