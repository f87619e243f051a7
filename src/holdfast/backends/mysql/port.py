"""What the mysql protocols need of a database: one request at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

Value = str | bytes | int | bool | tuple["Value", ...] | None  # a tuple: several, with commas between them
Row = tuple[str | None, ...]


class Statement(NamedTuple):
    """SQL with {0}, {1}, … where the values go: one statement, or several that are sent as one request."""

    name: str
    sql: str
    is_prepared: bool = False  # one statement, and one without rows: parsed once on each connection
    is_transaction: bool = False  # several, of which all are done or none
    reads: bool = False  # it does not create tables: where they are missing, it raises StoreMissing
    in_order: bool = False  # who asks it of the lock in {0} earlier is answered earlier, if they are tasks of one loop


class Answer(NamedTuple):
    """What the last statement of a request came to, and the rows of all of them."""

    changed: int = 0  # rows
    number: int = 0  # the argument of LAST_INSERT_ID, if it was called
    rows: Sequence[Row] = ()


class MysqlPort(Protocol):
    """One database, connected at first use; our tables are created there if they are missing.

    Every verb raises BackendUnavailable when nothing was changed, OutcomeUnknown when a statement was sent and got no
    answer, and ConfigurationError for a user that lacks a right.
    """

    @property
    def is_forgetful(self) -> bool:
        """The server has said that a crash may take back what was committed."""

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> Answer:
        """Run it; each statement is committed by itself, and all are when this returns."""

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: drop inherited connections without a word on them."""
