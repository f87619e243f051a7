"""MySQL's own server, which differs from MariaDB. HOLDFAST_TEST_MYSQL is the path of its mysqld."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import NameConflict
from holdfast.core.ports import RECORD_MAX, Record
from holdfast.core.tickets import Granted, Waiting
from tests.integration.conftest import OpenClient
from tests.support.mysql.drivers import Driver
from tests.support.mysql.servers import MYSQLD, Server
from tests.support.server_process import running

Drive = Callable[[str], Driver]


@pytest.fixture(scope="module")
def mysql() -> Iterator[Server]:
    if MYSQLD is None:
        pytest.skip("MySQL's own server is in no distribution: set HOLDFAST_TEST_MYSQL to the path of a mysqld")
    with tempfile.TemporaryDirectory(prefix="holdfast-mysql-") as folder:
        Path(folder).chmod(0o755)
        with running(Server(Path(folder) / "server", mysqld=MYSQLD)) as server:
            yield server


@pytest.mark.parametrize("method", ["unique", "row", "version"])
def test_locks_exclude_wait_renew_and_break(mysql: Server, open_client: OpenClient, method: str) -> None:
    client, other = (open_client(mysql.url_of(method=method)) for _ in range(2))
    fences: list[int] = []

    def take_turns(mine: holdfast.Client) -> None:
        for _ in range(10):
            with mine.lock(method, timeout=60) as lease:
                fences.append(lease.fence)

    threads = [threading.Thread(target=take_turns, args=(user,)) for user in (client, other, client)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)

    assert len(fences) == 30
    assert fences == sorted(set(fences))
    lease = client.lock(method, ttl=30).acquire(timeout=0)
    assert lease is not None
    lease.renew()
    assert other.lock(method).acquire(timeout=1.2) is None
    assert [holder.fence for holder in client.inspect(method).holders] == [lease.fence]
    assert other.break_lock(method, fence=lease.fence)
    with other.lock(method, timeout=10):
        pass


def test_readers_permits_and_methods(mysql: Server, open_client: OpenClient) -> None:
    client_a, client_b, client_c = (open_client(mysql.url) for _ in range(3))

    with client_a.rwlock("book").read(), client_b.rwlock("book").read():
        assert client_c.rwlock("book").write().acquire(timeout=0.2) is None
        with pytest.raises(NameConflict):
            open_client(mysql.url_of(method="version")).lock("book").acquire(timeout=0)
    with client_a.semaphore("pool", limit=2), client_b.semaphore("pool", limit=2):
        assert client_c.semaphore("pool", limit=2).acquire(timeout=0) is None
    with client_c.rwlock("book", timeout=5).write():
        rows = mysql.rows("SELECT name, holder, since_utc FROM holdfast_locks WHERE holder IS NOT NULL")
        assert [name for name, _, _ in rows] == ["book"]


def test_only_unused_locks_are_reaped(mysql: Server, open_client: OpenClient) -> None:
    client = open_client(mysql.url)
    for name in ("old 1", "old 2", "old 3"):
        with client.lock(name):
            pass
    with client.lock("held"):
        mysql.rows("UPDATE holdfast_locks SET drawn = 1 WHERE name LIKE %s OR name = 'held'", ("old%",))

        mysql.rows("CALL holdfast_reap(REPEAT(x'00', 32))")

        remaining = {name for (name,) in mysql.rows("SELECT name FROM holdfast_locks")}
        assert "held" in remaining
        assert not {name for name in remaining if name.startswith("old")}


def test_several_locks_owners_registers_and_records(mysql: Server, driver_of: Drive) -> None:
    driver = driver_of(mysql.url)
    tickets = [driver.ticket(f"of many {number}") for number in range(20)]
    assert all(isinstance(outcome, Granted) for outcome in driver.try_acquire_all(tickets))
    assert isinstance(driver.try_acquire_all([driver.ticket("of many 7"), driver.ticket("z")])[0], Waiting)
    assert driver.release(*tickets) == [True] * 20

    ticket_a, ticket_b = (driver.ticket("owned", owner="ann") for _ in range(2))
    first, second = driver.try_acquire(ticket_a), driver.try_acquire(ticket_b)
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert first.fence == second.fence
    assert isinstance(driver.try_acquire(driver.ticket("owned", owner="ann ")), Waiting)
    assert driver.release(ticket_a, ticket_b) == [True, True]

    assert driver.advance_register("report", 7, nonce="1" * 32)
    assert driver.advance_register("report", 7, nonce="1" * 32)
    assert not driver.advance_register("report", 7)
    assert driver.read_registers("report", "other") == [7, 0]

    first_record, second_record = Record("1" * 32, "x" * RECORD_MAX), Record("2" * 32, "{}")
    assert driver.swap_record("job", "", first_record) == first_record
    assert driver.swap_record("job", "", second_record) == first_record
    assert driver.swap_record("job", first_record.nonce, second_record, keep=0) == second_record
    assert driver.read_record("job") is None
    assert driver.swap_record("job", second_record.nonce, None) is None


def test_older_tables_are_upgraded(mysql: Server, driver_of: Drive) -> None:
    driver = driver_of(mysql.url)
    driver.try_acquire(driver.ticket("before"))
    mysql.run(
        "ALTER TABLE holdfast_locks DROP COLUMN renewed",
        "ALTER TABLE holdfast_tickets DROP COLUMN owner, DROP COLUMN renewed, DROP COLUMN client",
        "DROP TABLE holdfast_marks",
        "UPDATE holdfast_schema SET version = 1",
    )

    newer = driver_of(mysql.url)
    assert newer.advance_register("new", 1)
    assert isinstance(newer.try_acquire(driver.ticket("new", owner="ann")), Granted)
