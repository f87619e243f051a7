"""Where a lock's tickets are in etcd, and what can be read off a ticket's key.

    <prefix><name>/<slot>.<kind>       one ticket; kind is x (exclusive), r (reader) or s<limit> (a permit)
    <prefix><name>                     the lock of method=key
    <prefix>%gone/<nonce>              a ticket that was withdrawn although it may still be on its way
    <prefix>%gone/<nonce>.w            the same for its request for a place in the queue
    <prefix>%mark/<name>               a mark: a number, nothing to do with the lock of that name

A key of another shape below `<prefix><name>/` belongs to another program, such as `etcdctl lock`, and is exclusive.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_RESERVED = (b"%gone/", b"%mark/")  # no name is written with a % before these letters
_OURS = re.compile(rb"([0-9a-f]{32})\.(x|r|s([0-9]{1,7}))", re.ASCII)


class QueueEntry(NamedTuple):
    """A ticket as its key tells it."""

    key: bytes
    created: int  # create revision: its place in the order, and its fence
    exclusive: bool
    limit: int | None
    is_ours: bool  # made by holdfast, by whatever client


class Keys:
    """The keys of one client's locks."""

    def __init__(self, prefix: str, *, raw_names: bool) -> None:
        self._prefix, self._raw = prefix.encode(), raw_names

    def base(self, name: str) -> bytes:
        return self._prefix + self._escaped(name)

    def folder(self, name: str) -> bytes:
        return self.base(name) + b"/"

    def ticket(self, name: str, slot: str, limit: int | None, *, exclusive: bool) -> bytes:
        kind = "x" if exclusive else "r" if limit is None else f"s{limit}"
        return self.folder(name) + f"{slot}.{kind}".encode()

    def tombstone(self, nonce: str, *, waits: bool = False) -> bytes:
        # A ticket can have two: one under the lease of its ttl, one under the waiter lease.
        return self._prefix + b"%gone/" + nonce.encode() + (b".w" if waits else b"")

    def register(self, name: str) -> bytes:
        # Nobody ever asks for what is below one, so a slash does no harm.
        return self._prefix + b"%mark/" + name.encode()

    def prefix(self, prefix: str) -> bytes:
        """What the keys of all locks start with whose names start with this."""
        return self._prefix + self._escaped(prefix)

    def lock_name(self, key: bytes) -> str | None:
        """The lock that a ticket's key belongs to; None if it is no ticket's."""
        below = key[len(self._prefix) :]
        written, slash, _ = below.rpartition(b"/")
        # Anywhere in it: the other client's prefix may be longer than ours.
        return None if not slash or any(aside in below for aside in _RESERVED) else self._unescaped(written)

    def single_key_name(self, key: bytes) -> str | None:
        """The lock that a key of method=key belongs to; None if it cannot be one."""
        below = key[len(self._prefix) :]
        return None if b"/" in below and not self._raw else self._unescaped(below)

    @property
    def has_prefix(self) -> bool:
        """Whatever is found among our keys is a lock; without a prefix it may be anything."""
        return bool(self._prefix)

    def _escaped(self, name: str) -> bytes:
        # A slash in a name would make the lock `a` wait for those of the lock `a/b`.
        return name.encode() if self._raw else name.replace("%", "%25").replace("/", "%2F").encode()

    def _unescaped(self, written: bytes) -> str | None:
        try:
            text = written.decode()
        except UnicodeDecodeError:
            return None
        return text if self._raw else text.replace("%2F", "/").replace("%25", "%")


def range_end(start: bytes) -> bytes:
    """The end of the range of all keys that start like this; one zero byte: there is none."""
    trimmed = start.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b"\0"


def parse_key(key: bytes, created: int) -> QueueEntry:
    """What a key says."""
    found = _OURS.fullmatch(key[key.rfind(b"/") + 1 :])
    if found is None:
        return QueueEntry(key, created, exclusive=True, limit=1, is_ours=False)
    if found[2] == b"x":
        return QueueEntry(key, created, exclusive=True, limit=1, is_ours=True)
    return QueueEntry(key, created, exclusive=False, limit=int(found[3]) if found[3] else None, is_ours=True)
