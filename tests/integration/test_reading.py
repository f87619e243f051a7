"""Hazard: a command that only reads creates a store, by a typing error in its URL or with wrong permissions.

Reading through the API finds no lock in a store that does not exist. The commands say that it does not exist.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from psycopg import sql

import holdfast
from holdfast.cli import main, statuses
from tests.support.etcd import shared as etcd
from tests.support.memcached import shared as memcached
from tests.support.mysql import shared as mysql
from tests.support.postgresql import shared as postgresql
from tests.support.redis import shared as redis
from tests.support.zookeeper import shared as zookeeper
from tests.support.zookeeper.servers import kazoo

COMMANDS = (
    ("ls",),
    ("show", "one"),
    ("watch",),
    ("break", "one", "--yes"),
    ("revoke", "one"),
)


class Missing(NamedTuple):
    """A store that does not exist, and the contents of its place."""

    url: str
    contents: Callable[[], object]
    problem: str


def sqlite_file(folder: Path) -> Missing:
    contents = lambda: sorted(folder.rglob("*"))  # noqa: E731
    return Missing(f"sqlite://{folder}/some/folder/locks.db", contents, "there is no lock file yet")


def empty_sqlite_file(folder: Path) -> Missing:
    (folder / "locks.db").touch()
    contents = lambda: [(path, path.stat().st_size) for path in sorted(folder.rglob("*"))]  # noqa: E731
    return Missing(f"sqlite://{folder}/locks.db", contents, "the file is empty yet")


def postgresql_schema(folder: Path, **options: str) -> Missing:
    schema = f"test_{uuid.uuid4().hex}"

    def contents() -> object:
        return postgresql.server().rows(
            sql.SQL("SELECT nspname FROM pg_namespace WHERE nspname = {}").format(sql.Literal(schema))
        )

    return Missing(postgresql.fresh_url(schema=schema, **options), contents, "there are no tables of holdfast yet")


def mysql_tables(folder: Path, **options: str) -> Missing:
    database = mysql.fresh_database()
    contents = lambda: mysql.server().rows("SHOW TABLES", database=database)  # noqa: E731
    return Missing(mysql.server().url_of(database, **options), contents, "there are no tables of holdfast yet")


MISSING: dict[str, Callable[[Path], Missing]] = {
    "sqlite": sqlite_file,
    "sqlite-empty": empty_sqlite_file,
    "postgresql": postgresql_schema,
    "postgresql-advisory": lambda folder: postgresql_schema(folder, method="advisory"),
    "mysql": mysql_tables,
    "mysql-row": lambda folder: mysql_tables(folder, method="row"),
    "mysql-version": lambda folder: mysql_tables(folder, method="version"),
}


@pytest.fixture(params=MISSING)
def missing(request: pytest.FixtureRequest, tmp_path: Path) -> Missing:
    return MISSING[request.param](tmp_path)


def test_commands_that_read_report_a_missing_store_and_create_nothing(
    missing: Missing, capsys: pytest.CaptureFixture[str]
) -> None:
    before = missing.contents()

    for command in COMMANDS:
        assert main([*command, "--url", missing.url]) == statuses.UNAVAILABLE, command
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("holdfast: ")
        assert missing.problem in shown.err
        assert shown.err.count("\n") == 1

    assert missing.contents() == before


def test_reading_through_the_api_finds_no_locks_in_a_missing_store_and_creates_nothing(missing: Missing) -> None:
    before = missing.contents()

    with holdfast.Client(missing.url) as client:
        assert client.locks() == []
        assert client.inspect("one") == holdfast.LockInfo("one", (), ())
        assert not client.break_lock("one", fence=1)
        assert not client.lock("one").locked()
        assert client.election("one").leader() is None
        assert missing.contents() == before

        lease = client.lock("one").acquire(timeout=60)
        assert lease is not None
        assert [info.name for info in client.locks()] == ["one"]
        lease.release()
    assert missing.contents() != before


async def test_tasks_that_read_create_nothing_either(missing: Missing) -> None:
    before = missing.contents()

    async with holdfast.AsyncClient(missing.url) as client:
        assert await client.locks() == []
        assert not await client.lock("one").locked()
        assert not await client.break_lock("one", fence=1)

    assert missing.contents() == before


# ── stores that need nothing before the first lock ───────────────────────────────────────────────────────────────


def zookeeper_node(url: str) -> object:
    with kazoo(zookeeper.server().address) as observer:
        return observer.exists("/" + url.rpartition("/")[2])


UNUSED: dict[str, tuple[Callable[[], str], Callable[[str], object]]] = {
    "redis": (redis.fresh_url, lambda _: redis.server().all_keys()),
    "memcached": (memcached.fresh_url, lambda _: memcached._servers()[0].stats()["cmd_set"]),
    "etcd": (lambda: etcd.own_server().url, lambda _: etcd.own_server().revision()),
    "zookeeper": (zookeeper.fresh_url, zookeeper_node),
}


@pytest.mark.parametrize("store", UNUSED)
def test_reading_leaves_a_store_that_was_never_used_as_it_is(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    fresh_url, contents = UNUSED[store]
    url = fresh_url()
    before = contents(url)

    assert main(["ls", "--url", url]) == statuses.DONE
    assert main(["show", "one", "--url", url]) == statuses.NOT_DONE
    assert main(["break", "one", "--yes", "--url", url]) == statuses.NOT_DONE

    assert contents(url) == before


def test_tables_of_an_older_version_are_not_upgraded_by_reading() -> None:
    schema = f"test_{uuid.uuid4().hex}"
    url = postgresql.fresh_url(schema=schema)
    version = sql.SQL("SELECT max(version) FROM {}.holdfast_schema").format(sql.Identifier(schema))
    with holdfast.Client(url) as client:
        with client.lock("one"):
            pass
        newest = postgresql.server().value(version)
        postgresql.server().rows(sql.SQL("UPDATE {}.holdfast_schema SET version = 1").format(sql.Identifier(schema)))

    with holdfast.Client(url) as client:
        with pytest.raises(
            holdfast.BackendUnavailable, match=r"older holdfast.*brought up to date when a lock is taken"
        ):
            client.locks()
        assert postgresql.server().value(version) == 1
        with client.lock("one"):
            assert postgresql.server().value(version) == newest
