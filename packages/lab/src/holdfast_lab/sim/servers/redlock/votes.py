"""Reads votes and waiters from the keys of several nodes, for the recorder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.backends.redis.protocol.keys import REDLOCK, Keys
from holdfast_lab.sim.servers.redis.keyspace import Keyspace
from holdfast_lab.sim.servers.redis.layouts import _fence, _members


class Vote(NamedTuple):
    """The vote of one node for an attempt of a ticket."""

    nonce: str
    attempt: int
    fence: int  # in the node's line
    left: float  # seconds


class Waiter(NamedTuple):
    """A ticket in the queue of a node."""

    nonce: str
    since: int
    is_live: bool


def vote_in(space: Keyspace, keys: Keys) -> Vote | None:
    """The vote of this node for a lock."""
    value = space.peek(keys.lock.encode())
    if not isinstance(value, bytes) or not value.startswith(REDLOCK.encode()):
        return None
    nonce, attempt, _ = value[len(REDLOCK) :].split(b":")
    record = space.peek(keys.record.encode())
    line = record.get(b"holder") if isinstance(record, dict) else None
    left = ((space.expiry(keys.lock.encode()) or space.now) - space.now) / 1000
    return Vote(nonce.decode(), int(attempt), _fence(line, nonce), left)


def waiters_in(space: Keyspace, keys: Keys) -> Iterator[Waiter]:
    """The tickets that this node refused and will wake."""
    queue = _members(space, keys.queue.encode())
    if not queue:
        return  # the usual case, and this runs after every step
    now = space.now
    lapses = {member: until for until, member in _members(space, keys.leases.encode())}
    for since, member in queue:
        yield Waiter(member.partition(b":")[2].decode(), int(since), lapses.get(member, 0.0) > now)


def counted(votes: Sequence[Vote | None]) -> dict[tuple[str, int], list[Vote]]:
    """Votes by nonce and attempt, because a vote for another attempt of the same ticket does not count."""
    by_attempt: defaultdict[tuple[str, int], list[Vote]] = defaultdict(list)
    for vote in votes:
        if vote is not None:
            by_attempt[vote.nonce, vote.attempt].append(vote)
    return by_attempt
