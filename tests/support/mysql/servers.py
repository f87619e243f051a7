"""A private MariaDB server: its data in a folder, a free loopback port, a user without rights, always reaped.

Start servers from the main thread: they are killed with the *thread* that started them, so that a killed test run
leaves none behind. A server that is missing skips its tests with one line; with CI=true it fails them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pymysql

from tests.support.processes import PATIENCE, _state, eventually
from tests.support.redis.binaries import missing
from tests.support.redis.servers import free_ports

DATABASE = "locks"
MYSQLD = os.environ.get("HOLDFAST_TEST_MYSQL")  # the path of a mysqld, which distributions do not have
_SMALL = (
    *("--performance-schema=OFF", "--key-buffer-size=1M", "--max-connections=300"),
    *("--innodb-buffer-pool-size=16M", "--innodb-doublewrite=OFF", "--innodb-flush-log-at-trx-commit=1"),
)
_MARIADB_ONLY = (
    *("--skip-name-resolve", "--aria-pagecache-buffer-size=1M", "--innodb-log-file-size=8M"),
    "--innodb-flush-method=nosync",
)
_MYSQL_ONLY = ("--mysqlx=OFF", "--innodb-flush-method=nosync")


@functools.cache
def _found(name: str) -> str:
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        missing(f"no {name} on this machine: `make servers` installs it")
    return path


class Server:
    """A server process and its folder, which outlives the process: `start` again for a restart with its data."""

    def __init__(
        self,
        folder: Path,
        *,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        mysqld: str | None = None,
    ) -> None:
        """`options` are of its command line, such as "--read-only"; `mysqld` is MySQL's own server."""
        self._mysqld = mysqld
        self.folder = folder
        self.port = free_ports(1)[0]
        self.options = list(options)
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.url_of()

    def url_of(self, database: str = DATABASE, *, user: str = "root", scheme: str = "mysql", **options: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"{scheme}://{user}@127.0.0.1:{self.port}/{database}" + (f"?{query}" if query else "")

    @property
    def socket(self) -> Path:
        return self.folder / "s.sock"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def create(self) -> None:
        """An empty data folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if os.getuid() == 0:  # MariaDB refuses to run as root
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            _let_through(self.folder)
        if self._mysqld is not None:
            command = [self._mysqld, "--no-defaults", "--initialize-insecure", f"--datadir={self.folder / 'data'}"]
            subprocess.run([*_as_user(), *command], check=True, capture_output=True, cwd=self.folder)
            return
        command = [_found("mariadb-install-db"), "--no-defaults", "--auth-root-authentication-method=normal"]
        command += ["--skip-test-db", f"--datadir={self.folder / 'data'}", f"--tmpdir={self.folder}"]
        subprocess.run([*_as_user(), *command], check=True, capture_output=True, cwd=self.folder)

    def start(self, *options: str) -> None:
        """Return when it answers."""
        assert self._process is None
        assert threading.current_thread() is threading.main_thread(), "it would die with this thread"
        command = [
            self._mysqld or _found("mariadbd"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",  # in a shared folder, each server that starts removes the tables of the others
            f"--port={self.port}",
        ]
        command += ["--bind-address=127.0.0.1", f"--socket={self.socket}", f"--pid-file={self.folder / 'pid'}"]
        command += [*_SMALL, *(_MYSQL_ONLY if self._mysqld else _MARIADB_ONLY)]
        command += [*self.options, *options]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*_as_user(), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self._environment},
            )
        eventually(self._answers)
        with contextlib.suppress(pymysql.err.OperationalError):  # read-only
            self.rows(f"CREATE DATABASE IF NOT EXISTS {DATABASE}", database="")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the server ended at once:\n{self.log()}"
        try:
            return bool(self.value("SELECT 1", database="") == 1)
        except (pymysql.err.OperationalError, OSError):
            return False

    def kill(self) -> None:
        """SIGKILL. The next start finds all committed data."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)
        self._process = None

    def restart(self, *options: str) -> None:
        """Shut down, and start with these options besides its own."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(PATIENCE)
        self._process = None
        self.start(*options)

    def revive(self) -> None:
        """Start it again if it has ended by itself."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
            self._process = None
            self.start()

    def end(self) -> None:
        """Kill it if it runs."""
        if self._process is not None:
            self.kill()

    def stop(self) -> None:
        """SIGSTOP; return when it is stopped. Connections stay open without answers."""
        os.kill(self.pid, signal.SIGSTOP)
        eventually(lambda: _state(self.pid) == "T")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    # ── SQL ────────────────────────────────────────────────────────────────────────────────────────────────────────

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
        """The ids of the connections to this database, but for the test's own."""
        sql = "SELECT id FROM information_schema.processlist WHERE db = %s AND id <> CONNECTION_ID()"
        return [number for (number,) in self.rows(sql, (database,), database="")]

    def terminate(self, database: str) -> int:
        """Terminate those connections; return when they have ended, and how many there were."""
        ids = self.clients(database)
        for number in ids:
            with contextlib.suppress(pymysql.err.OperationalError):  # it has ended
                self.rows(f"KILL {number}", database="")
        eventually(lambda: not set(ids) & set(self.clients(database)))
        return len(ids)


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """The server, created and started, for as long as the block lasts."""
    server.create()
    try:
        server.start()
        yield server
    finally:
        server.end()


def _as_user() -> list[str]:
    """A prefix that has a command killed with the thread that starts it, and run as user nobody if we are root."""
    setpriv = shutil.which("setpriv")
    nobody = pwd.getpwnam("nobody") if os.getuid() == 0 else None
    if setpriv is None:
        if nobody is not None:
            missing("MariaDB does not run as root, and there is no setpriv to become another user")
        return []
    words = [setpriv, "--pdeathsig", "KILL"]
    if nobody is not None:
        words += ["--reuid", str(nobody.pw_uid), "--regid", str(nobody.pw_gid), "--clear-groups"]
    return [*words, "--"]


def _let_through(folder: Path) -> None:
    """Give other users access: pytest's folders are for their owner only."""
    for parent in folder.parents:
        if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o001)
