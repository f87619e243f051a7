"""The entries of one bucket, as JetStream stores them: at most one for each key, each with the next sequence number."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.backends.nats.port import Put


class Stored(NamedTuple):
    """The entry of a key."""

    seq: int
    value: bytes
    is_marker: bool
    expires: float  # on the clock of the servers


class Store:
    """One bucket."""

    def __init__(self, first_seq: int, marker_seconds: float) -> None:
        self.last_seq = first_seq - 1
        self.entries: dict[str, Stored] = {}
        self._marker_seconds = marker_seconds

    def put(self, put: Put, now: float) -> int | None:
        """The sequence number of the new entry; None: the last entry of the key is another one."""
        entry = self.entries.get(put.key)
        if put.last != (0 if entry is None else entry.seq):
            return None
        return self._add(put.key, Stored(0, put.value, put.is_marker, now + put.seconds))

    def has_expired(self, key: str, seq: int, now: float) -> bool:
        """Whether this entry is still the last one of the key and its time is over: the leader proposes its removal."""
        entry = self.entries.get(key)
        return entry is not None and entry.seq == seq and entry.expires <= now

    def remove(self, key: str, seq: int) -> None:
        """Execute a removal that was proposed."""
        if key in self.entries and self.entries[key].seq == seq:
            del self.entries[key]

    def replace(self, key: str, now: float) -> None:
        """Execute the removal of an entry without a Nats-Marker-Reason: by a marker, and without a condition."""
        self._add(key, Stored(0, b"", is_marker=True, expires=now + self._marker_seconds))

    def _add(self, key: str, entry: Stored) -> int:
        self.last_seq += 1
        self.entries[key] = entry._replace(seq=self.last_seq)
        return self.last_seq
