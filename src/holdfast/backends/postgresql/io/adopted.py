"""A connection or pool of psycopg, or an engine of SQLAlchemy, in place of a URL: same server, user and TLS.

Only the settings of the object are read; holdfast opens connections of its own.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.backends.net.passwords import PasswordFunction
from holdfast.backends.postgresql.config import SETTINGS, Endpoint, libpq_config
from holdfast.backends.sql_engines import connect_arguments, is_engine, unknown_driver
from holdfast.errors import ConfigurationError
from holdfast.url import Address, check_options, unknown_client
from holdfast.url_parts import values_of

# Parameters of libpq that holdfast sets itself, or that are for one connection.
_NOT_TAKEN = {
    *("connect_timeout", "client_encoding", "fallback_application_name", "replication", "hostaddr"),
    *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout"),
}
# Arguments of connect() of psycopg and psycopg2 that are not parameters of libpq.
_OF_DRIVERS = (
    *("autocommit", "prepare_threshold", "context", "row_factory", "cursor_factory"),
    *("connection_factory", "async_", "dsn"),
)
_LIBPQ_DRIVERS = ("psycopg", "psycopg_async", "psycopg2")
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def address_of(client: object, options: dict[str, str]) -> Address:
    """The address of the server of this object.

    Raises:
        ConfigurationError: it is not one of the supported objects, or has settings that cannot be taken.
    """
    check_options("postgresql", options)
    for name in sorted(options.keys() - {option.name for option in SETTINGS}):
        raise ConfigurationError(f"{name} is read from the connection: leave it out, or give a URL")
    password: str | PasswordFunction
    if isinstance(client, psycopg.Connection | psycopg.AsyncConnection):
        parameters, password = _of_connection(client)
    elif is_engine(client):
        parameters = _of_engine(client)
        password = parameters.get("password", "")
    elif hasattr(client, "conninfo") and hasattr(client, "kwargs"):
        parameters, password = _of_pool(client)
    else:
        kind = f"{type(client).__module__}.{type(client).__qualname__}"
        raise ConfigurationError(
            f"url is a {kind}: give a connection or pool of psycopg 3, an engine of SQLAlchemy, or a URL"
        )
    taken = {name: value for name, value in parameters.items() if name not in {*_NOT_TAKEN, "host", "port", "password"}}
    endpoints = _endpoints(parameters)
    hosts = ",".join(f"{endpoint.host}:{endpoint.port}" if endpoint.port else endpoint.host for endpoint in endpoints)
    user = f"{taken['user']}@" if "user" in taken else ""
    url = f"postgresql://{user}{hosts}/{taken.get('dbname', '')}"
    config = libpq_config(
        url=url, endpoints=endpoints, parameters=taken, password=password, settings=values_of(options, SETTINGS)
    )
    return Address("postgresql", "", "", options, url, config)


def _of_connection(connection: Any) -> tuple[dict[str, str], str]:
    if connection.closed:
        raise ConfigurationError("url is a closed connection, which has no address any more: give an open one or a URL")
    return connection.info.get_parameters(), connection.info.password


def _of_pool(pool: Any) -> tuple[dict[str, str], str | PasswordFunction]:
    if pool.connection_class not in {psycopg.Connection, psycopg.AsyncConnection}:
        raise unknown_client("a pool with connections of the class", pool.connection_class)
    functions = [given for given in (pool.conninfo, pool.kwargs) if callable(given)]
    if any(inspect.iscoroutinefunction(function) for function in functions):
        raise ConfigurationError(
            "url is a pool with a coroutine function for its arguments, which only the pool can await: give a url; for "
            "a password that changes, a url and password=function"
        )
    parameters = _pool_parameters(pool)
    if not functions:
        return parameters, parameters.get("password", "")
    return parameters, PasswordFunction("the pool's password", lambda: _pool_parameters(pool).get("password", ""), None)


def _pool_parameters(pool: Any) -> dict[str, str]:
    conninfo = pool.conninfo() if callable(pool.conninfo) else pool.conninfo
    kwargs = pool.kwargs() if callable(pool.kwargs) else pool.kwargs
    return _texts(conninfo or "", kwargs or {})


def _of_engine(engine: object) -> dict[str, str]:
    driver, arguments = connect_arguments(engine)
    if driver in _LIBPQ_DRIVERS:
        return _texts(str(arguments.get("dsn", "")), arguments)
    if driver == "asyncpg":
        return _texts("", _from_asyncpg(arguments))
    raise unknown_driver(engine, "psycopg, psycopg2 or asyncpg")


def _from_asyncpg(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of libpq that have the meaning of these arguments of asyncpg's connect()."""
    for name in ("dsn", "service", "passfile", "krbsrvname"):
        if arguments.get(name) is not None:
            raise ConfigurationError(f"url is an engine with {name}= for asyncpg: give a url")
    taken = {name: arguments.get(name) for name in ("host", "port", "user", "password")}
    ssl = arguments.get("ssl")
    if ssl is not None and str(ssl) not in _SSL_MODES:
        raise ConfigurationError(
            "url is an engine with an SSLContext for asyncpg, from which certificates cannot be taken: give a url with "
            "sslmode, sslrootcert, sslcert and sslkey"
        )
    if callable(taken["password"]):
        raise ConfigurationError("url is an engine with a function for its password: give a url and password=function")
    return {**taken, "dbname": arguments.get("database"), "sslmode": ssl}


def _texts(conninfo: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    """The parameters of libpq in a connection string and in arguments of connect(), which take precedence."""
    given = {name: value for name, value in arguments.items() if name not in _OF_DRIVERS and value is not None}
    try:
        parameters = conninfo_to_dict(make_conninfo(conninfo, **given))
    except psycopg.ProgrammingError:
        known = {parameter.keyword.decode() for parameter in psycopg.pq.Conninfo.get_defaults()}
        which = ", ".join(sorted(given.keys() - known)) or "in its connection string"
        problem = f"url has connection parameters that libpq does not know ({which}): give a url"
        # Without libpq's own message, which may show a part of the connection string.
        raise ConfigurationError(problem) from None
    return {name: str(value) for name, value in parameters.items() if value is not None}


def _endpoints(parameters: Mapping[str, str]) -> tuple[Endpoint, ...]:
    hosts = (parameters.get("host") or parameters.get("hostaddr") or "").split(",")
    ports = [int(port or 0) for port in parameters.get("port", "").split(",")]
    if len(ports) == 1:
        ports *= len(hosts)
    return tuple(itertools.starmap(Endpoint, zip(hosts, ports, strict=False)))
