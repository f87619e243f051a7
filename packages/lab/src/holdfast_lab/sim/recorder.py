"""Records the history: the events of clients, and the changes on the server.

To find a change on the server, the recorder compares the tickets before and after each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from holdfast_lab.checking import history as h
from holdfast_lab.sim.world import World

NONCE = 32  # characters; a mutant may append more


class Entry(NamedTuple):
    """A ticket on the server."""

    lock: str
    position: int  # its order in the queue
    fence: int | None  # None while it waits
    limit: int | None
    exclusive: bool


class Recorder:
    """One history, and the client and call of each nonce."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.history: list[h.Event] = []
        self.happened: Counter[str] = Counter()  # faults, by their kind
        self._calls = 0
        self._attempts: dict[int, int] = {}  # number of an attempt in the engine -> in the history
        self._nonces = 0
        self._owner: dict[str, tuple[str, int]] = {}  # nonce -> client, call
        self._members: dict[int, dict[str, int]] = {}  # call for several locks -> lock -> ticket
        self.owners: dict[int, str] = {}  # ticket -> named owner
        self._seen: dict[str, Entry] = {}
        # Nonces of tickets for which fences were reserved: another fence of such a ticket is not a new grant.
        self.extended: set[str] = set()
        self.reserving: dict[str, int] = {}  # nonce -> the number of fences that its client requests

    def new_call(self) -> int:
        """The number of a new call. It is also the number of its ticket in the history."""
        self._calls += 1
        return self._calls

    def attempt(self, number: int) -> int:
        """The number of an attempt in the history, from its number in the engine.

        The engine counts the attempts of all worlds of this process. The history counts only those of this world, so it
        is the same in every run.
        """
        return self._attempts.setdefault(number, len(self._attempts) + 1)

    def new_group(self, locks: Sequence[str]) -> list[int]:
        """The tickets of a call for several locks, one for each. The first is the number of the call."""
        tickets = [self.new_call() for _ in locks]
        self._members[tickets[0]] = dict(zip(locks, tickets, strict=True))
        return tickets

    def member(self, call: int, lock: str) -> int | None:
        """The ticket of this lock, if the call is for several locks."""
        members = self._members.get(call)
        return None if members is None else members[lock]

    def call_of(self, nonce: str) -> int:
        return self._owner[nonce[:NONCE]][1]

    def owner_of(self, nonce: str, lock: str) -> tuple[str, int]:
        """The client and ticket of this nonce."""
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
        """Record the changes since the last call in a possible order: removed tickets first."""
        seen = self._seen
        if tickets == seen:
            return
        now = self._world.now
        for nonce, entry in seen.items():
            if nonce not in tickets:
                client, call = owner = self.owner_of(nonce, entry.lock)
                # A call whose first answer was late has two tickets until the first one is released.
                if not any(self.owner_of(other, other_entry.lock) == owner for other, other_entry in tickets.items()):
                    self.add(h.ServerRemoved(now, client, call, entry.lock))
        for nonce, entry in tickets.items():
            before = seen.get(nonce)
            if before == entry:
                continue
            client, call = self.owner_of(nonce, entry.lock)
            shape = (entry.position, entry.limit, entry.exclusive, self.owners.get(call, ""))
            if entry.fence is not None:
                if nonce in self.extended and before is not None and before.fence is not None:
                    if entry.fence > before.fence and nonce in self.reserving:
                        self.add(h.TurnExtended(now, client, call, entry.lock, self.reserving.pop(nonce)))
                    continue
                self.add(h.ServerGranted(now, client, call, entry.lock, entry.fence, *shape))
            elif before is None or before.position != entry.position:  # expired and queued again at once
                self.add(h.ServerQueued(now, client, call, entry.lock, *shape))
        self._seen = tickets

    def turn_began(self, nonce: str, lock: str, waiting: int) -> None:
        """The client of this ticket has acquired the lock, for which `waiting` of its other calls wait."""
        client, call = self._owner[nonce[:NONCE]]
        self.add(h.TurnBegan(self._world.now, client, call, lock, waiting))

    def passed(self, nonce: str, successor: str, lock: str, fence: int) -> None:
        """The client passes the lease of the ticket `nonce` on to the call of `successor`."""
        client, giver = self._owner[nonce[:NONCE]]
        _, call = self._owner[successor]
        self.add(h.Passed(self._world.now, client, call, lock, fence, giver))
        self.reassign(nonce, successor, fence)

    def reassign(self, nonce: str, successor: str, fence: int | None = None) -> None:
        """From now on the ticket belongs to the call of `successor`, another one of its client.

        With a fence, its lease was passed on to that call.
        """
        client, before = self._owner[nonce[:NONCE]]
        _, call = self._owner[nonce[:NONCE]] = self._owner[successor]
        entry = self._seen.get(nonce)
        if entry is None:
            return
        shape = (entry.position, entry.limit, entry.exclusive)
        if fence is None and entry.fence is not None:
            self.add(h.TakenOver(self._world.now, client, call, entry.lock, before))
        self.add(h.ServerRemoved(self._world.now, client, before, entry.lock))
        fence = entry.fence if fence is None else fence
        if fence is None:
            self.add(h.ServerQueued(self._world.now, client, call, entry.lock, *shape))
        else:
            self.add(h.ServerGranted(self._world.now, client, call, entry.lock, fence, *shape))

    def add_leftovers(self, tickets: dict[str, Entry]) -> None:
        """Record the tickets that are left at the end."""
        for nonce, entry in tickets.items():
            client, call = self.owner_of(nonce, entry.lock)
            self.add(h.Leftover(self._world.now, entry.lock, client, entry.fence is not None, call or None))
