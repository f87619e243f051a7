"""Reads the tickets of a lock from the keys of each protocol, for the recorder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.backends.redis.protocol.keys import LockKeys, QueueKeys
from holdfast.core.tickets import WAITER_LEASE
from holdfast_lab.sim.recorder import Entry
from holdfast_lab.sim.servers.redis.keyspace import Keyspace, SortedSet

_OURS, _SEVERAL = b"holdfast:queue2:", b"holdfast:queue2:+"
_SETNX, _GETSET = b"holdfast:setnx:", b"holdfast:getset:"


_WAITER_LEASE = WAITER_LEASE * 1000


class StoredTicket(NamedTuple):
    """A ticket on the server."""

    nonce: str
    entry: Entry
    is_live: bool  # has not expired
    is_skipped: bool = False  # its client did not respond: the ticket does not count until it polls


def in_queue(space: Keyspace, name: str, keys: QueueKeys) -> Iterator[StoredTicket]:
    """The tickets in the keys of layout.lua: holders first, then waiters in the order of the queue.

    The position of a waiter is the number of its entry, which another entry may have too. A holder has the position 0.
    """
    value = space.peek(keys.lock.encode())
    now = space.now
    if isinstance(value, bytes) and value.startswith(_OURS) and not value.startswith(_SEVERAL):
        holder, fence = value[len(_OURS) :].split(b"\n")[:2]
        yield StoredTicket(holder.decode(), Entry(name, 0, int(fence), 1, exclusive=True), is_live=True)
    elif isinstance(value, bytes) and value.startswith(_SEVERAL):
        sharers = space.peek(keys.sharers.encode())
        for ends, member in _members(space, keys.shared.encode()):
            kind, _, nonce = member.partition(b":")
            shown = Entry(
                name, 0, _fence(sharers.get(nonce) if isinstance(sharers, dict) else None, nonce), *_shape(kind)
            )
            yield StoredTicket(nonce.decode(), shown, is_live=ends > now)
    queue, entries = space.peek(keys.queue.encode()), space.peek(keys.waiters.encode())
    if not isinstance(queue, list) or not isinstance(entries, dict):
        return
    lines = entries.get(b"!silent", b"").splitlines()
    silent = {channel: int(at) for at, _, channel in (line.partition(b" ") for line in lines)}
    for nonce in queue:
        entry = entries.get(nonce)
        if entry is not None:
            kind, number, lapses, turn, _, channel = entry.split(b"\n")[:6]
            polled_at = int(lapses) - _WAITER_LEASE
            is_skipped = (int(turn) != 0 and int(turn) <= now) or polled_at < silent.get(channel, 0)
            shown = Entry(name, int(number), None, *_shape(kind))
            yield StoredTicket(nonce.decode(), shown, int(lapses) > now, is_skipped)


def in_setnx(space: Keyspace, name: str, keys: LockKeys) -> Iterator[StoredTicket]:
    """The holder and its fence are in the value."""
    value = space.peek(keys.lock.encode())
    if isinstance(value, bytes) and value.startswith(_SETNX):
        nonce, fence = value[len(_SETNX) :].split(b":")
        yield StoredTicket(nonce.decode(), Entry(name, int(fence), int(fence), 1, exclusive=True), is_live=True)


def in_getset(space: Keyspace, name: str, keys: LockKeys) -> Iterator[StoredTicket]:
    """The holder, its end and its fence are in the value. An expired value is not deleted."""
    value = space.peek(keys.lock.encode())
    if isinstance(value, bytes) and value.startswith(_GETSET):
        nonce, end, fence = value[len(_GETSET) :].split(b":")
        yield StoredTicket(
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
    if kind == b"x" or kind.startswith(b"@"):
        return 1, True
    return (None if kind == b"r" else int(kind)), False
