"""The port that the sqlite protocol needs: transactions on a lock file, and the sessions of its clients."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from holdfast.core.notifications import Wakeups
from holdfast.core.tickets import Notification
from holdfast.errors import BackendUnavailable

T = TypeVar("T")

Value = str | int | float | None


class OldTables(BackendUnavailable):
    """The file has the tables of an older holdfast, and a call that only reads does not upgrade them."""


class Transaction(Protocol):
    """One BEGIN IMMEDIATE … COMMIT. No other process changes the file while it runs."""

    now: float  # the time on the clock of `expires`, read inside the transaction
    wall: float  # Unix time
    session: str  # the session of this client
    store: Hashable  # identifies the file; another file may be at the same path later

    def row(self, sql: str, *values: Value) -> tuple[Any, ...] | None:
        """The first row of a query, or None."""

    def rows(self, sql: str, *values: Value) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, read one by one."""

    def change(self, sql: str, *values: Value) -> int:
        """Run a statement. Returns the number of rows that it changed."""

    def is_dead(self, session: str) -> bool:
        """The process of this session has certainly died."""

    def reap(self, session: str) -> None:
        """Remove the FIFO of a dead session after this transaction is committed."""

    def wake(self, session: str, notification: Notification) -> None:
        """Send this notification to a ticket of the session after the transaction is committed."""


class SqlitePort(Protocol):
    """One lock file, opened at first use."""

    wakeups: Wakeups  # the first `subscribe` starts to receive notifications; the FIFO keeps earlier ones

    @property
    def liveness_fds(self) -> tuple[int, ...]:
        """The FIFO of the session, if it is open."""

    async def transact(
        self, step: Callable[[Transaction], T], *, deadline: float, durable: bool = False, creates: bool = True
    ) -> T:
        """Run `step` in a transaction. It runs again if the file was replaced, so it must be idempotent.

        A `durable` transaction survives a power cut after its commit; others may be lost. Without `creates`, no file is
        created or upgraded: a missing file raises StoreMissing, one with older tables raises OldTables.
        """

    def intact(self, store: Hashable) -> bool:
        """The file at the path is still this one."""

    def subscribe(self, nonce: str, sessions: Iterable[str]) -> None:
        """Also wake this waiting ticket when one of these sessions dies. Replaces its earlier subscription."""

    def unsubscribe(self, nonce: str) -> None:
        """End the subscription of this ticket."""

    async def close(self) -> None: ...

    def abandon(self) -> None: ...
