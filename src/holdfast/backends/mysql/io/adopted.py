"""A connection of PyMySQL in place of a URL, or a function that makes connections.

Only the attributes of a connection are read: holdfast connects to the same server with the same user and TLS. A
function is called for each connection that is needed, and holdfast owns the result. A connection of a subclass is
accepted only from a function, because the subclass may connect to another server than its attributes say.
"""

from __future__ import annotations

from typing import Any

from pymysql.connections import Connection

from holdfast.backends.mysql.config import SETTINGS, MysqlConfig
from holdfast.errors import ConfigurationError
from holdfast.url import Address, check_options, unknown_client
from holdfast.url_parts import values_of


def address_of(client: object, options: dict[str, str]) -> Address:
    """The address of the server to which this object is connected, or connects.

    Raises:
        ConfigurationError: it is not one of the supported objects.
    """
    check_options("mysql", options)
    for name in sorted(options.keys() - {option.name for option in SETTINGS}):
        raise ConfigurationError(f"{name} is what the connection itself says: leave it out, or give a URL")
    usage = values_of(options, SETTINGS)
    if type(client) is Connection:
        config = _config_of(client, usage)
    elif isinstance(client, Connection):
        raise unknown_client("a", type(client))
    elif callable(client):
        config = MysqlConfig(url="mysql://(connections from a function)", database="", connect=client, **usage)
    else:
        kind = f"{type(client).__module__}.{type(client).__qualname__}"
        raise ConfigurationError(
            f"url is a {kind}: give a connection of PyMySQL's, a function that makes one, or a URL"
        )
    return Address("mysql", "", f"/{config.database}", options, config.url, config)


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
