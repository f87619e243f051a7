"""A memcached process on a free loopback port: start, request, stop, kill, restart; it is always reaped.

Start servers from the main thread: they are killed with the *thread* that started them.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Self

from holdfast.backends.memcached.protocol.meta import Parser, Reply
from tests.support.processes import PATIENCE, _state, eventually
from tests.support.redis.binaries import missing
from tests.support.redis.servers import _with_parent, free_ports


class Server:
    """A server process. After a restart it is empty."""

    def __init__(self, *options: str, port: int | None = None) -> None:
        """`options` are command line options, such as ("-m", "2")."""
        self._path = shutil.which("memcached") or missing("no memcached on this machine: `make servers` installs it")
        self.port = free_ports(1)[0] if port is None else port
        self.options = list(options)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"memcached://{self.address}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it accepts connections."""
        assert self._process is None
        assert threading.current_thread() is threading.main_thread(), "the server would end with this thread"
        # Its output at the end is not needed; a failed start shows in the exit code.
        self._process = subprocess.Popen(
            [*_with_parent(), self._path, "-l", "127.0.0.1", "-p", str(self.port), "-U", "0", *_user(), *self.options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        def listens() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"memcached {' '.join(self.options)} ended at once"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return True
            return False

        eventually(listens)

    def kill(self) -> None:
        """Send SIGKILL; returns when the process is reaped."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)
        self._process = None

    def stop(self) -> None:
        """Send SIGSTOP; returns when the process is stopped. Connections stay open, without answers."""
        os.kill(self.pid, signal.SIGSTOP)
        eventually(lambda: _state(self.pid) == "T")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill it and start it again, empty, on the same port."""
        self.kill()
        self.start()

    def end(self) -> None:
        """End the process, if it runs, and clean up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def connect(self) -> RawConnection:
        return RawConnection(self.port)

    def call(self, request: bytes) -> Reply:
        """Send one request on a new connection."""
        with self.connect() as connection:
            return connection.call(request)

    def stats(self) -> dict[str, str]:
        return self.call(b"stats\r\n").stats()


class RawConnection:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._parser = Parser()

    def call(self, request: bytes) -> Reply:
        self.send(request)
        return self.receive()

    def send(self, request: bytes) -> None:
        self._sock.sendall(request)

    def receive(self) -> Reply:
        while (reply := self._parser.next_reply()) is None:
            data = self._sock.recv(65536)
            assert data, "the server closed the connection"
            self._parser.feed(data)
        return reply

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """Run the server for the block."""
    try:
        server.start()
        yield server
    finally:
        server.end()


def _user() -> list[str]:
    """Memcached refuses to run as root without -u."""
    return ["-u", pwd.getpwuid(os.getuid()).pw_name] if os.getuid() == 0 else []
