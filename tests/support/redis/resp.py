"""A minimal Redis client for the tests' own requests, independent of holdfast."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

Word = str | bytes | int | float


class ServerError(Exception):
    """The server answered with an error; `code` is its first word."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = message.partition(" ")[0]


class Connection:
    """One connection. Texts are returned as str if they are UTF-8, else as bytes. Nothing is retried."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", timeout: float = 5.0) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout)
        self._reader = self._socket.makefile("rb")

    def call(self, *words: Word) -> Any:
        """Send one command and return its reply.

        Raises:
            ServerError: the reply is an error.
            OSError: there is no reply.
        """
        self.send(words)
        return self.read()

    def send(self, words: Sequence[Word]) -> None:
        self._socket.sendall(encode(words))

    def read(self) -> Any:
        line = self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the server closed the connection")
        kind, value = line[:1], line[1:-2]
        match kind:
            case b"+":
                return value.decode()
            case b"-":
                raise ServerError(value.decode())
            case b":":
                return int(value)
            case b"$":
                if value == b"-1":
                    return None
                data = self._reader.read(int(value) + 2)[:-2]
                try:
                    return data.decode()
                except UnicodeDecodeError:
                    return data
            case b"*":
                return None if value == b"-1" else [self._element() for _ in range(int(value))]
            case _:
                raise AssertionError(f"not RESP 2: {line!r}")

    def _element(self) -> Any:
        try:
            return self.read()
        except ServerError as error:
            return error

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def encode(words: Sequence[Word]) -> bytes:
    """One command in the format of the protocol."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def facts(lines: str) -> dict[str, str]:
    """The reply of INFO, CLUSTER INFO and similar commands as a dict."""
    return dict(line.split(":", 1) for line in lines.splitlines() if ":" in line)
