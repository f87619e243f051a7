"""Hazard: with an object of a driver instead of a URL, the locks go to another server, or use other credentials."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
import redis.asyncio
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

import holdfast
from holdfast import ConfigurationError
from tests.support.mysql import shared as mysql_shared
from tests.support.postgresql.servers import Server as PostgresqlServer
from tests.support.processes import eventually
from tests.support.redis.binaries import main_binary
from tests.support.redis.redlock import RedlockServers
from tests.support.server_process import running
from tests.support.zookeeper import shared as zookeeper_shared
from tests.support.zookeeper.servers import kazoo

sqlalchemy = pytest.importorskip("sqlalchemy")
psycopg_pool = pytest.importorskip("psycopg_pool")
PASSWORD = "s3:cr/t@%"  # noqa: S105 (of servers that live for a test)


def check_same(theirs: Any, url: str, **options: Any) -> None:
    """A client made from the object and one made from the URL exclude each other, and no text shows the password."""
    with holdfast.Client(theirs, **options) as client, holdfast.Client(url, **options) as other:
        with client.lock("adopted", timeout=30):
            assert other.lock("adopted").acquire(timeout=0) is None
        assert PASSWORD not in repr(client) + client.url + repr(client._address)


async def check_same_in_asyncio(theirs: Any, url: str) -> None:
    async with (
        holdfast.AsyncClient(theirs) as client,
        holdfast.AsyncClient(url) as other,
        client.lock("adopted", timeout=30),
    ):
        assert await other.lock("adopted").acquire(timeout=0) is None


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def postgresql(folder: Path) -> Iterator[PostgresqlServer]:
    """A server whose user `app` needs its password."""
    with running(PostgresqlServer(folder / "postgresql")) as server:
        server.rows(f"CREATE ROLE app LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
        (folder / "postgresql" / "data" / "pg_hba.conf").write_text(
            "local all postgres trust\nlocal all app scram-sha-256\n"
            "host all postgres 127.0.0.1/32 trust\nhost all app 127.0.0.1/32 scram-sha-256\n"
        )
        server.rows("SELECT pg_reload_conf()")
        yield server


def arguments(server: PostgresqlServer, **others: Any) -> dict[str, Any]:
    return {
        "host": "127.0.0.1",
        "port": server.port,
        "user": "app",
        "password": PASSWORD,
        "dbname": "postgres",
        **others,
    }


def test_a_connection_of_psycopg_is_adopted(postgresql: PostgresqlServer) -> None:
    with psycopg.connect(**arguments(postgresql)) as theirs:
        check_same(theirs, postgresql.url, schema="adopted")

        assert theirs.execute("SELECT 1").fetchone() == (1,)  # it works as before


async def test_an_async_connection_of_psycopg_is_adopted(postgresql: PostgresqlServer) -> None:
    theirs = await psycopg.AsyncConnection.connect(**arguments(postgresql))
    async with theirs:
        await check_same_in_asyncio(theirs, postgresql.url)


def test_a_connection_of_psycopg_through_a_unix_socket_is_adopted(postgresql: PostgresqlServer) -> None:
    (folder,) = postgresql.rows("SHOW unix_socket_directories")[0]
    with psycopg.connect(**arguments(postgresql, host=folder)) as theirs:
        check_same(theirs, postgresql.url)


def test_a_closed_connection_of_psycopg_is_refused(postgresql: PostgresqlServer) -> None:
    theirs = psycopg.connect(**arguments(postgresql))
    theirs.close()

    with pytest.raises(ConfigurationError, match="closed connection"):
        holdfast.Client(theirs)


def test_a_pool_of_psycopg_is_adopted_without_opening_it(postgresql: PostgresqlServer) -> None:
    kwargs = {"password": PASSWORD, "autocommit": True, "prepare_threshold": None}
    theirs = psycopg_pool.ConnectionPool(
        f"host=127.0.0.1 port={postgresql.port} user=app dbname=postgres", kwargs=kwargs, open=False
    )

    check_same(theirs, postgresql.url)

    assert theirs.closed


async def test_an_async_pool_of_psycopg_is_adopted(postgresql: PostgresqlServer) -> None:
    theirs = psycopg_pool.AsyncConnectionPool(kwargs=arguments(postgresql), open=False)

    await check_same_in_asyncio(theirs, postgresql.url)


def test_the_function_of_a_pool_is_called_for_the_password_of_each_connection(postgresql: PostgresqlServer) -> None:
    calls = []

    def kwargs() -> dict[str, Any]:
        calls.append(1)
        return arguments(postgresql)

    theirs = psycopg_pool.ConnectionPool(kwargs=kwargs, open=False)
    with holdfast.Client(theirs) as client, client.lock("asked", timeout=30) as lease:
        before = len(calls)
        postgresql.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")

        eventually(lambda: succeeds(lease.renew))

        assert len(calls) > before > 1


def test_a_pool_with_connections_of_another_class_is_refused(postgresql: PostgresqlServer) -> None:
    class Tunnel(psycopg.Connection[Any]):
        pass

    theirs = psycopg_pool.ConnectionPool(kwargs=arguments(postgresql), connection_class=Tunnel, open=False)

    with pytest.raises(ConfigurationError, match="Tunnel, which holdfast does not know"):
        holdfast.Client(theirs)


async def _kwargs() -> dict[str, Any]:
    return {}


def test_a_pool_with_a_coroutine_function_is_refused() -> None:
    theirs = psycopg_pool.AsyncConnectionPool(kwargs=_kwargs, open=False)

    with pytest.raises(ConfigurationError, match=r"coroutine function.*password=function"):
        holdfast.AsyncClient(theirs)


# ── SQLAlchemy ───────────────────────────────────────────────────────────────────────────────────────────────────────


def engine_url(server: PostgresqlServer, driver: str) -> Any:
    return sqlalchemy.URL.create(
        f"postgresql+{driver}", "app", PASSWORD, host="127.0.0.1", port=server.port, database="postgres"
    )


def test_an_engine_for_psycopg_is_adopted(postgresql: PostgresqlServer) -> None:
    theirs = sqlalchemy.create_engine(engine_url(postgresql, "psycopg"), connect_args={"sslmode": "prefer"})

    check_same(theirs, postgresql.url)

    assert theirs.pool.checkedin() == 0  # it was not connected


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_an_async_engine_is_adopted(postgresql: PostgresqlServer, driver: str) -> None:
    pytest.importorskip(driver)
    theirs = pytest.importorskip("sqlalchemy.ext.asyncio").create_async_engine(engine_url(postgresql, driver))

    await check_same_in_asyncio(theirs, postgresql.url)


def test_the_tls_options_of_an_engine_are_adopted(postgresql: PostgresqlServer) -> None:
    theirs = sqlalchemy.create_engine(engine_url(postgresql, "psycopg"), connect_args={"sslmode": "require"})

    with (
        holdfast.Client(theirs) as client,
        pytest.raises(holdfast.BackendUnavailable, match="server does not support SSL"),
    ):
        client.lock("adopted").acquire(timeout=0)


def test_an_engine_for_mysql_is_adopted() -> None:
    server, database = mysql_shared.server(), mysql_shared.fresh_database()
    where = server.url_of(database).replace("mysql://", "mysql+pymysql://")

    check_same(sqlalchemy.create_engine(where), server.url_of(database))
    check_same(
        sqlalchemy.create_engine(f"mysql+pymysql://root@/{database}?unix_socket={server.socket}"),
        server.url_of(database),
    )


async def test_an_async_engine_for_mysql_is_adopted() -> None:
    pytest.importorskip("aiomysql")
    server, database = mysql_shared.server(), mysql_shared.fresh_database()
    where = server.url_of(database).replace("mysql://", "mysql+aiomysql://")

    theirs = pytest.importorskip("sqlalchemy.ext.asyncio").create_async_engine(where)

    await check_same_in_asyncio(theirs, server.url_of(database))


def _with_listener() -> Any:
    engine = sqlalchemy.create_engine("postgresql+psycopg://app@db/shop")
    sqlalchemy.event.listen(engine, "do_connect", lambda *_: None)
    return engine


def _with_ssl_context() -> Any:
    module = pytest.importorskip("sqlalchemy.ext.asyncio")
    pytest.importorskip("asyncpg")
    url = f"postgresql+asyncpg://app:{PASSWORD.replace('/', '%2F').replace('@', '%40')}@db/shop"
    return module.create_async_engine(url, connect_args={"ssl": ssl.create_default_context()})


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "creator": (
        lambda: sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: None),
        "an engine with a creator of its own, which makes its connections: give a url",
    ),
    "listener": (_with_listener, "an engine with listeners for do_connect.*password=function"),
    "other database": (
        lambda: sqlalchemy.create_engine("sqlite:///:memory:"),
        "an engine of sqlite: only engines of PostgreSQL, MySQL and MariaDB are accepted",
    ),
    "connection": (
        lambda: sqlalchemy.orm.Session(sqlalchemy.create_engine("postgresql+psycopg://app@db/shop")),
        "a Session of SQLAlchemy: give its Engine or AsyncEngine",
    ),
    "SSLContext": (_with_ssl_context, "an SSLContext for asyncpg.*give a url with sslmode"),
    "unknown parameter": (
        lambda: sqlalchemy.create_engine("postgresql+psycopg://app@db/shop", connect_args={"colour": "red"}),
        r"libpq does not know \(colour\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_engine_that_cannot_be_adopted_is_refused_with_the_fix(name: str) -> None:
    make, message = REFUSED[name]

    with pytest.raises(ConfigurationError, match=message) as caught:
        holdfast.Client(make())

    assert PASSWORD not in str(caught.value)


# ── ZooKeeper ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_kazoo_client_is_adopted_with_chroot_user_and_acl() -> None:
    server = zookeeper_shared.server()
    acl = [make_digest_acl("app", PASSWORD, all=True)]
    with kazoo(server.address) as creator:
        creator.ensure_path("/adopted-chroot")
    theirs = KazooClient(f"{server.address}/adopted-chroot", auth_data=[("digest", f"app:{PASSWORD}")], default_acl=acl)
    quoted = "app:s3%3Acr%2Ft%40%25"

    check_same(theirs, f"zookeeper://{quoted}@{server.address}/adopted-chroot/holdfast?acl=creator")

    assert theirs.state == "LOST"  # it was not started
    with (
        holdfast.Client(f"zookeeper://{server.address}/adopted-chroot/holdfast") as stranger,
        pytest.raises(ConfigurationError, match="may not use"),
    ):
        stranger.lock("adopted").acquire(timeout=0)


async def test_a_kazoo_client_is_adopted_in_asyncio() -> None:
    server = zookeeper_shared.server()

    await check_same_in_asyncio(KazooClient(server.address), f"zookeeper://{server.address}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"auth_data": [("x509", "app")]}, "another scheme than digest"),
        ({"auth_data": [("digest", "a:b"), ("digest", "c:d")]}, "several users"),
        ({"use_ssl": True, "certfile": "/none.pem", "keyfile": "/none.pem"}, "not a file that this user may read"),
        ({"use_ssl": True, "keyfile_password": PASSWORD}, "a password for its key file"),
    ],
)
def test_a_kazoo_client_that_cannot_be_adopted_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        holdfast.Client(KazooClient("db", **settings))


# ── Redlock ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def nodes(folder: Path) -> Iterator[RedlockServers]:
    with RedlockServers(main_binary(), folder / "redlock", ["--requirepass", PASSWORD], number=3) as servers:
        yield servers


def test_a_list_of_redis_clients_is_a_quorum(nodes: RedlockServers) -> None:
    theirs = [redis.Redis(port=server.port, password=PASSWORD) for server in nodes.servers]
    hosts = ",".join(f":s3%3Acr%2Ft%40%25@127.0.0.1:{server.port}" for server in nodes.servers)

    with contextlib.ExitStack() as stack:
        for client in theirs:
            stack.enter_context(contextlib.closing(client))
        check_same(theirs, f"redlock://{hosts}", quarantine="no", node_timeout=5, prefix="adopted:")


async def test_a_list_of_async_redis_clients_is_a_quorum(nodes: RedlockServers) -> None:
    theirs = [redis.asyncio.Redis(port=server.port, password=PASSWORD) for server in nodes.servers]

    async with (
        holdfast.AsyncClient(theirs, quarantine="no", node_timeout=5) as client,
        client.lock("adopted", timeout=30) as lease,
    ):
        assert client.url.startswith("redlock://")
        assert lease.fence

    for redis_client in theirs:
        await redis_client.aclose()


THREE = [redis.Redis(port=port) for port in (1, 2, 3)]


def sentinel_client() -> Any:
    make: Any = redis.sentinel.Sentinel
    return make([("a", 1)]).master_for("x")


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        ([redis.Redis(port=1), redis.Redis(port=1), redis.Redis(port=2)], {}, "same server twice"),
        ([redis.Redis(port=1)], {}, "with fewer than 3 none may fail"),
        ([redis.Redis(port=1), "redis://b", "redis://c"], {}, "give a redis.Redis"),
        (
            [redis.Redis(port=1), redis.Redis(port=2), redis.Redis(port=3)],
            {"tls": True},
            "tls is what the client objects",
        ),
        (THREE, {"password": "x"}, "password of its own"),
        ([redis.asyncio.Redis(port=port) for port in (1, 2, 3)], {}, "Client takes the client objects of redis"),
        (
            [*THREE[:2], sentinel_client()],
            {},
            "a Cluster or has Sentinels",
        ),
    ],
)
def test_a_list_of_redis_clients_that_is_no_quorum_is_refused(
    clients: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        holdfast.Client(clients, **options)


def succeeds(request: Callable[[], object]) -> bool:
    try:
        request()
    except holdfast.BackendError:
        return False
    return True
