"""Hazard: many waiters lose their order or load the server; concurrent renewals disturb each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import holdfast
from holdfast.backends.mysql.sql import WOKEN
from tests.integration.conftest import OpenClient
from tests.support.mysql import shared
from tests.support.mysql.drivers import Driver
from tests.support.mysql.servers import Server
from tests.support.processes import eventually

Drive = Callable[[str], Driver]


class Waiters:
    """Threads that wait for one lock; `served` is the order of the grants."""

    def __init__(self, client: holdfast.Client) -> None:
        self._client = client
        self._threads: list[threading.Thread] = []
        self.served: list[int] = []
        self.served_at: list[float] = []

    def grow(self, number: int) -> None:
        while len(self._threads) < number:
            position = len(self._threads)
            self._threads.append(threading.Thread(target=self._take, args=(position,)))
            self._threads[-1].start()
            eventually(lambda: len(self._client.inspect("crowd").waiters) == len(self._threads))

    def _take(self, position: int) -> None:
        with self._client.lock("crowd", ttl=30, timeout=100):
            self.served.append(position)
            self.served_at.append(time.monotonic())

    def join(self) -> None:
        for thread in self._threads:
            thread.join(100)


def load(server: Server, seconds: float) -> float:
    """Statements per second that the server receives."""
    began, before = time.monotonic(), server.questions()
    time.sleep(seconds)
    return (server.questions() - before) / (time.monotonic() - began)


def test_sixty_four_waiters_load_the_server_less_than_twice_as_much_as_four_and_keep_their_order(
    server: Server, url: str, open_client: OpenClient
) -> None:
    lease = open_client(url, local_handover="no").lock("crowd", ttl=60).acquire(timeout=15)
    assert lease is not None
    waiters = Waiters(open_client(url, local_handover="no"))

    waiters.grow(4)
    of_four = load(server, 4.0)
    waiters.grow(64)
    of_many = load(server, 6.0)
    lease.release()
    waiters.join()

    assert of_many < 2 * of_four, (of_four, of_many)
    assert sorted(waiters.served) == list(range(64))
    # Later, a waiter that a busy machine has kept from polling may lose its place.
    in_time = sum(at < waiters.served_at[0] + WOKEN - 1 for at in waiters.served_at)
    assert waiters.served[:in_time] == list(range(in_time))


def test_all_waiters_of_the_client_that_is_next_have_to_poll_soon_and_no_others(url: str, driver_of: Drive) -> None:
    driver_a, driver_b = driver_of(url), driver_of(url)
    holder = driver_a.ticket("a")
    driver_a.try_acquire(holder)
    for driver in (driver_a, driver_a, driver_b, driver_a):
        driver.try_acquire(driver.ticket("a"), queue=True)

    driver_a.release(holder)

    waiters = driver_a.inspect("a").waiters
    assert [waiter.remaining <= WOKEN for waiter in waiters] == [True, True, False, True]


@pytest.mark.parametrize("method", ["unique", "row", "version"])
def test_concurrent_renewals_of_one_lease_all_succeed(open_client: OpenClient, method: str) -> None:
    lease = open_client(shared.fresh_url(method=method)).lock("a", ttl=30).acquire(timeout=15)
    assert lease is not None
    done: list[int] = []

    def renew() -> None:
        for number in range(20):
            lease.renew()
            done.append(number)

    threads = [threading.Thread(target=renew) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(done) == 80
    lease.release()
