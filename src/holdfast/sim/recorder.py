"""Writes the history: what the clients saw, and what the server did, found by looking at it after each of its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.checking import history as h
from holdfast.sim.world import World

NONCE = 32  # characters; what comes after them, a mutant has added


class Entry(NamedTuple):
    """A ticket as the server has it."""

    lock: str
    position: int  # its order
    fence: int | None  # None while it waits
    limit: int | None
    exclusive: bool


class Recorder:
    """One history, and who is who in it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.history: list[h.Event] = []
        self.happened: Counter[str] = Counter()  # faults, by their kind
        self._calls = 0
        self._nonces = 0
        self._owner: dict[str, tuple[str, int]] = {}  # nonce -> client, call
        self._members: dict[int, dict[str, int]] = {}  # of a call that takes several locks: lock -> ticket
        self.owners: dict[int, str] = {}  # ticket -> named owner, of those that have one
        self._seen: dict[str, Entry] = {}

    def new_call(self) -> int:
        """The number by which the history knows this attempt."""
        self._calls += 1
        return self._calls

    def new_group(self, locks: Sequence[str]) -> list[int]:
        """The same for an attempt to take several at once: a ticket for each. The first is the number of the call."""
        tickets = [self.new_call() for _ in locks]
        self._members[tickets[0]] = dict(zip(locks, tickets, strict=True))
        return tickets

    def member(self, call: int, lock: str) -> int | None:
        """The ticket of this lock, if the call is one for several."""
        members = self._members.get(call)
        return None if members is None else members[lock]

    def call_of(self, nonce: str) -> int:
        return self._owner[nonce[:NONCE]][1]

    def owner_of(self, nonce: str, lock: str) -> tuple[str, int]:
        """Client and ticket."""
        client, call = self._owner[nonce[:NONCE]]
        return client, self.member(call, lock) or call

    def new_nonce(self, client: str, call: int) -> str:
        self._nonces += 1
        nonce = f"{self._nonces:0{NONCE}x}"
        self._owner[nonce] = (client, call)
        return nonce

    def add(self, event: h.Event) -> None:
        self.history.append(event)

    def observe(self, tickets: dict[str, Entry]) -> None:
        """What has changed on the server since the last look, in an order that could have been: first who left."""
        seen = self._seen
        if tickets == seen:
            return
        now = self._world.now
        for nonce, entry in seen.items():
            if nonce not in tickets:
                client, call = owner = self.owner_of(nonce, entry.lock)
                # A call whose first ticket was answered too late has two for a while, until that one is given back.
                if not any(self.owner_of(other, there.lock) == owner for other, there in tickets.items()):
                    self.add(h.ServerRemoved(now, client, call, entry.lock))
        for nonce, entry in tickets.items():
            before = seen.get(nonce)
            if before == entry:
                continue
            client, call = self.owner_of(nonce, entry.lock)
            shape = (entry.position, entry.limit, entry.exclusive, self.owners.get(call, ""))
            if entry.fence is not None:
                self.add(h.ServerGranted(now, client, call, entry.lock, entry.fence, *shape))
            elif before is None or before.position != entry.position:  # lapsed and back at once has another place
                self.add(h.ServerQueued(now, client, call, entry.lock, *shape))
        self._seen = tickets

    def add_leftovers(self, tickets: dict[str, Entry]) -> None:
        """At the end: what is still there."""
        for nonce, entry in tickets.items():
            client, call = self.owner_of(nonce, entry.lock)
            self.add(h.Leftover(self._world.now, entry.lock, client, entry.fence is not None, call or None))
