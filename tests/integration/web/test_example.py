"""Hazard: an order is paid twice. The example pays it once, with two server processes and many requests."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.processes import eventually
from tests.support.server_process import running
from tests.support.uvicorn import ROOT, Uvicorn

EXAMPLE = ROOT / "examples" / "fastapi_orders.py"
REQUESTS = 8


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Uvicorn]:
    environment = {"HOLDFAST_URL": f"sqlite://{tmp_path}/locks.db", "ORDERS_DB": f"{tmp_path}/orders.db"}
    server = Uvicorn(tmp_path / "server", "examples.fastapi_orders:app", health="/health/live", environment=environment)
    with running(server):
        yield server


def test_concurrent_requests_pay_an_order_once(server: Uvicorn, tmp_path: Path) -> None:
    with ThreadPoolExecutor(REQUESTS) as threads:
        responses = list(threads.map(server.request, ["/orders/7/pay"] * REQUESTS))
    again = server.request("/orders/07/pay")

    with contextlib.closing(sqlite3.connect(tmp_path / "orders.db")) as database:
        [payment] = database.execute("SELECT payment FROM payments").fetchall()
    paid = [response for response in responses if response.status == 200]
    refused = [response for response in responses if response.status == 423]
    assert paid
    assert len(paid) + len(refused) == REQUESTS, responses
    assert {response.headers["retry-after"] for response in refused} <= {"1"}
    assert {response.json["payment"] for response in (*paid, again)} == set(payment)


def test_one_of_two_processes_leads(server: Uvicorn) -> None:
    statuses: dict[int, set[int | None]] = {}

    def both_are_seen() -> bool:
        response = server.request("/health/leader", method="GET")
        statuses.setdefault(response.status, set()).add(response.json["fence"])
        return statuses.keys() >= {200, 503}

    eventually(both_are_seen)
    assert statuses[503] == {None}
    assert len(statuses[200]) == 1


def test_the_guide_has_the_code_of_the_example() -> None:
    source, guide = EXAMPLE.read_text(), (ROOT / "docs" / "election.md").read_text()
    body = source[source.index("        election = state") : source.index("\n\n\napp = FastAPI")]

    assert body.replace("\n\n", "\n") in guide
