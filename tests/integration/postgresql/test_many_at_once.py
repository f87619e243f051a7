"""Several locks in one statement: how often we go to the server, in which order, and what is left if one is taken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from psycopg import sql

import holdfast
from holdfast.core.tickets import Granted, Waiting
from holdfast.errors import NameConflict
from tests.support.postgresql import shared
from tests.support.postgresql.driver import Driver
from tests.support.postgresql.relay import Relay
from tests.support.postgresql.servers import Server
from tests.support.processes import eventually

Open = Callable[[str], holdfast.Client]
MANY = 50
ODD = ["a\0", "a\\", "aA", "a b", 'a"', "a,{}", "é", "🔒"]


@pytest.mark.parametrize("options", [{}, {"owner": "job"}])
def test_fifty_locks_are_one_round_trip_to_take_and_one_to_give_back(
    server: Server, client_of: Open, options: dict[str, Any]
) -> None:
    names = [f"n{number}" for number in range(MANY)]
    with Relay(server.port) as relay:
        path = shared.fresh_url().replace(f":{server.port}/", f":{relay.port}/")
        client = client_of(f"{path}&sslmode=disable")
        locks = client.lock_all([client.lock(name, **options) for name in names], timeout=0)
        with locks:  # the first time it connects, makes the tables and prepares statements
            pass

        relay.round_trips = 0
        lease = locks.acquire()
        taken, relay.round_trips = relay.round_trips, 0
        assert lease is not None
        lease.release()

        assert (taken, relay.round_trips, relay.connections) == (1, 1, 1)
        client.close()
    assert len(lease.fences) == MANY


def test_up_to_the_first_that_is_taken(driver: Driver) -> None:
    (held,) = driver.tickets(["c"])
    driver.try_acquire(held)
    tickets = driver.tickets(["a", "b", "c", "d"])

    outcomes = driver.try_acquire_all(tickets)

    assert [type(outcome) for outcome in outcomes] == [Granted, Granted, Waiting]
    assert getattr(outcomes[-1], "holder", None) == "h/1"
    assert driver.held() == ["a", "b", "c"]
    assert driver.release(tickets) == [True, True, False, False]
    assert driver.held() == ["c"]


def test_again_after_an_answer_that_was_lost(driver: Driver) -> None:
    tickets = driver.tickets(["a", "b"])
    first = driver.try_acquire_all(tickets)

    second = driver.try_acquire_all(tickets)

    assert [type(outcome) for outcome in first + second] == [Granted] * 4
    assert driver.release(tickets) == [True, True]


def test_names_with_odd_characters_in_the_order_of_the_callers(driver: Driver) -> None:
    tickets = driver.tickets(ODD)

    outcomes = driver.try_acquire_all(tickets)

    fences = [outcome.fence for outcome in outcomes if isinstance(outcome, Granted)]
    assert len(fences) == len(ODD)
    assert fences == sorted(fences)
    assert driver.held() == sorted(ODD)
    assert all(driver.release(tickets))


def test_one_that_another_method_holds_is_named(driver: Driver, url: str) -> None:
    other = Driver(f"{url}&method=advisory")
    held = other.tickets(["b"])
    other.try_acquire(held[0])
    tickets = driver.tickets(["a", "b", "c"])

    with pytest.raises(NameConflict, match=r"'b'.*advisory"):
        driver.try_acquire_all(tickets)

    assert driver.release(tickets) == [True, False, False]
    other.release(held)
    other.close()


def test_who_enters_and_who_leaves_lock_rows_in_one_order(server: Server, url: str, driver: Driver) -> None:
    r"""Also where the tables have another one: as they have it, a\0 is written a\\0, which comes behind aB."""
    names = ["a\0", "aA", "aB"]
    leaver, enterer = driver, Driver(url)
    tickets, others = leaver.tickets(names), enterer.tickets(names[:2])
    leaver.try_acquire_all(tickets)
    leaver.release(tickets[:1])  # its row is there, and it is free
    before = _deadlocks(server)
    left: list[bool] = []
    leaving = threading.Thread(target=lambda: left.extend(leaver.release(tickets)))
    entering = threading.Thread(target=lambda: enterer.try_acquire_all(others))

    with server.connect() as blocker, blocker.transaction():
        (schema,) = parse_qs(urlsplit(url).query)["schema"]
        row = sql.SQL("SELECT FROM {}.holdfast_locks WHERE name = 'aB' FOR UPDATE").format(sql.Identifier(schema))
        blocker.execute(row)
        leaving.start()
        eventually(lambda: server.is_blocked("%holdfast_leave(%"))
        entering.start()
        eventually(lambda: server.is_blocked("%holdfast_enter_all(%"))
    for thread in (leaving, entering):
        thread.join(30)

    assert left == [False, True, True]
    enterer.release(others)
    for one in (leaver, enterer):
        one.close()  # then the server has counted
    assert _deadlocks(server) == before


def _deadlocks(server: Server) -> int:
    return int(server.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))
