"""Hazard: more requests to the server than docs/backends/mysql.md states."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.mysql import shared
from tests.support.mysql.drivers import Driver

Drive = Callable[[str], Driver]


@pytest.mark.parametrize(
    ("method", "acquires", "releases", "renews"), [("unique", 1, 1, 1), ("row", 4, 2, 4), ("version", 2, 1, 1)]
)
def test_a_lock_costs_as_many_requests_as_documented(
    driver_of: Drive, method: str, acquires: int, releases: int, renews: int
) -> None:
    driver = driver_of(shared.fresh_url(method=method))
    use(driver)  # for the new row and the new connections

    costs = use(driver)
    tickets = [driver.ticket(name) for name in "abc"]
    for ticket in tickets:
        driver.try_acquire(ticket)
    before = driver.requests
    driver.renew(*tickets)

    assert costs == (acquires, releases)
    assert driver.requests - before == renews


def use(driver: Driver) -> tuple[int, int]:
    """Acquire a lock and release it: the number of requests for each."""
    ticket, before = driver.ticket("a"), driver.requests
    driver.try_acquire(ticket)
    acquired = driver.requests
    driver.release(ticket)
    return acquired - before, driver.requests - acquired
