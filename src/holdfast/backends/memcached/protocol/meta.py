"""memcached's meta commands as bytes: requests written, replies read. No I/O in here.

Of the text protocol (protocol.txt in memcached's sources, "Meta Commands") a lock needs five commands:

    ms KEY SIZE ME T… c    add: store unless there is something        HD stored, NS not
    ms KEY SIZE C… T… c    store over exactly this version             HD stored, EX another version, NF nothing there
    md KEY C…              delete exactly this version                 HD deleted, EX another version, NF nothing there
    mg KEY v c t           read: value, version, seconds left          VA with all that, EN nothing there
    stats                  what the server says of itself

A version is memcached's CAS number: of one server, one after the other, for as long as it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STATS: Final = b"stats\r\n"
SETTINGS: Final = b"stats settings\r\n"
DUMP: Final = b"lru_crawler metadump hash\r\n"  # every key, from the hash table: nothing is skipped or told twice

_HEADS = frozenset({b"HD", b"NS", b"EX", b"NF", b"EN", b"MN", b"OK", b"STORED"})
_ERRORS = frozenset({b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR", b"BUSY"})
_LINE_MAX = 65536


@dataclass(slots=True)
class Reply:
    """One answer. What it does not say is 0 or empty."""

    code: str  # HD, NS, EX, NF, EN, VA, STORED; LIST, of several lines; ERROR, CLIENT_ERROR, SERVER_ERROR, BUSY
    version: int = 0
    left: int = 0  # seconds until it expires; -1: never
    value: bytes = b""  # of an error: its text
    lines: tuple[bytes, ...] = ()

    @property
    def is_error(self) -> bool:
        return self.code in {"ERROR", "CLIENT_ERROR", "SERVER_ERROR", "BUSY"}

    @property
    def ends_connection(self) -> bool:
        """The server did not understand: what it makes of the next bytes is anybody's guess."""
        return self.code in {"ERROR", "CLIENT_ERROR"}

    def facts(self) -> dict[str, str]:
        """What `stats` says, by name."""
        words = (line.decode(errors="replace").split(" ", 2) for line in self.lines if line.startswith(b"STAT "))
        return {name: value for _, name, value in (one for one in words if len(one) == 3)}  # noqa: PLR2004


def add(key: bytes, seconds: int, value: bytes) -> bytes:
    """Store it for so long, unless there is something."""
    return b"ms %b %d ME T%d c\r\n%b\r\n" % (key, len(value), seconds, value)


def replace(key: bytes, version: int, seconds: int, value: bytes) -> bytes:
    """Store it for so long, over exactly this version."""
    return b"ms %b %d C%d T%d c\r\n%b\r\n" % (key, len(value), version, seconds, value)


def delete(key: bytes, version: int) -> bytes:
    """Delete exactly this version."""
    return b"md %b C%d\r\n" % (key, version)


def read(key: bytes) -> bytes:
    """What is there, which version, and for how long."""
    return b"mg %b v c t\r\n" % key


def login(user: str, password: str) -> bytes:
    """Be let in, where the server wants that (-Y): a `set` of any key, whose value is the two."""
    secret = f"{user} {password}".encode()
    return b"set holdfast 0 0 %d\r\n%b\r\n" % (len(secret), secret)


class Parser:
    """Replies, as they come in pieces."""

    def __init__(self) -> None:
        self._data = b""
        self._lines: list[bytes] = []  # of a reply that has several and is not complete

    def feed(self, data: bytes) -> None:
        self._data = self._data + data if self._data else data

    @property
    def has_more(self) -> bool:
        """Something has come beyond the replies that were taken."""
        return bool(self._data)

    def gets(self) -> Reply | None:
        """The next reply; None if it is not all there.

        Raises:
            ValueError: no memcached speaks like this.
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
                    behind = end + 1 + int(words[1])
                    if len(data) < behind + 2:
                        return None
                    if data[behind : behind + 2] != b"\r\n":
                        raise ValueError("a value that is longer than it says")
                    start = behind + 2
                    return Reply("VA", *_flags(words[2:]), data[end + 1 : behind])
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
    """The version and the seconds left among a reply's flags."""
    version = left = 0
    for word in words:
        if word[:1] == b"c":
            version = int(word[1:])
        elif word[:1] == b"t":
            left = int(word[1:])
    return version, left
