"""Hazard: similar names, other settings, missing rights, and tables that are dropped, old or new."""

from __future__ import annotations

import ssl
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pymysql.constants import CLIENT

import holdfast
from holdfast import BackendUnavailable, ConfigurationError, NameConflict
from holdfast.backends.mysql.io.blocking import create_tables
from holdfast.backends.mysql.sql import VERSION, ddl, lock_id
from holdfast.guarantees import Exclusion
from holdfast.url import parse
from tests.integration.conftest import OpenClient
from tests.integration.mysql.conftest import is_busy
from tests.support.mysql.servers import REPLICATED, Server
from tests.support.processes import eventually
from tests.support.redis.certificates import Certificates
from tests.support.server_process import running

METHODS = ["unique", "row", "version"]


@pytest.fixture
def user(server: Server) -> str:
    """A user without rights."""
    name = f"user_{uuid.uuid4().hex[:8]}"
    server.run(f"CREATE USER {name}@'127.0.0.1'")
    return name


@pytest.fixture
def own_user(own_server: Server) -> str:
    """A user with all rights in the database, and no others."""
    own_server.run("CREATE USER IF NOT EXISTS app@'127.0.0.1'", "GRANT ALL ON locks.* TO app@'127.0.0.1'")
    return "app"


@pytest.mark.parametrize("method", METHODS)
def test_names_that_look_alike_are_different_locks(
    server: Server, database: str, open_client: OpenClient, method: str
) -> None:
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
        "ß",
        "ss",
        "'",
        '"',
        "\\",
        "%",
        "_",
        "😀",
    ]
    names.append("😀" * 512)
    client = open_client(server.url_of(database, method=method))

    leases = [client.lock(name).acquire(timeout=15) for name in names]

    assert all(leases)
    assert sorted(info.name for info in client.locks()) == sorted(names)
    assert [client.inspect(name).name for name in names] == names
    assert [info.name for info in client.locks("a")] == ["a", "a\0", "a\t", "a ", "a\u0301"]
    for lease in leases:
        assert lease is not None
        lease.release()


def test_generated_columns_show_holders_and_times(
    server: Server, database: str, url: str, open_client: OpenClient
) -> None:
    lease = open_client(url).lock("report", ttl=30, meta={"job": 7}).acquire(timeout=15)
    assert lease is not None

    ((name, holder, fence, age, left, info),) = server.rows(
        "SELECT name, holder, fence, TIMESTAMPDIFF(SECOND, since_utc, UTC_TIMESTAMP()), "
        "TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), expires_utc), info FROM holdfast_locks WHERE holder IS NOT NULL",
        database=database,
    )

    assert (name, fence) == ("report", lease.fence)
    assert holder.endswith(" MainThread")
    assert '"job": 7' in info
    assert 0 <= age <= 20
    assert 10 < left <= 30
    lease.release()
    assert server.value("SELECT holder FROM holdfast_locks", database=database) is None


@pytest.fixture(
    params=[
        "transaction_isolation = 'SERIALIZABLE'",
        "transaction_isolation = 'READ-UNCOMMITTED'",
        "autocommit = 0",
        "completion_type = 'CHAIN'",
        "sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,TRADITIONAL,SIMULTANEOUS_ASSIGNMENT,HIGH_NOT_PRECEDENCE'",
        "sql_mode = ''",
        "time_zone = '+05:45'",
        "character_set_server = 'latin1'",
        "transaction_read_only = 1",
        "innodb_snapshot_isolation = 1",
    ]
)
def odd_server(request: pytest.FixtureRequest, own_server: Server, own_user: str) -> Iterator[Server]:
    """A server with an unusual default."""
    assert own_user, "the user must exist before the setting changes, because some settings prevent its creation"
    name = request.param.partition(" ")[0].replace("transaction_isolation", "tx_isolation")
    name = name.replace("transaction_read_only", "tx_read_only")
    before = own_server.value(f"SELECT @@GLOBAL.{name}")
    own_server.run(f"SET GLOBAL {name} ={request.param.partition('=')[2]}")
    yield own_server
    with own_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION tx_read_only = 0, autocommit = 1, completion_type = 0")
        cursor.execute(f"SET GLOBAL {name} = %s", (before,))


