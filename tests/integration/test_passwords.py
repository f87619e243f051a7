"""Hazard: a client keeps using a password that was rotated, or shows it. A function is called for each connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import BackendUnavailable, ConfigurationError
from holdfast.backends.memcached.protocol import meta
from tests.support.etcd.servers import Server as EtcdServer
from tests.support.memcached.servers import Server as MemcachedServer
from tests.support.mysql import shared as mysql_shared
from tests.support.postgresql.servers import Server as PostgresqlServer
from tests.support.processes import PATIENCE, eventually
from tests.support.redis.binaries import main_binary
from tests.support.redis.proxy import Proxy
from tests.support.redis.redlock import RedlockServers
from tests.support.redis.servers import Server as RedisServer
from tests.support.redis.topologies import Cluster, Watched
from tests.support.server_process import running
from tests.support.zookeeper import shared as zookeeper_shared

FIRST, SECOND = "first-s3cret", "second-s3cret"


class Store:
    """A store whose user `app` has a password. `rotate` changes it; `cut` ends the connections of clients."""

    keywords: Sequence[str] = ("password",)  # the options that get the function

    def __init__(self, url: str, rotate: Callable[[str], object], cut: Callable[[], object]) -> None:
        self.url, self.rotate, self.cut = url, rotate, cut

    def options(self, function: Callable[[], object]) -> dict[str, Any]:
        return dict.fromkeys(self.keywords, function)


def open_with(store: Store, function: Callable[[], str]) -> holdfast.Client:
    return holdfast.Client(store.url, **store.options(function))


@contextlib.contextmanager
def redis_of(kind: str, folder: Path) -> Iterator[Store]:
    with contextlib.ExitStack() as stack:
        if kind == "redis":
            servers = [stack.enter_context(running(RedisServer(main_binary(), folder / "redis")))]
            url = servers[0].url
        elif kind == "redlock":
            nodes = stack.enter_context(RedlockServers(main_binary(), folder, number=3))
            servers, url = nodes.servers, nodes.url(quarantine="no", node_timeout=5)
        elif kind == "sentinel":
            watched = stack.enter_context(Watched(main_binary(), folder))
            servers, url = [*watched.servers, *watched.sentinels], f"{watched.url}?sentinel_user=app"
        else:
            cluster = stack.enter_context(Cluster(main_binary(), folder))
            servers, url = cluster.servers, cluster.url

        def rotate(password: str) -> None:
            for server in servers:
                server.call("ACL", "SETUSER", "app", "on", "resetpass", f">{password}", "~*", "&*", "+@all")

        def cut() -> None:
            for server in servers:
                server.call("CLIENT", "KILL", "USER", "app")

        store = Store(url.replace("://", "://app@").replace(",", ",app@" if kind == "redlock" else ","), rotate, cut)
        store.keywords = ("password", "sentinel_password") if kind == "sentinel" else store.keywords
        yield store


@contextlib.contextmanager
def postgresql(folder: Path) -> Iterator[Store]:
    with running(PostgresqlServer(folder / "postgresql")) as server:
        server.rows("CREATE ROLE app LOGIN SUPERUSER")
        (folder / "postgresql" / "data" / "pg_hba.conf").write_text(
            "local all postgres trust\nhost all postgres 127.0.0.1/32 trust\nhost all app 127.0.0.1/32 scram-sha-256\n"
        )
        server.rows("SELECT pg_reload_conf()")
        yield Store(
            f"postgresql://app@127.0.0.1:{server.port}/postgres",
            lambda password: server.rows(f"ALTER ROLE app PASSWORD '{password}'"),
            lambda: server.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'"),
        )


@contextlib.contextmanager
def mysql(_: Path) -> Iterator[Store]:
    server, database = mysql_shared.server(), mysql_shared.fresh_database()
    user = f"app{uuid.uuid4().hex[:8]}"
    server.run(f"CREATE USER {user}", f"GRANT ALL ON {database}.* TO {user}")
    yield Store(
        server.url_of(database, user=user),
        lambda password: server.run(f"ALTER USER {user} IDENTIFIED BY '{password}'"),
        lambda: server.terminate(database),
    )
    server.run(f"DROP USER {user}")


@contextlib.contextmanager
def etcd(folder: Path) -> Iterator[Store]:
    with running(EtcdServer(folder / "etcd")) as server:
        for name in ("root", "app"):
            server.call("auth/user/add", name=name, password=FIRST)
        server.call("auth/role/add", name="root")
        for name in ("root", "app"):
            server.call("auth/user/grant", user=name, role="root")
        server.call("auth/enable")

        def rotate(password: str) -> None:
            token = server.call("auth/authenticate", name="root", password=FIRST)["token"]
            server.call("auth/user/changepw", token=token, name="app", password=password)

        def cut() -> None:
            server.kill()  # the tokens of its clients are lost
            server.start()

        yield Store(f"etcd://app@{server.address}", rotate, cut)


@contextlib.contextmanager
def memcached(folder: Path) -> Iterator[Store]:
    users = folder / "users"
    users.write_text(f"app:{FIRST}\n")
    with running(MemcachedServer("-Y", str(users))) as server, Proxy(server.port) as proxy:

        def rotate(password: str) -> None:
            users.write_text(f"app:{password}\n")
            assert server._process is not None
            os.kill(server._process.pid, signal.SIGHUP)
            eventually(lambda: server.call(meta.login("app", password)).code == "STORED")

        yield Store(f"memcached://app@127.0.0.1:{proxy.port}", rotate, proxy.cut)


STORES: dict[str, Callable[[Path], contextlib.AbstractContextManager[Store]]] = {
    "redis": lambda folder: redis_of("redis", folder),
    "sentinel": lambda folder: redis_of("sentinel", folder),
    "cluster": lambda folder: redis_of("cluster", folder),
    "redlock": lambda folder: redis_of("redlock", folder),
    "postgresql": postgresql,
    "mysql": mysql,
    "etcd": etcd,
    "memcached": memcached,
}


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest, folder: Path) -> Iterator[Store]:
    store_folder = folder / str(request.param)
    store_folder.mkdir()
    with STORES[request.param](store_folder) as made:
        yield made


class Vault:
    """Returns the current password, and counts the calls."""

    def __init__(self) -> None:
        self.password = FIRST
        self.calls = 0

    def get(self) -> str:
        self.calls += 1
        return self.password

    async def get_async(self) -> str:
        await asyncio.sleep(0)
        return self.get()


def check_unseen(caplog: pytest.LogCaptureFixture, *texts: object) -> None:
    shown = caplog.text + "".join(map(repr, texts)) + "".join(map(str, texts))
    assert FIRST not in shown
    assert SECOND not in shown


def test_a_rotated_password_is_used_by_the_next_connection(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    vault = Vault()
    store.rotate(FIRST)
    with open_with(store, vault.get) as client:
        lease = client.lock("a", ttl=60).acquire(timeout=30)
        assert lease is not None
        calls = vault.calls

        store.rotate(SECOND)
        vault.password = SECOND
        eventually(lambda: succeeds(lease.renew))  # on an old connection, or on a new one
        store.cut()
        eventually(lambda: succeeds(lambda: client.inspect("a")))

        assert vault.calls > calls
        lease.renew()
        lease.release()
        check_unseen(caplog, client, client.url, client._address, *client.warnings)


async def test_an_async_client_awaits_a_coroutine_function(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    vault = Vault()
    store.rotate(FIRST)
    async with holdfast.AsyncClient(store.url, **store.options(vault.get_async)) as client:
        lease = await client.lock("b", ttl=60).acquire(timeout=30)
        assert lease is not None
        calls = vault.calls

        store.rotate(SECOND)
        vault.password = SECOND
        store.cut()
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                await client.inspect("b")
            except holdfast.BackendError:
                assert time.monotonic() < deadline
            else:
                break

        assert vault.calls > calls
        await lease.renew()
        await lease.release()
        check_unseen(caplog, client, client.url)


PROGRAM = """
import asyncio, sys, holdfast

