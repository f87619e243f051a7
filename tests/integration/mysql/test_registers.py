"""Hazard: a register that two clients advance to one number, that expires early, or that does not fit the table."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from holdfast.backends.mysql.io.blocking import create_tables
from holdfast.url import parse
from tests.support.mysql import shared
from tests.support.mysql.drivers import Driver
from tests.support.mysql.servers import Server

Drive = Callable[[str], Driver]
METHODS = ["unique", "row", "version"]


@pytest.fixture(params=METHODS)
def driver(request: pytest.FixtureRequest, driver_of: Drive) -> Driver:
    return driver_of(shared.fresh_url(method=request.param))


def test_a_register_only_grows(driver: Driver) -> None:
    assert driver.read_registers("a", "b") == [0, 0]

    assert driver.advance_register("a", 3)
    assert not driver.advance_register("a", 3)
    assert not driver.advance_register("a", 2)
    assert driver.advance_register("a", 2**63 - 1)

    assert driver.read_registers("b", "a", "b") == [0, 2**63 - 1, 0]
    assert driver.read_registers() == []


def test_a_repeated_advance_gets_the_same_answer(driver: Driver) -> None:
    nonce, other = "1" * 32, "2" * 32
    assert driver.advance_register("a", 1, nonce=nonce)
    assert driver.advance_register("a", 1, nonce=nonce)
    assert not driver.advance_register("a", 1, nonce=other)

    assert driver.advance_register("a", 2, nonce=other)

    assert not driver.advance_register("a", 1, nonce=nonce), "it is over: somebody has raised it since"


def test_a_register_costs_one_request(driver: Driver) -> None:
    driver.read_registers("a")
    before = driver.requests
    driver.advance_register("a", 1)
    driver.advance_register("a", 2)

    assert driver.requests - before <= 3, "one each, and possibly one that removes old rows"


def test_registers_and_locks_of_the_same_name_are_separate(driver: Driver) -> None:
    ticket = driver.ticket("a")
    driver.try_acquire(ticket)

    assert driver.read_registers("a") == [0]
    driver.advance_register("a", 1)
    driver.advance_register("b", 1)

    assert [info.name for info in driver.locks()] == ["a"]
    assert driver.release(ticket) == [True]
    assert driver.read_registers("a", "b") == [1, 1]


def test_names_of_registers_are_exact_and_may_be_longer_than_those_of_locks(driver: Driver) -> None:
    names = ["a", "A", "a ", "á", "a\0", "'", "😀" * 512, "😀" * 528]

    assert [driver.advance_register(name, number) for number, name in enumerate(names, 1)] == [True] * len(names)

    assert driver.read_registers(*names) == list(range(1, len(names) + 1))


def race(driver_of: Drive, url: str) -> list[int]:
    """Four clients advance one register concurrently, repeatedly: the numbers that a client was told it had set."""
    won: list[int] = []
    start = threading.Barrier(4)

    def raise_it() -> None:
        driver = driver_of(url)
        for number in range(1, 41):
            start.wait(60)
            won.extend([number] * driver.advance_register("a", number))

    threads = [threading.Thread(target=raise_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return sorted(won)


def test_exactly_one_of_many_concurrent_advances_succeeds(driver_of: Drive) -> None:
    assert race(driver_of, shared.fresh_url()) == list(range(1, 41))


def test_exactly_one_advance_succeeds_under_repeatable_read(own_server: Server, driver_of: Drive) -> None:
    own_server.restart("--log-bin", "--binlog-format=STATEMENT")  # our sessions use REPEATABLE READ there
    try:
        create_tables(parse(own_server.url))
        assert race(driver_of, own_server.url) == list(range(1, 41))
    finally:
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

    assert driver.read_registers("over") == [0], "somebody removes what is over, now and then"
    assert driver.read_registers("long", "endless") == [2, 1]
