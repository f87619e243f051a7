"""What the postgresql protocol needs of a database: one statement at a time, and hints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast.core.notifications import SubscriberPort

Value = str | int | bool | None
Row = tuple[str | None, ...]


class Statement(NamedTuple):
    """SQL with $1, $2, … in it, prepared on each connection under this name; {schema} is where our tables are."""

    name: str
    sql: str
    reads: bool = False  # it does not create tables: where they are missing, it raises StoreMissing
    in_order: bool = False  # who asks it of the lock in $1 earlier is answered earlier, if they are tasks of one loop


class WaiterSession(Protocol):
    """A connection of one ticket's own, on which it waits at a gate: an advisory lock, held as long as it is open."""

    has_advisory_lock: bool  # the gate is ours; never so once the connection has ended

    @property
    def is_open(self) -> bool: ...

    @property
    def is_waiting(self) -> bool:
        """It waits at the gate; or did when it was closed, and the server may not know that yet."""

    @property
    def pid(self) -> int:
        """Of the server's process at the other end."""

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        """As the port does."""

    async def wait(self, sql: str, until: float) -> None:
        """Send this statement, which requests the advisory lock, or keep waiting for its answer until `until`."""

    def close(self) -> None: ...


class PostgresqlPort(SubscriberPort[str], Protocol):
    """One database, connected at first use; our tables are created there if they are missing.

    Every verb raises BackendUnavailable when nothing was changed, OutcomeUnknown when a statement was sent and got no
    answer, and ConfigurationError for a user that lacks a right.
    """

    channel: str  # where this client hears hints; no other client has the same

    @property
    def is_durable(self) -> bool:
        """What was committed survives a crash of the machine, as far as the server has said by now."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the database although it works, for people."""

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        """Run one statement in a transaction of its own; it is committed when this returns."""

    async def open_waiter_session(self, *, deadline: float) -> WaiterSession:
        """A connection that nobody else uses, new or given back."""

    def return_waiter_session(self, session: WaiterSession) -> None:
        """It is not in, and asks for nothing."""

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: drop inherited connections without a word on them."""
