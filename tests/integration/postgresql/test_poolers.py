"""Hazard: PgBouncer lends one session to several clients. Session mode is accepted, transaction mode refused."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast import ConfigurationError
from tests.support.postgresql.servers import Server, as_user
from tests.support.processes import PATIENCE, eventually
from tests.support.redis.binaries import missing
from tests.support.redis.servers import free_ports

Open = Callable[[str], holdfast.Client]


@pytest.fixture
def pooler(request: pytest.FixtureRequest, server: Server, folder: Path) -> Iterator[int]:
    """A running PgBouncer: its port."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        missing("no PgBouncer on this machine: `make servers` installs it")
    (port,) = free_ports(1)
    place = folder / f"pooler-{port}"
    place.mkdir()
    (place / "users").write_text('"postgres" ""\n')
    config = place / "pgbouncer.ini"
    config.write_text(
        f"[databases]\npostgres = host=127.0.0.1 port={server.port}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
        f"auth_file = {place / 'users'}\npool_mode = {request.param}\n"
    )
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        for path in (place, *place.iterdir()):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
    process = subprocess.Popen([*as_user(), program, "-q", str(config)], cwd=place, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: _answers(process, port))
        yield port
    finally:
        process.kill()
        process.wait(PATIENCE)


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None, "it ended at once"
    try:
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres", connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.parametrize("pooler", ["transaction", "statement"], indirect=True)
@pytest.mark.parametrize("method", ["queue", "advisory"])
def test_a_pooler_in_transaction_mode_is_refused(pooler: int, client_of: Open, method: str) -> None:
    client = client_of(f"postgresql://postgres@127.0.0.1:{pooler}/postgres?method={method}")

    with pytest.raises(ConfigurationError, match="pooler"):
        client.lock("a").acquire(timeout=0)


@pytest.mark.parametrize("pooler", ["session"], indirect=True)
@pytest.mark.parametrize("method", ["queue", "advisory"])
def test_a_pooler_in_session_mode_is_accepted(pooler: int, client_of: Open, method: str) -> None:
    url = f"postgresql://postgres@127.0.0.1:{pooler}/postgres?schema=pooled_{method}&method={method}"
    lease = client_of(url).lock("a").acquire(timeout=15)
    assert lease is not None
    other = client_of(url)
    got: list[holdfast.Lease | None] = []
    waiter = threading.Thread(target=lambda: got.append(other.lock("a").acquire(timeout=30)))
    waiter.start()
    eventually(lambda: other.lock("a").acquire(timeout=0) is None)

    lease.release()

    waiter.join(40)
    assert got[0] is not None
    got[0].release()
