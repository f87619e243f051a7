"""Hazard: similar names, other settings, missing rights, and tables that are dropped, old or new."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from psycopg import sql

import holdfast
from holdfast import BackendUnavailable, ConfigurationError, LimitConflict, NameConflict
from holdfast import url as urls
from holdfast.backends.postgresql.io import connections
from holdfast.backends.postgresql.io.blocking import create_tables
from holdfast.backends.postgresql.protocol import queue
from holdfast.backends.postgresql.sql import quoted, tables_ddl
from holdfast.core.tickets import Waiting
from holdfast.runtimes.threads import run_sync
from holdfast_lab.sim.mutants.base import replaced
from tests.integration.conftest import OpenClient
from tests.support.postgresql.driver import Driver
from tests.support.postgresql.servers import Server
from tests.support.processes import eventually


@pytest.fixture
def schema(url: str) -> str:
    return parse_qs(urlsplit(url).query)["schema"][0]


@pytest.fixture
def user(server: Server) -> str:
    """A user without rights."""
    name = f"user_{uuid.uuid4().hex[:8]}"
    server.rows(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    return name


def test_names_that_look_alike_are_different_locks(url: str, open_client: OpenClient) -> None:
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
    client = open_client(url)

    leases = [client.lock(name).acquire(timeout=0) for name in names]

    assert all(leases)
    assert sorted(info.name for info in client.locks()) == sorted(names)
    assert [client.inspect(name).name for name in names] == names
    assert [info.name for info in client.locks("a\\")] == ["a\\", "a\\\0", "a\\0"]
    for lease in leases:
        assert lease is not None
        lease.release()


def test_the_status_view_shows_holders_and_waiters(
    server: Server, url: str, schema: str, open_client: OpenClient
) -> None:
    lease = open_client(url).lock("report", ttl=30, meta={"job": 7}).acquire(timeout=15)
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
def test_locks_work_with_any_settings_of_the_user(
    server: Server, schema: str, user: str, open_client: OpenClient, setting: str
) -> None:
    server.rows(sql.SQL("ALTER ROLE {} SUPERUSER").format(sql.Identifier(user)))
    server.rows(sql.SQL("ALTER ROLE {} SET " + setting).format(sql.Identifier(user)))
    url = server.url_of(user, schema=schema)
    fences: list[int] = []

    def take_turns() -> None:
        lock = open_client(url).lock("a", timeout=30)
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


def test_the_error_names_the_cause_when_the_server_is_read_only(
    server: Server, url: str, schema: str, user: str, open_client: OpenClient
) -> None:
    with open_client(url).lock("a"):
        pass
    server.rows(sql.SQL("ALTER ROLE {} SUPERUSER").format(sql.Identifier(user)))
    server.rows(sql.SQL("ALTER ROLE {} SET default_transaction_read_only = on").format(sql.Identifier(user)))

    with pytest.raises(BackendUnavailable, match="takes no writes"):
        open_client(server.url_of(user, schema=schema)).lock("a").acquire(timeout=0)


def test_the_error_names_the_fix_when_the_user_may_not_create_tables(
    server: Server, schema: str, user: str, open_client: OpenClient
) -> None:
    url = server.url_of(user, schema=schema)
    with pytest.raises(ConfigurationError, match="holdfast init --print 'postgresql://user_"):
        open_client(url).lock("a").acquire(timeout=0)

    server.rows(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    server.rows(tables_ddl(schema))
    with pytest.raises(ConfigurationError, match="lacks a right"):
        open_client(url).lock("a").acquire(timeout=0)

    names = {"schema": sql.Identifier(schema), "user": sql.Identifier(user)}
    server.rows(sql.SQL("GRANT USAGE ON SCHEMA {schema} TO {user}").format(**names))
    rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}"
    server.rows(sql.SQL(rights).format(**names))
    with open_client(url).lock("a", timeout=0):
        pass


def test_dropped_tables_are_created_again(server: Server, url: str, schema: str, open_client: OpenClient) -> None:
    client = open_client(url)
    with client.lock("a") as before:
        pass
    server.rows(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))

    with client.lock("a", timeout=0) as after:
        assert after.fence > before.fence


def test_a_single_dropped_table_is_created_again(
    server: Server, url: str, schema: str, open_client: OpenClient
) -> None:
    client = open_client(url)
    with client.lock("a") as before:
        pass
    server.rows(sql.SQL("DROP TABLE {}.holdfast_locks CASCADE").format(sql.Identifier(schema)))

    with client.lock("a", timeout=0) as after:
        assert after.fence > before.fence


def test_tables_of_a_newer_holdfast_are_refused_and_not_changed(
    server: Server, url: str, schema: str, open_client: OpenClient
) -> None:
    with open_client(url).lock("a"):
        pass
    server.rows(sql.SQL("INSERT INTO {}.holdfast_schema VALUES (99)").format(sql.Identifier(schema)))

    with pytest.raises(ConfigurationError, match="newer holdfast"):
        open_client(url).lock("a").acquire(timeout=0)


DOWNGRADE = """
    DROP TABLE {schema}.holdfast_marks, {schema}.holdfast_records;
    DROP FUNCTION {schema}.holdfast_enter_owner, {schema}.holdfast_enter_all, {schema}.holdfast_reap_marks;
    DROP FUNCTION {schema}.holdfast_swap_record, {schema}.holdfast_reap_records;
    ALTER TABLE {schema}.holdfast_tickets DROP COLUMN owner
