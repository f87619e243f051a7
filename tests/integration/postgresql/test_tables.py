"""Names that look alike, settings of other people, rights that are missing, tables that come and go."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest
from psycopg import sql

import holdfast
from holdfast import BackendUnavailable, ConfigurationError
from holdfast import url as urls
from holdfast.backends.postgresql.blocking import create_tables
from holdfast.backends.postgresql.schema import tables
from tests.support.postgresql.servers import Server

Open = Callable[[str], holdfast.Client]


@pytest.fixture
def schema(url: str) -> str:
    return parse_qs(urlsplit(url).query)["schema"][0]


@pytest.fixture
def user(server: Server) -> str:
    """Somebody without any right."""
    name = f"user_{uuid.uuid4().hex[:8]}"
    server.rows(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    return name


def test_names_that_look_alike_are_different_locks(url: str, client_of: Open) -> None:
    names = [
        "a",
        "A",
        "a ",
        " a",
        "a\t",
        "á",
        "a\u0301",
        "à",
        "\uff41",
        "a\0",
        "a\\0",
        "a\\\0",
        "a\\",
        "ß",
        "ss",
        "'",
        '"',
    ]
    client = client_of(url)

    leases = [client.lock(name).acquire(timeout=0) for name in names]

    assert all(leases)
    assert sorted(info.name for info in client.locks()) == sorted(names)
    assert [client.inspect(name).name for name in names] == names
    assert [info.name for info in client.locks("a\\")] == ["a\\", "a\\\0", "a\\0"]
    for lease in leases:
        assert lease is not None
        lease.release()


def test_what_a_dba_sees(server: Server, url: str, schema: str, client_of: Open) -> None:
    lease = client_of(url).lock("report", ttl=30, meta={"job": 7}).acquire(timeout=15)
    assert lease is not None

    ((name, state, fence, host, pid, agent, has_begun, left),) = server.rows(
        sql.SQL(
            "SELECT name, state, fence, host, pid, agent, since <= now(), expires - clock_timestamp() "
            "FROM {}.holdfast_status"
        ).format(sql.Identifier(schema))
    )

    assert (name, state, fence) == ("report", "holds", lease.fence)
    assert (host, pid, agent) == (socket.gethostname(), str(os.getpid()), threading.current_thread().name)
    assert has_begun
    assert 20 < left.total_seconds() < 30.1
    lease.release()


@pytest.mark.parametrize(
    "setting",
    [
        "default_transaction_isolation = 'serializable'",
        "default_transaction_isolation = 'repeatable read'",
        "TimeZone = 'Asia/Kathmandu'",
        "DateStyle = 'German, DMY'",
        "lock_timeout = 1",
        "search_path = 'nowhere'",
        "bytea_output = 'escape'",
        "synchronous_commit = off",
    ],
)
def test_settings_of_the_user_do_not_matter(
    server: Server, schema: str, user: str, client_of: Open, setting: str
) -> None:
    server.rows(sql.SQL("ALTER ROLE {} SUPERUSER").format(sql.Identifier(user)))
    server.rows(sql.SQL("ALTER ROLE {} SET " + setting).format(sql.Identifier(user)))
    url = server.url_of(user, schema=schema)
    fences: list[int] = []

    def take_turns() -> None:
        lock = client_of(url).lock("a", timeout=30)
        for _ in range(10):
            with lock as lease:
                fences.append(lease.fence)

    threads = [threading.Thread(target=take_turns) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(fences) == 40
    assert fences == sorted(set(fences))


def test_a_server_that_takes_no_writes_is_named_as_such(
    server: Server, url: str, schema: str, user: str, client_of: Open
) -> None:
    with client_of(url).lock("a"):
        pass
    server.rows(sql.SQL("ALTER ROLE {} SUPERUSER").format(sql.Identifier(user)))
    server.rows(sql.SQL("ALTER ROLE {} SET default_transaction_read_only = on").format(sql.Identifier(user)))

    with pytest.raises(BackendUnavailable, match="takes no writes"):
        client_of(server.url_of(user, schema=schema)).lock("a").acquire(timeout=0)


def test_a_user_who_may_not_create_tables_is_told_what_to_do(
    server: Server, schema: str, user: str, client_of: Open
) -> None:
    url = server.url_of(user, schema=schema)
    with pytest.raises(ConfigurationError, match="holdfast init --print 'postgresql://user_"):
        client_of(url).lock("a").acquire(timeout=0)

    server.rows(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    server.rows(tables(schema))
    with pytest.raises(ConfigurationError, match="lacks a right"):
        client_of(url).lock("a").acquire(timeout=0)

    names = {"schema": sql.Identifier(schema), "user": sql.Identifier(user)}
    server.rows(sql.SQL("GRANT USAGE ON SCHEMA {schema} TO {user}").format(**names))
    rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}"
    server.rows(sql.SQL(rights).format(**names))
    with client_of(url).lock("a", timeout=0):
        pass


def test_tables_that_somebody_dropped_are_made_again(server: Server, url: str, schema: str, client_of: Open) -> None:
    client = client_of(url)
    with client.lock("a") as before:
        pass
    server.rows(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))

    with client.lock("a", timeout=0) as after:
        assert after.fence > before.fence


def test_a_single_table_that_somebody_dropped_is_made_again(
    server: Server, url: str, schema: str, client_of: Open
) -> None:
    client = client_of(url)
    with client.lock("a") as before:
        pass
    server.rows(sql.SQL("DROP TABLE {}.holdfast_locks CASCADE").format(sql.Identifier(schema)))

    with client.lock("a", timeout=0) as after:
        assert after.fence > before.fence


def test_tables_of_a_newer_holdfast_are_left_alone(server: Server, url: str, schema: str, client_of: Open) -> None:
    with client_of(url).lock("a"):
        pass
    server.rows(sql.SQL("INSERT INTO {}.holdfast_schema VALUES (99)").format(sql.Identifier(schema)))

    with pytest.raises(ConfigurationError, match="newer holdfast"):
        client_of(url).lock("a").acquire(timeout=0)


NEWER = """
    DROP TABLE {schema}.holdfast_marks;
    DROP FUNCTION {schema}.holdfast_enter_owner, {schema}.holdfast_enter_all, {schema}.holdfast_reap_marks;
    ALTER TABLE {schema}.holdfast_tickets DROP COLUMN owner
