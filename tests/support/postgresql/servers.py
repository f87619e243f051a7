"""PostgreSQL servers, and the requests that tests send to them."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.support.processes import eventually
from tests.support.server_process import ServerProcess, missing

_FAST = ("fsync=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=200", "autovacuum=off")


@functools.cache
def binaries() -> Path:
    """The folder with initdb and postgres of the newest version. Distributions do not add it to the PATH."""
    folders = [Path(path).parent for path in glob.glob("/usr/lib/postgresql/*/bin/postgres")]
    on_path = shutil.which("postgres")
    if on_path is not None:
        folders.append(Path(os.path.realpath(on_path)).parent)
    usable = [folder for folder in folders if (folder / "initdb").exists()]
    if not usable:
        missing("no PostgreSQL on this machine: `make servers` installs it")
    return max(usable, key=_version)


def _version(folder: Path) -> int:
    output = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"(\d+)", output)
    return int(match[1]) if match else 0


class Server(ServerProcess):
    """A server without fsync; `settings` are added to its settings."""

    refuses_root = True
    errors = (psycopg.OperationalError,)

    def __init__(
        self, folder: Path, *, settings: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, environment=environment)
        self._settings = settings

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, user: str, **options: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://{user}@127.0.0.1:{self.port}/postgres" + (f"?{query}" if query else "")

    def create(self) -> None:
        """Create an empty cluster of databases."""
        super().create()
        self.create_data(*self._initdb("{folder}/data"))

    def _initdb(self, data: str) -> list[str]:
        words = [str(binaries() / "initdb"), "-D", data, "-U", "postgres", "-A", "trust"]
        return [*words, "-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions"]

    def command(self) -> list[str]:
        settings = [*_FAST, "listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}", *self._settings]
        command = [str(binaries() / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)]
        return [*command, *(word for setting in settings for word in ("-c", setting))]

    def answers(self) -> bool:
        return bool(self.value("SELECT 1") == 1)

    def shut_down(self) -> None:
        """Fast shutdown: connections are ended, and all that was committed is on disk."""
        self.end_with(signal.SIGINT)

    def crash(self) -> None:
        """After SIGQUIT it ends its children and exits without a checkpoint. The next start replays the log."""
        self.end_with(signal.SIGQUIT)

    def kill(self) -> None:
        """SIGKILL of the postmaster: the other processes notice, and end too."""
        super().kill()
        eventually(lambda: not _users_of(self.folder / "data"))

    def end(self) -> None:
        if self.is_running:
            self.crash()

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.url, autocommit=True, application_name="test", connect_timeout=5)

    def rows(self, sql: Any, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """The rows of one statement, on a new connection."""
        with self.connect() as connection:
            cursor = connection.execute(sql, values)
            return cursor.fetchall() if cursor.description else []

    def value(self, sql: Any, values: Mapping[str, Any] | None = None) -> Any:
        return self.rows(sql, values)[0][0]

    def clients(self, query: str = "%") -> list[int]:
        """The pids of holdfast's connections whose last statement was like this."""
        sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'holdfast' AND query LIKE %(query)s"
        return [pid for (pid,) in self.rows(sql, {"query": query})]

    def is_blocked(self, query: str) -> bool:
        """A session with a statement like this waits for a lock."""
        sql = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %(query)s"
        return bool(self.rows(sql, {"query": query}))

    def terminate(self, query: str = "%") -> int:
        """Terminate these connections, wait until they have ended, and return their number."""
        pids = {"pids": self.clients(query)}
        self.rows("SELECT pg_terminate_backend(pid) FROM unnest(%(pids)s::int[]) AS pid", pids)
        remaining = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%(pids)s::int[])"
        eventually(lambda: bool(self.value(remaining, pids) == 0))
        return len(pids["pids"])


class SmallDisk(Server):
    """A server with a small disk: a mount in its own namespace, which ends with the server."""

    def create(self) -> None:
        """Create only the folder. Each start creates the database cluster, because the disk ends with the server."""
        ServerProcess.create(self)

    def prefix(self) -> list[str]:
        (self.folder / "data").mkdir(exist_ok=True)
        initdb = shlex.join([*super().prefix(), *self._initdb(str(self.folder / "data"))])
        owner = pwd.getpwnam("nobody").pw_uid
        script = f'mount -t tmpfs -o size=90m,mode=700,uid={owner} tmpfs "$0" && {initdb} && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, str(self.folder / "data"), *super().prefix()]


class Standby(Server):
    """A standby of another server."""

    def __init__(self, folder: Path, primary: Server, *, settings: Sequence[str] = ()) -> None:
        super().__init__(folder, settings=settings)
        self._primary = primary

    def create(self) -> None:
        ServerProcess.create(self)
        words = ["-h", "127.0.0.1", "-p", str(self._primary.port), "-U", "postgres", "-c", "fast", "-X", "stream", "-R"]
        command = [*self.prefix(), str(binaries() / "pg_basebackup"), "-D", str(self.folder / "data"), *words]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder)


def _users_of(folder: Path) -> list[str]:
    """The processes that work in this folder."""
    users = []
    for link in glob.glob("/proc/[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if os.readlink(link) == str(folder):
                users.append(link)
    return users
