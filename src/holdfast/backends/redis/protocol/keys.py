"""Which keys a lock has on the server, and where a Cluster keeps them.

The lock's own key is `prefix + name`, exactly: that is what other programs contend for. Two clients with different
prefixes can form the same key, so every side key of a lock is a function of that key alone. It begins with that key,
because an ACL may allow nothing but the client's prefix, and it is in the same hash slot on a Cluster:

    key + "{" + key + "}" + what      if the key has no braces: the server hashes what is between them
    key + "{}" + what                 if the key has a {tag}: the server hashes the first one
    key + "{" + number + "}" + what   if its braces are no tag ("a}b", "a{}b"): the number is chosen to fit the slot

A mark belongs to no lock. Its key is a function of prefix and name, as in earlier versions, because processes of
both versions must agree on which period has begun:

    prefix + "{" + tag + "}:mark:" + rest

A side key is never a string, so a lock whose name looks like one of them gets a clear error, not a silent mix-up.
"""

from __future__ import annotations

import functools
import re
from binascii import crc_hqx
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from holdfast.errors import ConfigurationError

SLOTS = 16384
_RECORD, _QUEUE, _LEASES, _SHARED = ":record", ":queue", ":leases", ":shared"
_REGISTER = ":mark:"
_SIDE_KEY = re.compile(r"(.+)\{[^{}]*\}(:record|:queue|:leases|:shared)", re.DOTALL)
# Marks, and side keys as earlier versions formed them: neither is a lock.
_NO_LOCK = re.compile(r"\{[^}]*\}:(record|queue|leases|shared|mark):", re.DOTALL)


class Keys(NamedTuple):
    """The keys of one lock, in the order in which every script of the queue gets them."""

    lock: str  # string: who is in
    record: str  # hash: the last fence, the holder, and what is known of each ticket
    queue: str  # sorted set: waiting tickets by number
    leases: str  # sorted set: until when each of them waits, and tickets that left before they came
    shared: str  # sorted set: readers or permits that are in, by the end of their leases
    tag: str  # hashes to the same slot, between braces
    slot: int
    packed: bytes  # all five as they go over the wire

    @property
    def names(self) -> tuple[str, ...]:
        """As a script gets them."""
        return self[:5]


class OtherKeys(NamedTuple):
    """The keys of a script that is about something else than one lock: a mark, or several locks. All in one slot."""

    lock: str  # the first of them, for messages
    names: tuple[str, ...]
    slot: int
    packed: bytes
    locks: tuple[Keys, ...] = ()  # whose keys these are


def check_prefix(prefix: str) -> str:
    """Refuse prefixes under which the keys of a lock could not be kept in one slot.

    Raises:
        ConfigurationError: it has half a {tag}, or control characters.
    """
    if any(ord(character) < ord(" ") for character in prefix):
        raise ConfigurationError(f"url has a prefix with control characters, {prefix!r}: leave them out")
    if ("{" in prefix or "}" in prefix) and _tag(prefix) is None:
        raise ConfigurationError(
            f"url has prefix={prefix!r}: braces are for a whole {{tag}}, which keeps all locks in one slot of a Cluster"
        )
    return prefix


@functools.lru_cache(maxsize=4096)
def keys_of(prefix: str, name: str) -> Keys:
    """The keys of a lock."""
    lock = prefix + name
    record, queue, leases, shared = (_side_key(lock, what) for what in (_RECORD, _QUEUE, _LEASES, _SHARED))
    tag, _ = _tag_and_rest(prefix, name)
    return Keys(lock, record, queue, leases, shared, tag, slot_of(lock), _packed((lock, record, queue, leases, shared)))


@functools.lru_cache(maxsize=4096)
def keys_and_record_before(prefix: str, name: str) -> OtherKeys:
    """The keys of a lock, and behind them its record as earlier versions named it."""
    keys = keys_of(prefix, name)
    tag, rest = _tag_and_rest(prefix, name)
    names = (*keys.names, f"{prefix}{{{tag}}}:record:{rest}")
    return OtherKeys(keys.lock, names, keys.slot, _packed(names), (keys,))


