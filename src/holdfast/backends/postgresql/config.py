"""Where the server is, how to be let in, and in which schema the locks are: what a postgresql URL says, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from holdfast.backends.net.addresses import is_numeric
from holdfast.backends.net.pool import CONNECTIONS_MAX
from holdfast.backends.net.sockets import KEEPALIVE_COUNT, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, USER_TIMEOUT_MS
from holdfast.backends.postgresql.sql import SCHEMA, quoted
from holdfast.backends.url_parts import choice, host_and_port, max_connections, port_of, seconds
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.url import Address

CONNECT_TIMEOUT = 3.0  # seconds
_PORT = 5432

# Handed on to libpq as they are.
LIBPQ_OPTIONS = (
    *("user", "password", "passfile", "application_name", "target_session_attrs"),
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "channel_binding"),
)
METHODS = ("queue", "advisory")


class Server(NamedTuple):
    """One of the hosts in the URL."""

    host: str  # or the folder of its socket; "": as libpq finds it ($PGHOST, or the usual socket)
    port: int

    @property
    def needs_lookup(self) -> bool:
        """Its address has to be asked for."""
        if not self.host or self.host.startswith(("/", "@")):
            return False
        return not is_numeric(self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One database, and how this client uses it."""

    url: str  # without a password
    servers: tuple[Server, ...]  # tried one after the other
    login: Mapping[str, str] = field(repr=False)  # what libpq is told of all of them
    schema: str  # quoted
    method: str
    connect_timeout: float
    max_connections: int = CONNECTIONS_MAX


def place_of(address: Address) -> Place:
    """What an address says.

    Raises:
        ConfigurationError: names the part or the option that is wrong, and the fix.
    """
    options = address.options
    userinfo, at, hosts = address.host.rpartition("@")
    if not at and "@" in address.path:
        raise ConfigurationError("url has an @ behind its first /: write / and @ in a password as %2F and %40")
    user, _, password = userinfo.partition(":")
    database = address.path.removeprefix("/")
    if "/" in database:
        raise ConfigurationError(f"url must name one database, postgresql://host/database, not {database!r}")
    login = {
        "application_name": "holdfast",
        "keepalives_idle": str(KEEPALIVE_IDLE),
        "keepalives_interval": str(KEEPALIVE_INTERVAL),
        "keepalives_count": str(KEEPALIVE_COUNT),
        "tcp_user_timeout": str(USER_TIMEOUT_MS),
        **{option: options[option] for option in LIBPQ_OPTIONS if option in options},
        "client_encoding": "UTF8",
    }
    login |= {key: unquote(value) for key, value in (("user", user), ("password", password)) if value}
    if database:
        login["dbname"] = database
    if "\0" in "".join(login.values()):
        raise ConfigurationError("url must not have a zero byte in it")
    return Place(
        url=address.redacted,
        servers=_servers(hosts, options),
        login=login,
        schema=quoted(options.get("schema", SCHEMA)),
        method=choice(options, "method", METHODS),
        connect_timeout=seconds(options, "connect_timeout", CONNECT_TIMEOUT),
        max_connections=max_connections(options),
    )


def _servers(hosts: str, options: Mapping[str, str]) -> tuple[Server, ...]:
    if hosts and "host" in options:
        raise ConfigurationError("url has a host before the path and as an option: give it once")
    if "host" in options:
        return (Server(options["host"], port_of(options.get("port", ""), _PORT)),)
    if "port" in options and hosts:
        raise ConfigurationError("url has the option 'port' and a host: write postgresql://host:port/database")
    if not hosts:
        return (Server("", port_of(options["port"], _PORT) if "port" in options else 0),)
    return tuple(map(_server, hosts.split(",")))


def _server(text: str) -> Server:
    server = Server(*host_and_port(text, _PORT))
    if not server.host:
        raise ConfigurationError("url has a host without a name: postgresql://host1,host2:5433/database")
    return server


def attempts(place: Place, found: Mapping[Server, Sequence[str]]) -> list[dict[str, str]]:
    """What to tell libpq, one for each address to try; `found` are those of hosts that had to be asked for."""
    tries: list[dict[str, str]] = []
    for server in place.servers:
        told = dict(place.login)
        if server.host:
            told["host"] = server.host
        if server.port:
            told["port"] = str(server.port)
        if server.needs_lookup:
            tries += [{**told, "hostaddr": one} for one in found.get(server, ())]
        else:
            tries.append(told)
    return tries
