"""What the server's errors, and the want of an answer, mean: translated here and nowhere else.

An ERROR is said on a connection that goes on, once the transaction was rolled back: nothing was changed. FATAL ends the
connection; what had been asked before may or may not have been committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.pq import DiagnosticField

from holdfast.errors import BackendUnavailable, ConfigurationError, HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

# Serialization failure, deadlock, lock timeout: nobody is wrong, and nothing happened.
_CONFLICTS = ("40001", "40P01", "55P03")
# No such function, table, schema: they have not been created yet, or not any more.
_TABLES_MISSING = ("42883", "42P01", "3F000")


class TransactionConflict(Exception):
    """Nothing happened, and the same statement may be given again at once. Never leaves this package."""


class TablesMissing(Exception):
    """Our tables and functions are not there. Never leaves this package."""


def error_from(result: PGresult, url: str) -> Exception:
    """What to raise for an error that the server sent."""
    code = _field(result, DiagnosticField.SQLSTATE)
    message = _field(result, DiagnosticField.MESSAGE_PRIMARY) or result.get_error_message().strip()
    problem = f"{message} ({code})" if code else message
    severity = _field(result, DiagnosticField.SEVERITY_NONLOCALIZED)
    if severity != "ERROR":  # FATAL, PANIC, or libpq's own: the connection has ended
        return OutcomeUnknown(backend=url, problem=f"the connection ended before the answer came: {problem}")
    if code in _CONFLICTS:
        return TransactionConflict(problem)
    if code in _TABLES_MISSING:
        return TablesMissing(problem)
    return _translated(code, problem, url)


def creation_error(error: HoldfastError, url: str, missing: TablesMissing | None) -> HoldfastError:
    """Say what to do if our tables could not be created, for want of a right; `missing` of those that are there."""
    if not isinstance(error, ConfigurationError):
        return error
    older = "" if missing is None else f"; the tables are of an older holdfast: {missing}"
    return ConfigurationError(
        f"{error}{older}: have somebody who may run what `holdfast init --print '{url}'` prints, then grant this user "
        f"USAGE on the schema, and SELECT, INSERT, UPDATE, DELETE on its tables holdfast_…"
    )


def pooler_error(url: str) -> ConfigurationError:
    """No session is ours alone: no place to listen, to wait at a gate, or to keep a setting or a prepared statement."""
    return ConfigurationError(
        f"{url}: a pooler between us and the server lends its connections for one transaction at a time (PgBouncer: "
        "pool_mode = transaction), and locks need sessions of their own: connect to the server itself, or to a pool in "
        "session mode"
    )


def unavailable(url: str, problem: str) -> BackendUnavailable:
    return BackendUnavailable(backend=url, problem=problem)


def outcome_unknown(url: str, problem: str) -> OutcomeUnknown:
    return OutcomeUnknown(backend=url, problem=problem)


def _translated(code: str, problem: str, url: str) -> HoldfastError:
    if code == "42501":
        return ConfigurationError(f"{url}: this user lacks a right that locks need: {problem}")
    if code in ("22021", "22P05"):
        return ConfigurationError(f"{url}: the database's encoding cannot hold this name; use one in UTF-8: {problem}")
    if code == "25006":
        problem = f"this server takes no writes: a standby, or default_transaction_read_only is on: {problem}"
    elif code == "57014":
        problem = f"the server gave up, and nothing was changed: {problem}"
    return BackendUnavailable(backend=url, problem=problem)


def _field(result: PGresult, field: DiagnosticField) -> str:
    return (result.error_field(field) or b"").decode(errors="replace")