"""


def use_new_features(client: holdfast.Client) -> None:
    runs: list[str] = []
    with client.lock_all(["x", "y"], timeout=0) as lease:
        assert lease.names == ("x", "y")
    with client.lock("z", owner="job", timeout=0):
        pass
    client.once_per("1h", name=f"nightly {uuid.uuid4()}")(runs.append)("ran")
    assert runs == ["ran"]


def test_tables_of_an_older_holdfast_are_upgraded_while_locks_are_held(
    server: Server, url: str, schema: str, open_client: OpenClient
) -> None:
    client = open_client(url)
    held = client.lock("held").acquire(timeout=0)
    read = client.rwlock("read").read().acquire(timeout=0)
    server.rows(sql.SQL(DOWNGRADE).format(schema=sql.Identifier(schema)))
    older = open_client(url)
    assert older.lock("held").acquire(timeout=0) is None

    for user in (older, client):
        use_new_features(user)

    assert held is not None
    assert read is not None
    for lease in (held, read):
        lease.renew()
        lease.release()


def test_init_upgrades_old_tables_and_does_not_change_current_ones(
    server: Server, url: str, schema: str, user: str, open_client: OpenClient
) -> None:
    names = {"schema": sql.Identifier(schema), "user": sql.Identifier(user)}
    create_tables(urls.parse(url))
    server.rows(sql.SQL(DOWNGRADE).format(**names))
    server.rows(sql.SQL("GRANT USAGE ON SCHEMA {schema} TO {user}").format(**names))
    server.rows(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {user}").format(**names))
    powerless = urls.parse(server.url_of(user, schema=schema))
    with pytest.raises(ConfigurationError, match="of an older holdfast"):
        create_tables(powerless)

    create_tables(urls.parse(url))

    create_tables(powerless)
    new = "SELECT count(*) FROM {schema}.holdfast_marks, {schema}.holdfast_tickets WHERE owner = 'x'"
    assert server.rows(sql.SQL(new).format(**names)) == [(0,)]


def test_locks_work_and_new_features_name_the_fix_when_tables_cannot_be_upgraded(
    server: Server, schema: str, user: str, open_client: OpenClient
) -> None:
    names = {"schema": sql.Identifier(schema), "user": sql.Identifier(user)}
    rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}"
    server.rows(sql.SQL("CREATE SCHEMA {schema}").format(**names))
    server.rows(tables_ddl(schema))
    server.rows(sql.SQL(DOWNGRADE).format(**names))
    server.rows(sql.SQL("GRANT USAGE ON SCHEMA {schema} TO {user}").format(**names))
    server.rows(sql.SQL(rights).format(**names))
    client = open_client(server.url_of(user, schema=schema))
    held = client.lock("held").acquire(timeout=0)
    assert held is not None

    refused: list[Callable[[], object]] = [
        lambda: client.lock_all(["x", "y"]).acquire(timeout=0),
        lambda: client.lock("z", owner="job").acquire(timeout=0),
        lambda: client.once_per("1h", name="nightly")(len)("x"),
        lambda: client.request_revoke("held", held.fence),
    ]
    for use in refused:
        with pytest.raises(
            ConfigurationError, match=r"of an older holdfast: .* does not exist .*holdfast init --print"
        ):
            use()
        with client.lock("a", timeout=0), client.semaphore("b", 2, timeout=0), client.rwlock("c", timeout=0).read():
            pass

    server.rows(tables_ddl(schema))
    server.rows(sql.SQL(rights).format(**names))
    use_new_features(client)
    held.release()


def test_a_new_register_removes_expired_ones(server: Server, url: str, schema: str, open_client: OpenClient) -> None:
    client = open_client(url)
    client.once_per("1h", name="kept")(len)("x")
    names = {"schema": sql.Identifier(schema)}
    server.rows(sql.SQL("INSERT INTO {schema}.holdfast_marks VALUES ('old', 1, 'nonce', 1)").format(**names))
    # One new row in 256 triggers the reaper, by the last bits of the clock; with this clock every one does.
    clock = "CREATE OR REPLACE FUNCTION {schema}.holdfast_clock() RETURNS bigint LANGUAGE sql AS $$SELECT {now}$$"
    now = sql.Literal((time.time_ns() // 1000) & ~255)
    server.rows(sql.SQL(clock).format(now=now, **names))

    client.once_per("1h", name="new")(len)("x")

    remaining = server.rows(sql.SQL("SELECT name FROM {schema}.holdfast_marks ORDER BY name").format(**names))
    assert [name.partition("@")[0].rpartition(":")[2] for (name,) in remaining] == ["kept", "new"]


def test_only_unused_locks_are_reaped(server: Server, url: str, schema: str, open_client: OpenClient) -> None:
    client = open_client(url)
    leases = [client.lock("held").acquire(timeout=0)]
    leases += [client.rwlock(name).read().acquire(timeout=0) for name in ("read", "read by the dead")]
    for name in ("old", "new"):
        with client.lock(name):
            pass
    names = {"schema": sql.Identifier(schema)}
    server.rows(sql.SQL("UPDATE {schema}.holdfast_locks SET drawn = 1 WHERE name <> 'new'").format(**names))
    server.rows(sql.SQL("UPDATE {schema}.holdfast_tickets SET expires = 1 WHERE name LIKE '%dead'").format(**names))

    server.rows(sql.SQL("SELECT {schema}.holdfast_reap({schema}.holdfast_clock())").format(**names))

    remaining = server.rows(sql.SQL("SELECT name FROM {schema}.holdfast_locks ORDER BY name").format(**names))
    assert remaining == [("held",), ("new",), ("read",)]
    assert server.rows(sql.SQL("SELECT name FROM {schema}.holdfast_tickets").format(**names)) == [("read",)]
    for lease in leases:
        assert lease is not None
        with pytest.raises(holdfast.LockLost) if "dead" in lease.name else nullcontext():
            lease.release()


@pytest.mark.parametrize("kind", ["lock", "semaphore", "owner", "lock_all", "lock_all of an owner", "advisory"])
def test_a_new_lock_of_any_kind_removes_old_ones(
    server: Server, url: str, schema: str, open_client: OpenClient, kind: str
) -> None:
    client = open_client(f"{url}&method=advisory" if kind == "advisory" else url)
    with client.lock("old"):
        pass
    names = {"schema": sql.Identifier(schema)}
    server.rows(sql.SQL("UPDATE {schema}.holdfast_locks SET drawn = 1").format(**names))
    # One new row in 256 triggers the reaper, by the last bits of the clock; with this clock every one does.
    clock = "CREATE OR REPLACE FUNCTION {schema}.holdfast_clock() RETURNS bigint LANGUAGE sql AS $$SELECT {now}$$"
    now = sql.Literal((time.time_ns() // 1000) & ~255)
    server.rows(sql.SQL(clock).format(now=now, **names))

    uses: dict[str, Callable[[], Any]] = {
        "semaphore": lambda: client.semaphore("new", 3, timeout=0),
        "owner": lambda: client.lock("new", owner="me", timeout=0),
        "lock_all": lambda: client.lock_all(["new", "newer"], timeout=0),
        "lock_all of an owner": lambda: client.lock_all([client.lock("new", owner="me"), "newer"], timeout=0),
    }
    with uses.get(kind, lambda: client.lock("new", timeout=0))():
        pass

    remaining = server.rows(sql.SQL("SELECT name FROM {schema}.holdfast_locks").format(**names))
    assert ("old",) not in remaining


def test_a_lock_keeps_its_readers_when_an_operator_deletes_its_row(
    server: Server, url: str, schema: str, open_client: OpenClient
) -> None:
    reader, writer = open_client(url), open_client(url)
    held = reader.rwlock("doc").read().acquire(timeout=0)
    assert held is not None
    delete = sql.SQL("DELETE FROM {}.holdfast_locks").format(sql.Identifier(schema))

    server.rows(delete)

    assert writer.rwlock("doc").write().acquire(timeout=0) is None
    assert writer.lock_all(["doc", "other"]).acquire(timeout=0) is None
    with pytest.raises(NameConflict):
        open_client(f"{url}&method=advisory").lock("doc").acquire(timeout=0)
    held.renew()
    server.rows(delete)
    held.release()
    with writer.rwlock("doc", timeout=0).write():
        pass


@pytest.mark.parametrize("meta", [os.fsdecode(b"caf\xe9.txt"), "a\0b"], ids=["half a surrogate pair", "zero byte"])
def test_the_status_view_shows_a_lock_whose_meta_postgresql_cannot_parse(
    server: Server, url: str, schema: str, open_client: OpenClient, meta: str
) -> None:
    view = sql.SQL("SELECT name, host, pid FROM {}.holdfast_status").format(sql.Identifier(schema))

    with open_client(url).lock("odd", timeout=0, meta={"file": meta, "host": "no", "pid": 7}):
        assert server.rows(view) == [("odd", socket.gethostname(), str(os.getpid()))]


VERSION_1 = """
    DELETE FROM {schema}.holdfast_schema;
    INSERT INTO {schema}.holdfast_schema VALUES (1);
    DROP FUNCTION {schema}.holdfast_wake(text, bigint, bigint);
    DROP FUNCTION {schema}.holdfast_lapse, {schema}.holdfast_is_gone, {schema}.holdfast_set_right;
    DROP FUNCTION {schema}.holdfast_create;
    ALTER TABLE {schema}.holdfast_tickets DROP COLUMN renewed;
    DROP TABLE {schema}.holdfast_names;
    ALTER TABLE {schema}.holdfast_locks DROP COLUMN generation, DROP COLUMN head, ADD PRIMARY KEY (name);
    ALTER TABLE {schema}.holdfast_locks DROP COLUMN renewed, DROP COLUMN renewed_fence
