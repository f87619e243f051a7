"""The servers of tests, benchmarks and soak: a process on a free port, with a folder of its own, always reaped.

A kind of server declares its command line and a check that it answers. All other steps are here. Start servers from
the main thread: each is killed with the *thread* that started it, so that a killed test run leaves no server.

A test whose server is missing is skipped with one line; with CI=true it fails.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import pickle
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Generic, NamedTuple, NoReturn, Protocol, Self, TypeVar

from tests.support.processes import PATIENCE, eventually, stop_process

_ROOM = 4 << 30  # bytes that must be free in memory: each test worker has an etcd, which needs 130 MB from its start


class Host(NamedTuple):
    """A host for processes."""

    address: str
    namespace: Path | None = None  # None: the namespace of the test

    @property
    def under(self) -> list[str]:
        """The command prefix that runs a command on this host."""
        return [] if self.namespace is None else ["nsenter", f"--net={self.namespace}", "--"]


HERE = Host("127.0.0.1")

# For servers written in Go. Many of them run at the same time, with little data. With the default settings, garbage
# collection takes a quarter of their processor time.
GO_ENVIRONMENT = {"GOGC": "400", "GOMAXPROCS": "1"}


class ServerProcess(ABC):
    """A server process and its folder, which outlives the process: `start` again for a restart with its data."""

    refuses_root = False  # started by root, it runs as user nobody
    errors: ClassVar[tuple[type[Exception], ...]] = (OSError,)  # `answers` raises these while it does not answer

    def __init__(
        self,
        folder: Path | None,
        *,
        port: int | None = None,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        host: Host = HERE,
    ) -> None:
        """`options` are more words of its command line. A server without a folder writes no log."""
        self._folder = folder
        self.port = free_ports(1)[0] if port is None else port
        self.options = list(options)
        self.host = host
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The state for another process, which can use the server, but cannot end it."""
        return {**self.__dict__, "_process": None}

    @abstractmethod
    def command(self) -> list[str]:
        """The command line without `options`."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it answers. It may raise `errors` instead."""

    def prefix(self) -> list[str]:
        """The words before the command line."""
        return [*dies_with_thread(as_nobody=self.refuses_root), *self.host.under]

    @property
    def folder(self) -> Path:
        assert self._folder is not None
        return self._folder

    @property
    def address(self) -> str:
        return f"{self.host.address}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def create(self) -> None:
        """Prepare its folder before the first start."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            if self.refuses_root:
                _give_to_nobody(self._folder)

    def create_data(self, *command: str) -> None:
        """Copy what a command creates in "{folder}/data". It runs once for all servers, because it takes a second."""
        subprocess.run(["cp", "-a", _initial_data(command).path, self.folder], check=True)  # with their owner

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.spawn()
        self.await_answer()

    def spawn(self) -> None:
        """Start the process; several can be spawned before the first is awaited."""
        assert self._process is None
        assert threading.current_thread() is threading.main_thread(), "it would end with this thread"
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        with open(os.devnull if self._folder is None else self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*self.prefix(), *self.command(), *self.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, **self._environment},
                start_new_session=True,  # Ctrl-C is for the test run
            )

    def await_answer(self) -> None:
        def is_up() -> bool:
            self.assert_running()
            try:
                return self.answers()
            except self.errors:
                return False

        eventually(is_up)

    def assert_running(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, f"{type(self).__name__} ended at once:\n{self.log()}"

    def kill(self) -> None:
        """Send SIGKILL and reap it. Data that it has not written is lost."""
        self.end_with(signal.SIGKILL)

    def end_with(self, number: signal.Signals) -> None:
        """Send a signal that ends it, and reap it."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(PATIENCE)
        self._process = None

    def stop(self) -> None:
        """Send SIGSTOP and wait until it is stopped. Connections stay open without answers."""
        stop_process(self.pid)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill it, and start it with the data that it had written, on the same port."""
        self.kill()
        self.start()

    def end(self) -> None:
        """Kill it if it runs."""
        if self._process is not None:
            self.kill()

    def log(self) -> str:
        return "" if self._folder is None else (self._folder / "log").read_text(errors="replace")


_Server = TypeVar("_Server", bound=ServerProcess)


class ServerGroup(Generic[_Server]):
    """Servers that are started together, and end together."""

    def __init__(self, servers: Sequence[_Server]) -> None:
        self.servers = list(servers)

    def create(self) -> None:
        for server in self.servers:
            server.create()

    def start(self) -> None:
        for server in self.servers:
            server.spawn()
        self.await_answer()

    def await_answer(self) -> None:
        for server in self.servers:
            server.await_answer()

    def heal(self) -> None:
        """Resume stopped servers, start killed ones, and wait until all answer."""
        for server in self.servers:
            if server.is_running:
                server.resume()
            else:
                server.spawn()
        self.await_answer()

    def end(self) -> None:
        for server in self.servers:
            server.end()

    def __enter__(self) -> Self:
        try:
            self.create()
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class _Startable(Protocol):
    def create(self) -> None: ...
    def start(self) -> None: ...
    def end(self) -> None: ...


_Started = TypeVar("_Started", bound=_Startable)


@contextlib.contextmanager
def running(server: _Started) -> Iterator[_Started]:
    """Create and start the server or group, and end it after the block."""
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.end()


def until_exit(make: Callable[[Path], _Started]) -> _Started:
    """Start the server that `make` returns for a new folder; it ends with the test run."""
    return _at_exit().enter_context(running(make(_at_exit().enter_context(folder_in_memory()) / "server")))


class _Run(NamedTuple):
    """A test run with several workers."""

    folder: Path
    users: IO[str]  # each worker holds a shared lock on it, which ends with the process


_run: _Run | None = None


def join_run(folder: Path) -> None:
    """Share the servers of `for_all_workers` with the processes that join the same folder."""
    global _run
    users = open(folder / "users", "w")  # noqa: SIM115  (open until the end of the process)
    fcntl.flock(users, fcntl.LOCK_SH)
    os.register_at_fork(after_in_child=users.close)  # a child that a test has left must not keep the lock
    _run = _Run(folder, users)


def for_all_workers(
    make: Callable[[Path], _Started], name: str, prepare: Callable[[_Started], None] = lambda _: None
) -> _Started:
    """As `until_exit`, but one server for all workers of a test run. It ends after the last worker.

    The first worker that needs the server starts it, and calls `prepare` with it. Tests must tolerate other clients on
    this server.
    """
    if _run is None:
        server = until_exit(make)
        prepare(server)
        return server
    path = _run.folder / name
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            server = until_exit(make)
            prepare(server)
            _end_after_other_workers(_run.users)
            path.write_bytes(pickle.dumps(server))
            return server
    of_other_worker: _Started = pickle.loads(path.read_bytes())
    return of_other_worker


@functools.cache
def _end_after_other_workers(users: IO[str]) -> None:
    """Wait for the end of the other workers before the servers of this process end.

    Functions of atexit run in reverse order, and that of `_at_exit` is registered already.
    """
    atexit.register(fcntl.flock, users, fcntl.LOCK_EX)


@functools.cache
def _initial_data(command: Sequence[str]) -> _InitialData:
    number = zlib.crc32("\0".join(command).encode())
    return for_all_workers(lambda folder: _InitialData(folder, command), f"data-{number}")


class _InitialData:
    """The data that a command creates at "{folder}/data"."""

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self._folder, self._command = folder, command
        self.path = folder / "data"

    def create(self) -> None:
        self._folder.mkdir()
        _give_to_nobody(self._folder)

    def start(self) -> None:
        words = [word.replace("{folder}", str(self._folder)) for word in self._command]
        subprocess.run([*dies_with_thread(as_nobody=True), *words], check=True, capture_output=True, cwd=self._folder)

    def end(self) -> None:
        """It is deleted with the folder."""


@functools.cache
def _at_exit() -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack


@contextlib.contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A new folder, in memory if possible: on a busy disk a write can take a second, which is too long for elections.

    Other users can reach it. They cannot reach pytest's folders.
    """
    memory = "/dev/shm"  # noqa: S108 (each server has a folder of its own there)
    has_room = os.path.isdir(memory) and shutil.disk_usage(memory).free > _ROOM
    folder = tempfile.mkdtemp(prefix="holdfast-server-", dir=memory if has_room else None)
    try:
        os.chmod(folder, 0o711)  # noqa: S103  (servers that run as nobody must reach their own folders in it)
        yield Path(folder)
    finally:
        shutil.rmtree(folder)


