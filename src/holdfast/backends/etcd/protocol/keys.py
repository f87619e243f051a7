"""The keys of locks in etcd, and the tickets that they describe.

    <prefix><name>/<slot>.<kind>       one ticket; kind is x (exclusive), r (reader) or s<limit> (a permit)
    <prefix><name>                     the lock of method=key
    <prefix>%gone/<nonce>              the tombstone of a withdrawn ticket whose create may still arrive
    <prefix>%gone/<nonce>.w            the same for its request for a place in the queue
    <prefix>%mark/<name>               a register, which is independent of the lock with that name
    <prefix>%mark/%record/<name>       a record, likewise; no register has such a name, because the engine gives each
                                       a prefix of letters. Older versions do not list any key below %mark/

A key of another shape below `<prefix><name>/` belongs to another program, such as `etcdctl lock`, and is exclusive.
"""

from __future__ import annotations

import functools
import itertools
import re
from typing import NamedTuple

_RESERVED = (b"%gone/", b"%mark/")  # no escaped name has a % before these letters
_RECORDS = b"%mark/%record/"
_NAMES_MAX = 1024  # that are kept escaped
_OURS = re.compile(rb"([0-9a-f]{32})\.(x|r|s([0-9]{1,7}))", re.ASCII)


class QueueEntry(NamedTuple):
    """A ticket as its key describes it."""

    key: bytes
    created: int  # create revision: its place in the order, and its fence
    exclusive: bool
    limit: int | None
    is_ours: bool  # created by holdfast, by any client


class Keys:
    """The keys of one client's locks."""

    def __init__(self, prefix: str, *, raw_names: bool) -> None:
        self._prefix, self._raw = prefix.encode(), raw_names
        self.folder_range = functools.lru_cache(_NAMES_MAX)(self._folder_range)  # each request uses it several times

    def base(self, name: str) -> bytes:
        """The key of a lock with method=key, and the prefix of the keys of all locks whose names start with `name`."""
        return self._prefix + self._escaped(name)

    def ticket(self, name: str, slot: str, limit: int | None, *, exclusive: bool) -> bytes:
        kind = "x" if exclusive else "r" if limit is None else f"s{limit}"
        folder, _ = self.folder_range(name)
        return folder + f"{slot}.{kind}".encode()

    def tombstone(self, nonce: str, *, waits: bool = False) -> bytes:
        # A ticket can have two tombstones: one under the lease of its ttl, one under the waiter lease.
        return self._prefix + b"%gone/" + nonce.encode() + (b".w" if waits else b"")

    def register(self, name: str) -> bytes:
        # No request has a range below a register, so a slash in the name is harmless.
        return self._prefix + b"%mark/" + name.encode()

    def record(self, name: str) -> bytes:
        return self._prefix + _RECORDS + name.encode()

    def ranges(self, prefix: str) -> list[tuple[bytes, bytes]]:
        """The ranges of the keys of all locks whose names start with `prefix`, without records, which can be large."""
        start, records = self.base(prefix), self._prefix + _RECORDS
        if not records.startswith(start) or records == start:
            return [(start, range_end(start))]
        return [(start, records), (range_end(records), range_end(start))]

    def lock_name(self, key: bytes) -> str | None:
        """The lock that a ticket's key belongs to; None if it is no ticket's key."""
        below = key[len(self._prefix) :]
        written, slash, _ = below.rpartition(b"/")
        # Reserved anywhere in the key: the prefix of another client may be longer than ours.
        return None if not slash or any(reserved in below for reserved in _RESERVED) else self._unescaped(written)

    def single_key_name(self, key: bytes) -> str | None:
        """The lock that a key of method=key belongs to; None if it cannot be one."""
        below = key[len(self._prefix) :]
        return None if b"/" in below and not self._raw else self._unescaped(below)

    @property
    def has_prefix(self) -> bool:
        """With a prefix, all keys below it are holdfast's; without one, any key may belong to another program."""
        return bool(self._prefix)

    def _folder_range(self, name: str) -> tuple[bytes, bytes]:
        """The range of the keys of all tickets of a lock."""
        folder = self.base(name) + b"/"
        return folder, range_end(folder)

    def _escaped(self, name: str) -> bytes:
        # An unescaped slash would make the lock `a` wait for tickets of the lock `a/b`.
        return name.encode() if self._raw else name.replace("%", "%25").replace("/", "%2F").encode()

    def _unescaped(self, written: bytes) -> str | None:
        try:
            text = written.decode()
        except UnicodeDecodeError:
            return None
        return text if self._raw else text.replace("%2F", "/").replace("%25", "%")


class Slots:
    """The names of a client's keys. A name is reused as soon as no request about it can be on its way.

    Until a compaction, etcd keeps every key that ever existed, and a range request scans all of them. A new name for
    each ticket would make a lock slower with every use.
    """

    def __init__(self, nonce: str) -> None:
        self._client = nonce[-24:]
        self._numbers = itertools.count(1)
        self._free: list[str] = []

    def take(self) -> str:
        try:
            return self._free.pop()  # atomic, as next() of a count is, so threads need no mutex
        except IndexError:
            return f"{self._client}{next(self._numbers):08x}"

    def give_back(self, slot: str) -> None:
        """The key is deleted, and all requests about it were answered: reuse its name."""
        self._free.append(slot)


def range_end(start: bytes) -> bytes:
    """The end of the range of all keys with this prefix; one zero byte: the range has no end."""
    trimmed = start.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b"\0"


def parse_key(key: bytes, created: int) -> QueueEntry:
    """The ticket that a key describes."""
    match = _OURS.fullmatch(key[key.rfind(b"/") + 1 :])
    if match is None:
        return QueueEntry(key, created, exclusive=True, limit=1, is_ours=False)
    if match[2] == b"x":
        return QueueEntry(key, created, exclusive=True, limit=1, is_ours=True)
    return QueueEntry(key, created, exclusive=False, limit=int(match[3]) if match[3] else None, is_ours=True)
