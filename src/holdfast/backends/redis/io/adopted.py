"""A client object of redis-py instead of a URL: the same servers, user and certificates, with our own connections.

Only the settings of the object are read. Its retries, timeouts, decoding and pool are not used. A client with a
connection class that is not redis-py's own is refused: that class may connect to another server than that of its
arguments, or to none (fakeredis).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.client import Pipeline as AsyncPipeline
from redis.client import Pipeline

from holdfast.backends.redis.config import Adopted, Login, RedisConfig, settings_of
from holdfast.errors import ConfigurationError
from holdfast.url import Address, check_options, unknown_client
from holdfast.url_parts import Node

_CREDENTIALS = ("username", "password", "credential_provider")
_KNOWN_CONNECTIONS = {
    *(redis.Connection, redis.SSLConnection, redis.UnixDomainSocketConnection),
    *(redis.asyncio.Connection, redis.asyncio.SSLConnection, redis.asyncio.UnixDomainSocketConnection),
    *(redis.sentinel.SentinelManagedConnection, redis.sentinel.SentinelManagedSSLConnection),
    *(redis.asyncio.sentinel.SentinelManagedConnection, redis.asyncio.sentinel.SentinelManagedSSLConnection),
}


def address_of(client: object, options: dict[str, str]) -> Address:
    """The address of the servers of this client object.

    Raises:
        ConfigurationError: the object is not of a supported class.
    """
    check_options("redis", options)
    settings = settings_of(options)
    if isinstance(client, Pipeline | AsyncPipeline):
        raise ConfigurationError("url is a pipeline of redis-py's: give the client object that made it")
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        config = _cluster(client, settings)
    elif isinstance(client, redis.Redis | redis.asyncio.Redis):
        pool: Any = client.connection_pool
        config = _sentinel(pool, settings) if hasattr(pool, "sentinel_manager") else _single(pool, settings)
    else:
        kind = f"{type(client).__module__}.{type(client).__qualname__}"
        raise ConfigurationError(f"url is a {kind}: give a redis.Redis or RedisCluster, their asyncio twins, or a URL")
    is_asyncio = isinstance(client, redis.asyncio.Redis | redis.asyncio.RedisCluster)
    return Address("redis", "", "", options, config.url, Adopted(config, is_asyncio=is_asyncio))


def _single(pool: Any, settings: dict[str, Any]) -> RedisConfig:
    arguments = pool.connection_kwargs
    db = int(arguments.get("db") or 0)
    login = _login(arguments, pool.connection_class)
    if "path" in arguments:
        node = Node(arguments["path"], 0)
        url = f"redis+unix://{_auth(login)}{node}?db={db}"
    else:
        node = Node(arguments.get("host", "localhost"), int(arguments.get("port", 6379)))
        url = f"{'rediss' if login.is_tls else 'redis'}://{_auth(login)}{node}/{db}"
    return RedisConfig(url=url, shape="single", nodes=(node,), login=login, db=db, **settings)


def _sentinel(pool: Any, settings: dict[str, Any]) -> RedisConfig:
    if not pool.is_master:
        raise ConfigurationError("url is a client of a Sentinel's replicas: locks need the primary, use master_for()")
    sentinels = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    nodes = _nodes((pool.connection_kwargs["host"], pool.connection_kwargs["port"]) for pool in sentinels)
    login = _login(pool.connection_kwargs, pool.connection_class)
    db = int(pool.connection_kwargs.get("db") or 0)
    return RedisConfig(
        url=f"redis+sentinel://{_auth(login)}{','.join(map(str, nodes))}/{pool.service_name}/{db}",
        shape="sentinel",
        nodes=nodes,
        login=login,
        db=db,
        service=pool.service_name,
        sentinel_login=_login(sentinels[0].connection_kwargs, sentinels[0].connection_class),
        **settings,
    )


def _cluster(client: Any, settings: dict[str, Any]) -> RedisConfig:
    arguments = client.get_connection_kwargs()
    nodes = _nodes((node.host, node.port) for node in client.nodes_manager.startup_nodes.values())
    for node in client.get_nodes():
        if (connected := getattr(node, "redis_connection", None)) is not None:
            _check_known(connected.connection_pool.connection_class)
    login = _login(arguments, arguments.get("connection_class"))
    url = f"redis+cluster://{_auth(login)}{','.join(map(str, nodes))}"
    return RedisConfig(url=url, shape="cluster", nodes=nodes, login=login, **settings)


def _login(arguments: Mapping[str, Any], kind: type | None) -> Login:
    if kind is not None:
        _check_known(kind)
    secure = (redis.SSLConnection, redis.asyncio.SSLConnection)
    is_tls = bool(arguments.get("ssl")) or (kind is not None and issubclass(kind, secure))
    adopted = {name: arguments[name] for name in _CREDENTIALS if arguments.get(name) is not None}
    if is_tls:
        adopted |= {name: value for name, value in arguments.items() if name.startswith("ssl_")}
    return Login(is_tls, adopted)


def _check_known(kind: type) -> None:
    if kind not in _KNOWN_CONNECTIONS:
        raise unknown_client("a client with connections of the class", kind)


def _auth(login: Login) -> str:
    user = login.arguments.get("username") or ""
    password = ":***" if "password" in login.arguments else ""
    return f"{user}{password}@" if user or password else ""


def _nodes(pairs: Iterable[tuple[Any, Any]]) -> tuple[Node, ...]:
    return tuple(Node(str(host), int(port)) for host, port in pairs)