"""


def use_all_that_is_new(client: holdfast.Client) -> None:
    runs: list[str] = []
    with client.lock_all(["x", "y"], timeout=0) as lease:
        assert lease.names == ("x", "y")
    with client.lock("z", owner="job", timeout=0):
        pass
    client.once_per("1h", name=f"nightly {uuid.uuid4()}")(runs.append)("ran")
    assert runs == ["ran"]


def test_tables_of_an_older_holdfast_are_completed_while_locks_are_held(
    server: Server, url: str, schema: str, client_of: Open
) -> None:
    client = client_of(url)
    held = client.lock("held").acquire(timeout=0)
    read = client.rwlock("read").read().acquire(timeout=0)
    server.rows(sql.SQL(NEWER).format(schema=sql.Identifier(schema)))
    older = client_of(url)
    assert older.lock("held").acquire(timeout=0) is None

    for one in (older, client):
        use_all_that_is_new(one)

    assert held is not None
    assert read is not None
    for lease in (held, read):
        lease.renew()
        lease.release()


def test_init_completes_tables_and_leaves_complete_ones_alone(
    server: Server, url: str, schema: str, user: str, client_of: Open
) -> None:
    names = {"schema": sql.Identifier(schema), "user": sql.Identifier(user)}
    create_tables(urls.parse(url))
    server.rows(sql.SQL(NEWER).format(**names))
    server.rows(sql.SQL("GRANT USAGE ON SCHEMA {schema} TO {user}").format(**names))
    server.rows(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {user}").format(**names))
    powerless = urls.parse(server.url_of(user, schema=schema))
    with pytest.raises(ConfigurationError, match="of an older holdfast"):
        create_tables(powerless)

    create_tables(urls.parse(url))

    create_tables(powerless)
    new = "SELECT count(*) FROM {schema}.holdfast_marks, {schema}.holdfast_tickets WHERE owner = 'x'"
    assert server.rows(sql.SQL(new).format(**names)) == [(0,)]


def test_where_tables_may_not_be_completed_locks_go_on_and_what_is_new_says_what_to_run(
    server: Server, schema: str, user: str, client_of: Open
) -> None:
    names = {"schema": sql.Identifier(schema), "user": sql.Identifier(user)}
    rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}"
    server.rows(sql.SQL("CREATE SCHEMA {schema}").format(**names))
    server.rows(tables(schema))
    server.rows(sql.SQL(NEWER).format(**names))
    server.rows(sql.SQL("GRANT USAGE ON SCHEMA {schema} TO {user}").format(**names))
    server.rows(sql.SQL(rights).format(**names))
    client = client_of(server.url_of(user, schema=schema))

    refused: list[Callable[[], object]] = [
        lambda: client.lock_all(["x", "y"]).acquire(timeout=0),
        lambda: client.lock("z", owner="job").acquire(timeout=0),
        lambda: client.once_per("1h", name="nightly")(len)("x"),
        lambda: client.request_revoke("a", 1),
    ]
    for use in refused:
        with pytest.raises(
            ConfigurationError, match=r"of an older holdfast: .* does not exist .*holdfast init --print"
        ):
            use()
        with client.lock("a", timeout=0), client.semaphore("b", 2, timeout=0), client.rwlock("c", timeout=0).read():
            pass

    server.rows(tables(schema))
    server.rows(sql.SQL(rights).format(**names))
    use_all_that_is_new(client)


def test_a_new_mark_is_the_occasion_to_forget_those_that_need_not_be_kept(
    server: Server, url: str, schema: str, client_of: Open
) -> None:
    client = client_of(url)
    client.once_per("1h", name="kept")(len)("x")
    names = {"schema": sql.Identifier(schema)}
    server.rows(sql.SQL("INSERT INTO {schema}.holdfast_marks VALUES ('old', 1, 'nonce', 1)").format(**names))
    # One in 256 is, by the last digits of the clock: by this one, all are.
    clock = "CREATE OR REPLACE FUNCTION {schema}.holdfast_clock() RETURNS bigint LANGUAGE sql AS $$SELECT {now}$$"
    now = sql.Literal((time.time_ns() // 1000) & ~255)
    server.rows(sql.SQL(clock).format(now=now, **names))

    client.once_per("1h", name="new")(len)("x")

    left = server.rows(sql.SQL("SELECT name FROM {schema}.holdfast_marks ORDER BY name").format(**names))
    assert [name.partition("@")[0].rpartition(":")[2] for (name,) in left] == ["kept", "new"]


def test_only_locks_that_nobody_uses_any_more_are_forgotten(
    server: Server, url: str, schema: str, client_of: Open
) -> None:
    client = client_of(url)
    leases = [client.lock("held").acquire(timeout=0)]
    leases += [client.rwlock(name).read().acquire(timeout=0) for name in ("read", "read by the dead")]
    for name in ("old", "new"):
        with client.lock(name):
            pass
    names = {"schema": sql.Identifier(schema)}
    server.rows(sql.SQL("UPDATE {schema}.holdfast_locks SET drawn = 1 WHERE name <> 'new'").format(**names))
    server.rows(sql.SQL("UPDATE {schema}.holdfast_tickets SET expires = 1 WHERE name LIKE '%dead'").format(**names))

    server.rows(sql.SQL("SELECT {schema}.holdfast_reap({schema}.holdfast_clock())").format(**names))

    left = server.rows(sql.SQL("SELECT name FROM {schema}.holdfast_locks ORDER BY name").format(**names))
    assert left == [("held",), ("new",), ("read",)]
    assert server.rows(sql.SQL("SELECT name FROM {schema}.holdfast_tickets").format(**names)) == [("read",)]
    for lease in leases[:2]:
        assert lease is not None
        lease.release()


def test_nobody_is_notified_when_nobody_waits(server: Server, url: str, client_of: Open) -> None:
    client = client_of(url)

    for _ in range(5):
        with client.lock("a"):
            pass

    assert server.clients("LISTEN%") == []
