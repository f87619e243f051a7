"""Which keys a lock has on the server, and where a Cluster keeps them.

The lock's own key is `prefix + name`, exactly: that is what other programs contend for. What we keep beside it has to
be in the same hash slot on a Cluster, for every possible name, and under the same prefix, because an ACL may allow no
other. So a side key is

    prefix + "{" + tag + "}" + what          if the lock's key is hashed as a whole: the tag is that key
    prefix + "{" + tag + "}" + what + name   if only a part of it is: the tag is that part
    prefix + "{" + tag + "}" + what + name   if its braces cannot be wrapped ("a}b"): the tag is made up to fit

A mark has one key of that form, and no lock's key: its name is one among the marks only.

A side key is never a string, so a lock whose name looks like one of them gets a clear error, not a silent mix-up.
"""

from __future__ import annotations

import functools
from binascii import crc_hqx
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from holdfast.errors import ConfigurationError

SLOTS = 16384
_RECORD, _QUEUE, _LEASES, _SHARED = ":record:", ":queue:", ":leases:", ":shared:"
_MARK = ":mark:"


class Keys(NamedTuple):
    """The keys of one lock, in the order in which every script of the queue gets them."""

    lock: str  # string: who is in
    record: str  # hash: the last fence, the holder, and what is known of each ticket
    queue: str  # sorted set: waiting tickets by number
    leases: str  # sorted set: until when each of them waits, and tickets that left before they came
    shared: str  # sorted set: readers or permits that are in, by the end of their leases
    tag: str  # what a Cluster hashes of the side keys
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
        raise ConfigurationError(f"url has a prefix with control characters: {prefix!r}")
    if ("{" in prefix or "}" in prefix) and _tag(prefix) is None:
        raise ConfigurationError(
            f"url has prefix={prefix!r}: braces are for a whole {{tag}}, which keeps all locks in one slot of a Cluster"
        )
    return prefix


@functools.lru_cache(maxsize=4096)
def keys_of(prefix: str, name: str) -> Keys:
    """The keys of a lock."""
    lock = prefix + name
    tag, rest = _tag_and_rest(prefix, name)
    record, queue, leases, shared = (f"{prefix}{{{tag}}}{what}{rest}" for what in (_RECORD, _QUEUE, _LEASES, _SHARED))
    return Keys(lock, record, queue, leases, shared, tag, slot_of(lock), _packed((lock, record, queue, leases, shared)))


@functools.lru_cache(maxsize=4096)
def mark_of(prefix: str, name: str) -> OtherKeys:
    """The key of a mark. On a Cluster it is where a lock of that name would be."""
    tag, rest = _tag_and_rest(prefix, name)
    key = f"{prefix}{{{tag}}}{_MARK}{rest}"
    return OtherKeys(key, (key,), slot_of(key), _packed((key,)))


def joined(locks: Sequence[Keys]) -> OtherKeys:
    """The keys of several locks that are in one slot, or on a server that has no slots."""
    names = tuple(name for keys in locks for name in keys.names)
    return OtherKeys(locks[0].lock, names, locks[0].slot, b"".join(keys.packed for keys in locks), tuple(locks))


def channel_of(prefix: str, keys: Keys, listener: str) -> str:
    """Where hints for this lock's tickets go on a Cluster: a channel in the lock's own slot."""
    return f"{prefix}{{{keys.tag}}}:wake:{listener}"


def name_of(prefix: str, key: str) -> str | None:
    """The lock to which a key on the server belongs; None for a mark and a side key other than a queue.

    A queue stands for its lock because there may be waiters while nobody is in.
    """
    name = key[len(prefix) :]
    tag, closed, rest = name[1:].partition("}")
    if not name.startswith("{") or not closed or not rest.startswith((_RECORD, _QUEUE, _LEASES, _SHARED, _MARK)):
        return name
    if not rest.startswith(_QUEUE):
        return None
    return rest.removeprefix(_QUEUE) or tag.removeprefix(prefix)


def pattern_of(prefix: str) -> str:
    """What SCAN's MATCH wants to see for all keys under a prefix; some characters stand for others there."""
    return "".join(f"\\{character}" if character in "*?[]^\\" else character for character in prefix) + "*"


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


def _packed(names: Sequence[str]) -> bytes:
    words = [name.encode() for name in names]
    return b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _tag(key: str) -> str | None:
    """The part that a Cluster hashes instead of the whole key: between the first { and the next }, if not empty."""
    _, opened, behind = key.partition("{")
    tag, closed, _ = behind.partition("}")
    return tag if opened and closed and tag else None


@functools.lru_cache(maxsize=4096)
def _fitting(slot: int) -> str:
    """A tag that hashes to this slot."""
    return next(tag for tag in map(str, count()) if crc_hqx(tag.encode(), 0) % SLOTS == slot)
