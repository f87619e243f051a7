"""Hazard: several locks together cost as many requests as one by one, or locks stay held that were not granted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from holdfast.backends.mysql.io.connections import LOCK_WAIT_MAX
from holdfast.core.tickets import Claim, Granted, Waiting
from holdfast.errors import OutcomeUnknown
from tests.support.mysql import shared
from tests.support.mysql.drivers import Driver
from tests.support.mysql.servers import Server

Drive = Callable[[str], Driver]
MANY = [f"name {number:02}" for number in range(50)]


@pytest.fixture
def driver(driver_of: Drive) -> Driver:
    """Connected, with the tables checked."""
    made = driver_of(shared.fresh_url())
    made.read_registers("warm")
    return made


def acquire_all(driver: Driver, tickets: Sequence[Claim]) -> list[Granted | Waiting]:
    """As the engine does: until all are granted, or one has to wait."""
    outcomes: list[Granted | Waiting] = []
    while len(outcomes) < len(tickets) and not any(isinstance(outcome, Waiting) for outcome in outcomes):
        outcomes += driver.try_acquire_all(tickets[len(outcomes) :])
    return outcomes


def test_fifty_locks_are_acquired_and_released_with_two_requests(driver: Driver) -> None:
    tickets = [driver.ticket(name) for name in MANY]
    before = driver.requests

    outcomes = driver.try_acquire_all(tickets)
    acquired = driver.requests
    released = driver.release(*tickets)

    assert all(isinstance(outcome, Granted) for outcome in outcomes)
    assert len(outcomes) == len(MANY)
    assert released == [True] * len(MANY)
    assert acquired - before <= 3, "one, one after a conflict with a removal of old rows, and one for such a removal"
    assert driver.requests - acquired == 1
    assert driver.locks() == []


def test_granted_fences_are_those_on_the_server(driver: Driver) -> None:
    tickets = [driver.ticket(name) for name in MANY]

    outcomes = driver.try_acquire_all(tickets)

    for ticket, outcome in zip(tickets, outcomes, strict=True):
        assert isinstance(outcome, Granted)
        assert [info.fence for info in driver.inspect(ticket.name).holders] == [outcome.fence]


def acquired_tickets(driver: Driver, names: str) -> list[Claim]:
    """Tickets that hold these locks."""
    tickets = [driver.ticket(name) for name in names]
    driver.try_acquire_all(tickets)
    return tickets


def test_try_acquire_all_stops_at_the_first_held_lock(driver: Driver) -> None:
    driver.release(*acquired_tickets(driver, "abcde"))  # a lock without a row costs one more request
    other = driver.ticket("c")
    driver.try_acquire(other)
    tickets = [driver.ticket(name) for name in "abcde"]
    before = driver.requests

    outcomes = driver.try_acquire_all(tickets)

    assert [type(outcome) for outcome in outcomes] == [Granted, Granted, Waiting]
    assert outcomes[2] == Waiting(2.5, "test/1")
    assert driver.requests - before == 2, "one request acquires, one finds the blocker"
    assert [info.name for info in driver.locks()] == ["a", "b", "c"]
    assert driver.release(*tickets) == [True, True, False, False, False]
    assert driver.renew(other) != []
    assert [info.name for info in driver.locks()] == ["c"]


def test_try_acquire_all_can_be_repeated_when_its_answer_was_lost(driver: Driver) -> None:
    tickets = [driver.ticket(name) for name in "abc"]
    first = driver.try_acquire_all(tickets)

    second = driver.try_acquire_all(tickets)

    for before, after in zip(first, second, strict=True):
        assert isinstance(before, Granted)
        assert isinstance(after, Granted)
        assert after.fence > before.fence, "the client does not know the first fence, so a repeat may draw a new one"
    assert len(driver.locks()) == 3
    assert driver.release(*tickets) == [True, True, True]


def test_try_acquire_all_stops_at_a_free_lock_until_its_waiter_has_left(driver: Driver) -> None:
    holder, waiter = driver.ticket("b"), driver.ticket("b")
    driver.try_acquire(holder)
    driver.try_acquire(waiter, queue=True)
    driver.release(holder)
    tickets = [driver.ticket(name) for name in "abc"]

    blocked = driver.try_acquire_all(tickets)
    driver.release(waiter)
    outcomes = driver.try_acquire_all([driver.ticket("b"), *[driver.ticket(name) for name in "de"]])

    assert [type(outcome) for outcome in blocked] == [Granted, Waiting], "the row of a lock with a ticket is not free"
    assert outcomes != []
    assert all(isinstance(outcome, Granted) for outcome in outcomes)


def test_locks_with_waiters_are_released_with_two_requests(driver: Driver) -> None:
    tickets = [driver.ticket(name) for name in MANY]
    driver.try_acquire_all(tickets)
    waiters = [driver.ticket(name) for name in MANY[::2]]
    for waiter in waiters:
        assert isinstance(driver.try_acquire(waiter, queue=True), Waiting)
    before = driver.requests

    released = driver.release(*tickets)

    assert released == [True] * len(MANY)
    assert driver.requests - before == 2
    for waiter in waiters:
        assert isinstance(driver.try_acquire(waiter, queue=True), Granted)


def test_release_returns_false_for_a_lost_lock(driver: Driver) -> None:
    tickets = [driver.ticket(name) for name in "abc"]
    _, outcome, _ = driver.try_acquire_all(tickets)
    assert isinstance(outcome, Granted)
    assert driver.break_lock("b", outcome.fence)

    assert driver.release(*tickets) == [True, False, True]


def test_more_locks_than_one_batch_are_acquired(driver: Driver) -> None:
    tickets = [driver.ticket(f"{number:04}") for number in range(300)]

    outcomes = acquire_all(driver, tickets)

    assert [type(outcome) for outcome in outcomes] == [Granted] * 300
    assert driver.release(*tickets) == [True] * 300


def test_two_clients_with_the_same_locks_never_deadlock(server: Server, driver_of: Drive) -> None:
    url = shared.fresh_url()
    names = [f"n{number}" for number in range(8)]
    granted: list[int] = []

    def take(times: int) -> None:
        driver = driver_of(url)
        while times:
            tickets = [driver.ticket(name) for name in names]
            if all(isinstance(outcome, Granted) for outcome in acquire_all(driver, tickets)):
                granted.append(1)
                assert len(driver.locks()) == len(names), "no other client holds any of them"
                times -= 1
            driver.release(*tickets)

    threads = [threading.Thread(target=take, args=(20,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)

    assert len(granted) == 60


def test_a_lock_wait_timeout_leaves_no_partial_acquire(
    server: Server, database: str, url: str, driver_of: Drive
) -> None:
    driver, other = driver_of(url), driver_of(url)
    assert isinstance(other.try_acquire(other.ticket("b", ttl=0.001)), Granted)
    tickets = [driver.ticket(name) for name in "ab"]
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT 1 FROM holdfast_locks WHERE id = UNHEX(SHA2('b', 256)) FOR UPDATE")

        with pytest.raises(OutcomeUnknown, match="no answer in time"):
            driver.try_acquire_all(tickets, seconds=LOCK_WAIT_MAX + 1.5)

        committed = server.rows("SELECT name FROM holdfast_locks", database=database)
        connection.rollback()
    assert committed == [("b",)], "the first attempt has ended, and has acquired nothing"
    driver.release(*tickets)
    assert isinstance(other.try_acquire_all([other.ticket("a")])[0], Granted)
