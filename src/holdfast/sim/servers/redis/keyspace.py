"""What a Redis server keeps: keys of five types, and when each of them expires by the server's own clock.

Nothing here knows a command, a script or a world: only values, and whether they are still there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import TypeAlias


class SortedSet:
    """Members by score, and by their bytes where scores are equal."""

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
    """Entries by their ids, which only grow."""

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
        """What is there; what has expired goes."""
        value = self._values.get(key)
        if value is None or not self.is_over(key):
            return value
        self.delete(key)
        return None

    def peek(self, key: bytes) -> Value | None:
        """The same for onlookers: nothing goes because of them."""
        return None if self.is_over(key) else self._values.get(key)

    def is_over(self, key: bytes) -> bool:
        # The last millisecond still counts: keyIsExpired in db.c says `now > when`.
        when = self._expires.get(key)
        return when is not None and self.now > when

    def put(self, key: bytes, value: Value) -> None:
        """Another value, with the expiry as it was."""
        self._values[key] = value

    def delete(self, key: bytes) -> bool:
        self._expires.pop(key, None)
        return self._values.pop(key, None) is not None

    def expiry(self, key: bytes) -> int | None:
        return self._expires.get(key)

    def expire_at(self, key: bytes, when: int | None) -> None:
        """From then on it is gone: at once, if that is over. None: never."""
        if when is None:
            self._expires.pop(key, None)
        elif when <= self.now:  # checkAlreadyExpired in expire.c: here the very millisecond does not count
            self.delete(key)
        else:
            self._expires[key] = when

    def living(self) -> Iterator[bytes]:
        return (key for key in list(self._values) if self.get(key) is not None)

    def sweep(self) -> None:
        """Take out what has expired."""
        for key in [key for key in self._expires if self.is_over(key)]:
            self.delete(key)

    def clear(self) -> None:
        self._values.clear()
        self._expires.clear()

    def snapshot(self) -> Keyspace:
        """As it is now, on the same clock; what happens to one does not happen to the other."""
        twin = Keyspace(self.clock)
        twin._values = {key: value if isinstance(value, bytes) else value.copy() for key, value in self._values.items()}
        twin._expires = dict(self._expires)
        return twin

    def dump(self) -> dict[bytes, tuple[Value, int | None]]:
        """Every key with its value and its expiry, to compare."""
        return {key: (value, self.expiry(key)) for key in sorted(self._values) if (value := self.peek(key)) is not None}
