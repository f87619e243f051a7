r"""The keys of a lock, their slot in a Cluster, and the values of the lock's own key.

The lock's own key is exactly `prefix + name`, because other programs contend for that key. Two clients with different
prefixes can form the same key, so every side key of a lock is a function of that key alone. It begins with that key,
because an ACL may allow nothing but the client's prefix, and it is in the same hash slot on a Cluster:

    key + "{" + key + "}" + suffix      if the key has no braces: the server hashes the text between the braces
    key + "{}" + suffix                 if the key has a {tag}: the server hashes that
    key + "{" + number + "}" + suffix   if its braces are not a tag ("a}b", "a{}b"): the number is chosen for the slot

A register or a record of `once` belongs to no lock. Its key is a function of prefix and name. Registers have the same
keys as in earlier versions, because processes of both versions must agree on which period has begun:

    prefix + "{" + tag + "}:mark:" + rest
    prefix + "{" + tag + "}:once:" + rest

A side key is never a string, so a lock whose name looks like a side key fails with WRONGTYPE, not silently.

`method=queue` has two more keys, which all locks of a prefix share. On a Cluster there are two for each slot in use,
and the number is chosen for the slot:

    prefix + "{}:fence"    prefix + "{" + number + "}:fence"     the watermark of the fences, a string
    prefix + "{}:locks"    prefix + "{" + number + "}:locks"     the index of the locks

Every method writes its name into the value of the lock's key. Any other value belongs to another program.

    holdfast:queue2:<line>                 one ticket holds the lock
    holdfast:queue2:+@<owner>\n<fence>      tickets of that owner hold it; the side keys list them
    holdfast:queue2:+shared                readers or permits hold it; the side keys list them
    holdfast:queue:…                       format 1 of `method=queue`, before 0.2
    holdfast:setnx:<nonce>:<fence>
    holdfast:getset:<nonce>:<end>:<fence>
    holdfast:redlock:<nonce>:<attempt>:<count>
"""

from __future__ import annotations

import functools
import re
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from itertools import count, takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from holdfast.errors import ConfigurationError, NameConflict

if TYPE_CHECKING:
    from holdfast.backends.redis.port import RedisPort
    from holdfast.core.tickets import Claim

QUEUE = "holdfast:queue2:"
SEVERAL = f"{QUEUE}+"
QUEUE_BEFORE = ("holdfast:queue:", "holdfast:shared")  # format 1
SETNX = "holdfast:setnx:"
GETSET = "holdfast:getset:"
REDLOCK = "holdfast:redlock:"
FORMAT_1 = "queue, format 1"
SCRIPT_LOCKS_MAX = 500  # locks in one script: the script blocks the server for a few milliseconds

SLOTS = 16384
_RECORD, _QUEUE, _LEASES = ":record", ":queue", ":leases"
_WAITERS, _SHARED, _SHARERS = ":waiters", ":shared", ":sharers"
_WATERMARK, _INDEX = ":fence", ":locks"
_REGISTER, _DURABLE_RECORD = ":mark:", ":once:"
_SIDE_KEY = re.compile(r"(.+)\{[^{}]*\}(:record|:queue|:leases|:waiters|:shared|:sharers)", re.DOTALL)
_COMMON_KEY = re.compile(r"\{[0-9]*\}(:fence|:locks)")
# Registers, records of `once`, watermarks, indexes, and side keys of earlier versions: these are no locks.
_NO_LOCK = re.compile(r"\{[^}]*\}:(?:(?:record|queue|leases|shared|mark|once):|(?:fence|locks)$)", re.DOTALL)


class Keys(NamedTuple):
    """The keys of one lock of the plain methods or on a node of Redlock, in the order of KEYS."""

    lock: str  # string: the holder
    record: str  # hash: the count, the holder, and a line for each ticket
    queue: str  # sorted set: waiting tickets by number
    leases: str  # sorted set: when each waiter expires, and withdrawn tickets whose request may still arrive
    tag: str  # hashes to the same slot, between braces
    slot: int
    packed: bytes  # all four in RESP

    @property
    def names(self) -> tuple[str, ...]:
        """The keys in the order of KEYS."""
        return self[:4]


class QueueKeys(NamedTuple):
    """The keys of one lock of `method=queue`, in the order of KEYS. layout.lua describes them."""

    lock: str  # string: the holder
    queue: str  # list: waiting tickets
    waiters: str  # hash: their entries
    shared: str  # sorted set: readers or permits that hold the lock, by the end of their leases
    sharers: str  # hash: their lines
    watermark: str  # string: the greatest fence of all locks
    locks: str  # sorted set: the index of the locks that may be in use
    tag: str  # hashes to the same slot, between braces
    slot: int
    packed: bytes  # all seven in RESP

    @property
    def names(self) -> tuple[str, ...]:
        """The keys in the order of KEYS."""
        return self[:7]


