"""Hazard: several locks cost more than one round trip, deadlock, or stay held if one of them is busy."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from psycopg import sql

from holdfast.core.tickets import Granted, Waiting
from holdfast.errors import NameConflict
from tests.integration.conftest import OpenClient
from tests.support.postgresql import shared
from tests.support.postgresql.driver import Driver
from tests.support.postgresql.relay import Relay
from tests.support.postgresql.servers import Server
from tests.support.processes import eventually

MANY = 50
ODD = ["a\0", "a\\", "aA", "a b", 'a"', "a,{}", "é", "🔒"]


@pytest.mark.parametrize("options", [{}, {"owner": "job"}])
def test_fifty_locks_cost_one_round_trip_to_acquire_and_one_to_release(
    server: Server, open_client: OpenClient, options: dict[str, Any]
) -> None:
    names = [f"n{number}" for number in range(MANY)]
    with Relay(server.port) as relay:
        path = shared.fresh_url().replace(f":{server.port}/", f":{relay.port}/")
        client = open_client(f"{path}&sslmode=disable")
        locks = client.lock_all([client.lock(name, **options) for name in names], timeout=0)
        with locks:  # the first time connects, creates the tables and prepares statements
            pass

        relay.round_trips = 0
        lease = locks.acquire()
        taken, relay.round_trips = relay.round_trips, 0
        assert lease is not None
        lease.release()

        assert (taken, relay.round_trips, relay.connections) == (1, 1, 1)
        client.close()
    assert len(lease.fences) == MANY


def test_try_acquire_all_stops_at_the_first_held_lock(driver: Driver) -> None:
    (held,) = driver.tickets(["c"])
    driver.try_acquire(held)
    tickets = driver.tickets(["a", "b", "c", "d"])

    outcomes = driver.try_acquire_all(tickets)

    assert [type(outcome) for outcome in outcomes] == [Granted, Granted, Waiting]
    assert getattr(outcomes[-1], "holder", None) == "h/1"
    assert driver.held() == ["a", "b", "c"]
    assert driver.release(tickets) == [True, True, False, False]
    assert driver.held() == ["c"]


def test_try_acquire_all_can_be_repeated_when_its_answer_was_lost(driver: Driver) -> None:
    tickets = driver.tickets(["a", "b"])
    first = driver.try_acquire_all(tickets)

    second = driver.try_acquire_all(tickets)

    assert [type(outcome) for outcome in first + second] == [Granted] * 4
    assert driver.release(tickets) == [True, True]


def test_names_with_odd_characters_keep_the_order_of_the_caller(driver: Driver) -> None:
    tickets = driver.tickets(ODD)

    outcomes = driver.try_acquire_all(tickets)

    fences = [outcome.fence for outcome in outcomes if isinstance(outcome, Granted)]
    assert len(fences) == len(ODD)
    assert fences == sorted(fences)
    assert driver.held() == sorted(ODD)
    assert all(driver.release(tickets))


def test_the_error_names_the_lock_that_is_in_use_with_another_method(driver: Driver, url: str) -> None:
    other = Driver(f"{url}&method=advisory")
    held = other.tickets(["b"])
    other.try_acquire(held[0])
    tickets = driver.tickets(["a", "b", "c"])

    with pytest.raises(NameConflict, match=r"'b'.*advisory"):
        driver.try_acquire_all(tickets)

    assert driver.release(tickets) == [True, False, False]
    other.release(held)
    other.close()


def test_acquire_and_release_lock_rows_in_the_same_order(server: Server, url: str, driver: Driver) -> None:
    r"""Also if the order in the tables differs: a\0 is stored as a\\0, which sorts after aB."""
    names = ["a\0", "aA", "aB"]
    releaser, acquirer = driver, Driver(url)
    tickets, others = releaser.tickets(names), acquirer.tickets(names[:2])
    releaser.try_acquire_all(tickets)
    releaser.release(tickets[:1])  # its row exists, and the lock is free
    before = _deadlocks(server)
    released: list[bool] = []
    releasing = threading.Thread(target=lambda: released.extend(releaser.release(tickets)))
    acquiring = threading.Thread(target=lambda: acquirer.try_acquire_all(others))

    with server.connect() as blocker, blocker.transaction():
        (schema,) = parse_qs(urlsplit(url).query)["schema"]
        row = sql.SQL("SELECT FROM {}.holdfast_locks WHERE name = 'aB' FOR UPDATE").format(sql.Identifier(schema))
        blocker.execute(row)
        releasing.start()
        eventually(lambda: server.is_blocked("%holdfast_leave(%"))
        acquiring.start()
        eventually(lambda: server.is_blocked("%holdfast_enter_all(%"))
    for thread in (releasing, acquiring):
        thread.join(30)

    assert released == [False, True, True]
    acquirer.release(others)
    for user in (releaser, acquirer):
        user.close()  # the server has counted by then
    assert _deadlocks(server) == before


def _deadlocks(server: Server) -> int:
    return int(server.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))
