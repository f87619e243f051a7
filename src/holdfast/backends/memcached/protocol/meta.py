"""memcached's meta commands as bytes: builds requests and parses replies. It does no I/O.

Locks need five commands of the text protocol (protocol.txt in memcached's sources, "Meta Commands"):

    ms KEY SIZE ME T… c    add: store unless the key exists            HD stored, NS not stored
    ms KEY SIZE C… T… c    replace exactly this version                HD stored, EX another version, NF no item
    md KEY C…              delete exactly this version                 HD deleted, EX another version, NF no item
    mg KEY v c t           read: value, version, seconds left          VA with all of them, EN no item
    stats                  statistics of the server

A version is memcached's CAS number. It grows with every write on one server, for as long as that runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STATS: Final = b"stats\r\n"
SETTINGS: Final = b"stats settings\r\n"
DUMP: Final = b"lru_crawler metadump hash\r\n"  # every key exactly once, from the hash table

_HEADS = frozenset({b"HD", b"NS", b"EX", b"NF", b"EN", b"MN", b"OK", b"STORED"})
_ERRORS = frozenset({b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR", b"BUSY"})
_LINE_MAX = 65536


@dataclass(slots=True)
class Reply:
    """One reply. A field that the reply lacks is 0 or empty."""

    code: str  # HD, NS, EX, NF, EN, VA, STORED; LIST for several lines; ERROR, CLIENT_ERROR, SERVER_ERROR, BUSY
    version: int = 0
    seconds_left: int = 0  # seconds until it expires; -1: never
    value: bytes = b""  # the text of an error
    lines: tuple[bytes, ...] = ()

    @property
    def is_error(self) -> bool:
        return self.code in {"ERROR", "CLIENT_ERROR", "SERVER_ERROR", "BUSY"}

    @property
    def ends_connection(self) -> bool:
        """The server did not understand the request, so it may also misread the bytes after it."""
        return self.code in {"ERROR", "CLIENT_ERROR"}

    def stats(self) -> dict[str, str]:
        """The values of a `stats` reply, by name."""
        words = (line.decode(errors="replace").split(" ", 2) for line in self.lines if line.startswith(b"STAT "))
        return {name: value for _, name, value in (parts for parts in words if len(parts) == 3)}  # noqa: PLR2004


def add(key: bytes, seconds: int, value: bytes) -> bytes:
    """Store the value for so many seconds, unless the key exists."""
    return b"ms %b %d ME T%d c\r\n%b\r\n" % (key, len(value), seconds, value)


def replace(key: bytes, version: int, seconds: int, value: bytes) -> bytes:
    """Store the value for so many seconds, over exactly this version."""
    return b"ms %b %d C%d T%d c\r\n%b\r\n" % (key, len(value), version, seconds, value)


def delete(key: bytes, version: int) -> bytes:
    """Delete exactly this version."""
    return b"md %b C%d\r\n" % (key, version)


def read(key: bytes) -> bytes:
    """Read the value, its version and the seconds that are left."""
    return b"mg %b v c t\r\n" % key


def login(user: str, password: str) -> bytes:
    """Log in to a server with -Y: a `set` of any key, whose value is user and password."""
    secret = f"{user} {password}".encode()
    return b"set holdfast 0 0 %d\r\n%b\r\n" % (len(secret), secret)


class Parser:
    """Parses replies that arrive in pieces."""

    def __init__(self) -> None:
        self._data = b""
        self._lines: list[bytes] = []  # of an incomplete reply of several lines

    def feed(self, data: bytes) -> None:
        self._data = self._data + data if self._data else data

    @property
    def has_data(self) -> bool:
        """Data has arrived after the replies that were parsed."""
        return bool(self._data)

    def next_reply(self) -> Reply | None:
        """The next reply; None if it is incomplete.

        Raises:
            ValueError: this is not memcached's protocol.
        """
        data, start = self._data, 0
        try:
            while True:
                end = data.find(b"\n", start)
                if end < 0:
                    if len(data) - start > _LINE_MAX:
                        raise ValueError("a line without an end")
                    return None
                line = data[start:end].rstrip(b"\r")
                words = line.split(b" ")
                head = words[0]
                if head == b"VA":
                    value_end = end + 1 + int(words[1])
                    if len(data) < value_end + 2:
                        return None
                    if data[value_end : value_end + 2] != b"\r\n":
                        raise ValueError("a value that is longer than its header says")
                    start = value_end + 2
                    return Reply("VA", *_flags(words[2:]), data[end + 1 : value_end])
                start = end + 1
                if head in _HEADS:
                    return Reply(head.decode(), *_flags(words[1:]))
                if head in _ERRORS:
                    self._lines = []
                    return Reply(head.decode(), value=line)
                if head == b"END":
                    lines, self._lines = tuple(self._lines), []
                    return Reply("LIST", lines=lines)
                if head != b"STAT" and not head.startswith(b"key="):
                    raise ValueError(f"an answer that begins with {head[:20]!r}")
                self._lines.append(line)
        finally:
            self._data = data[start:]


def _flags(words: list[bytes]) -> tuple[int, int]:
    """The version and the seconds left in a reply's flags."""
    version = seconds_left = 0
    for word in words:
        if word[:1] == b"c":
            version = int(word[1:])
        elif word[:1] == b"t":
            seconds_left = int(word[1:])
    return version, seconds_left
