"""A connection of PyMySQL in place of a URL, a function that makes connections, or an engine of SQLAlchemy.

Only the attributes of a connection are read: holdfast connects to the same server with the same user and TLS. A
function is called for each connection that is needed, and holdfast owns the result. A connection of a subclass is
accepted only from a function, because the subclass may connect to another server than its attributes say.
"""

from __future__ import annotations

from typing import Any

from pymysql.connections import Connection

from holdfast.backends.mysql.config import SETTINGS, MysqlConfig
from holdfast.backends.sql_engines import connect_arguments, is_engine, unknown_driver
from holdfast.errors import ConfigurationError
from holdfast.url import Address, check_options, unknown_client
from holdfast.url_parts import values_of

_SAME_ARGUMENTS = ("pymysql", "aiomysql")  # drivers with these arguments of connect()
_TAKEN = (
    *("host", "port", "unix_socket", "user", "password", "database", "read_default_file", "read_default_group"),
    *("ssl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_disabled", "ssl_verify_cert", "ssl_verify_identity"),
)


def address_of(client: object, options: dict[str, str]) -> Address:
    """The address of the server to which this object is connected, or connects.

    Raises:
        ConfigurationError: it is not one of the supported objects.
    """
    check_options("mysql", options)
    for name in sorted(options.keys() - {option.name for option in SETTINGS}):
        raise ConfigurationError(f"{name} is read from the connection: leave it out, or give a URL")
    usage = values_of(options, SETTINGS)
    if type(client) is Connection:
        config = _config_of(client, usage)
    elif isinstance(client, Connection):
        raise unknown_client("a", type(client))
    elif is_engine(client):
        config = _config_of(_connection_of(client), usage)
    elif callable(client):
        config = MysqlConfig(url="mysql://(connections from a function)", database="", connect=client, **usage)
    else:
        kind = f"{type(client).__module__}.{type(client).__qualname__}"
        raise ConfigurationError(
            f"url is a {kind}: give a connection of PyMySQL, a function that makes one, an engine of SQLAlchemy, or a "
            "URL"
        )
    return Address("mysql", "", f"/{config.database}", options, config.url, config)


def _connection_of(engine: object) -> Connection[Any]:
    """A connection with the settings of an engine, which is not connected."""
    driver, arguments = connect_arguments(engine)
    if driver not in _SAME_ARGUMENTS:
        raise unknown_driver(engine, "PyMySQL or aiomysql")
    taken = {name: arguments[name] for name in _TAKEN if arguments.get(name) is not None}
    if "db" in arguments:
        taken["database"] = arguments["db"]
    try:
        return Connection(**taken, defer_connect=True)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"url is an engine whose certificates cannot be used: {error}") from error


def _config_of(connection: Any, usage: dict[str, Any]) -> MysqlConfig:
    user, database = _text(connection.user), _text(connection.db or "")
    if not database:
        raise ConfigurationError("url is a connection that has chosen no database: locks need one")
    where = f"/{database}?socket={connection.unix_socket}"
    if not connection.unix_socket:
        where = f"{connection.host}:{connection.port}/{database}"
    is_required = bool(getattr(connection, "_ssl_required", connection.ssl))
    return MysqlConfig(
        url=f"mysql://{user}@{where}",
        database=database,
        host=connection.host,
        port=connection.port,
        socket=connection.unix_socket or "",
        user=user,
        password=connection.password,
        tls=connection.ctx if is_required else None,
        prefers_tls=bool(connection.ssl) and not is_required,
        **usage,
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
