"""The requirements of the mysql protocols on a database: one request at a time, waiter sessions for method=row."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from holdfast.backends.sql_protocol import SqlPort

Value = str | bytes | int | bool | tuple["Value", ...] | None  # a tuple stands for a list with commas
Row = tuple[str | None, ...]


class Statement(NamedTuple):
    """SQL with {0}, {1}, … for the values: one statement, or several that are sent as one request."""

    name: str
    sql: str
    is_prepared: bool = False  # one statement that returns no rows: parsed once on each connection
    is_transaction: bool = False  # several statements: all or none are committed
    reads: bool = False  # it does not create tables: where they are missing, it raises StoreMissing
    is_added: bool = False  # it reads a table that tables of an older holdfast lack; it returns no rows then
    in_order: bool = False  # on asyncio, statements for the lock in {0} are executed in the order in which tasks call


class Answer(NamedTuple):
    """The result of the last statement of a request, and the rows of all statements."""

    changed: int = 0  # rows
    number: int = 0  # the argument of LAST_INSERT_ID, if it was called
    rows: Sequence[Row] = ()


class MysqlPort(SqlPort, Protocol):
    """A database, connected at first use; our tables are created there if they are missing.

    Every method raises BackendUnavailable if nothing was changed, OutcomeUnknown if a statement was sent and got no
    answer, and ConfigurationError if the user lacks a right.
    """

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> Answer:
        """Run it; each statement is a transaction of its own, and all are committed when this returns."""


@dataclass
class PeriodicCheck:
    """Something to run repeatedly while a request waits for its answer."""

    run: Callable[[], Coroutine[Any, Any, float]]  # returns when to run it again
    due_at: float


class WaiterSessionsPort(Protocol):
    """The sessions of method=row: each ticket locks the gate row of its lock on its own connection."""

    def has_row_lock(self, nonce: str) -> bool:
        """The ticket has the row lock, as far as this client knows."""

    async def try_acquire(self, key: bytes, nonce: str, *, deadline: float) -> bool:
        """Lock the gate row if it is not locked; whether the ticket has it.

        Raises:
            BackendUnavailable: the request could not be sent.
            OutcomeUnknown: no answer; nothing that other connections see has changed, so it may be repeated.
        """

    async def wait(self, key: bytes, nonce: str, until: float, check: PeriodicCheck) -> None:
        """Wait for the row lock until `until`, and run the check during the wait. Errors as `try_acquire`."""

    async def probe(self, nonce: str, *, deadline: float) -> bool:
        """Whether the ticket has the row lock, as the server confirms."""

    async def release(self, nonce: str, *, deadline: float) -> None:
        """Release the row lock, or stop waiting for it."""

    async def holder(self, key: bytes, *, deadline: float) -> str | None:
        """The nonce of the ticket that has the row lock, or has just requested it."""

    async def terminate(self, nonce: str, *, deadline: float) -> None:
        """Kill the connection on which this ticket has the row lock or waits for it, of any client."""

    async def terminate_client(self, key: bytes, nonce: str, *, deadline: float) -> None:
        """Terminate this ticket, which has the row lock, after all other tickets of its client at this gate row.

        If the client is our own, it is alive, and only this ticket is terminated.
        """

    async def reap(self, key: bytes, *, deadline: float) -> None:
        """Remove gate rows of locks that have no row any more, from this key on. A locked gate row stays."""

    def close(self) -> None: ...

    def abandon(self) -> None: ...
