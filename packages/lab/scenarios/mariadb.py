"""MariaDB: a replica is promoted after the primary has ended, with semi-synchronous replication.

Clients use one address that always leads to the primary, as with a virtual IP or a proxy such as MaxScale. The old
primary is stopped before the promotion, and the replica applies all that it has received first.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql

from packages.lab.scenarios.scenario import Deployment, Scenario
from tests.support.mysql.servers import DATABASE, REPLICATED, Server
from tests.support.processes import eventually
from tests.support.redis.proxy import Proxy
from tests.support.server_process import running


class _Pair:
    """A primary and its replica. After a promotion the old primary is replaced by a new replica."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._numbers = itertools.count(1)
        self._primary = self._add_server()
        self._replica = self._add_replica()
        self.address = stack.enter_context(Proxy(self._primary.port))

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.address.port}/{DATABASE}"

    def crash(self) -> Iterator[None]:
        """SIGKILL of the primary."""
        yield from self._promote_after(self._primary.kill)

    def switch(self) -> Iterator[None]:
        """The primary is shut down in order."""
        yield from self._promote_after(lambda: self._primary.end_with(signal.SIGTERM))

    def _promote_after(self, end: Callable[[], None]) -> Iterator[None]:
        new = self._replica
        self.address.refuse()
        end()
        eventually(lambda: _has_applied_all(new))
        new.run("STOP SLAVE", "RESET SLAVE ALL")
        self._primary = new
        self.address.heal()
        self.address.lead_to(new.port)
        yield
        self._replica = self._add_replica()

    def _add_server(self) -> Server:
        number = next(self._numbers)
        return self._stack.enter_context(
            running(Server(self._folder / f"server-{number}", options=[*REPLICATED, f"--server-id={number}"]))
        )

    def _add_replica(self) -> Server:
        replica, primary = self._add_server(), self._primary
        replica.follow(primary)
        primary.run("SET GLOBAL rpl_semi_sync_master_enabled = ON")
        eventually(lambda: primary.status("Rpl_semi_sync_master_status") == "ON")
        eventually(lambda: primary.status("Rpl_semi_sync_master_clients") == "1")
        replica.await_position_of(primary)
        return replica


def _has_applied_all(replica: Server) -> bool:
    with (
        contextlib.closing(replica.connect("", cursorclass=pymysql.cursors.DictCursor)) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SHOW SLAVE STATUS")
        status: dict[str, Any] = cursor.fetchone()
    if status["Last_SQL_Error"]:
        raise RuntimeError(status["Last_SQL_Error"])
    executed = (status["Relay_Master_Log_File"], status["Exec_Master_Log_Pos"])
    return status["Slave_IO_Running"] != "Yes" and executed == (
        status["Master_Log_File"],
        status["Read_Master_Log_Pos"],
    )


@contextlib.contextmanager
def _deploy(folder: Path) -> Iterator[Deployment]:
    with contextlib.ExitStack() as stack:
        pair = _Pair(folder, stack)
        yield Deployment(pair.url, {"switch": pair.switch, "crash": pair.crash})


SCENARIOS = (
    Scenario(
        "mariadb-semi-sync",
        "MariaDB, a primary and a semi-synchronous replica behind one address; the primary is shut down (`switch`) or"
        " killed (`crash`), then the replica is promoted",
        _deploy,
    ),
)