"""


def test_tables_of_version_1_are_upgraded_while_locks_are_held(
    server: Server, url: str, schema: str, open_client: OpenClient
) -> None:
    client = open_client(url)
    held = [client.lock("held").acquire(timeout=0), client.rwlock("read").read().acquire(timeout=0)]
    server.rows(sql.SQL(VERSION_1).format(schema=sql.Identifier(schema)))

    newer = open_client(url)
    assert newer.lock("held").acquire(timeout=0) is None
    assert newer.rwlock("read").write().acquire(timeout=0) is None
    use_new_features(newer)

    for lease in held:
        assert lease is not None
        lease.renew()
        lease.release()
    assert server.rows(sql.SQL("SELECT max(version) FROM {}.holdfast_schema").format(sql.Identifier(schema))) == [(2,)]


def test_the_error_names_the_fix_when_the_user_may_not_upgrade_version_1(
    server: Server, schema: str, user: str, open_client: OpenClient
) -> None:
    names = {"schema": sql.Identifier(schema), "user": sql.Identifier(user)}
    server.rows(sql.SQL("CREATE SCHEMA {schema}").format(**names))
    server.rows(tables_ddl(schema))
    server.rows(sql.SQL(VERSION_1).format(**names))
    server.rows(sql.SQL("GRANT USAGE ON SCHEMA {schema} TO {user}").format(**names))
    rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}"
    server.rows(sql.SQL(rights).format(**names))
    client = open_client(server.url_of(user, schema=schema))

    with pytest.raises(ConfigurationError, match=r"of an older holdfast: version 1 .*holdfast init --print"):
        client.lock("a").acquire(timeout=0)

    server.rows(tables_ddl(schema))
    server.rows(sql.SQL(rights).format(**names))  # for the new table
    use_new_features(client)


PAIRS = 1000
USE = """DO $do$
DECLARE
    n integer;
