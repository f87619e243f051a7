"""Translation of the server's errors, here and nowhere else.

After an ERROR the connection stays open and the transaction is rolled back: nothing was changed. FATAL ends the
connection; the transaction may or may not have been committed before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.pq import DiagnosticField

from holdfast.backends.sql_connections import TablesMissing, TransactionConflict, access_denied
from holdfast.errors import BackendUnavailable, ConfigurationError, HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

GRANTS = "USAGE on the schema, and SELECT, INSERT, UPDATE, DELETE on its tables holdfast_…"
_CONFLICTS = ("40001", "40P01", "55P03")  # serialization failure, deadlock, lock timeout
# PgBouncer's messages for a request that waits for a server: none is free in time, or none accepts the login.
_NOT_SENT_BY_POOLER = ("query_wait_timeout", "server login has been failing", "pgbouncer cannot connect to server")
_TABLES_MISSING = ("42883", "42P01", "3F000")  # no such function, table, schema


def error_from(result: PGresult, url: str) -> Exception:
    """The exception for an error that the server sent."""
    code = _field(result, DiagnosticField.SQLSTATE)
    message = _field(result, DiagnosticField.MESSAGE_PRIMARY) or result.get_error_message().strip()
    problem = f"{message} ({code})" if code else message
    severity = _field(result, DiagnosticField.SEVERITY_NONLOCALIZED)
    if was_not_executed(result):
        return BackendUnavailable(backend=url, problem=f"the pooler has not sent the request to a server: {problem}")
    if severity != "ERROR":  # FATAL, PANIC, or libpq's own: the connection has ended
        return OutcomeUnknown(backend=url, problem=f"the connection ended before the answer came: {problem}")
    if code in _CONFLICTS:
        return TransactionConflict(problem)
    if code in _TABLES_MISSING:
        return TablesMissing(problem)
    return _translated(code, problem, url)


def was_not_executed(result: PGresult) -> bool:
    """Whether PgBouncer has refused the request before it had a server for it. It then closes the connection.

    PostgreSQL sends the field SEVERITY_NONLOCALIZED with every error, and PgBouncer does not.
    """
    if _field(result, DiagnosticField.SEVERITY_NONLOCALIZED):
        return False
    return _field(result, DiagnosticField.MESSAGE_PRIMARY).startswith(_NOT_SENT_BY_POOLER)


def pooler_error(url: str) -> ConfigurationError:
    """The error for a transaction pooler: it has no session to LISTEN, wait, or keep settings or statements in."""
    return ConfigurationError(
        f"{url}: a pooler between us and the server lends its connections for one transaction at a time (PgBouncer: "
        "pool_mode = transaction): add the option pooler=transaction, with which locks need no session of their own; "
        "or connect to the server itself, or to a pool in session mode"
    )


def _translated(code: str, problem: str, url: str) -> HoldfastError:
    if code == "42501":
        return access_denied(url, GRANTS, problem)
    if code in ("22021", "22P05"):
        return ConfigurationError(f"{url}: the database's encoding cannot hold this name; use one in UTF-8: {problem}")
    if code == "25006" or (code == "0A000" and "read-write mode" in problem):  # the latter: READ WRITE on a standby
        problem = f"this server takes no writes: a standby, or default_transaction_read_only is on: {problem}"
    elif code == "57014":
        problem = f"the server canceled the statement, and nothing was changed: {problem}"
    return BackendUnavailable(backend=url, problem=problem)


def _field(result: PGresult, field: DiagnosticField) -> str:
    return (result.error_field(field) or b"").decode(errors="replace")
