"""The configuration in a mysql URL, checked: server, login, and the database of the locks."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from holdfast.backends.mysql.sql import database_of
from holdfast.backends.net.pool import CONNECTIONS_MAX
from holdfast.backends.url_parts import check_unix_sockets, choice, host_and_port, max_connections, seconds
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.url import Address

CONNECT_TIMEOUT = 3.0  # seconds
METHODS = ("unique", "row", "version")
_PORT = 3306


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
    password: bytes = field(default=b"", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    prefers_tls: bool = False  # used if the server supports it; its certificate is not verified
    connect_timeout: float = CONNECT_TIMEOUT
    max_connections: int = CONNECTIONS_MAX
    connect: Callable[[], Any] | None = field(default=None, repr=False)  # makes connections; replaces the login


def config_of(address: Address) -> MysqlConfig:
    """The configuration of an address.

    Raises:
        ConfigurationError: names the part or the option that is wrong, and the fix.
    """
    if isinstance(address.client, MysqlConfig):
        return address.client
    options = address.options
    method = choice(options, "method", METHODS)
    connect_timeout = seconds(options, "connect_timeout", CONNECT_TIMEOUT)
    userinfo, at, server = address.host.rpartition("@")
    if not at and "@" in address.path:
        raise ConfigurationError("url has an @ behind its first /: write / and @ in a password as %2F and %40")
    database = database_of(address)
    user, _, password = userinfo.partition(":")
    if password and "password" in options:
        raise ConfigurationError("url has a password before the host and as an option: give it once")
    socket = options.get("socket", "")
    if socket and server not in {"", "localhost"}:
        raise ConfigurationError(f"url has a host and the option 'socket': write {address.scheme}:///database?socket=…")
    if socket:
        check_unix_sockets("the option 'socket'")
    host, port = _server(server)
    tls = choice(options, "tls", ("preferred", "yes", "no"))
    return MysqlConfig(
        url=address.redacted,
        method=method,
        database=database,
        host=host or "localhost",
        port=port,
        socket=socket,
        user=unquote(user) or options.get("user"),
        password=(unquote(password) or options.get("password", "")).encode(),
        tls=_tls(options, tls),
        prefers_tls=tls == "preferred" and not socket,
        connect_timeout=connect_timeout,
        max_connections=max_connections(options),
    )


def _server(text: str) -> tuple[str, int]:
    if "," in text:
        raise ConfigurationError("url must name one host: locks are on one server, the one that takes the writes")
    return host_and_port(text, _PORT)


def _tls(options: Mapping[str, str], tls: str) -> ssl.SSLContext | None:
    given = [name for name in ("ca_certs", "certfile", "keyfile", "verify") if name in options]
    if tls != "yes":
        if given:
            raise ConfigurationError(f"url has {given[0]}= but TLS is not required: add tls=yes")
        return None
    is_verified = choice(options, "verify", ("required", "none")) == "required"
    if "keyfile" in options and "certfile" not in options:
        raise ConfigurationError("url has keyfile= without certfile=: a key needs its certificate")
    try:
        context = ssl.create_default_context(cafile=options.get("ca_certs"))
        if "certfile" in options:
            context.load_cert_chain(options["certfile"], options.get("keyfile"))
    except (OSError, ssl.SSLError) as error:
        names = ", ".join(f"{name}={options[name]}" for name in given if name != "verify")
        raise ConfigurationError(f"a file of certificates cannot be used ({names}): {error}") from error
    if not is_verified:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
