"""A proxy between a client and a PostgreSQL server that counts round trips, and can hold a request.

A request ends with the message Sync, or is a single message Query (the manual's chapter "Frontend/Backend Protocol",
"Message Formats"). The client then waits until the server is ready again. That is a round trip.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

_ENDS = (b"S", b"Q")
_LENGTH = 4


class Relay:
    """Listens on `port`. Connect with `sslmode=disable`, because it has to parse the messages."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self.round_trips = 0
        self.answers = 0  # parts of answers that the server has sent
        self.connections = 0
        self._holds_next = False
        self._passes_held = threading.Event()
        self.is_holding = threading.Event()

    def hold_next_request(self) -> None:
        """Pass nothing on the connection of the next message of a client, from that message on, until `pass_held`."""
        self._holds_next = True

    def pass_held(self) -> None:
        self._passes_held.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._passes_held.set()
        for sock in (self._listening, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                self.connections += 1
                threading.Thread(target=self._pass_requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self._pass_answers, args=(server, client), daemon=True).start()

    def _pass_answers(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.answers += 1
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        """Pass one message at a time. The first message has no type byte before its length."""
        message_type = b""
        with contextlib.suppress(OSError):
            while length := _exactly(client, _LENGTH):
                body = _exactly(client, int.from_bytes(length, "big") - _LENGTH)
                if self._holds_next:
                    self._holds_next = False
                    self.is_holding.set()
                    self._passes_held.wait()
                self.round_trips += message_type in _ENDS
                server.sendall(message_type + length + body)
                message_type = _exactly(client, 1)
            server.shutdown(socket.SHUT_WR)


def _exactly(source: socket.socket, count: int) -> bytes:
    """Receive this many bytes; b"" if the connection ends before."""
    data = b""
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            return b""
        data += more
    return data
