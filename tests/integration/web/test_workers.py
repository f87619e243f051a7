"""Hazard: two server processes work on one order at the same time, or an order stays locked after a death."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from tests.support.processes import PATIENCE, eventually
from tests.support.redis.shared import fresh_url
from tests.support.server_process import running
from tests.support.uvicorn import Response, Uvicorn


class Shop:
    """The application in two processes, and a client of the same store."""

    def __init__(self, server: Uvicorn, client: holdfast.Client, gate: Path) -> None:
        self.server = server
        self.request = server.request
        self.client = client
        self.open_gate = gate.touch

    @property
    def holders(self) -> list[int]:
        """The processes that hold the lock of order 7."""
        return [holder.pid for holder in self.client.inspect("order:7").holders]

    def await_success(self) -> Response:
        """Repeat the request while it is refused, as a client does."""
        responses: list[Response] = []

        def succeeds() -> bool:
            responses.append(self.request("/orders/7"))
            assert responses[-1].status in (200, 423), responses[-1]
            return responses[-1].status == 200

        eventually(succeeds)
        return responses[-1]


Store = Callable[[Path], str]


def sqlite(folder: Path) -> str:
    return f"sqlite://{folder}/locks.db"


def redis(_folder: Path) -> str:
    return fresh_url()


@pytest.fixture
def store() -> Store:
    """One of the stores, for tests of the server rather than of the store."""
    return sqlite


@pytest.fixture
def shop(tmp_path: Path, store: Store) -> Iterator[Shop]:
    url, gate = store(tmp_path), tmp_path / "gate"
    server = Uvicorn(
        tmp_path / "server",
        "tests.integration.web.orders_app:app",
        health="/live",
        environment={"STORE": url, "GATE": str(gate)},
    )
    with holdfast.Client(url) as client, running(server):
        yield Shop(server, client, gate)


both_stores = pytest.mark.parametrize("store", [sqlite, redis])


@both_stores
def test_one_request_for_an_order_runs_when_two_processes_receive_several(shop: Shop) -> None:
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(shop.request, "/orders/7")
        eventually(lambda: bool(shop.holders))

        refused: set[str] = set()

        def both_processes_refuse() -> bool:
            response = shop.request("/orders/7")
            assert (response.status, response.headers["retry-after"]) == (423, "1")
            refused.add(response.headers["x-process"])
            return len(refused) == 2

        eventually(both_processes_refuse)
        assert not first.done()
        shop.open_gate()
        shipped = first.result(PATIENCE)

    assert shipped.status == 200
    assert shipped.headers["x-process"] in refused
    assert shop.await_success().json > shipped.json


@both_stores
def test_the_lock_of_a_killed_worker_is_free_after_its_ttl(shop: Shop) -> None:
    with shop.server.sent("/orders/7") as connection:
        eventually(lambda: bool(shop.holders))
        [holder] = shop.client.inspect("order:7").holders

        os.kill(holder.pid, signal.SIGKILL)
        with pytest.raises(OSError, match=r"without response|reset"):
            connection.getresponse()
    shop.open_gate()

    shipped = shop.await_success()
    assert shipped.json > (holder.fence or 0)
    assert int(shipped.headers["x-process"]) != holder.pid


def test_a_lease_that_is_broken_during_the_request_gives_an_error(shop: Shop) -> None:
    with shop.server.sent("/orders/7") as connection:
        eventually(lambda: bool(shop.holders))
        [holder] = shop.client.inspect("order:7").holders

        assert shop.client.break_lock("order:7", holder.fence or 0)

        assert connection.getresponse().status == 500


def test_a_handler_whose_client_has_disconnected_keeps_the_lock_until_it_ends(shop: Shop) -> None:
    with shop.server.sent("/orders/7"):
        eventually(lambda: bool(shop.holders))
    before = shop.holders

    assert shop.request("/orders/7").status == 423
    assert shop.holders == before
    shop.open_gate()
    eventually(lambda: not shop.holders)


def test_a_server_that_is_terminated_finishes_its_request_and_releases_the_lock(shop: Shop) -> None:
    with shop.server.sent("/orders/7") as connection:
        eventually(lambda: bool(shop.holders))

        os.kill(shop.server.pid, signal.SIGTERM)
        eventually(lambda: "Waiting for connections to close" in shop.server.log())
        assert shop.holders
        shop.open_gate()

        assert connection.getresponse().status == 200
    assert not shop.holders
    shop.server.wait()
