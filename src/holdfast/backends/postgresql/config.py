"""The configuration in a postgresql URL, checked: servers, login, and the schema of the locks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from holdfast.backends.local_handover import LOCAL_HANDOVER
from holdfast.backends.net.addresses import is_numeric
from holdfast.backends.net.passwords import Password, password_of
from holdfast.backends.net.pool import CONNECTIONS
from holdfast.backends.net.sockets import KEEPALIVE_COUNT, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, USER_TIMEOUT_MS
from holdfast.backends.postgresql.sql import SCHEMA, quoted
from holdfast.errors import ConfigurationError
from holdfast.url import Address, parse
from holdfast.url_parts import PORT_MAX, Option, choice, integer, login_and_hosts, node_of, seconds, values_of

_PORT = 5432

SETTINGS = (
    Option(
        "schema",
        SCHEMA,
        "the schema of the tables, created if it is missing; clients exclude each other only within one schema",
        parse=quoted,
    ),
    choice(
        "method",
        "queue",
        "`queue`: a queue in our tables, for locks, readers/writers and semaphores; `advisory`: PostgreSQL's own lock "
        "queue, for locks only",
        ("queue", "advisory"),
    ),
    choice(
        "pooler",
        "none",
        "`transaction`: the URL leads to PgBouncer in transaction mode or a pooler like it, so nothing is kept in a "
        "session, and waiters poll",
        ("none", "transaction"),
    ),
    Option(
        "listen_url",
        None,
        "with `pooler=transaction`: a URL that leads to the same database without the pooler, for one connection that "
        "wakes waiters; login, database and TLS options that it leaves out are those of the URL itself",
        valid="a URL such as postgresql://host:5432",
    ),
    seconds("connect_timeout", "3", "seconds for connecting, all hosts together"),
    CONNECTIONS,
    LOCAL_HANDOVER,
)
_HOST = Option("host", None, "the host or the folder of a socket, if it is not before the path")
_SOCKET_PORT = integer("port", None, "the port that belongs to `host`", maximum=PORT_MAX)
# Passed to libpq unchanged.
_LIBPQ = tuple(
    Option(name, "holdfast" if name == "application_name" else None, "as in libpq")
    for name in (
        *("user", "password", "passfile", "target_session_attrs", "sslmode", "sslrootcert", "sslcert", "sslkey"),
        *("sslcrl", "channel_binding", "application_name"),
    )
)
OPTIONS = (*SETTINGS, _HOST, _SOCKET_PORT, *_LIBPQ)


class Endpoint(NamedTuple):
    """One of the hosts in the URL."""

    host: str  # or the folder of its socket; "": libpq's default ($PGHOST, or the usual socket)
    port: int

    @property
    def needs_lookup(self) -> bool:
        """Its host is a name that has to be resolved."""
        return bool(self.host) and not self.host.startswith(("/", "@")) and not is_numeric(self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresqlConfig:
    """A database, and how this client uses it."""

    url: str  # without a password
    endpoints: tuple[Endpoint, ...]  # tried in this order
    parameters: Mapping[str, str] = field(repr=False)  # of libpq, for all endpoints
    password: Password = field(default="", repr=False)  # "": none, or the one in a passfile
    schema: str  # quoted
    method: str
    is_pooled: bool  # each transaction may run in another session, which other programs use too
    listen: PostgresqlConfig | None  # where to listen for notifications; None: at the same address
    connect_timeout: float
    max_connections: int
    local_handover: bool


def config_of(address: Address) -> PostgresqlConfig:
    """The configuration of an address.

    Raises:
        ConfigurationError: names the part or the option that is wrong, and the fix.
    """
    if isinstance(address.client, PostgresqlConfig):
        return address.client
    endpoints, parameters, password = _servers_and_login(address)
    return libpq_config(
        url=address.redacted,
        endpoints=endpoints,
        parameters=parameters,
        password=password or "",
        settings=values_of(address.options, SETTINGS),
    )


def _servers_and_login(address: Address) -> tuple[tuple[Endpoint, ...], dict[str, str], Password | None]:
    """The endpoints, the parameters of libpq and the password in a URL."""
    options = address.options
    user, password, hosts = login_and_hosts(address.host, address.path)
    database = address.path.removeprefix("/")
    if "/" in database:
        raise ConfigurationError(f"url must name one database, postgresql://host/database, not {database!r}")
    parameters = {
        **{option.name: options[option.name] for option in _LIBPQ if option.name in options},
        **{name: value for name, value in (("user", user), ("dbname", database)) if value},
    }
    in_options = parameters.pop("password", None)
    given = password_of(address, password or in_options)
    if "\0" in "".join(parameters.values()) + (given if isinstance(given, str) else ""):
        raise ConfigurationError("url must not have a zero byte in it")
    return _endpoints(hosts, options), parameters, given


def libpq_config(
    *,
    url: str,
    endpoints: tuple[Endpoint, ...],
    parameters: Mapping[str, str],
    password: Password,
    settings: Mapping[str, Any],
) -> PostgresqlConfig:
    """The configuration with these parameters of libpq, and those that are the same for all connections of ours.

    Raises:
        ConfigurationError: an option does not go together with the pooler; or the listen_url is wrong.
    """
    ours = {
        "keepalives_idle": str(KEEPALIVE_IDLE),
        "keepalives_interval": str(KEEPALIVE_INTERVAL),
        "keepalives_count": str(KEEPALIVE_COUNT),
        "tcp_user_timeout": str(USER_TIMEOUT_MS),
        "application_name": "holdfast",
    }
    rest = dict(settings)
    is_pooled, listen_url = rest.pop("pooler") == "transaction", rest.pop("listen_url")
    if is_pooled and settings["method"] == "advisory":
        raise ConfigurationError(
            "method=advisory does not work with pooler=transaction: an advisory lock belongs to a session, and the "
            "pooler lends a session for one transaction: use method=queue, or a url that leads to the server itself"
        )
    if listen_url is not None and not is_pooled:
        raise ConfigurationError("listen_url is for pooler=transaction: without a pooler, url itself is listened to")
    config = PostgresqlConfig(
        url=url,
        endpoints=endpoints,
        parameters={**ours, **parameters, "client_encoding": "UTF8"},
        password=password,
        is_pooled=is_pooled,
        listen=None,
        **rest,
    )
    return config if listen_url is None else replace(config, listen=_listen_config(listen_url, config))


def _listen_config(listen_url: str, config: PostgresqlConfig) -> PostgresqlConfig:
    """The configuration of the connection to `listen_url`. Parts that the URL omits are taken from `config`."""
    try:
        address = parse(listen_url)
        if address.scheme not in {"postgresql", "postgres"}:
            raise ConfigurationError(f"its scheme must be postgresql, not {address.scheme}")
        for option in SETTINGS:
            if option.name in address.options:
                raise ConfigurationError(f"the option {option.name!r} is for the url itself: leave it out")
        endpoints, parameters, password = _servers_and_login(address)
    except ConfigurationError as error:
        raise ConfigurationError(f"listen_url: {error}") from None
    if password is None and parameters.get("user") in {None, config.parameters.get("user")}:
        password = config.password
    return replace(
        config,
        url=address.redacted,
        endpoints=endpoints,
        parameters={**config.parameters, **parameters},
        password=password or "",
        is_pooled=False,
    )


def _endpoints(hosts: str, options: Mapping[str, str]) -> tuple[Endpoint, ...]:
    host, port = _HOST.value(options), _SOCKET_PORT.value(options)
    if hosts and host is not None:
        raise ConfigurationError("url has a host before the path and as an option: give it once")
    if hosts and port is not None:
        raise ConfigurationError("url has the option 'port' and a host: write postgresql://host:port/database")
    if hosts:
        return tuple(Endpoint(*node_of(text, _PORT)) for text in hosts.split(","))
    return (Endpoint("", port or 0) if host is None else Endpoint(host, port or _PORT),)


def connection_parameters(
    config: PostgresqlConfig, password: str, addresses: Mapping[Endpoint, Sequence[str]]
) -> list[dict[str, str]]:
    """The parameters for libpq, one set for each address to try; `addresses` are those of resolved host names."""
    candidates: list[dict[str, str]] = []
    for endpoint in config.endpoints:
        parameters = dict(config.parameters)
        if password:
            parameters["password"] = password
        if endpoint.host:
            parameters["host"] = endpoint.host
        if endpoint.port:
            parameters["port"] = str(endpoint.port)
        if endpoint.needs_lookup:
            candidates += [{**parameters, "hostaddr": address} for address in addresses.get(endpoint, ())]
        else:
            candidates.append(parameters)
    return candidates
