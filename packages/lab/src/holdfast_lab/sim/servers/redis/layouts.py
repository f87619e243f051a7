"""Reads the tickets of a lock from the keys of each protocol, for the recorder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.backends.redis.protocol.keys import Keys
from holdfast_lab.sim.recorder import Entry
from holdfast_lab.sim.servers.redis.keyspace import Keyspace, SortedSet

_OURS, _SEVERAL = b"holdfast:queue:", b"holdfast:queue:+"
_SETNX, _GETSET = b"holdfast:setnx:", b"holdfast:getset:"


class Found(NamedTuple):
    """A ticket on the server."""

    nonce: str
    entry: Entry
    is_live: bool  # has not expired


def in_queue(space: Keyspace, name: str, keys: Keys) -> Iterator[Found]:
    """The tickets in the keys of layout.lua: holders first, then waiters."""
    lock, record_key, queue, leases, shared = (key.encode() for key in keys[:5])
    value = space.peek(lock)
    record = space.peek(record_key)
    lines = record if isinstance(record, dict) else {}
    now = space.now
    if isinstance(value, bytes) and value.startswith(_OURS) and not value.startswith(_SEVERAL):
        nonce = value[len(_OURS) :]
        fence = _fence(lines.get(b"holder"), nonce)
        yield Found(nonce.decode(), Entry(name, fence, fence, 1, exclusive=True), is_live=True)
    elif isinstance(value, bytes) and value.startswith(_SEVERAL):
        for ends, member in _members(space, shared):
            kind, _, nonce = member.partition(b":")
            fence = _fence(lines.get(nonce), nonce)
            yield Found(nonce.decode(), Entry(name, fence, fence, *_shape(kind)), is_live=ends > now)
    lapses = {member: until for until, member in _members(space, leases)}
    for number, member in _members(space, queue):
        kind, _, nonce = member.partition(b":")
        yield Found(
            nonce.decode(), Entry(name, int(number), None, *_shape(kind)), is_live=lapses.get(member, 0.0) > now
        )


def with_lease(space: Keyspace, keys: Keys) -> Iterator[str]:
    """The nonces of the waiting tickets, including skipped ones."""
    for _, member in _members(space, keys.leases.encode()):
        kind, _, nonce = member.partition(b":")
        if kind not in {b"gone", b"turn"} and not kind.startswith(b"@"):
            yield nonce.decode()


def in_setnx(space: Keyspace, name: str, keys: Keys) -> Iterator[Found]:
    """The holder and its fence are in the value."""
    value = space.peek(keys.lock.encode())
    if isinstance(value, bytes) and value.startswith(_SETNX):
        nonce, fence = value[len(_SETNX) :].split(b":")
        yield Found(nonce.decode(), Entry(name, int(fence), int(fence), 1, exclusive=True), is_live=True)


def in_getset(space: Keyspace, name: str, keys: Keys) -> Iterator[Found]:
    """The holder, its end and its fence are in the value. An expired value is not deleted."""
    value = space.peek(keys.lock.encode())
    if isinstance(value, bytes) and value.startswith(_GETSET):
        nonce, end, fence = value[len(_GETSET) :].split(b":")
        yield Found(
            nonce.decode(), Entry(name, int(fence), int(fence), 1, exclusive=True), is_live=int(end) > space.clock()
        )


def _members(space: Keyspace, key: bytes) -> list[tuple[float, bytes]]:
    value = space.peek(key)
    return list(value.order) if isinstance(value, SortedSet) else []


def _fence(line: bytes | None, nonce: bytes) -> int:
    """0 for a holder without a line."""
    named, _, rest = (line or b"").partition(b"\n")
    fence, _, _ = rest.partition(b"\n")
    return int(fence) if named == nonce and fence else 0


def _shape(kind: bytes) -> tuple[int | None, bool]:
    if kind == b"x":
        return 1, True
    return (None if kind == b"r" else int(kind)), False
