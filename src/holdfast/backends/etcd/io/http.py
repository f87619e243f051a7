"""The part of HTTP/1.1 that etcd uses, without I/O: it builds requests and parses responses."""

from __future__ import annotations

_END_OF_HEAD, _END_OF_LINE = b"\r\n\r\n", b"\r\n"
HEAD_MAX = 65536  # bytes


class NotHttp(ValueError):
    """The received bytes are no valid HTTP response."""


def encode_request(host: object, method: str, token: str, body: bytes) -> bytes:
    credentials = f"Authorization: {token}\r\n" if token else ""
    head = f"POST /v3/{method} HTTP/1.1\r\nHost: {host}\r\n{credentials}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Response:
    """A parser for one response: feed it until it is complete. The lines of a stream can be read before that."""

    __slots__ = ("_buffer", "_chunk_left", "_in_trailer", "_left", "_lines", "body", "is_complete", "is_last", "status")

    def __init__(self) -> None:
        self._buffer = b""
        self.status = 0  # until the head has arrived
        self.body = b""
        self.is_complete = False
        self.is_last = False  # the connection cannot be used for another request
        self._left: int | None = None  # bytes of the body that are missing; None: chunked transfer encoding
        self._chunk_left = 0
        self._in_trailer = False
        self._lines = b""

    def feed(self, data: bytes) -> None:
        """Parse bytes that were read; no bytes mean that the connection was closed.

        Raises:
            NotHttp: this is no response, or it is incomplete.
        """
        if not data:
            raise NotHttp("the connection was closed before the answer was complete")
        self._buffer += data
        if not self.status and not self._read_head():
            return
        if self._left is None:
            self._read_chunks()
        else:
            self.body += self._buffer[: self._left]
            self._left -= min(self._left, len(self._buffer))
            self._buffer = b""
            self.is_complete = self._left == 0

    def lines(self) -> list[bytes]:
        """The complete lines of a stream that have arrived since the last call."""
        *whole, self._lines = (self._lines + self.body).split(b"\n")
        self.body = b""
        return [line for line in whole if line]

    def _read_head(self) -> bool:
        end = self._buffer.find(_END_OF_HEAD)
        if end < 0:
            if len(self._buffer) > HEAD_MAX:
                raise NotHttp("the response's head is too long")
            return False
        status_line, *fields = self._buffer[:end].decode("latin-1").split("\r\n")
        self._buffer = self._buffer[end + len(_END_OF_HEAD) :]
        version, _, rest = status_line.partition(" ")
        code = rest[:3]
        if version not in {"HTTP/1.1", "HTTP/1.0"} or not code.isdigit():
            raise NotHttp(f"not an answer in HTTP/1.1: {status_line[:60]!r}")
        self.status = int(code)
        headers: dict[str, str] = {}
        for field in fields:
            name, _, value = field.lower().partition(":")
            headers[name.strip()] = value.strip()
        self.is_last = version == "HTTP/1.0" or headers.get("connection") == "close"
        if headers.get("transfer-encoding") != "chunked":
            length = headers.get("content-length", "")
            if not length.isdigit():
                raise NotHttp("the response has no length")
            self._left = int(length)
        return True

    def _read_chunks(self) -> None:
        while self._buffer and not self.is_complete:
            if self._chunk_left:
                part = self._buffer[: self._chunk_left]
                self._buffer = self._buffer[len(part) :]
                self._chunk_left -= len(part)
                self.body += part
                continue
            line, ended, rest = self._buffer.partition(_END_OF_LINE)
            if not ended:
                return
            self._buffer = rest
            if self._in_trailer:
                self.is_complete = not line  # an empty line ends the trailer
            elif line:  # an empty line ends the previous chunk
                self._begin_chunk(line)

    def _begin_chunk(self, line: bytes) -> None:
        try:
            self._chunk_left = int(line.partition(b";")[0], 16)
        except ValueError:
            raise NotHttp(f"not the length of a chunk: {line[:20]!r}") from None
        self._in_trailer = self._chunk_left == 0
