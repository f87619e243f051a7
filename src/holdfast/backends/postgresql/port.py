"""The requirements of the postgresql protocols on a database: statements, waiter sessions, notifications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast.backends.sql_protocol import SqlPort
from holdfast.core.notifications import SubscriberPort

Value = str | int | bool | None
Row = tuple[str | None, ...]


class Statement(NamedTuple):
    """SQL with parameters $1, $2, …, prepared on each connection under this name; {schema} is our schema."""

    name: str
    sql: str
    reads: bool = False  # it does not create tables: where they are missing, it raises StoreMissing
    is_added: bool = False  # it reads a table that tables of an older holdfast lack; it returns no rows then
    in_order: bool = False  # on asyncio, statements for the lock in $1 are executed in the order in which tasks call


class WaiterSession(Protocol):
    """A connection of one ticket, on which it waits for an advisory lock; the server holds that until it closes."""

    has_advisory_lock: bool  # False from the moment at which the connection is known to have ended

    @property
    def is_open(self) -> bool: ...

    @property
    def is_waiting(self) -> bool:
        """It waits for the advisory lock; or did so when it was closed, which the server may not have noticed yet."""

    @property
    def pid(self) -> int:
        """The process id of the server process."""

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        """As `PostgresqlPort.execute`, in this session."""

    async def wait(self, sql: str, until: float) -> None:
        """Send this statement, which requests the advisory lock, or keep waiting for its answer until `until`."""

    def close(self) -> None: ...


class PostgresqlPort(SqlPort, Protocol):
    """A database, connected at first use; our tables are created there if they are missing.

    Every method raises BackendUnavailable if nothing was changed, OutcomeUnknown if a statement was sent and got no
    answer, and ConfigurationError if the user lacks a right.
    """

    channel: str  # the NOTIFY channel of this client; unique

    @property
    def subscriber(self) -> SubscriberPort[str]: ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """Problems of a database that works, for people."""

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        """Run one statement in its own transaction; it is committed when this returns."""

    async def open_waiter_session(self, *, deadline: float) -> WaiterSession:
        """A session for the caller alone, new or returned before."""

    def return_waiter_session(self, session: WaiterSession) -> None:
        """Give back a session that has no advisory lock and does not wait for one."""
