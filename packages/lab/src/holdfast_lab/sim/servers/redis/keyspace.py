"""The keys of a Redis server: values of five types, and their expiry by the server's own clock.

This module knows no commands, scripts or worlds.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import TypeAlias


class SortedSet:
    """Members ordered by score, and by bytes for equal scores."""

    __slots__ = ("order", "scores")

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def put(self, member: bytes, score: float) -> None:
        self.drop(member)
        self.scores[member] = score
        insort(self.order, (score, member))

    def drop(self, member: bytes) -> bool:
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.order[bisect_left(self.order, (score, member))]
        return True

    def rank(self, member: bytes) -> int | None:
        score = self.scores.get(member)
        return None if score is None else bisect_left(self.order, (score, member))

    def copy(self) -> SortedSet:
        twin = SortedSet()
        twin.scores, twin.order = dict(self.scores), list(self.order)
        return twin

    def __len__(self) -> int:
        return len(self.order)

    def __repr__(self) -> str:
        return f"SortedSet({self.order})"


class Stream:
    """Entries with ids that only grow."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[tuple[tuple[int, int], list[bytes]]] = []

    @property
    def last(self) -> tuple[int, int]:
        return self.entries[-1][0] if self.entries else (0, 0)

    def copy(self) -> Stream:
        twin = Stream()
        twin.entries = list(self.entries)
        return twin

    def __repr__(self) -> str:
        return f"Stream({self.entries})"


Hash: TypeAlias = dict[bytes, bytes]
List: TypeAlias = list[bytes]
Value: TypeAlias = bytes | Hash | SortedSet | List | Stream

TYPES: dict[type, bytes] = {bytes: b"string", dict: b"hash", SortedSet: b"zset", list: b"list", Stream: b"stream"}


class Keyspace:
    """One database."""

    def __init__(self, clock: Callable[[], int]) -> None:
        """`clock` gives the server's time in microseconds."""
        self.clock = clock
        self._values: dict[bytes, Value] = {}
        self._expires: dict[bytes, int] = {}  # in milliseconds of that clock

    @property
    def now(self) -> int:
        """Milliseconds."""
        return self.clock() // 1000

    def get(self, key: bytes) -> Value | None:
        """The value of a key. An expired one is deleted."""
        value = self._values.get(key)
        if value is None or not self.is_expired(key):
            return value
        self.delete(key)
        return None

    def peek(self, key: bytes) -> Value | None:
        """The value of a key, without deleting an expired one."""
        return None if self.is_expired(key) else self._values.get(key)

    def is_expired(self, key: bytes) -> bool:
        # The last millisecond still counts: keyIsExpired in db.c says `now > when`.
        when = self._expires.get(key)
        return when is not None and self.now > when

    def put(self, key: bytes, value: Value) -> None:
        """Set the value and keep the expiry."""
        self._values[key] = value

    def delete(self, key: bytes) -> bool:
        self._expires.pop(key, None)
        return self._values.pop(key, None) is not None

    def expiry(self, key: bytes) -> int | None:
        return self._expires.get(key)

    def expire_at(self, key: bytes, when: int | None) -> None:
        """Expire the key at this time; delete it now if the time has passed. None: never."""
        if when is None:
            self._expires.pop(key, None)
        elif when <= self.now:  # checkAlreadyExpired in expire.c: here the last millisecond does not count
            self.delete(key)
        else:
            self._expires[key] = when

    def living(self) -> Iterator[bytes]:
        return (key for key in list(self._values) if self.get(key) is not None)

    def sweep(self) -> None:
        """Delete all expired keys."""
        for key in [key for key in self._expires if self.is_expired(key)]:
            self.delete(key)

    def clear(self) -> None:
        self._values.clear()
        self._expires.clear()

    def snapshot(self) -> Keyspace:
        """An independent copy on the same clock."""
        twin = Keyspace(self.clock)
        twin._values = {key: value if isinstance(value, bytes) else value.copy() for key, value in self._values.items()}
        twin._expires = dict(self._expires)
        return twin

    def dump(self) -> dict[bytes, tuple[Value, int | None]]:
        """Every key with its value and expiry, for comparisons."""
        return {key: (value, self.expiry(key)) for key in sorted(self._values) if (value := self.peek(key)) is not None}