def free_ports(number: int) -> list[int]:
    """Distinct free ports, reserved until their servers are up and during restarts.

    This process keeps them bound, without listening. A server may bind them too, because it sets SO_REUSEADDR. The
    kernel assigns them neither to outgoing connections nor to another test run that requests a free port.
    """
    sockets = [socket.socket() for _ in range(number)]
    for reserved in sockets:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HERE.address, 0))
    _reserved.extend(sockets)
    while len(_reserved) > _RESERVED_MAX:
        _reserved.popleft().close()
    return [reserved.getsockname()[1] for reserved in sockets]


_reserved: deque[socket.socket] = deque()
_RESERVED_MAX = 300  # several times the number that one test requests


def dies_with_thread(*, as_nobody: bool = False) -> list[str]:
    """The command prefix that kills a process with the thread that started it, if the system supports that.

    With `as_nobody`, a process that root starts runs as user nobody.
    """
    setpriv = shutil.which("setpriv")
    nobody = pwd.getpwnam("nobody") if as_nobody and os.getuid() == 0 else None
    if setpriv is None:
        if nobody is not None:
            missing("a server does not run as root, and there is no setpriv to become another user")
        return []
    words = [setpriv, "--pdeathsig", "KILL"]
    if nobody is not None:
        words += ["--reuid", str(nobody.pw_uid), "--regid", str(nobody.pw_gid), "--clear-groups"]
    return [*words, "--"]


def _give_to_nobody(folder: Path) -> None:
    """Under root, make user nobody the owner of the folder, and let it enter root's parent folders."""
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        for parent in folder.parents:
            mode = parent.stat().st_mode
            if parent.stat().st_uid == 0 and not mode & 0o001:
                parent.chmod(mode | 0o001)


def program(name: str, *, package: str | None = None) -> str:
    """The path of a program; the test is skipped (CI=true: fails) if it is missing."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    return path or missing(f"no {package or name} on this machine: `make servers` installs it")


def missing(problem: str) -> NoReturn:
    """Skip the test (CI=true: fail it), because a server that it needs is not installed."""
    import pytest  # benchmarks run without it

    if os.environ.get("CI") == "true":
        pytest.fail(problem)
    pytest.skip(problem)
