"""Hazard: PgBouncer lends a session to several clients. Session mode is accepted, transaction mode needs an option."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import ConfigurationError
from tests.integration.conftest import OpenClient
from tests.support.postgresql.pgbouncer import PgBouncer
from tests.support.postgresql.servers import Server
from tests.support.processes import eventually
from tests.support.server_process import running


@pytest.fixture
def pooler(request: pytest.FixtureRequest, server: Server, folder: Path) -> Iterator[int]:
    """A running PgBouncer: its port."""
    with running(PgBouncer(folder / uuid.uuid4().hex, server, pool_mode=request.param)) as started:
        yield started.port


@pytest.mark.parametrize("pooler", ["transaction", "statement"], indirect=True)
@pytest.mark.parametrize("method", ["queue", "advisory"])
def test_a_transaction_pooler_is_refused_without_its_option(pooler: int, open_client: OpenClient, method: str) -> None:
    client = open_client(f"postgresql://postgres@127.0.0.1:{pooler}/postgres?method={method}")

    with pytest.raises(ConfigurationError, match="pooler=transaction"):
        client.lock("a").acquire(timeout=0)


@pytest.mark.parametrize("pooler", ["session"], indirect=True)
@pytest.mark.parametrize("method", ["queue", "advisory"])
def test_a_pooler_in_session_mode_is_accepted(pooler: int, open_client: OpenClient, method: str) -> None:
    url = f"postgresql://postgres@127.0.0.1:{pooler}/postgres?schema=pooled_{method}&method={method}"
    lease = open_client(url).lock("a").acquire(timeout=15)
    assert lease is not None
    other = open_client(url)
    leases: list[holdfast.Lease | None] = []
    waiter = threading.Thread(target=lambda: leases.append(other.lock("a").acquire(timeout=30)))
    waiter.start()
    eventually(lambda: other.lock("a").acquire(timeout=0) is None)

    lease.release()

    waiter.join(40)
    assert leases[0] is not None
    leases[0].release()
