"""Hazard: tables of an older holdfast have no records; expired records stay; two transactions replace one record."""

from __future__ import annotations

import subprocess
import threading
import uuid
from collections.abc import Callable

import pytest

from holdfast import ConfigurationError
from holdfast.backends.mysql.io.blocking import create_tables
from holdfast.backends.mysql.sql import ddl
from holdfast.core.ports import Record, StoreMissing
from holdfast.core.tickets import Granted
from holdfast.url import parse
from holdfast_lab.conformance.lab import Store
from holdfast_lab.conformance.test_records import (
    test_no_replacement_of_concurrent_clients_is_lost as replace_concurrently,
)
from holdfast_lab.conformance.test_records import (
    test_one_of_many_concurrent_clients_writes_each_record as write_concurrently,
)
from tests.support.mysql.drivers import Driver
from tests.support.mysql.servers import Server

Drive = Callable[[str], Driver]
OURS, THEIRS = Record("a" * 32, "{}"), Record("b" * 32, "[1]")
BEFORE_RECORDS = ("DROP TABLE holdfast_records", "DROP PROCEDURE holdfast_swap_record")


def test_a_read_creates_no_tables_and_a_write_adds_them_to_those_of_an_older_holdfast(
    server: Server, database: str, url: str, driver_of: Drive
) -> None:
    client = driver_of(url)
    with pytest.raises(StoreMissing):
        client.read_record("a")
    create_tables(parse(url))
    for statement in BEFORE_RECORDS:
        server.rows(statement, database=database)

    assert client.read_record("a") is None
    assert driver_of(url).read_record("a") is None
    assert client.swap_record("a", "", OURS) == OURS
    assert client.swap_record("a", "", THEIRS) == OURS


def test_init_adds_records_to_tables_of_an_older_holdfast(server: Server, database: str, url: str) -> None:
    create_tables(parse(url))
    for statement in BEFORE_RECORDS:
        server.rows(statement, database=database)

    create_tables(parse(url))

    assert server.rows("SELECT * FROM holdfast_records", database=database) == []


def test_procedures_that_are_in_use_are_not_dropped_when_records_are_added(
    server: Server, database: str, url: str, driver_of: Drive
) -> None:
    create_tables(parse(url))
    for statement in BEFORE_RECORDS:
        server.rows(statement, database=database)
    created = "SELECT routine_name, created FROM information_schema.routines WHERE routine_schema = DATABASE()"
    before = set(server.rows(created, database=database))
    ready = threading.Barrier(4)
    stored: list[Record | None] = []

    def add(client: Driver) -> None:
        ready.wait(60)
        stored.append(client.swap_record("a", "", OURS))

    threads = [threading.Thread(target=add, args=(driver_of(url),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert stored == [OURS] * 4
    after = set(server.rows(created, database=database))
    assert before < after
    assert {name for name, _ in after - before} == {"holdfast_swap_record"}


def test_the_error_names_the_fix_when_the_user_may_not_add_the_table(
    server: Server, database: str, driver_of: Drive
) -> None:
    user = f"user_{uuid.uuid4().hex[:8]}"
    create_tables(parse(server.url_of(database)))
    for statement in BEFORE_RECORDS:
        server.rows(statement, database=database)
    server.run(
        f"CREATE USER {user}@'127.0.0.1'",
        f"GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON {database}.* TO {user}@'127.0.0.1'",
    )
    client = driver_of(server.url_of(database, user=user))

    assert client.read_record("a") is None
    with pytest.raises(ConfigurationError, match="holdfast init --print"):
        client.swap_record("a", "", OURS)
    assert isinstance(client.try_acquire(client.ticket("a")), Granted), "locks work"

    words = ["mariadb", "--no-defaults", "-uroot", f"--socket={server.socket}"]
    subprocess.run(words, input=ddl(parse(client.backend.url)).encode(), check=True, timeout=60)
    assert client.swap_record("a", "", OURS) == OURS


def test_expired_records_are_removed_by_new_ones(server: Server, database: str, url: str, driver_of: Drive) -> None:
    driver = driver_of(url)
    driver.swap_record("over", "", OURS, keep=0)
    driver.swap_record("kept", "", OURS, keep=3600)

    for number in range(5000):
        driver.swap_record(f"new {number}", "", OURS, keep=3600)
        if server.value("SELECT COUNT(*) FROM holdfast_records WHERE name = 'over'", database=database) == 0:
            break
    else:
        pytest.fail("the expired record was not removed")

    assert driver.read_record("kept") == OURS


def test_compare_and_set_is_atomic_under_repeatable_read(own_server: Server) -> None:
    store = Store(own_server.url)
    own_server.restart("--log-bin", "--binlog-format=STATEMENT")  # our sessions use REPEATABLE READ there
    try:
        create_tables(parse(own_server.url))
        write_concurrently(store)
        replace_concurrently(store)
    finally:
        store.close()
        own_server.restart()


def test_a_record_has_one_holder_when_clients_expire_write_and_remove_it(url: str) -> None:
    """Writers, removers and the reaper lock the same rows; a deadlock is repeated and not reported."""
    store = Store(url)
    holders: list[str] = []
    errors: list[BaseException] = []

    def work(client: Driver) -> None:
        try:
            for number in range(60):
                mine = Record(client.runtime.nonce(), str(number))
                if client.swap_record("a", "", mine) == mine:
                    holders.append(mine.nonce)
                    assert holders == [mine.nonce]
                    holders.remove(mine.nonce)
                    assert client.swap_record("a", mine.nonce, None) is None
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(store.open(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    store.close()

    assert not errors
