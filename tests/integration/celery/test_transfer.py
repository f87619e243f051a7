"""Hazard: a lease that moves from an HTTP handler to a Celery task is lost with the handler, or held twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.support.celery import Fleet, fleet
from tests.support.server_process import running
from tests.support.uvicorn import Uvicorn


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path) as made:
        yield made


@pytest.fixture
def handler(tmp_path: Path, workers: Fleet) -> Iterator[Uvicorn]:
    app = "tests.integration.celery.handler_app:app"
    server = Uvicorn(tmp_path / "server", app, health="/live", environment=workers.environment)
    with running(server):
        yield server


def test_a_task_continues_with_the_lease_of_a_handler_that_is_killed(workers: Fleet, handler: Uvicorn) -> None:
    client: holdfast.Client = workers.program.client
    gate = workers.folder / "gate"
    gate.touch()
    response = handler.request("/orders/7").json
    os.kill(response["pid"], signal.SIGKILL)
    assert handler.request("/orders/7").status == 423, "the lock waits for the task"
    workers.duplicate_messages(1)

    workers.start_worker()
    workers.wait_for("ship", "adopted")
    workers.wait_for("ship", "refused")

    (adopted,) = [int(event.state.partition("-")[2]) for event in workers.events("ship", "adopted")]
    (holder,) = client.inspect("order:7").holders
    assert adopted == holder.fence
    assert adopted > response["fence"]
    assert holder.pid == workers.events("ship", "adopted")[0].pid
    assert client.lock("order:7").acquire(timeout=0) is None
    gate.unlink()
    workers.wait_for("ship", "end")
    after = client.lock("order:7").acquire(timeout=60)
    assert after is not None
    assert after.fence > adopted
    after.release()
