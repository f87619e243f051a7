"""One connection, for threads and asyncio alike: the command phase of the MySQL protocol; a `Poller` waits.

A connection is reused only after a complete exchange. Any exception during an exchange, also an interrupt or a
cancellation, closes it, so that no request ever reads the answer to another.

The commands are COM_QUERY with answers in text, and COM_STMT_EXECUTE for statements without rows, as in the manual
("Client/Server Protocol"). A packet is three bytes of length, a sequence number, and the payload. The first byte of the
payload is its kind:

    00 OK    FF an error    FE (and short) the end of columns or rows    else the number of columns, or a row
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from holdfast.backends.mysql.io.errors import error_from
from holdfast.backends.mysql.port import Answer, PeriodicCheck, Row, Statement, Value
from holdfast.backends.mysql.sql import NOW
from holdfast.backends.net.connection import BaseConnection
from holdfast.backends.net.poller import READ, WRITE, Poller
from holdfast.backends.net.pool import wait_ready
from holdfast.backends.sql_connections import (
    TablesMissing,
    TransactionConflict,
    one_line,
    outcome_unknown,
    unavailable,
)
from holdfast.errors import ConfigurationError, OutcomeUnknown

if TYPE_CHECKING:
    import socket

    from holdfast.core.ports import Runtime

T = TypeVar("T")

_PACKET_MAX = 0xFFFFFF  # bytes; a longer payload is split, which is not supported here
_CHUNK = 65536
_QUERY, _PREPARE, _EXECUTE = b"\x03", b"\x16", b"\x17"
_SET_OPTION = b"\x1b\x00\x00"  # MYSQL_OPTION_MULTI_STATEMENTS_ON
_BIGINT, _VARCHAR, _BLOB = b"\x08\x00", b"\xfd\x00", b"\xfc\x00"
_PLACEHOLDER = re.compile(r"\{(\d)\}")
_OK, _END, _ERROR, _LOCAL_FILE, _NULL = 0x00, 0xFE, 0xFF, 0xFB, 0xFB
_END_MAX = 9  # bytes: a longer payload that begins with FE is a row
_MORE_RESULTS = 0x0008


class Connection(BaseConnection):
    """A socket after the login."""

    __slots__ = ("_buffer", "_check", "_prepared", "_start")

    def __init__(self, url: str, sock: socket.socket, poller: Poller, runtime: Runtime) -> None:
        super().__init__(url, poller, runtime, sock)
        self._buffer = b""
        self._start = 0  # of the next packet in the buffer
        self._check: PeriodicCheck | None = None
        self._prepared: dict[str, tuple[bytes, list[int]]] = {}  # by name: header of the command, order of the values

    async def query(self, sql: str, deadline: float, check: PeriodicCheck | None = None) -> Answer:
        """Return the last result, with the rows of all results. An error of `check` closes the connection.

        Raises:
            TransactionConflict, TablesMissing: nothing was changed.
            HoldfastError: as `MysqlPort` describes.
        """
        self._check = check
        try:
            return await self._exchange(_QUERY + sql.encode(), deadline)
        finally:
            self._check = None

    async def execute(self, statement: Statement, values: Sequence[Value], deadline: float) -> Answer:
        """As `query`, for a statement that is prepared at its first use on this connection."""
        if statement.name not in self._prepared:
            try:
                await self._prepare(statement, deadline)
            except OutcomeUnknown as error:  # it was not executed: only COM_STMT_PREPARE got no answer
                raise unavailable(self._url, error.problem) from error
        head, order = self._prepared[statement.name]
        return await self._exchange(head + _encoded([values[number] for number in order]), deadline)

    async def _prepare(self, statement: Statement, deadline: float) -> None:
        order = [int(number) for number in _PLACEHOLDER.findall(statement.sql)]
        sql = _PLACEHOLDER.sub("?", statement.sql).format(now=NOW)

        async def read(sock: socket.socket) -> bytes:
            packet = await self._packet(sock, deadline)
            if packet[0] == _ERROR:
                raise self._error_from(packet)
            for _ in range(len(order) + 1 if order else 0):  # the definitions of the parameters, and their end
                await self._packet(sock, deadline)
            return packet

        packet = await self._request(_PREPARE + sql.encode(), read, deadline)
        self._prepared[statement.name] = (_EXECUTE + packet[1:5] + b"\0" + (1).to_bytes(4, "little"), order)

    async def enable_multi_statements(self, deadline: float) -> None:
        await self._exchange(_SET_OPTION, deadline)

    async def _exchange(self, payload: bytes, deadline: float) -> Answer:
        return await self._request(payload, lambda sock: self._results(sock, deadline), deadline)

    async def _request(self, payload: bytes, read: Callable[[socket.socket], Awaitable[T]], deadline: float) -> T:
        sock = self._socket
        if sock is None:
            raise unavailable(self._url, "the connection is closed")
        if len(payload) >= _PACKET_MAX:
            raise ConfigurationError(
                f"{self._url}: a request of {len(payload)} bytes is too large: give a smaller meta"
            )
        if deadline <= self._now():
            raise unavailable(self._url, "no time was left to send the request")
        try:
            await self._send(sock, len(payload).to_bytes(3, "little") + b"\0" + payload, deadline)
            self._buffer, self._start = b"", 0
            return await read(sock)
        except BaseException as failure:
            # After these two errors no transaction is open: each statement and each procedure is a transaction, and is
            # rolled back. A caller that sends several statements as one transaction has to close the connection then.
            if not isinstance(failure, TablesMissing | TransactionConflict):
                self.close()
            if isinstance(failure, OSError):
                raise outcome_unknown(self._url, f"no answer came: {one_line(failure)}") from failure
            raise

    async def _results(self, sock: socket.socket, deadline: float) -> Answer:
        answer, more = Answer(), True
        while more:
            answer, more = await self._result(sock, answer, deadline)
        return answer

    async def _result(self, sock: socket.socket, last: Answer, deadline: float) -> tuple[Answer, bool]:
        packet = await self._packet(sock, deadline)
        kind = packet[0]
        if kind == _OK:
            changed, at = _number(packet, 1)
            number, at = _number(packet, at)
            status = int.from_bytes(packet[at : at + 2], "little")
            # The OK at the end of a CALL has no result of its own: its rows arrived before.
            answer = last if last.rows else Answer(changed, number)
            return answer, bool(status & _MORE_RESULTS)
        if kind == _ERROR:
            raise self._error_from(packet)
        if kind == _LOCAL_FILE:
            raise outcome_unknown(self._url, "the server requests a local file, which is no answer to this request")
        if kind == _END:  # the answer to COM_SET_OPTION
            return Answer(), False
        columns, _ = _number(packet, 0)
        for _ in range(columns):
            await self._packet(sock, deadline)
        await self._packet(sock, deadline)  # their end
        rows: list[Row] = [*last.rows]
        while True:
            packet = await self._packet(sock, deadline)
            if packet[0] == _END and len(packet) < _END_MAX:
                status = int.from_bytes(packet[3:5], "little")
                return Answer(rows=rows), bool(status & _MORE_RESULTS)
            if packet[0] == _ERROR:
                raise self._error_from(packet)
            rows.append(_row(packet, columns))

    def _error_from(self, packet: bytes) -> Exception:
        code = int.from_bytes(packet[1:3], "little")
        message = packet[9:] if packet[3:4] == b"#" else packet[3:]
        return error_from(code, " ".join(message.decode(errors="replace").split()), self._url)

    async def _send(self, sock: socket.socket, data: bytes, deadline: float) -> None:
        while data:
            try:
                data = data[sock.send(data) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                await self._wait(sock, WRITE, deadline)
            except ssl.SSLWantReadError:
                await self._wait(sock, READ, deadline)

    async def _packet(self, sock: socket.socket, deadline: float) -> bytes:
        while True:
            start, buffer = self._start, self._buffer
            if len(buffer) - start > 4:  # noqa: PLR2004 (the header)
                size = int.from_bytes(buffer[start : start + 3], "little")
                if len(buffer) - start >= 4 + size:
                    if size == _PACKET_MAX:
                        raise outcome_unknown(self._url, "the answer is too large")
                    self._start = start + 4 + size
                    return buffer[start + 4 : start + 4 + size]
            self._buffer, self._start = buffer[start:] + await self._read(sock, deadline), 0

    async def _read(self, sock: socket.socket, deadline: float) -> bytes:
        # TLS may have buffered data, which poll() does not see.
        if not isinstance(sock, ssl.SSLSocket) or not sock.pending():
            await self._wait(sock, READ, deadline)
        while True:
            try:
                data = sock.recv(_CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError):
                await self._wait(sock, READ, deadline)
            except ssl.SSLWantWriteError:
                await self._wait(sock, WRITE, deadline)
            else:
                if not data:
                    raise outcome_unknown(self._url, "the server closed the connection")
                return data

    async def _wait(self, sock: socket.socket, events: int, deadline: float) -> None:
        while (check := self._check) is not None and check.due_at < deadline:
            if await wait_ready(self, self._poller, sock.fileno(), events, check.due_at):
                return
            check.due_at = await check.run()
        if not await wait_ready(self, self._poller, sock.fileno(), events, deadline):
            raise outcome_unknown(self._url, "no answer in time")


def literal(value: object) -> str:
    """A value as an SQL literal that does not depend on the character set or sql_mode of the session."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple):
        return ", ".join(map(literal, value))
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    text = str(value)
    if text.isascii() and text.isalnum():
        return f"'{text}'"
    return f"_utf8mb4 x'{text.encode(errors='backslashreplace').hex()}'"


