"""Guards for rows of a database: the fence is checked in the transaction that writes.

    guard = PostgreSQLGuard()                       # or MySQLGuard(), SQLiteGuard()
    guard.create(cursor)                            # once; or hand guard.ddl to a DBA

    with client.lock("stock") as lease, connection.transaction():
        guard.check(cursor, "stock", lease.fence)   # first, before anything is read
        cursor.execute("UPDATE stock SET …")

`check` stores a greater fence with one statement, which locks that row until the caller's transaction ends. So two
writers run one after the other, and the later one sees the fence of the earlier one, unless that was rolled back
together with its writes.

Call `check` first. The row lock serialises what follows it, not what came before: a value that was read earlier may be
old. READ COMMITTED reads the newest rows with every statement. Under REPEATABLE READ and SERIALIZABLE, PostgreSQL ends
a transaction whose snapshot is older than the row with a serialization failure; the caller gets the driver's own
error, and can retry. MySQL does not: its statements that write see the newest rows, but its plain SELECT reads the
snapshot of the transaction's first SELECT. With `check` first, that snapshot is taken under the row lock; START
TRANSACTION WITH CONSISTENT SNAPSHOT would take it too early. SQLite has one writer at a time, and refuses a write in a
transaction that has read older data (SQLITE_BUSY).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from holdfast.errors import ConfigurationError, StaleFence, UsageError
from holdfast.fencing.values import check_fence, check_identifier, check_resource, refuse_stale

TABLE = "holdfast_fences"
_PLACEHOLDERS = {"format": "%s", "pyformat": "%s", "qmark": "?"}
IDLE = 0  # libpq's PQTRANS_IDLE
IN_TRANSACTION = 1  # MySQL's SERVER_STATUS_IN_TRANS
_FOUND_ROWS = 2  # MySQL's CLIENT_FOUND_ROWS


class FenceColumn(NamedTuple):
    """The SQL for a fence in the row itself, see `SqlGuard.column`."""

    assignment: str
    condition: str


class SqlGuard:
    """The base of the three guards. `paramstyle` has the driver's value: "format" and "pyformat" (%s), or "qmark" (?).

    A guard has no connection and no state, so it may be shared by threads and tasks.
    """

    ddl: str
    """The statement that creates the table, for a DBA; it may be run again."""

    keep_open: ClassVar[str] = ""
    """The statement that turns off the server's time limits for idle transactions, for its transaction or session."""

    _DDL: ClassVar[str]
    # In PostgreSQL the row is locked even if the condition is false (manual, INSERT, "ON CONFLICT Clause"), so the
    # fence that is read after a refusal is the one that refused it.
    _STORE: ClassVar[str] = (
        "INSERT INTO {table} AS seen (resource, fence) VALUES ({mark}, {mark}) ON CONFLICT (resource) "
        "DO UPDATE SET fence = excluded.fence WHERE seen.fence <= excluded.fence"
    )
    _READ: ClassVar[str] = "SELECT fence FROM {table} WHERE resource = {mark}"
    _paramstyle: ClassVar[str]

    def __init__(self, *, table: str = TABLE, paramstyle: str | None = None) -> None:
        style = self._paramstyle if paramstyle is None else paramstyle
        if style not in _PLACEHOLDERS:
            raise ConfigurationError(f"paramstyle must be one of {', '.join(_PLACEHOLDERS)}, not {style!r}")
        check_identifier("table", table)
        self._mark = _PLACEHOLDERS[style]
        self.ddl = self._DDL.format(table=table)
        self._store = self._STORE.format(table=table, mark=self._mark)
        self._read = self._READ.format(table=table, mark=self._mark)

    def create(self, cursor: Any) -> None:
        """Create the table if it does not exist. MySQL commits the current transaction then: do it at deployment."""
        cursor.execute(self.ddl)

    def check(self, cursor: Any, resource: str, fence: int) -> None:
        """Allow this fence to write to the resource until the transaction ends, and refuse smaller fences from then on.

        Waits while another transaction that has passed the check is open. An error of the database (lock wait timeout,
        deadlock, serialization failure) is raised as the driver's own error.

        Raises:
            StaleFence: the resource has seen a newer fence. Roll back.
            UsageError: the connection is in autocommit mode, so the row lock would end before the write.
        """
        values = self._values(resource, fence)
        cursor.execute(self._store, values)
        if not self._has_passed(cursor):
            cursor.execute(self._read, values[:1])
            self._refuse(resource, fence, cursor.fetchone())
        self._require_transaction(cursor)

    async def check_async(self, cursor: Any, resource: str, fence: int) -> None:
        """The same for a cursor whose methods are awaited, such as psycopg's AsyncCursor."""
        values = self._values(resource, fence)
        await cursor.execute(self._store, values)
        if not self._has_passed(cursor):
            await cursor.execute(self._read, values[:1])
            self._refuse(resource, fence, await cursor.fetchone())
        self._require_transaction(cursor)

    def column(self, column: str = "fence") -> FenceColumn:
        """The SQL for an UPDATE of a row that has a column for its fence, without another table or statement.

            fenced = guard.column("fence")
            cursor.execute(
                f"UPDATE orders SET state = %s, {fenced.assignment} WHERE id = %s AND {fenced.condition}",
                (state, lease.fence, order, lease.fence),
            )
            guard.check_updated(cursor, "order:42", lease.fence)

        Each text has one placeholder, for the fence. A row whose fence is NULL was not written with a fence yet. An
        INSERT or a DELETE leaves no row that could refuse a stale fence: keep the row, or use `check`.
        """
        check_identifier("column", column)
        return FenceColumn(f"{column} = {self._mark}", f"({column} IS NULL OR {column} <= {self._mark})")

    def check_updated(self, cursor: Any, resource: str, fence: int) -> None:
        """Check by the cursor's rowcount that such an UPDATE has found its row.

        Raises:
            StaleFence: it changed nothing: the row has a newer fence, or does not exist.
            UsageError: the cursor's rowcount cannot show that.
        """
        check_resource(resource)
        check_fence(fence)
        self._require_rowcount(cursor)
        if cursor.rowcount < 0:
            raise UsageError("the cursor has no rowcount: check_updated belongs right after the execute of one UPDATE")
        if cursor.rowcount == 0:
            raise StaleFence(resource=resource, fence=fence, newest=None)

    def _values(self, resource: str, fence: int) -> tuple[Any, ...]:
        # As bytes, which no collation folds or pads, and which may contain NUL.
        return check_resource(resource).encode(), check_fence(fence)

    def _has_passed(self, cursor: Any) -> bool:
        """Whether the result of the statement that stores the fence shows that the check has passed."""
        return bool(cursor.rowcount == 1)

    def _refuse(self, resource: str, fence: int, row: Any) -> None:
        newest = row["fence"] if isinstance(row, Mapping) else row[0]
        refuse_stale(resource, fence, int(newest))

    def _require_transaction(self, cursor: Any) -> None:
        if self._is_outside_of_transactions(cursor):
            raise UsageError(
                "the fence was checked outside of a transaction, so nothing keeps another writer out until the write: "
                "begin a transaction, or turn autocommit off"
            )

    def _is_outside_of_transactions(self, cursor: Any) -> bool:
        raise NotImplementedError  # in each subclass

    def _require_rowcount(self, cursor: Any) -> None:
        """Raise if the driver does not count the rows that an UPDATE found. Most do."""