LockKeys: TypeAlias = Keys | QueueKeys
LockKeysT = TypeVar("LockKeysT", Keys, QueueKeys)


class OtherKeys(NamedTuple):
    """The keys of a script for a register, a record or several locks. All are in one slot."""

    lock: str  # the first one, for messages
    names: tuple[str, ...]
    slot: int
    packed: bytes
    locks: tuple[LockKeys, ...] = ()  # the locks that these keys belong to


def check_prefix(prefix: str) -> str:
    """Refuse a prefix with which the keys of a lock could be in different slots.

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
    """The keys of a lock of the plain methods, or on a node of Redlock."""
    lock = prefix + name
    record, queue, leases = (_side_key(lock, suffix) for suffix in (_RECORD, _QUEUE, _LEASES))
    tag, _ = _tag_and_rest(prefix, name)
    return Keys(lock, record, queue, leases, tag, slot_of(lock), _packed((lock, record, queue, leases)))


def queue_keys(prefix: str, name: str, *, per_slot: bool) -> QueueKeys:
    """The keys of a lock of `method=queue`; `per_slot` on a Cluster.

    Raises:
        NameConflict: the lock's key would be one of the keys that all locks share.
    """
    lock = prefix + name
    slot = slot_of(lock)
    if _COMMON_KEY.fullmatch(name):
        raise NameConflict(lock=name, reason="holdfast stores other data under the key of this name: use another name")
    queue, waiters, shared, sharers = (_side_key(lock, suffix) for suffix in (_QUEUE, _WAITERS, _SHARED, _SHARERS))
    watermark, locks = (_common_key(prefix, suffix, slot, per_slot=per_slot) for suffix in (_WATERMARK, _INDEX))
    tag, _ = _tag_and_rest(prefix, name)
    packed = _packed((lock, queue, waiters, shared, sharers, watermark, locks))
    return QueueKeys(lock, queue, waiters, shared, sharers, watermark, locks, tag, slot, packed)


@functools.cache
def index_keys(prefix: str, *, per_slot: bool) -> tuple[OtherKeys, ...]:
    """The indexes of all locks with this prefix: one, or on a Cluster one for each slot."""
    slots = range(SLOTS) if per_slot and _tag(prefix) is None else (slot_of(prefix),)
    keys = (_common_key(prefix, _INDEX, slot, per_slot=per_slot) for slot in slots)
    return tuple(OtherKeys(key, (key,), slot_of(key), _packed((key,))) for key in keys)


@functools.lru_cache(maxsize=4096)
def keys_and_record_before(prefix: str, name: str) -> OtherKeys:
    """The keys of a lock, and the name of its record in earlier versions."""
    keys = keys_of(prefix, name)
    tag, rest = _tag_and_rest(prefix, name)
    names = (*keys.names, f"{prefix}{{{tag}}}:record:{rest}")
    return OtherKeys(keys.lock, names, keys.slot, _packed(names), (keys,))


@functools.lru_cache(maxsize=4096)
def register_key(prefix: str, name: str) -> OtherKeys:
    """The key of a register. It is in the slot of a lock of the same name."""
    return _own_key(prefix, name, _REGISTER)


@functools.lru_cache(maxsize=4096)
def record_key(prefix: str, name: str) -> OtherKeys:
    """The key of a record of `once`."""
    return _own_key(prefix, name, _DURABLE_RECORD)


def joined(locks: Sequence[LockKeys]) -> OtherKeys:
    """The keys of several locks that are in one slot, or on a server that has no slots."""
    names = tuple(name for keys in locks for name in keys.names)
    return OtherKeys(locks[0].lock, names, locks[0].slot, b"".join(keys.packed for keys in locks), tuple(locks))


def keys_of_locks(locks: Sequence[str]) -> OtherKeys:
    """The keys of several locks without their side keys, on a server that has no slots."""
    return OtherKeys(locks[0], tuple(locks), 0, _packed(locks))


def keys_for_one_script(
    port: RedisPort, keys_for: Callable[[str], LockKeysT], claims: Sequence[Claim]
) -> list[LockKeysT]:
    """The keys of the first tickets, as many as one script may use."""
    locks = [keys_for(claim.name) for claim in claims[:SCRIPT_LOCKS_MAX]]
    return list(takewhile(lambda keys: port.may_share_script(locks[0], keys), locks))


def method_in(value: str) -> str | None:
    """The method that wrote this value of a lock's key; None for another program."""
    if value.startswith(QUEUE):
        return "queue"
    if value.startswith(QUEUE_BEFORE):
        return FORMAT_1
    return value.split(":")[1] if value.startswith((SETNX, GETSET, REDLOCK)) else None