@functools.lru_cache(maxsize=4096)
def register_key(prefix: str, name: str) -> OtherKeys:
    """The key of a mark. On a Cluster it is where a lock of that name would be."""
    tag, rest = _tag_and_rest(prefix, name)
    key = f"{prefix}{{{tag}}}{_REGISTER}{rest}"
    return OtherKeys(key, (key,), slot_of(key), _packed((key,)))


def joined(locks: Sequence[Keys]) -> OtherKeys:
    """The keys of several locks that are in one slot, or on a server that has no slots."""
    names = tuple(name for keys in locks for name in keys.names)
    return OtherKeys(locks[0].lock, names, locks[0].slot, b"".join(keys.packed for keys in locks), tuple(locks))


def channel_of(prefix: str, keys: Keys, listener: str) -> str:
    """Where hints for this lock's tickets go on a Cluster: a channel in the lock's own slot.

    It is one line of a ticket's record, so a tag with a line break is replaced by one that hashes to the same slot.
    """
    tag = _fitting(keys.slot) if "\n" in keys.tag else keys.tag
    return f"{prefix}{{{tag}}}:wake:{listener}"


def name_of(prefix: str, key: str, *, by_record: bool = False) -> str | None:
    """The lock to which a key on the server belongs; None for a mark and a side key other than a queue.

    A queue stands for its lock because there may be waiters while nobody is in. With `by_record` only a record does.
    """
    if _NO_LOCK.match(key, len(prefix)):
        return None
    side_key = _SIDE_KEY.fullmatch(key, len(prefix))
    if side_key is None or _side_key(prefix + side_key[1], side_key[2]) != key:
        return None if by_record else key[len(prefix) :]
    return side_key[1] if side_key[2] == (_RECORD if by_record else _QUEUE) else None


def pattern_of(beginning: str, *, by_record: bool = False) -> str:
    """MATCH of SCAN for all keys of locks, or all records, that begin so: *, ? and others stand for themselves."""
    escaped = "".join(f"\\{character}" if character in "*?[]^\\" else character for character in beginning)
    return f"{escaped}*{_RECORD}" if by_record else f"{escaped}*"


def slot_of(key: str) -> int:
    """The slot in which a Cluster keeps this key."""
    tag = _tag(key)
    return crc_hqx((key if tag is None else tag).encode(), 0) % SLOTS


def _tag_and_rest(prefix: str, name: str) -> tuple[str, str]:
    """What a Cluster hashes of a side key, and what is needed behind it to tell its name."""
    lock = prefix + name
    tag = _tag(lock)
    if tag is None and "}" not in lock:
        return lock, ""  # the tag says it all
    # A tag in the prefix comes first in every key, and so decides; ours behind it then only repeats it.
    return tag or _fitting(slot_of(lock)), name


def _side_key(lock: str, what: str) -> str:
    """The key that is kept beside a lock's key, in the same slot."""
    if _tag(lock) is not None:
        return f"{lock}{{}}{what}"
    if "{" not in lock and "}" not in lock:
        return f"{lock}{{{lock}}}{what}"
    _, opened, behind = lock.partition("{")
    if behind.startswith("}"):  # an empty tag: the server hashes the whole key
        head, tail = f"{lock}{{", f"}}{what}"
    else:  # the server hashes what is between the first brace, which may be ours, and our closing one
        head, tail = f"{behind}{{" if opened else "", ""
    return f"{lock}{{{_fitting(slot_of(lock), head, tail)}}}{what}"


def _packed(names: Sequence[str]) -> bytes:
    words = [name.encode() for name in names]
    return b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _tag(key: str) -> str | None:
    """The part that a Cluster hashes instead of the whole key: between the first { and the next }, if not empty."""
    _, opened, behind = key.partition("{")
    tag, closed, _ = behind.partition("}")
    return tag if opened and closed and tag else None


@functools.lru_cache(maxsize=4096)
def _fitting(slot: int, head: str = "", tail: str = "") -> str:
    """A number that, between these, hashes to this slot."""
    start, end = crc_hqx(head.encode(), 0), tail.encode()
    return next(number for number in map(str, count()) if crc_hqx(number.encode() + end, start) % SLOTS == slot)
