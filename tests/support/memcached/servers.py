"""A memcached server, and the requests that tests send to it."""

from __future__ import annotations

import os
import pwd
import socket
from typing import Self

from holdfast.backends.memcached.protocol.meta import Parser, Reply
from tests.support.processes import PATIENCE
from tests.support.server_process import ServerProcess, program


class Server(ServerProcess):
    """A server process. After a restart it is empty."""

    def __init__(self, *options: str, port: int | None = None) -> None:
        """`options` are command line options, such as ("-m", "2")."""
        super().__init__(None, port=port, options=options)

    @property
    def url(self) -> str:
        return f"memcached://{self.address}"

    def command(self) -> list[str]:
        user = ["-u", pwd.getpwuid(os.getuid()).pw_name] if os.getuid() == 0 else []  # root must be named
        return [program("memcached"), "-l", "127.0.0.1", "-p", str(self.port), "-U", "0", *user]

    def answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 1.0):
            return True

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
