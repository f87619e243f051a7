"""Hazard: `listen_url` leads elsewhere, and waiters wait for notifications in vain; or a message shows its password."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import holdfast
from holdfast.guarantees import Wake
from tests.integration.conftest import OpenClient
from tests.support.postgresql import shared
from tests.support.postgresql.pgbouncer import PgBouncer
from tests.support.postgresql.servers import Server
from tests.support.processes import eventually
from tests.support.server_process import running

psycopg_pool = pytest.importorskip("psycopg_pool")
sqlalchemy = pytest.importorskip("sqlalchemy")
PASSWORD = "s3:cr/t@%"  # noqa: S105 (of servers that live for a test)


def hand_over(
    url: object, open_client: OpenClient, *, when: Callable[[], bool] = lambda: True, **options: Any
) -> holdfast.Client:
    """One client waits for the lock of another client, which then releases it. Return the client that waited, open."""
    holder, waiter = (open_client(url, pooler="transaction", **options) for _ in range(2))
    leases: list[holdfast.Lease | None] = []
    thread = threading.Thread(target=lambda: leases.append(waiter.lock("a").acquire(timeout=60)))
    with holder.lock("a", timeout=15):
        thread.start()
        eventually(lambda: len(holder.inspect("a").waiters) == 1)
        eventually(when)
    thread.join(70)
    (lease,) = leases
    assert lease is not None
    lease.release()
    return waiter


def pooled_url() -> str:
    return shared.pooler().url(schema=f"test_{uuid.uuid4().hex}")


def test_waiters_listen_on_a_direct_connection(
    server: Server, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    direct = f"postgresql://127.0.0.1:{server.port}"  # the user and the database are those of the url
    listening = 'LISTEN "holdfast_pooled_%'
    before = set(server.clients(listening))

    waiter = hand_over(
        pooled_url(), open_client, listen_url=direct, when=lambda: len(set(server.clients(listening)) - before) == 1
    )

    assert waiter.guarantees.wake is Wake.PUSH
    assert not caplog.messages


async def test_tasks_listen_on_a_direct_connection(server: Server) -> None:
    url = pooled_url()
    options: Any = {"pooler": "transaction", "listen_url": f"postgresql://127.0.0.1:{server.port}"}
    async with holdfast.AsyncClient(url, **options) as holder, holdfast.AsyncClient(url, **options) as waiter:
        async with holder.lock("a", timeout=15) as first:
            waiting = asyncio.create_task(waiter.lock("a").acquire(timeout=60))
            while not (await holder.inspect("a")).waiters:
                await asyncio.sleep(0.01)
        lease = await waiting

        assert lease is not None
        assert lease.fence > first.fence
        await lease.release()


@pytest.mark.parametrize(
    ("listen_url", "problem"),
    [
        ("postgresql://127.0.0.1:1", "refused"),
        ("postgresql://127.0.0.1:{server}/template1", "same database"),
        ("postgresql://127.0.0.1:{pooler}", "pooler"),
    ],
)
def test_waiters_poll_when_listen_url_does_not_work(
    listen_url: str, problem: str, server: Server, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    url = listen_url.replace("{server}", str(server.port)).replace("{pooler}", str(shared.pooler().port))

    def has_warned() -> bool:
        return any("so waiters have to poll" in text and problem in text for text in caplog.messages)

    hand_over(pooled_url(), open_client, listen_url=url, when=has_warned)


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[Server]:
    """A server whose user `app` needs its password, except on the connections of the pooler."""
    with running(Server(folder / "guarded")) as server:
        server.rows(f"CREATE ROLE app LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
        server.rows("CREATE ROLE listener LOGIN PASSWORD 'other'")
        (folder / "guarded" / "data" / "pg_hba.conf").write_text(
            "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )
        server.rows("SELECT pg_reload_conf()")
        yield server


@pytest.fixture
def guarded_pooler(guarded: Server, folder: Path) -> Iterator[PgBouncer]:
    users = f'"postgres" ""\n"app" "{PASSWORD}"\n'
    with running(PgBouncer(folder / uuid.uuid4().hex, guarded, users=users)) as started:
        yield started


def test_a_password_function_is_called_for_both_connections(
    guarded: Server, guarded_pooler: PgBouncer, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def password() -> str:
        calls.append(1)
        return PASSWORD

    client = hand_over(
        f"postgresql://app@127.0.0.1:{guarded_pooler.port}/postgres",
        open_client,
        password=password,
        listen_url=f"postgresql://127.0.0.1:{guarded.port}",
    )

    assert len(calls) >= 3
    assert not caplog.messages  # it did not have to poll
    assert PASSWORD not in repr(client) + client.url


def test_listen_url_can_have_a_login_of_its_own(
    guarded: Server, guarded_pooler: PgBouncer, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    listen_url = quote(f"postgresql://listener:other@127.0.0.1:{guarded.port}", safe="")
    url = (
        f"postgresql://app:{quote(PASSWORD, safe='')}@127.0.0.1:{guarded_pooler.port}/postgres?listen_url={listen_url}"
    )

    client = hand_over(url, open_client)

    assert not caplog.messages
    assert "other" not in repr(client) + client.url


@pytest.mark.parametrize("kind", ["pool", "engine"])
def test_an_object_of_a_driver_is_adopted_with_listen_url(
    kind: str, guarded: Server, guarded_pooler: PgBouncer, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    conninfo = f"host=127.0.0.1 port={guarded_pooler.port} user=app dbname=postgres"
    theirs: object = psycopg_pool.ConnectionPool(conninfo, kwargs={"password": PASSWORD}, open=False)
    if kind == "engine":
        location = {"host": "127.0.0.1", "port": guarded_pooler.port, "database": "postgres"}
        theirs = sqlalchemy.create_engine(sqlalchemy.URL.create("postgresql+psycopg", "app", PASSWORD, **location))

    client = hand_over(theirs, open_client, listen_url=f"postgresql://127.0.0.1:{guarded.port}")

    assert not caplog.messages
    assert PASSWORD not in repr(client) + client.url
