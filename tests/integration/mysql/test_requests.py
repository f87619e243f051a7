"""More requests to the server than docs/backends/mysql.md says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.mysql import shared
from tests.support.mysql.drivers import Driver

Drive = Callable[[str], Driver]


@pytest.mark.parametrize(
    ("method", "takes", "gives", "renews"), [("unique", 1, 1, 1), ("row", 4, 2, 4), ("version", 2, 1, 1)]
)
def test_a_lock_costs_what_the_page_says(driver_of: Drive, method: str, takes: int, gives: int, renews: int) -> None:
    driver = driver_of(shared.fresh_url(method=method))
    use(driver)  # it is new, and so are the connections

    costs = use(driver)
    tickets = [driver.ticket(name) for name in "abc"]
    for ticket in tickets:
        driver.try_acquire(ticket)
    held = driver.said
    driver.renew(*tickets)

    assert costs == (takes, gives)
    assert driver.said - held == renews


def use(driver: Driver) -> tuple[int, int]:
    """Take a lock and give it back: the requests for each."""
    ticket, before = driver.ticket("a"), driver.said
    driver.try_acquire(ticket)
    taken = driver.said
    driver.release(ticket)
    return taken - before, driver.said - taken
