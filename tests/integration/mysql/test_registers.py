"""Hazard: a register that two clients advance to one number, that expires early, or that does not fit the table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.backends.mysql.io.blocking import create_tables
from holdfast.url import parse
from holdfast_lab.conformance.lab import Store
from holdfast_lab.conformance.test_registers import race
from tests.support.mysql import shared
from tests.support.mysql.drivers import Driver
from tests.support.mysql.servers import Server

Drive = Callable[[str], Driver]
METHODS = ["unique", "row", "version"]


@pytest.fixture(params=METHODS)
def driver(request: pytest.FixtureRequest, driver_of: Drive) -> Driver:
    return driver_of(shared.fresh_url(method=request.param))


def test_a_register_costs_one_request(driver: Driver) -> None:
    driver.read_registers("a")
    before = driver.requests
    driver.advance_register("a", 1)
    driver.advance_register("a", 2)

    assert driver.requests - before <= 3, "one each, and possibly one that removes old rows"


def test_names_of_registers_are_exact_and_may_be_longer_than_those_of_locks(driver: Driver) -> None:
    names = ["a", "A", "a ", "á", "a\0", "'", "😀" * 512, "😀" * 528]

    assert [driver.advance_register(name, number) for number, name in enumerate(names, 1)] == [True] * len(names)

    assert driver.read_registers(*names) == list(range(1, len(names) + 1))


def test_exactly_one_advance_succeeds_under_repeatable_read(own_server: Server) -> None:
    store = Store(own_server.url)
    own_server.restart("--log-bin", "--binlog-format=STATEMENT")  # our sessions use REPEATABLE READ there
    try:
        create_tables(parse(own_server.url))
        assert race(store, numbers=40) == list(range(1, 41))
    finally:
        store.close()
        own_server.restart()


def test_a_register_is_kept_for_the_requested_time(server: Server, database: str, url: str, driver_of: Drive) -> None:
    driver = driver_of(url)
    driver.advance_register("long", 1, keep=3600)
    driver.advance_register("long", 2, keep=0)
    driver.advance_register("endless", 1, keep=float("inf"))
    driver.advance_register("over", 1, keep=0)
    server.rows("UPDATE holdfast_marks SET expires = expires - 1000 WHERE name = 'over'", database=database)

    for number in range(5000):
        driver.advance_register(f"new {number}", 1, keep=3600)
        if driver.read_registers("over") == [0]:
            break

    assert driver.read_registers("over") == [0], "one of the new registers removes expired ones"
    assert driver.read_registers("long", "endless") == [2, 1]
