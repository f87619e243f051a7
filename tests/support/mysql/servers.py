"""MariaDB and MySQL servers, and the requests that tests send to them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pymysql

from tests.support.processes import eventually
from tests.support.server_process import ServerProcess, program

DATABASE = "locks"
MYSQLD = os.environ.get("HOLDFAST_TEST_MYSQL")  # the path of a mysqld of MySQL, which many distributions do not package
_SMALL = (
    *("--performance-schema=OFF", "--key-buffer-size=1M", "--max-connections=300"),
    *("--innodb-buffer-pool-size=16M", "--innodb-doublewrite=OFF", "--innodb-flush-log-at-trx-commit=1"),
)
_MARIADB_ONLY = (
    *("--skip-name-resolve", "--aria-pagecache-buffer-size=1M", "--innodb-log-file-size=8M"),
    "--innodb-flush-method=nosync",
)
INSTALL_OPTIONS = (
    *("--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"),
    *("--datadir={folder}/data", "--tmpdir={folder}", "--innodb-log-file-size=8M"),
)
# Options of MariaDB. The log is complete, so that a new replica can start from it. After the timeout a commit would no
# longer wait for a replica, so it is the maximum.
REPLICATED = (
    *("--log-bin=log", "--log-slave-updates", "--sync-binlog=1", "--binlog-format=ROW"),
    *("--rpl-semi-sync-slave-enabled=ON", "--rpl-semi-sync-master-timeout=4294967295"),
    "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
)
_MYSQL_ONLY = ("--mysqlx=OFF", "--innodb-flush-method=nosync")


class Server(ServerProcess):
    """MariaDB, or MySQL's own server."""

    refuses_root = True
    errors = (pymysql.err.OperationalError, OSError)

    def __init__(
        self,
        folder: Path,
        *,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        mysqld: str | None = None,
    ) -> None:
        """`options` are for its command line, such as "--read-only"; `mysqld` is MySQL's own server."""
        super().__init__(folder, options=options, environment=environment)
        self._mysqld = mysqld

    @property
    def url(self) -> str:
        return self.url_of()

    def url_of(self, database: str = DATABASE, *, user: str = "root", scheme: str = "mysql", **options: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"{scheme}://{user}@127.0.0.1:{self.port}/{database}" + (f"?{query}" if query else "")

    @property
    def socket(self) -> Path:
        return self.folder / "s.sock"

    def create(self) -> None:
        """Create an empty data folder."""
        super().create()
        if self._mysqld is not None:
            self.create_data(self._mysqld, "--no-defaults", "--initialize-insecure", "--datadir={folder}/data")
        else:
            self.create_data(program("mariadb-install-db", package="mariadbd"), *INSTALL_OPTIONS)

    def command(self) -> list[str]:
        return [
            self._mysqld or program("mariadbd"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",  # in a shared folder, each server that starts removes the tables of the others
            *(f"--port={self.port}", "--bind-address=127.0.0.1"),
            *(f"--socket={self.socket}", f"--pid-file={self.folder / 'pid'}"),
            *(*_SMALL, *(_MYSQL_ONLY if self._mysqld else _MARIADB_ONLY)),
        ]

    def answers(self) -> bool:
        return bool(self.value("SELECT 1", database="") == 1)

    def await_answer(self) -> None:
        super().await_answer()
        with contextlib.suppress(pymysql.err.OperationalError):  # read-only
            self.rows(f"CREATE DATABASE IF NOT EXISTS {DATABASE}", database="")

    def restart(self, *options: str) -> None:
        """Shut down, and start with these options besides its own."""
        self.end_with(signal.SIGTERM)
        own, self.options = self.options, [*self.options, *options]
        try:
            self.start()
        finally:
            self.options = own

    def revive(self) -> None:
        """Start it again if it has ended by itself."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
            self._process = None
            self.start()

    def connect(self, database: str = DATABASE, user: str = "root", **options: Any) -> Any:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=user,
            database=database or None,
            autocommit=True,
            connect_timeout=5,
            ssl_disabled=True,
            **options,
        )

    def rows(self, sql: str, values: Sequence[Any] = (), *, database: str = DATABASE) -> list[tuple[Any, ...]]:
        """The rows of one statement, on a new connection."""
        with contextlib.closing(self.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return list(cursor.fetchall())

    def value(self, sql: str, values: Sequence[Any] = (), *, database: str = DATABASE) -> Any:
        return self.rows(sql, values, database=database)[0][0]

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.rows(statement)

    def questions(self) -> int:
        """Statements that clients have sent so far."""
        return int(self.rows("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])

    def clients(self, database: str) -> list[int]:
        """The ids of the connections to this database, without the connection of this query."""
        sql = "SELECT id FROM information_schema.processlist WHERE db = %s AND id <> CONNECTION_ID()"
        return [number for (number,) in self.rows(sql, (database,), database="")]

    def terminate(self, database: str) -> int:
        """Terminate these connections, wait until they have ended, and return their number."""
        ids = self.clients(database)
        for number in ids:
            with contextlib.suppress(pymysql.err.OperationalError):  # it has ended
                self.rows(f"KILL {number}", database="")
        eventually(lambda: not set(ids) & set(self.clients(database)))
        return len(ids)

    def follow(self, primary: Server) -> None:
        """Make this new MariaDB server a replica, which replays the whole log of the primary."""
        self.rows(f"DROP DATABASE {DATABASE}", database="")
        self.rows("RESET MASTER", database="")
        self.rows(
            f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={primary.port}, MASTER_USER='root',"
            " MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1",
            database="",
        )
        self.rows("START SLAVE", database="")
        self.await_position_of(primary)

    def await_position_of(self, primary: Server) -> None:
        """Wait until this replica has applied all that the primary has committed by now."""
        position = primary.value("SELECT @@gtid_binlog_pos")
        wait_for_position = f"SELECT MASTER_GTID_WAIT('{position}', 0.5)"
        eventually(lambda: bool(self.value(wait_for_position, database="") == 0))

    def status(self, name: str) -> str:
        return str(self.rows("SHOW GLOBAL STATUS LIKE %s", (name,), database="")[0][1])
