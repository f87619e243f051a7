"""Processes that run a Python script, forked from a process that has imported holdfast: they start in milliseconds.

A test run starts thousands of worker processes, and each would import holdfast and its driver, which takes longer than
most of them run. So one process of the test run, without threads and clients, imports everything and then forks a
process for each request. It ends with the test run. A forked process is a child of the test run, as if that had
started it: the one in between ends at once, and the test run adopts what it leaves.

This module, run as a program with the descriptor of a socket as its argument, is the process that forks.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_MESSAGE_MAX = 1 << 20
_FDS_MAX = 8
_OWN_FDS_MAX = 255  # all descriptors of the process that forks are below
# Imported before the forks, as far as they are installed: of the scripts, of holdfast and of its backends for threads.
_MODULES = (
    *("faulthandler", "logging", "multiprocessing.connection", "sqlite3", "tempfile", "traceback", "asyncio"),
    *("holdfast", "holdfast.threads.client", "holdfast.runtimes.threads", "holdfast.default"),
    *("holdfast.cli", *(f"holdfast.cli.{name}" for name in ("run", "ls", "show", "revoke", "once", "backends"))),
    *(
        f"holdfast.backends.{name}.io.blocking"
        for name in ("sqlite", "redis", "redlock", "postgresql", "mysql", "etcd", "zookeeper", "nats", "memcached")
    ),
)


class ForkedProcess:
    """A process that runs a script. Its methods are those of subprocess.Popen."""

    def __init__(
        self,
        script: str,
        arguments: Sequence[str],
        files: Sequence[int],
        pass_fds: Sequence[int],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`files` are its stdin, stdout and stderr; it has the `pass_fds` under the same numbers.

        Variables that Python reads at its start have no effect.
        """
        request = {
            "argv": [script, *arguments],
            "environment": dict(os.environ if environment is None else environment),
            "folder": os.getcwd(),
            "numbers": [0, 1, 2, *pass_fds],
            "parent": os.getpid(),
        }
        self.pid = _server(os.getpid()).fork(request, [*files, *pass_fds])
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            pidfd = os.pidfd_open(self.pid)
            try:
                end = select.poll()
                end.register(pidfd, select.POLLIN)
                if not end.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            finally:
                os.close(pidfd)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def prepare() -> None:
    """Start the process that forks. Its children start in the network namespace that this thread has now."""
    _server(os.getpid())


class _Server:
    """The process that forks, as the test run sees it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        atexit.register(self._close)

    def fork(self, request: dict[str, Any], files: Sequence[int]) -> int:
        with self._mutex:
            _adopt_orphans(yes=True)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], files)
                answer = self._socket.recv(_MESSAGE_MAX)
            finally:
                _adopt_orphans(yes=False)  # tests expect that the system adopts the orphans of other processes
        assert answer, "the process that forks has ended"
        return int(answer)

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _server(_pid: int) -> _Server:
    """One for each process: a forked child of the test run must not adopt processes for its parent."""
    return _Server()


def _adopt_orphans(*, yes: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


# ── the process that forks ───────────────────────────────────────────────────────────────────────────────────────────


def serve(sock: socket.socket) -> types.CodeType:
    """Fork for each request. Returns in the forked process only: the program that it has to run."""
    programs: dict[str, types.CodeType] = {}
    while True:
        data, files, _, _ = socket.recv_fds(sock, _MESSAGE_MAX, _FDS_MAX)
        if not data:
            os._exit(0)  # the test run has ended
        request = json.loads(data)
        script = request["argv"][0]
        if script not in programs:
            with open(script, "rb") as file:
                programs[script] = compile(file.read(), script, "exec")
        if _fork(sock):
            sock.detach()  # its number is closed, and used again, by the next line
            _become(request, files)
            return programs[script]
        for fd in files:
            os.close(fd)


def _fork(sock: socket.socket) -> bool:
    """Fork a process that the test run adopts, and send its id. Returns whether this is the new process."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            return True
        os.write(writer, str(pid).encode())
        os._exit(0)
    os.waitpid(between, 0)
    sock.send(os.read(reader, 20))
    os.close(reader)
    os.close(writer)
    return False


def _become(request: dict[str, Any], files: Sequence[int]) -> None:
    """Take over the descriptors, environment, folder and arguments of the request."""
    while os.getppid() != request["parent"]:  # a parent-death signal that is set earlier is for the process in between
        time.sleep(0.0002)
    free = max(_OWN_FDS_MAX, *request["numbers"]) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, free) for fd in files]
    os.closerange(3, free)
    for number, fd in zip(request["numbers"], moved, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["argv"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    main = types.ModuleType("__main__")
    main.__file__ = sys.argv[0]
    sys.modules["__main__"] = main


def _import_all() -> None:
    for name in _MODULES:
        with contextlib.suppress(ImportError):  # a driver is not installed
            importlib.import_module(name)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _import_all()
    gc.freeze()
    # At the top level, so that the interpreter ends as with any other program.
    exec(serve(socket.socket(fileno=int(sys.argv[1]))), sys.modules["__main__"].__dict__)  # noqa: S102
