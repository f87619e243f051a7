"""What the postgresql protocol needs of a database: one statement at a time, and hints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast.core.hearing import Ear

Value = str | int | bool | None
Row = tuple[str | None, ...]


class Statement(NamedTuple):
    """SQL with $1, $2, … in it, prepared on each connection under this name; {schema} is where our tables are."""

    name: str
    sql: str
    in_order: bool = False  # who asks it of the lock in $1 earlier is answered earlier, if they are tasks of one loop


class PostgresqlPort(Ear[str], Protocol):
    """One database, connected at first use; our tables are created there if they are missing.

    Every verb raises BackendUnavailable when nothing was changed, OutcomeUnknown when a statement was sent and got no
    answer, and ConfigurationError for a user that lacks a right.
    """

    channel: str  # where this client hears hints

    async def ask(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        """Run one statement in a transaction of its own; it is committed when this returns."""

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: drop inherited connections without a word on them."""