def _encoded(values: Sequence[Value]) -> bytes:
    """Values as COM_STMT_EXECUTE has them: the NULL bitmap, the types, the values."""
    nulls = 0
    kinds: list[bytes] = []
    parts: list[bytes] = []
    for index, value in enumerate(values):
        if value is None:
            nulls |= 1 << index
            kinds.append(_VARCHAR)
        elif isinstance(value, int):
            kinds.append(_BIGINT)
            parts.append(value.to_bytes(8, "little", signed=True))
        elif isinstance(value, bytes):
            kinds.append(_BLOB)  # binary, so that the server does not convert it
            parts.append(_sized(value))
        else:
            kinds.append(_VARCHAR)
            parts.append(_sized(str(value).encode(errors="backslashreplace")))
    return b"".join((nulls.to_bytes((len(values) + 7) // 8, "little"), b"\1", *kinds, *parts))


def _sized(value: bytes) -> bytes:
    size = len(value)
    if size < 0xFB:  # noqa: PLR2004 (as _number has it)
        return size.to_bytes(1, "little") + value
    return b"\xfd" + size.to_bytes(3, "little") + value


def _number(packet: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer, and where it ends."""
    first = packet[at]
    if first < 0xFB:  # noqa: PLR2004 (smaller numbers are one byte)
        return first, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first]
    return int.from_bytes(packet[at + 1 : at + 1 + size], "little"), at + 1 + size


def _row(packet: bytes, columns: int) -> Row:
    values: list[str | None] = []
    at = 0
    for _ in range(columns):
        if packet[at] == _NULL:
            values.append(None)
            at += 1
            continue
        size, at = _number(packet, at)
        values.append(packet[at : at + size].decode(errors="replace"))
        at += size
    return tuple(values)
