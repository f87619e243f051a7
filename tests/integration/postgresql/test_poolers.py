"""Hazard: PgBouncer lends one session to several clients. Session mode is accepted, transaction mode refused."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast import ConfigurationError
from tests.integration.conftest import OpenClient
from tests.support.postgresql.servers import Server
from tests.support.processes import eventually
from tests.support.server_process import ServerProcess, program, running


class PgBouncer(ServerProcess):
    """A pooler before a server."""

    refuses_root = True
    errors = (psycopg.OperationalError,)

    def __init__(self, folder: Path, server: Server, mode: str) -> None:
        super().__init__(folder)
        self._server, self._mode = server, mode

    def create(self) -> None:
        super().create()
        (self.folder / "users").write_text('"postgres" ""\n')
        (self.folder / "pgbouncer.ini").write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={self._server.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\nauth_type = trust\n"
            f"auth_file = {self.folder / 'users'}\npool_mode = {self._mode}\n"
        )

    def command(self) -> list[str]:
        return [program("pgbouncer", package="PgBouncer"), "-q", str(self.folder / "pgbouncer.ini")]

    def answers(self) -> bool:
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{self.port}/postgres", connect_timeout=2).close()
        return True


@pytest.fixture
def pooler(request: pytest.FixtureRequest, server: Server, folder: Path) -> Iterator[int]:
    """A running PgBouncer: its port."""
    with running(PgBouncer(folder / f"pooler-{request.param}-{uuid.uuid4().hex}", server, request.param)) as started:
        yield started.port


@pytest.mark.parametrize("pooler", ["transaction", "statement"], indirect=True)
@pytest.mark.parametrize("method", ["queue", "advisory"])
def test_a_pooler_in_transaction_mode_is_refused(pooler: int, open_client: OpenClient, method: str) -> None:
    client = open_client(f"postgresql://postgres@127.0.0.1:{pooler}/postgres?method={method}")

    with pytest.raises(ConfigurationError, match="pooler"):
        client.lock("a").acquire(timeout=0)


@pytest.mark.parametrize("pooler", ["session"], indirect=True)
@pytest.mark.parametrize("method", ["queue", "advisory"])
def test_a_pooler_in_session_mode_is_accepted(pooler: int, open_client: OpenClient, method: str) -> None:
    url = f"postgresql://postgres@127.0.0.1:{pooler}/postgres?schema=pooled_{method}&method={method}"
    lease = open_client(url).lock("a").acquire(timeout=15)
    assert lease is not None
    other = open_client(url)
    got: list[holdfast.Lease | None] = []
    waiter = threading.Thread(target=lambda: got.append(other.lock("a").acquire(timeout=30)))
    waiter.start()
    eventually(lambda: other.lock("a").acquire(timeout=0) is None)

    lease.release()

    waiter.join(40)
    assert got[0] is not None
    got[0].release()
