"""The configuration in a postgresql URL, checked: servers, login, and the schema of the locks."""

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

# Passed to libpq unchanged.
LIBPQ_OPTIONS = (
    *("user", "password", "passfile", "application_name", "target_session_attrs"),
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "channel_binding"),
)
METHODS = ("queue", "advisory")


class Endpoint(NamedTuple):
    """One of the hosts in the URL."""

    host: str  # or the folder of its socket; "": libpq's default ($PGHOST, or the usual socket)
    port: int

    @property
    def needs_lookup(self) -> bool:
        """Its host is a name that has to be resolved."""
        if not self.host or self.host.startswith(("/", "@")):
            return False
        return not is_numeric(self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresqlConfig:
    """A database, and how this client uses it."""

    url: str  # without a password
    endpoints: tuple[Endpoint, ...]  # tried in this order
    parameters: Mapping[str, str] = field(repr=False)  # of libpq, for all endpoints
    schema: str  # quoted
    method: str
    connect_timeout: float
    max_connections: int = CONNECTIONS_MAX


def config_of(address: Address) -> PostgresqlConfig:
    """The configuration of an address.

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
    parameters = {
        "application_name": "holdfast",
        "keepalives_idle": str(KEEPALIVE_IDLE),
        "keepalives_interval": str(KEEPALIVE_INTERVAL),
        "keepalives_count": str(KEEPALIVE_COUNT),
        "tcp_user_timeout": str(USER_TIMEOUT_MS),
        **{option: options[option] for option in LIBPQ_OPTIONS if option in options},
        "client_encoding": "UTF8",
    }
    parameters |= {key: unquote(value) for key, value in (("user", user), ("password", password)) if value}
    if database:
        parameters["dbname"] = database
    if "\0" in "".join(parameters.values()):
        raise ConfigurationError("url must not have a zero byte in it")
    return PostgresqlConfig(
        url=address.redacted,
        endpoints=_endpoints(hosts, options),
        parameters=parameters,
        schema=quoted(options.get("schema", SCHEMA)),
        method=choice(options, "method", METHODS),
        connect_timeout=seconds(options, "connect_timeout", CONNECT_TIMEOUT),
        max_connections=max_connections(options),
    )


def _endpoints(hosts: str, options: Mapping[str, str]) -> tuple[Endpoint, ...]:
    if hosts and "host" in options:
        raise ConfigurationError("url has a host before the path and as an option: give it once")
    if "host" in options:
        return (Endpoint(options["host"], port_of(options.get("port", ""), _PORT)),)
    if "port" in options and hosts:
        raise ConfigurationError("url has the option 'port' and a host: write postgresql://host:port/database")
    if not hosts:
        return (Endpoint("", port_of(options["port"], _PORT) if "port" in options else 0),)
    return tuple(map(_endpoint, hosts.split(",")))


def _endpoint(text: str) -> Endpoint:
    endpoint = Endpoint(*host_and_port(text, _PORT))
    if not endpoint.host:
        raise ConfigurationError("url has a host without a name: postgresql://host1,host2:5433/database")
    return endpoint


def connection_parameters(
    config: PostgresqlConfig, addresses: Mapping[Endpoint, Sequence[str]]
) -> list[dict[str, str]]:
    """The parameters for libpq, one set for each address to try; `addresses` are those of resolved host names."""
    candidates: list[dict[str, str]] = []
    for endpoint in config.endpoints:
        parameters = dict(config.parameters)
        if endpoint.host:
            parameters["host"] = endpoint.host
        if endpoint.port:
            parameters["port"] = str(endpoint.port)
        if endpoint.needs_lookup:
            candidates += [{**parameters, "hostaddr": address} for address in addresses.get(endpoint, ())]
        else:
            candidates.append(parameters)
    return candidates