def test_locks_work_with_any_settings_of_the_server(odd_server: Server, own_user: str, open_client: OpenClient) -> None:
    url = odd_server.url_of(user=own_user)
    fences: list[int] = []

    def take_turns() -> None:
        lock = open_client(url).lock("odd ' \\ é", timeout=60)
        for _ in range(10):
            with lock as lease:
                fences.append(lease.fence)

    threads = [threading.Thread(target=take_turns) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)

    assert len(fences) == 40
    assert fences == sorted(set(fences))


def test_the_error_names_the_cause_when_the_server_is_read_only(
    own_server: Server, own_user: str, open_client: OpenClient
) -> None:
    url = own_server.url_of(user=own_user)
    lease = open_client(url).lock("read-only", ttl=60).acquire(timeout=15)
    assert lease is not None
    own_server.run("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(BackendUnavailable, match="takes no writes"):
            open_client(url).lock("read-only").acquire(timeout=0)
    finally:
        own_server.run("SET GLOBAL read_only = 0")
    lease.release()


@pytest.mark.parametrize("setting", [0, 2])
def test_exclusion_is_best_effort_when_the_server_is_not_durable(
    own_server: Server, open_client: OpenClient, setting: int
) -> None:
    client = open_client(own_server.url)
    own_server.run(f"SET GLOBAL innodb_flush_log_at_trx_commit = {setting}")
    try:
        with client.lock("forgetful"):
            assert client.guarantees.exclusion is Exclusion.BEST_EFFORT
        with holdfast.Client(own_server.url, require={"exclusion": "durable-authority"}) as strict:
            with pytest.raises(holdfast.ConfigurationError, match="exclusion is best-effort"):
                strict.lock("forgetful").acquire()
            assert strict.inspect("forgetful").holders == ()
    finally:
        own_server.run("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


def test_exclusion_is_best_effort_with_a_replica_unless_commits_wait_for_it(
    folder: Path, open_client: OpenClient
) -> None:
    primary = Server(folder / "followed", options=[*REPLICATED, "--server-id=1"])
    replica = Server(folder / "follower", options=[*REPLICATED, "--server-id=2"])
    with running(primary), running(replica):
        primary.run("CREATE USER app@'127.0.0.1'", "GRANT ALL ON locks.* TO app@'127.0.0.1'")

        def exclusion() -> Exclusion:
            client = open_client(primary.url_of(user="app"))
            with client.lock("one"):
                return client.guarantees.exclusion

        assert exclusion() is Exclusion.DURABLE_AUTHORITY

        replica.follow(primary)
        assert exclusion() is Exclusion.BEST_EFFORT

        primary.run("SET GLOBAL rpl_semi_sync_master_enabled = ON")
        eventually(lambda: primary.status("Rpl_semi_sync_master_status") == "ON")
        assert exclusion() is Exclusion.DURABLE_AUTHORITY


def test_locks_work_with_a_statement_based_binary_log(
    own_server: Server, own_user: str, open_client: OpenClient
) -> None:
    own_server.restart("--log-bin", "--binlog-format=STATEMENT")
    try:
        client = open_client(own_server.url_of(user=own_user))
        with client.lock("logged"), client.semaphore("permits", limit=2):
            other = open_client(own_server.url)
            assert is_busy(other.lock("logged"))
            assert other.lock("logged").acquire(timeout=0.2) is None
        with client.lock_all(["one", "two", "three"]), client.lock("four", owner="ann"):
            assert other.lock_all(["five", "four", "two"]).acquire(timeout=0.2) is None
    finally:
        own_server.restart()


def test_the_error_names_the_fix_when_the_user_may_not_create_tables(
    server: Server, database: str, user: str, open_client: OpenClient
) -> None:
    url = server.url_of(database, user=user)
    with pytest.raises(ConfigurationError, match="Access denied"):
        open_client(url).lock("a").acquire(timeout=15)

    server.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO {user}@'127.0.0.1'")
    with pytest.raises(ConfigurationError, match="holdfast init --print"):
        open_client(url).lock("a").acquire(timeout=15)

    words = ["mariadb", "--no-defaults", "-uroot", f"--socket={server.socket}"]
    subprocess.run(words, input=ddl(parse(url)).encode(), check=True, timeout=60)
    server.run(f"GRANT EXECUTE ON {database}.* TO {user}@'127.0.0.1'")
    for method in METHODS:
        with open_client(server.url_of(database, user=user, method=method)).lock(method, timeout=15):
            pass
    with open_client(url).rwlock("shared").read():
        pass


def test_tables_can_be_created_beforehand_and_more_than_once(server: Server, database: str, url: str) -> None:
    create_tables(parse(url))
    create_tables(parse(url))

    assert server.value("SELECT MAX(version) FROM holdfast_schema", database=database) == VERSION


# Turn the tables into the newest and the oldest ones of version 1. The oldest ones have no registers and no owners.
_NEWEST = (
    "ALTER TABLE holdfast_locks DROP COLUMN renewed",
    "ALTER TABLE holdfast_tickets DROP COLUMN renewed, DROP COLUMN client",
    "DROP PROCEDURE holdfast_try_acquire",
    "DROP PROCEDURE holdfast_try_acquire_owned",
    "UPDATE holdfast_schema SET version = 1",
)
_OLDEST = (*_NEWEST, "ALTER TABLE holdfast_tickets DROP COLUMN owner", "DROP TABLE holdfast_marks")


@pytest.mark.parametrize("downgrade", [_NEWEST, _OLDEST])
def test_tables_of_version_1_are_upgraded_with_their_rows(
    server: Server, database: str, url: str, open_client: OpenClient, downgrade: tuple[str, ...]
) -> None:
    client = open_client(url)
    held, shared = client.lock("held").acquire(timeout=15), client.rwlock("shared").read().acquire(timeout=15)
    assert held is not None
    assert shared is not None
    for statement in downgrade:
        server.rows(statement, database=database)

    newer = open_client(url)

    with pytest.raises(BackendUnavailable, match="older holdfast"):
        newer.inspect("held")  # reading does not upgrade them
    assert newer.lock("held").acquire(timeout=0) is None
    assert is_busy(newer.rwlock("shared").write())
    with newer.semaphore("permits", limit=2), newer.lock("owned", owner="ann"):
        assert server.value("SELECT MAX(version) FROM holdfast_schema", database=database) == VERSION
    held.release()
    shared.release()


def test_the_error_names_the_fix_when_the_user_may_not_upgrade_the_tables(
    server: Server, database: str, user: str, open_client: OpenClient
) -> None:
    url = server.url_of(database, user=user)
    create_tables(parse(server.url_of(database)))
    for statement in _OLDEST:
        server.rows(statement, database=database)
    server.run(f"GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON {database}.* TO {user}@'127.0.0.1'")
    with pytest.raises(ConfigurationError, match="holdfast init --print"):
        open_client(url).lock("a").acquire(timeout=15)

    words = ["mariadb", "--no-defaults", "-uroot", f"--socket={server.socket}"]
    subprocess.run(words, input=ddl(parse(url)).encode(), check=True, timeout=60)

    with open_client(url).lock("a", timeout=15, owner="ann"):
        pass


def test_a_writer_waits_for_the_readers_of_a_lock_whose_row_was_deleted(
    server: Server, database: str, url: str, open_client: OpenClient
) -> None:
    client = open_client(url)
    reader = client.rwlock("doc").read().acquire(timeout=15)
    assert reader is not None
    others = [open_client(server.url_of(database, method=method)) for method in METHODS]
    server.rows("DELETE FROM holdfast_locks", database=database)

    assert is_busy(others[0].lock("doc"))
    server.rows("DELETE FROM holdfast_locks", database=database)
    assert others[0].lock_all(["doc", "free"]).acquire(timeout=0) is None
    for other in others[1:]:
        server.rows("DELETE FROM holdfast_locks", database=database)
        with pytest.raises(NameConflict, match="in use with method=unique"):
            other.lock("doc").acquire(timeout=15)

    reader.release()
    with others[0].lock("doc", timeout=15) as writer:
        assert writer.fence > reader.fence


@pytest.mark.parametrize(
    ("method", "options"),
    [("unique", {}), ("unique", {"limit": 2}), ("unique", {"owner": "ann"}), ("row", {}), ("version", {})],
)
def test_rows_of_idle_locks_are_removed_by_every_kind_of_acquire(
    server: Server, database: str, open_client: OpenClient, method: str, options: dict[str, Any]
) -> None:
    client = open_client(server.url_of(database, method=method))
    take = client.semaphore if "limit" in options else client.lock

    def exists() -> bool:
        of_both = "SELECT id FROM holdfast_locks UNION SELECT id FROM holdfast_gates"
        return (lock_id("idle"),) in server.rows(of_both, database=database)

    with take("idle", **options):
        assert exists()
    server.rows("UPDATE holdfast_locks SET drawn = 1", database=database)

    for number in range(5000):
        with take(f"new {number}", **options):
            pass
        if number % 64 == 0 and not exists():
            break

    assert not exists(), "one of 256 clients that add a row removes idle rows"


def test_the_first_lock_of_a_database_is_granted_although_its_tables_take_longer_than_the_call(
    server: Server, database: str, url: str, open_client: OpenClient
) -> None:
    other = server.connect(database)
    with other.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 0)", (f"holdfast:{database}"[:64],))
        free = threading.Timer(2.5, other.close)  # until then no other client can create the tables
        free.start()

        lease = open_client(url).lock("a").acquire(timeout=2)

    assert lease is not None
    lease.release()
    free.join()


def test_concurrent_clients_create_the_tables_once(url: str, open_client: OpenClient) -> None:
    fences: list[int] = []

    def take() -> None:
        with open_client(url).lock("a", timeout=60) as lease:
            fences.append(lease.fence)

    threads = [threading.Thread(target=take) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)

    assert len(set(fences)) == 6


def test_dropped_tables_are_created_again(server: Server, database: str, url: str, open_client: OpenClient) -> None:
    client = open_client(url)
    with client.lock("a") as before:
        pass
    server.rows("DROP TABLE holdfast_locks", database=database)
    with client.lock("a", timeout=15) as then:
        assert then.fence > before.fence
    server.rows("DROP PROCEDURE holdfast_leave", database=database)
    with client.rwlock("b").read():
        pass
    server.rows(f"DROP DATABASE {database}", database="")
    server.rows(f"CREATE DATABASE {database}", database="")

    with open_client(url).lock("a", timeout=15) as after:
        assert after.fence > then.fence


def test_tables_of_a_newer_holdfast_are_refused_and_not_changed(
    server: Server, database: str, url: str, open_client: OpenClient
) -> None:
    with open_client(url).lock("a"):
        pass
    server.rows("INSERT INTO holdfast_schema VALUES (99)", database=database)

    with pytest.raises(ConfigurationError, match="newer holdfast"):
        open_client(url).lock("a").acquire(timeout=15)


def test_only_unused_locks_are_reaped(server: Server, database: str, url: str, open_client: OpenClient) -> None:
    client = open_client(url)
    lease, shared = client.lock("held").acquire(timeout=15), client.rwlock("shared").read().acquire(timeout=15)
    assert lease is not None
    assert shared is not None
    for name in ("old", "older", "new"):
        with client.lock(name):
            pass
    server.rows("UPDATE holdfast_locks SET drawn = 1 WHERE name <> 'new'", database=database)

    server.rows("CALL holdfast_reap(REPEAT(x'00', 32))", database=database)

    remaining = server.rows("SELECT name FROM holdfast_locks ORDER BY name", database=database)
    assert remaining == [("held",), ("new",), ("shared",)]
    lease.release()
    shared.release()


@pytest.mark.parametrize("theirs", METHODS)
@pytest.mark.parametrize("ours", METHODS)
def test_a_lock_of_another_method_is_refused(
    server: Server, database: str, open_client: OpenClient, ours: str, theirs: str
) -> None:
    if ours == theirs:
        return
    other = open_client(server.url_of(database, method=theirs))
    client = open_client(server.url_of(database, method=ours))

    with other.lock("a") as before, pytest.raises(NameConflict, match=f"in use with method={theirs}"):
        client.lock("a").acquire(timeout=15)

    with client.lock("a", timeout=15) as after:
        assert after.fence > before.fence


@pytest.mark.parametrize("method", ["row", "version"])
def test_a_lock_with_readers_of_another_method_is_refused(
    server: Server, database: str, open_client: OpenClient, method: str
) -> None:
    client = open_client(server.url_of(database, method=method))

    reader = open_client(server.url_of(database)).rwlock("a").read()
    with reader, pytest.raises(NameConflict, match="in use with method=unique"):
        client.lock("a").acquire(timeout=15)

    with client.lock("a", timeout=15):
        pass


def test_a_unix_socket_is_accepted(server: Server, database: str, open_client: OpenClient) -> None:
    with open_client(f"mariadb://root@/{database}?socket={server.socket}").lock("a", timeout=15):
        assert is_busy(open_client(server.url_of(database)).lock("a"))


def test_tls_is_required_when_the_url_says_so(
    own_server: Server, open_client: OpenClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = own_server.folder / "certificates"
    made = Certificates(folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    with pytest.raises(BackendUnavailable, match="SSL"):
        open_client(own_server.url_of(tls="yes", ca_certs=str(made.ca))).lock("tls").acquire(timeout=15)
    own_server.restart(f"--ssl-ca={made.ca}", f"--ssl-cert={made.server}", f"--ssl-key={made.server_key}")
    try:
        good = own_server.url_of(tls="yes", ca_certs=str(made.ca))
        with open_client(good).lock("tls", timeout=15), monkeypatch.context() as patch:
            patch.delattr(ssl, "create_default_context")  # reads the certificates of all authorities
            assert is_busy(open_client(own_server.url).lock("tls")), "preferred: no certificate is verified"
        with pytest.raises(BackendUnavailable, match="certificate"):
            open_client(own_server.url_of(tls="yes", ca_certs=str(made.other_ca))).lock("tls").acquire(timeout=15)
        with open_client(own_server.url_of(tls="yes", verify="none")).lock("tls", timeout=15):
            pass
    finally:
        own_server.restart()


def test_a_driver_connection_or_a_function_replaces_the_url(server: Server, database: str) -> None:
    made: list[Any] = []

    def connect() -> Any:
        made.append(server.connect(database, client_flag=CLIENT.FOUND_ROWS))  # as some frameworks do
        return made[-1]

    own = server.connect(database)
    with holdfast.Client(own) as client, holdfast.Client(connect, method="unique") as other:
        with client.lock("a"):
            assert other.lock("a").acquire(timeout=0) is None
            assert len(made) == 1
        with other.rwlock("b").read(), other.semaphore("c", limit=2):
            pass
    with own.cursor() as cursor:
        cursor.execute("SELECT 1")
    own.close()
    with (
        holdfast.Client(cast("Any", made.copy)) as broken,
        pytest.raises(ConfigurationError, match="connection of PyMySQL"),
    ):
        broken.lock("a").acquire(timeout=0)
