"""What the sqlite protocol needs of a lock file: transactions, and neighbours that can be woken or found dead."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

Value = str | int | float | None


class Transaction(Protocol):
    """One BEGIN IMMEDIATE … COMMIT: while it runs, no other process changes the file."""

    now: float  # the clock that `expires` counts on, read inside the transaction
    wall: float  # Unix time
    session: str  # ours
    store: Hashable  # which file this is; another one may stand at the same path tomorrow

    def row(self, sql: str, *values: Value) -> tuple[Any, ...] | None:
        """The first row of a query, or None."""

    def rows(self, sql: str, *values: Value) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, read as they are asked for."""

    def change(self, sql: str, *values: Value) -> int:
        """How many rows a statement changed."""

    def is_dead(self, session: str) -> bool:
        """The process of this session has died, for certain."""

    def bury(self, session: str) -> None:
        """Remove what a dead session left beside the file, once this transaction is committed."""

    def ring(self, session: str, nonce: str) -> None:
        """Wake that ticket once this transaction is committed."""


class SqlitePort(Protocol):
    """One lock file, opened at first use."""

    @property
    def liveness_fds(self) -> tuple[int, ...]:
        """Our session's FIFO, if it is open."""

    async def transact(
        self, step: Callable[[Transaction], T], *, deadline: float, durable: bool = False, creates: bool = True
    ) -> T:
        """Run `step` in a transaction; it may be run again if the file was replaced, so it must be idempotent.

        What a `durable` one has committed outlives a power cut; others may lose their last moments to it. One that only
        reads, which does not create the file, raises StoreMissing where there is none.
        """

    def intact(self, store: Hashable) -> bool:
        """The file that stands at the path is still that one."""

    def listen(self, wake: Callable[[str], None]) -> None:
        """Where rings for our tickets go, from the first `subscribe` on; those that came before are kept."""

    def subscribe(self, nonce: str, sessions: Iterable[str]) -> None:
        """Wake this waiting ticket too when one of these sessions dies; replaces what was attended before."""

    def unsubscribe(self, nonce: str) -> None:
        """It does not wait any more."""

    async def close(self) -> None: ...

    def abandon(self) -> None: ...
