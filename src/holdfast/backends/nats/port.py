"""The port of the NATS protocol: reads and conditional writes of keys in one bucket, and notifications of changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast.core.notifications import Wakeups
from holdfast.errors import BackendError


class Put(NamedTuple):
    """A write of one key, which succeeds only if the last entry of the key has this sequence number."""

    key: str
    value: bytes
    last: int  # 0: the key has no entry, not even a marker
    seconds: int  # after which the server removes the entry
    is_marker: bool = False  # the key counts as deleted; the marker only keeps its sequence number


class Entry(NamedTuple):
    """The last entry of a key."""

    seq: int
    value: bytes
    is_marker: bool  # left by a release, by an expiry or by another program that deleted the key
    remaining: float = float("inf")  # seconds until the server removes it, if that was requested


ABSENT = Entry(0, b"", is_marker=True)  # a key without an entry: a put that expects the number 0 creates one


class NatsPort(Protocol):
    """One bucket. The server is connected, and the bucket created, at the first use.

    Every verb raises BackendUnavailable when nothing was changed, OutcomeUnknown when a request was sent and got no
    answer, ConfigurationError for a server or bucket whose settings rule out locks, and AccessDenied.
    """

    @property
    def wakeups(self) -> Wakeups:
        """Receives the notifications. The fence of a notification is the sequence number of the marker, or 0."""

    @property
    def replicas(self) -> int:
        """The copies of the bucket; 0 before the first answer."""

    async def put(self, puts: Sequence[Put], *, deadline: float) -> list[int | BackendError | None]:
        """Write keys, independently of each other. The sequence number of each entry; None: refused.

        A put is refused if the last entry is another one, and while another put of the key is being executed.
        """

    async def get(self, keys: Sequence[str], *, deadline: float, timed: bool = False) -> list[Entry]:
        """The last entries of some keys, or ABSENT; `timed` with the seconds that remain. They may be outdated.

        Raises:
            StoreMissing: the bucket does not exist.
        """

    async def keys(self, subjects: str, *, deadline: float) -> list[str]:
        """The keys that match this pattern of subjects. Raises StoreMissing."""

    def watch(self, nonce: str, key: str) -> None:
        """Notify this ticket once when the watch has begun, and then of every marker of this key."""

    def unwatch(self, nonce: str) -> None:
        """Stop the notifications for this ticket."""

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: close inherited descriptors without sending anything."""
