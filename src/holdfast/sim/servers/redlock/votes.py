"""Who has a majority, who has votes, and who waits: what the recorder sees of several nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.backends.redis.protocol.keys import REDLOCK, Keys
from holdfast.sim.servers.redis.keyspace import Keyspace
from holdfast.sim.servers.redis.layouts import _fence, _members


class Vote(NamedTuple):
    """A node's, given to an attempt of a ticket."""

    nonce: str
    attempt: int
    fence: int  # that the node's line shows
    left: float  # seconds


class Waiter(NamedTuple):
    """A ticket in the queue of a node."""

    nonce: str
    since: int
    is_live: bool


def vote_in(space: Keyspace, keys: Keys) -> Vote | None:
    """This node's, for this lock."""
    value = space.peek(keys.lock.encode())
    if not isinstance(value, bytes) or not value.startswith(REDLOCK.encode()):
        return None
    nonce, attempt, _ = value[len(REDLOCK) :].split(b":")
    record = space.peek(keys.record.encode())
    line = record.get(b"holder") if isinstance(record, dict) else None
    left = ((space.expiry(keys.lock.encode()) or space.now) - space.now) / 1000
    return Vote(nonce.decode(), int(attempt), _fence(line, nonce), left)


def waiters_in(space: Keyspace, keys: Keys) -> Iterator[Waiter]:
    """Those who were refused by this node and would like to be woken."""
    queue = _members(space, keys.queue.encode())
    if not queue:
        return  # nearly always, and everybody looks after every step
    now = space.now
    lapses = {member: until for until, member in _members(space, keys.leases.encode())}
    for since, member in queue:
        yield Waiter(member.partition(b":")[2].decode(), int(since), lapses.get(member, 0.0) > now)


def counted(votes: Sequence[Vote | None]) -> dict[tuple[str, int], list[Vote]]:
    """By nonce and attempt: what another attempt of the same ticket was given is not this one's."""
    found: defaultdict[tuple[str, int], list[Vote]] = defaultdict(list)
    for vote in votes:
        if vote is not None:
            found[vote.nonce, vote.attempt].append(vote)
    return found