async def password():
    return sys.argv[2]

async def main():
    lease = await holdfast.AsyncClient(sys.argv[1], password=password).lock("a", ttl=600).acquire()
    print(lease.fence)

asyncio.run(main())
"""


def test_a_coroutine_function_is_awaited_after_the_end_of_the_loop_to_release_the_leases(tmp_path: Path) -> None:
    with redis_of("redis", tmp_path) as store:
        store.rotate(FIRST)

        subprocess.run([sys.executable, "-c", PROGRAM, store.url, FIRST], check=True, timeout=PATIENCE)

        with open_with(store, lambda: FIRST) as client:
            assert not client.inspect("a").holders


def test_a_wrong_password_of_a_function_is_not_shown(store: Store) -> None:
    store.rotate(FIRST)
    with (
        open_with(store, lambda: SECOND) as client,
        pytest.raises(holdfast.HoldfastError) as caught,
    ):
        client.lock("a").acquire(timeout=0)

    assert SECOND not in "".join(map(str, chain(caught.value)))


def test_the_error_names_a_function_that_raises(store: Store) -> None:
    with (
        open_with(store, no_token) as client,
        pytest.raises(holdfast.BackendError, match="password=no_token raised LookupError: the vault is sealed"),
    ):
        client.lock("a").acquire(timeout=0)


def test_zookeeper_calls_the_function_for_each_connection() -> None:
    vault, server = Vault(), zookeeper_shared.server()
    with Proxy(server.port) as proxy:
        url = zookeeper_shared.fresh_url(acl="creator").replace(server.address, f"app@127.0.0.1:{proxy.port}")
        with holdfast.Client(url, password=vault.get) as client:
            lease = client.lock("a", ttl=30).acquire(timeout=30)
            assert lease is not None
            calls = vault.calls

            proxy.cut()
            eventually(lambda: succeeds(lease.renew))

            assert 0 < calls < vault.calls
            with holdfast.Client(url.replace("app@", f"app:{FIRST}@")) as other:
                assert other.lock("a").acquire(timeout=0) is None
            lease.release()


async def test_zookeeper_runs_a_coroutine_function_on_the_loop() -> None:
    vault, server = Vault(), zookeeper_shared.server()
    url = zookeeper_shared.fresh_url(acl="creator").replace(server.address, f"app@{server.address}")

    async with holdfast.AsyncClient(url, password=vault.get_async) as client, client.lock("a", timeout=30):
        assert vault.calls


def test_the_error_of_zookeeper_names_a_function_that_raises() -> None:
    url = zookeeper_shared.fresh_url().replace("://", "://app@")
    with (
        holdfast.Client(url, password=no_token) as client,
        pytest.raises(BackendUnavailable, match="password=no_token raised LookupError: the vault is sealed"),
    ):
        client.lock("a").acquire(timeout=0)


# ── without a server ─────────────────────────────────────────────────────────────────────────────────────────────────

URL = "redis://app@127.0.0.1:1/0"


def no_token() -> str:
    raise LookupError("the vault is sealed")


def test_a_function_that_does_not_return_in_time_is_named() -> None:
    ended = False

    def waits() -> str:
        eventually(lambda: ended)
        return FIRST

    try:
        with (
            holdfast.Client(f"{URL}?connect_timeout=100ms", password=waits) as client,
            pytest.raises(BackendUnavailable, match=r"password=\S*waits did not return in time"),
        ):
            client.lock("a").acquire(timeout=0)
    finally:
        ended = True


def test_a_function_must_return_text() -> None:
    with (
        holdfast.Client(URL, password=FIRST.encode) as client,  # type: ignore[arg-type]
        pytest.raises(ConfigurationError, match="must return a str, not bytes") as caught,
    ):
        client.lock("a").acquire(timeout=0)

    assert FIRST not in str(caught.value)


def test_only_an_async_client_takes_a_coroutine_function() -> None:
    with pytest.raises(ConfigurationError, match="password is a coroutine function"):
        holdfast.Client(URL, password=Vault().get_async)


def test_a_client_does_not_await_a_function_that_returns_a_coroutine() -> None:
    vault = Vault()
    with (
        holdfast.Client(URL, password=lambda: vault.get_async()) as client,  # noqa: PLW0108 (not a coroutine function)
        pytest.raises(ConfigurationError, match="returned a coroutine: only AsyncClient awaits it"),
    ):
        client.lock("a").acquire(timeout=0)


@pytest.mark.parametrize(
    ("url", "password", "message"),
    [
        ("redis://app:one@host", FIRST, "the password is given in the url and as a keyword: give it once"),
        ("mysql://host/db?password=one", FIRST, "the password is given in the url and as a keyword: give it once"),
        (URL, 7, "password must be a str or a function that returns it, not int"),
        ("sqlite:///tmp/a.db", FIRST, "sqlite:// has no option 'password'"),
        ("memory://", FIRST, "memory:// has no option 'password'"),
        ("etcd://host", FIRST, "url must have both a user and a password"),
    ],
)
@pytest.mark.parametrize("kind", [holdfast.Client, holdfast.AsyncClient])
def test_a_password_that_cannot_be_used_is_refused(kind: Any, url: str, password: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        kind(url, password=password)

    assert str(caught.value).startswith(message)
    assert FIRST not in str(caught.value)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, holdfast.QuorumError):
            for cause in error.causes.values():
                yield from chain(cause)
        error = error.__cause__


def succeeds(request: Callable[[], object]) -> bool:
    try:
        request()
    except holdfast.BackendError:
        return False
    return True
