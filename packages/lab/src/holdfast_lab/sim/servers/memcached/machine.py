"""The replies of memcached 1.6 to the meta commands that locks need.

Its time is whole seconds on a clock that its owner ticks, as the real server reads its own clock once a second.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

VERSION = "1.6.18"
KEY_MAX = 250
_DATE = 60 * 60 * 24 * 30  # a larger number is a Unix time, not a number of seconds
_STARTS_AT = 2  # the first value of the clock, so that no event has the time 0


class Item(NamedTuple):
    """One item."""

    value: bytes
    version: int
    expires: int  # on the coarse clock; 0: never


class Machine:
    """One run of a server."""

    def __init__(self, started: int, pid: int) -> None:
        """`started` is Unix time, read once from the wall clock."""
        self.started = started
        self.pid = pid
        self.time = _STARTS_AT  # the coarse clock
        self.version = 0
        self.evictions = 0
        self.items: dict[bytes, Item] = {}

    def respond(self, requests: bytes) -> bytes:
        """All replies to complete requests, in order."""
        replies = []
        while requests:
            line, _, requests = requests.partition(b"\r\n")
            words = line.split(b" ")
            if words[0] == b"ms":
                size = int(words[2])
                value, requests = requests[:size], requests[size + 2 :]
                replies.append(self._ms(words[1], words[3:], value))
            elif words[0] in {b"mg", b"md"}:
                command = self._mg if words[0] == b"mg" else self._md
                replies.append(command(words[1], words[2:]))
            elif line == b"mn":
                replies.append(b"MN\r\n")
            elif line == b"stats":
                replies.append(self._stats())
            elif line == b"stats settings":
                replies.append(b"STAT item_size_max 1048576\r\nSTAT evictions on\r\nSTAT cas_enabled yes\r\nEND\r\n")
            elif line == b"lru_crawler metadump hash":
                replies.append(self._dump())
            else:
                replies.append(b"ERROR\r\n")
        return b"".join(replies)

    def find(self, key: bytes) -> Item | None:
        """The item, unless it has expired."""
        item = self.items.get(key)
        if item is not None and item.expires and item.expires <= self.time:
            del self.items[key]
            return None
        return item

    def evict(self, key: bytes) -> None:
        del self.items[key]
        self.evictions += 1

    def _ms(self, key: bytes, flags: list[bytes], value: bytes) -> bytes:
        if len(key) > KEY_MAX:
            return b"CLIENT_ERROR bad command line format\r\n"
        old, shown = self.find(key), b"c" in flags
        versions = [int(flag[1:]) for flag in flags if flag[:1] == b"C"]
        if versions and (old is None or old.version != versions[0]):
            code = b"NF" if old is None else b"EX"
            return code + (b" c0" if shown else b"") + b"\r\n"
        if b"ME" in flags and old is not None:
            return b"NS c0\r\n" if shown else b"NS\r\n"
        self.version += 1
        seconds = next((int(flag[1:]) for flag in flags if flag[:1] == b"T"), 0)
        self.items[key] = Item(value, self.version, self._expiry(seconds))
        return b"HD c%d\r\n" % self.version if shown else b"HD\r\n"

    def _expiry(self, seconds: int) -> int:
        if seconds <= _DATE:
            return seconds and seconds + self.time
        return max(1, seconds - self.started + _STARTS_AT)

    def _mg(self, key: bytes, flags: list[bytes]) -> bytes:
        item = self.find(key)
        if item is None:
            return b"EN\r\n"
        left = item.expires - self.time if item.expires else -1
        known = {b"c": b" c%d" % item.version, b"t": b" t%d" % left, b"s": b" s%d" % len(item.value)}
        shown = b"".join(known[flag] for flag in flags if flag in known)
        if b"v" in flags:
            return b"VA %d%b\r\n%b\r\n" % (len(item.value), shown, item.value)
        return b"HD%b\r\n" % shown

    def _md(self, key: bytes, flags: list[bytes]) -> bytes:
        item = self.find(key)
        versions = [int(flag[1:]) for flag in flags if flag[:1] == b"C"]
        if item is None:
            return b"NF\r\n"
        if versions and versions[0] != item.version:
            return b"EX\r\n"
        del self.items[key]
        return b"HD\r\n"

    def _stats(self) -> bytes:
        uptime = self.time - _STARTS_AT
        stats = {
            "pid": self.pid,
            "uptime": uptime,
            "time": self.started + uptime,
            "version": VERSION,
            "evictions": self.evictions,
        }
        return b"".join(f"STAT {name} {value}\r\n".encode() for name, value in stats.items()) + b"END\r\n"

    def _dump(self) -> bytes:
        lines = []
        for key in list(self.items):
            item = self.find(key)
            if item is not None:
                expires = self.started + item.expires - _STARTS_AT if item.expires else -1
                lines.append(f"key={quote(key)} exp={expires} cas={item.version}\n".encode())
        return b"".join(lines) + b"END\r\n"