def method_conflict(lock: str, method: str) -> NameConflict:
    """The error for a lock that is in use with another method, or in another format."""
    if method == FORMAT_1:
        return NameConflict(
            lock=lock,
            reason="a version of holdfast before 0.2 uses it, which stores its locks in another format: "
            "upgrade all programs, or use another name",
        )
    used = "redlock://" if method == "redlock" else f"method={method}"
    return NameConflict(
        lock=lock,
        reason=f"it is in use with {used}, and two methods need not exclude each other: "
        "give all programs the same method, or use another name",
    )


def channel_of(prefix: str, keys: LockKeys, listener: str) -> str:
    """The channel for notifications to this lock's tickets on a Cluster: it is in the lock's own slot.

    It is one line of a ticket's record, so a tag with a line break is replaced by one that hashes to the same slot.
    """
    tag = _number_in(keys.slot) if "\n" in keys.tag else keys.tag
    return f"{prefix}{{{tag}}}:wake:{listener}"


def name_of(prefix: str, key: str) -> str | None:
    """The lock to which a key on the server belongs; None for a register, a record, or a side key other than a queue.

    A queue identifies its lock, because a lock can have waiters and no holder.
    """
    if _NO_LOCK.match(key, len(prefix)):
        return None
    side_key = _SIDE_KEY.fullmatch(key, len(prefix))
    if side_key is None or _side_key(prefix + side_key[1], side_key[2]) != key:
        return key[len(prefix) :]
    return side_key[1] if side_key[2] == _QUEUE else None


def pattern_of(beginning: str) -> str:
    """MATCH of SCAN and ZSCAN for all keys of locks with this beginning. Special characters are escaped."""
    escaped = "".join(f"\\{character}" if character in "*?[]^\\" else character for character in beginning)
    return f"{escaped}*"


def slot_of(key: str) -> int:
    """The slot in which a Cluster keeps this key."""
    tag = _tag(key)
    return crc_hqx((key if tag is None else tag).encode(), 0) % SLOTS


def _tag_and_rest(prefix: str, name: str) -> tuple[str, str]:
    """The part of such a key that a Cluster hashes, and the rest that identifies its name."""
    lock = prefix + name
    tag = _tag(lock)
    if tag is None and "}" not in lock:
        return lock, ""  # the tag contains prefix and name
    # A tag in the prefix is the first one in every key, so the server hashes it; the second tag only repeats it.
    return tag or _number_in(slot_of(lock)), name


def _own_key(prefix: str, name: str, infix: str) -> OtherKeys:
    tag, rest = _tag_and_rest(prefix, name)
    key = f"{prefix}{{{tag}}}{infix}{rest}"
    return OtherKeys(key, (key,), slot_of(key), _packed((key,)))


def _common_key(prefix: str, suffix: str, slot: int, *, per_slot: bool) -> str:
    """A key that all locks of a prefix share; on a Cluster, those in one slot, which a tag of the prefix decides."""
    number = _number_in(slot) if per_slot and _tag(prefix) is None else ""
    return f"{prefix}{{{number}}}{suffix}"


def _side_key(lock: str, suffix: str) -> str:
    """A side key of this lock, in the same slot."""
    if _tag(lock) is not None:
        return f"{lock}{{}}{suffix}"
    if "{" not in lock and "}" not in lock:
        return f"{lock}{{{lock}}}{suffix}"
    _, opened, behind = lock.partition("{")
    if behind.startswith("}"):  # an empty tag: the server hashes the whole key
        head, tail = f"{lock}{{", f"}}{suffix}"
    else:  # the server hashes the text between the first opening brace and our closing one
        head, tail = f"{behind}{{" if opened else "", ""
    return f"{lock}{{{_number_in(slot_of(lock), head, tail)}}}{suffix}"


def _packed(names: Sequence[str]) -> bytes:
    words = [name.encode() for name in names]
    return b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _tag(key: str) -> str | None:
    """The hash tag of a key: the text between the first { and the next }, if it is not empty."""
    _, opened, behind = key.partition("{")
    tag, closed, _ = behind.partition("}")
    return tag if opened and closed and tag else None


@functools.cache
def _numbers_by_slot() -> dict[int, str]:
    """The least number that hashes to each slot."""
    numbers: dict[int, str] = {}
    for number in map(str, count()):
        numbers.setdefault(crc_hqx(number.encode(), 0) % SLOTS, number)
        if len(numbers) == SLOTS:
            break
    return numbers


@functools.lru_cache(maxsize=4096)
def _number_in(slot: int, head: str = "", tail: str = "") -> str:
    """A number that hashes to this slot when it is between `head` and `tail`."""
    if not head and not tail:
        return _numbers_by_slot()[slot]
    start, end = crc_hqx(head.encode(), 0), tail.encode()
    return next(number for number in map(str, count()) if crc_hqx(number.encode() + end, start) % SLOTS == slot)