class PostgreSQLGuard(SqlGuard):
    """For PostgreSQL, with psycopg (also its AsyncCursor) or psycopg2."""

    # transaction_timeout exists since PostgreSQL 17; a SET would fail on older servers.
    keep_open = (
        "SELECT set_config(name, '0', true) FROM pg_settings "
        "WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')"
    )
    _paramstyle = "format"
    _DDL = "CREATE TABLE IF NOT EXISTS {table} (resource bytea PRIMARY KEY, fence bigint NOT NULL)"

    def _is_outside_of_transactions(self, cursor: Any) -> bool:
        return bool(cursor.connection.info.transaction_status == IDLE)


class MySQLGuard(SqlGuard):
    """For MySQL and MariaDB, with PyMySQL, mysqlclient or a compatible driver.

    With mysqlclient, `check` refuses connections in autocommit mode, also after BEGIN: turn autocommit off.
    """

    # Only MariaDB has the variables in the second half, which MySQL ignores as a comment. A year is the maximum.
    keep_open = (
        "SET SESSION wait_timeout = 31536000 /*M!100300 , idle_transaction_timeout = 0, "
        "idle_write_transaction_timeout = 0, idle_readonly_transaction_timeout = 0 */"
    )
    _paramstyle = "format"
    _DDL = (
        "CREATE TABLE IF NOT EXISTS {table} (resource VARBINARY(2048) PRIMARY KEY, fence BIGINT NOT NULL) ENGINE=InnoDB"
    )
    _STORE = (
        "INSERT INTO {table} (resource, fence) VALUES ({mark}, {mark}) "
        "ON DUPLICATE KEY UPDATE fence = GREATEST(fence, {mark})"
    )
    # FOR UPDATE reads the newest row, which this transaction has locked; a plain SELECT would read its snapshot.
    _READ = "SELECT fence FROM {table} WHERE resource = {mark} FOR UPDATE"

    def _values(self, resource: str, fence: int) -> tuple[Any, ...]:
        return (*super()._values(resource, fence), fence)

    def _has_passed(self, cursor: Any) -> bool:
        # An equal fence and a stale one both change nothing; whether that counts as a row depends on the connection.
        return False

    def _is_outside_of_transactions(self, cursor: Any) -> bool:
        status = getattr(cursor.connection, "server_status", None)  # of PyMySQL
        if status is not None:
            return not status & IN_TRANSACTION
        # mysqlclient shows only the mode. In autocommit mode it also hides a transaction that was begun by a statement.
        get_autocommit = getattr(cursor.connection, "get_autocommit", None)
        return get_autocommit is not None and bool(get_autocommit())

    def _require_rowcount(self, cursor: Any) -> None:
        # Without this flag, a row that was found but already had these values is not counted.
        flags = getattr(cursor.connection, "client_flag", None)
        if flags is not None and not flags & _FOUND_ROWS:
            raise UsageError(
                "MySQL counts only rows that changed, so an UPDATE that repeats itself would look refused: "
                "connect with client_flag=pymysql.constants.CLIENT.FOUND_ROWS"
            )


class SQLiteGuard(SqlGuard):
    """For SQLite, with sqlite3."""

    _paramstyle = "qmark"
    _DDL = "CREATE TABLE IF NOT EXISTS {table} (resource BLOB PRIMARY KEY NOT NULL, fence INTEGER NOT NULL)"

    def _is_outside_of_transactions(self, cursor: Any) -> bool:
        return getattr(cursor.connection, "in_transaction", None) is False
