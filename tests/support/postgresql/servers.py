"""A private PostgreSQL server: its data in a folder, a free loopback port, a user without rights, always reaped.

Start servers from the main thread: they are killed with the *thread* that started them, so that a killed test run
leaves none behind. A server that is missing skips its tests with one line; with CI=true it fails them.
"""

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
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.support.processes import PATIENCE, eventually
from tests.support.redis.binaries import missing
from tests.support.redis.servers import free_ports

_FAST = ("fsync=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=200", "autovacuum=off")


@functools.cache
def binaries() -> Path:
    """The folder with initdb and postgres, the newest there is. Distributions keep them off the PATH."""
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


class Server:
    """A server process and its folder, which outlives the process: `start` again for a restart with its data."""

    def __init__(
        self, folder: Path, *, settings: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.port = free_ports(1)[0]
        self._settings = settings
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def url_of(self, user: str, **options: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://{user}@127.0.0.1:{self.port}/postgres" + (f"?{query}" if query else "")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def create(self) -> None:
        """An empty cluster of databases."""
        self._make_folder()
        subprocess.run([*as_user(), *self._initdb()], check=True, capture_output=True, cwd=self.folder)

    def _make_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            let_through(self.folder)

    def _initdb(self) -> list[str]:
        words = [str(binaries() / "initdb"), "-D", str(self.folder / "data"), "-U", "postgres", "-A", "trust"]
        return [*words, "-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions"]

    def start(self) -> None:
        """Return when it answers."""
        assert self._process is None
        assert threading.current_thread() is threading.main_thread(), "it would die with this thread"
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*self._before(), *as_user(), *self._postgres()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self._environment,
            )
        eventually(self._answers)

    def _before(self) -> Sequence[str]:
        """The command line."""
        return ()

    def _postgres(self) -> list[str]:
        settings = [*_FAST, "listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}", *self._settings]
        command = [str(binaries() / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)]
        return [*command, *(word for setting in settings for word in ("-c", setting))]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the server ended at once:\n{self.log()}"
        try:
            return bool(self.value("SELECT 1") == 1)
        except psycopg.OperationalError:
            return False

    def stop(self) -> None:
        """Shut down at once, in order: connections are ended, all that was committed is on disk."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Crash: after SIGQUIT it ends its children and exits without a checkpoint. The next start replays the log."""
        self._end(signal.SIGQUIT)

    def kill_hard(self) -> None:
        """Kill -9 of the postmaster: the other processes notice, and end too."""
        self._end(signal.SIGKILL)
        eventually(lambda: not _users_of(self.folder / "data"))

    def end(self) -> None:
        """Kill it if it runs."""
        if self._process is not None:
            self._end(signal.SIGQUIT)

    def _end(self, how: int) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(PATIENCE)
        self._process = None

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    # ── words ────────────────────────────────────────────────────────────────────────────────────────────────────

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
        """Terminate those connections; return when they have ended, and how many there were."""
        pids = {"pids": self.clients(query)}
        self.rows("SELECT pg_terminate_backend(pid) FROM unnest(%(pids)s::int[]) AS pid", pids)
        left = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%(pids)s::int[])"
        eventually(lambda: bool(self.value(left, pids) == 0))
        return len(pids["pids"])


class SmallDisk(Server):
    """A server with a small disk: a mount in its own namespace, which ends with it."""

    def create(self) -> None:
        """Nothing: it is created when it starts, because the disk does not outlive it."""
        self._make_folder()

    def _before(self) -> Sequence[str]:
        (self.folder / "data").mkdir(exist_ok=True)
        words = " ".join(shlex.quote(word) for word in [*as_user(), *self._initdb()])
        owner = pwd.getpwnam("nobody").pw_uid
        script = f'mount -t tmpfs -o size=90m,mode=700,uid={owner} tmpfs "$0" && {words} && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, str(self.folder / "data")]


class Standby(Server):
    """A standby of another server."""

    def __init__(self, folder: Path, primary: Server) -> None:
        super().__init__(folder)
        self._primary = primary

    def create(self) -> None:
        self._make_folder()
        words = ["-h", "127.0.0.1", "-p", str(self._primary.port), "-U", "postgres", "-c", "fast", "-X", "stream", "-R"]
        command = [str(binaries() / "pg_basebackup"), "-D", str(self.folder / "data"), *words]
        subprocess.run([*as_user(), *command], check=True, capture_output=True, cwd=self.folder)


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """The server, created and started, for as long as the block lasts."""
    server.create()
    try:
        server.start()
        yield server
    finally:
        server.end()


def as_user() -> list[str]:
    """A prefix that has a command killed with the thread that starts it, and run as user nobody if we are root."""
    setpriv = shutil.which("setpriv")
    nobody = pwd.getpwnam("nobody") if os.getuid() == 0 else None
    if setpriv is None:
        if nobody is not None:
            missing("PostgreSQL does not run as root, and there is no setpriv to become another user")
        return []
    words = [setpriv, "--pdeathsig", "KILL"]
    if nobody is not None:
        words += ["--reuid", str(nobody.pw_uid), "--regid", str(nobody.pw_gid), "--clear-groups"]
    return [*words, "--"]


def _users_of(folder: Path) -> list[str]:
    """The processes that work in this folder."""
    found = []
    for link in glob.glob("/proc/[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if os.readlink(link) == str(folder):
                found.append(link)
    return found


def let_through(folder: Path) -> None:
    """Give other users access: pytest's folders are for their owner only."""
    for parent in folder.parents:
        if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o001)
