"""MariaDB, which uses the protocol of MySQL."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.servers.base import HOST, Server, Stats, connect

DATABASE = "benchmark"
_PATH = "/usr/sbin:/usr/local/sbin"  # the server is not always on the PATH
# The log is written at each commit, as it is by default: a lock must survive a crash of the server.
# It is not synced to disk.
_INSTALL = (
    *("mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"),
    *("--datadir={folder}/data", "--tmpdir={folder}", "--innodb-log-file-size=8M"),
)
_SETTINGS = (
    *("--skip-name-resolve", "--max-connections=300", "--performance-schema=OFF"),
    *("--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M"),
    *("--innodb-flush-log-at-trx-commit=1", "--innodb-flush-method=nosync", "--innodb-doublewrite=OFF"),
    *("--aria-pagecache-buffer-size=1M", "--key-buffer-size=1M"),
)


class Mariadb(Server):
    """MariaDB of the distribution; commits are not synced to disk."""

    name = "MariaDB"
    program = "mariadbd"
    url = f"mysql://root@{HOST}:{{port}}/{DATABASE}"
    version_pattern = r"Ver (\d[\d.]*)"
    refuses_root = True

    def path(self) -> str | None:
        return shutil.which(self.program) or shutil.which(self.program, path=_PATH)

    def initial_data(self) -> Sequence[str]:
        return _INSTALL

    def command(self, folder: Path, port: int) -> list[str]:
        return [
            *(self.path() or self.program, "--no-defaults"),
            *(f"--datadir={folder}/data", f"--socket={folder}/socket", f"--pid-file={folder}/pid"),
            *(f"--bind-address={HOST}", f"--port={port}", *_SETTINGS),
        ]

    def answers(self, port: int) -> bool:
        with contextlib.closing(_Session(port, 1.0)) as session:
            session.ask(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        return True

    def stats(self, url: str) -> Stats:
        return _MariadbStats(urlsplit(url).port or 0)


class _Session:
    """The part of the protocol that root without a password needs, for statements with few short rows."""

    # CLIENT_LONG_PASSWORD, CLIENT_PROTOCOL_41 and CLIENT_SECURE_CONNECTION.
    _CAPABILITIES = 0x1 | 0x200 | 0x8000

    def __init__(self, port: int, timeout: float) -> None:
        self._socket = connect(port, timeout)
        self._stream = self._socket.makefile("rb")
        try:
            self._receive()  # its greeting
            login = self._CAPABILITIES.to_bytes(4, "little") + (1 << 24).to_bytes(4, "little") + bytes([45]) + bytes(23)
            self._send(1, login + b"root\x00" + b"\x00")
            self._receive()
        except BaseException:
            self.close()
            raise

    def ask(self, statement: str) -> list[list[str]]:
        """Return the rows of the answer."""
        self._send(0, b"\x03" + statement.encode())
        columns = self._receive()[0]
        if not columns:
            return []
        for _ in range(columns + 1):  # column definitions and their end
            self._receive()
        rows = []
        while (row := self._receive())[0] != 0xFE:
            rows.append(_texts(row))
        return rows

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _send(self, number: int, packet: bytes) -> None:
        self._socket.sendall(len(packet).to_bytes(3, "little") + bytes([number]) + packet)

    def _receive(self) -> bytes:
        head = self._stream.read(4)
        packet = self._stream.read(int.from_bytes(head[:3], "little"))
        if not packet or packet[0] == 0xFF:
            raise ConnectionError(packet[3:].decode(errors="replace") or "the server hung up")
        return packet


class _MariadbStats:
    """Its status, read over a separate connection."""

    def __init__(self, port: int) -> None:
        self._session = _Session(port, 10.0)
        self._request = 0

    def commands(self) -> float:
        # Statements of clients: a CALL counts as one, and the statements of its procedure do not count.
        questions = float(self._ask("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])
        return questions - self._request

    def pid(self) -> int:
        with open(self._ask("SELECT @@pid_file")[0][0]) as file:
            return int(file.read())

    def close(self) -> None:
        self._session.close()

    def _ask(self, statement: str) -> list[list[str]]:
        self._request += 1
        return self._session.ask(statement)


def _texts(row: bytes) -> list[str]:
    """Return the values of a row: each is a length and that many bytes."""
    values, at = [], 0
    while at < len(row):
        end = at + 1 + row[at]
        values.append(row[at + 1 : end].decode())
        at = end
    return values