BEGIN
    FOR n IN 1 .. {pairs} LOOP
        EXECUTE {take} USING 'hot', 'n', 30000000, 'main', '{{}}';
        EXECUTE {free} USING 'hot', 'n';
        PERFORM {schema}.holdfast_enter('shared', 'n', 30000000, false, 3, true, 'main', '{{}}', 'nobody');
        PERFORM {schema}.holdfast_leave('shared', 'n', false);
        COMMIT;
    END LOOP;
END
$do$"""


def test_old_row_versions_of_a_long_transaction_do_not_slow_a_lock_down(
    server: Server, url: str, schema: str, open_client: OpenClient
) -> None:
    with open_client(url).lock("hot"):
        pass
    where = {"schema": sql.Identifier(schema)}
    take, free = (
        statement.sql.format(schema=quoted(schema)) for statement in (queue._FAST_ACQUIRE, queue._FAST_RELEASE)
    )
    try_acquire = "SELECT * FROM {schema}.holdfast_enter('shared', 'n', 30000000, false, 3, true, 'main', '', 'nobody')"
    with server.connect() as old, server.connect() as ours, old.transaction():
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")  # takes its snapshot
        ours.execute(f"{connections._SETTINGS}; SET statement_timeout = 0")

        ours.execute(
            sql.SQL(USE).format(pairs=sql.Literal(PAIRS), take=sql.Literal(take), free=sql.Literal(free), **where)
        )

        for statement in (
            take.replace("$1", "'hot'").replace("$2", "'n'").replace("$3", "1").replace("$4", "''").replace("$5", "''"),
            free.replace("$1", "'hot'").replace("$2", "'n'"),
            try_acquire.format(schema=quoted(schema)),
        ):
            (((plan,),),) = ours.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}")
            assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < PAIRS / 10


@pytest.mark.parametrize("position", [5, 5000, 9995])
def test_a_poll_costs_the_same_at_any_place_of_a_long_queue(
    server: Server, url: str, schema: str, open_client: OpenClient, position: int
) -> None:
    queued, where = 10_000, {"schema": sql.Identifier(schema)}
    tickets = """
        INSERT INTO {schema}.holdfast_tickets
            (name, number, nonce, exclusive, "limit", expires, since, agent, info, channel, renewed)
        SELECT 'busy', l.drawn + n, 'n' || n, true, 1, l.expires, l.since, '', '', 'nobody', l.renewed
        FROM {schema}.holdfast_locks l, generate_series(1, {queued}) AS n WHERE l.name = 'busy'
    """
    poll = "SELECT * FROM {schema}.holdfast_enter('busy', {nonce}, 30000000, true, 1, true, '', '', 'nobody')"
    polled = sql.SQL(poll).format(nonce=sql.Literal(f"n{position}"), **where)
    with open_client(url).lock("busy", ttl=60), server.connect() as ours:
        ours.execute(f"{connections._SETTINGS}; SET plan_cache_mode = force_generic_plan")  # as after a few polls
        ours.execute(sql.SQL(tickets).format(queued=sql.Literal(queued), **where))
        ours.execute(sql.SQL("UPDATE {schema}.holdfast_locks SET queued = true WHERE name = 'busy'").format(**where))
        ours.execute(polled)  # plans and catalogs are read

        (((plan,),),) = ours.execute(sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + polled)

        assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 50


def test_a_refused_acquire_leaves_nothing_in_the_client(driver: Driver) -> None:
    held, waits = driver.tickets(["w", "w"])
    driver.try_acquire(held)
    driver.try_acquire(waits, queue=True)
    eventually(lambda: run_sync(driver.backend.wait(waits, driver.until - 29.9)) is None and driver.listens)
    driver.try_acquire(waits, queue=True)
    (permit,) = driver.tickets(["s"])
    driver.try_acquire(replaced(permit, limit=3, exclusive=False))

    for ticket in driver.tickets(["s"] * 5):
        with pytest.raises(LimitConflict):
            driver.try_acquire(replaced(ticket, limit=4, exclusive=False), queue=True)

    assert driver.remembered == {waits.nonce}


def test_an_acquire_without_a_wait_leaves_nothing_in_the_client_with_method_advisory(url: str) -> None:
    holder = Driver(f"{url}&method=advisory")
    other = Driver(f"{url}&method=advisory")
    held, busy = holder.tickets(["w", "w"])
    holder.try_acquire(held)

    assert isinstance(other.try_acquire(busy), Waiting)

    assert other.remembered == set()
    for user in (holder, other):
        user.close()


def test_no_client_listens_when_no_ticket_waits(server: Server, url: str, open_client: OpenClient) -> None:
    client = open_client(url)

    for _ in range(5):
        with client.lock("a"):
            pass

    assert server.clients("LISTEN%") == []
