"""Translation of the server's errors, here and nowhere else.

A statement that fails has changed nothing: each is a transaction of its own, and so is each procedure, which rolls back
its changes. The exception is a killed statement: it may have been committed just before.
"""

from __future__ import annotations

from holdfast.backends.sql_connections import TablesMissing, TransactionConflict, access_denied
from holdfast.errors import BackendUnavailable, ConfigurationError, OutcomeUnknown

GRANTS = "SELECT, INSERT, UPDATE, DELETE and EXECUTE on the database, or on its tables and procedures holdfast_…"

# Lock wait timeout, deadlock (also Galera's conflicts), record has changed, NOWAIT.
_CONFLICTS = (1205, 1213, 1020, 3572)
_TABLES_MISSING = (1146, 1305)  # no such table or procedure: not created yet, dropped, or of another version
_TABLES_OUTDATED = (1318, 1054)  # another parameter list, no such column: of another version
# Interrupted, out of time, killed, shut down, failed during commit: the outcome is unknown.
_KILLED = (1317, 1969, 3024, 1927, 1053, 1180, 1078, 1079, 4031)
# Access denied to a database, table, column, procedure, privilege.
_ACCESS_DENIED = (1044, 1142, 1143, 1227, 1370, 1419)
# --read-only, super_read_only, a read-only transaction.
_READ_ONLY = (1290, 1792, 1836)
_DISK_FULL = (3, 1021, 1114)
_NO_DATABASE = (1046, 1049)  # none selected, an unknown one


def error_from(code: int, message: str, url: str) -> Exception:
    """The exception for an error that the server sent."""
    problem = f"{message} ({code})"
    if code in _CONFLICTS:
        return TransactionConflict(problem)
    if code in _TABLES_MISSING + _TABLES_OUTDATED:
        missing = TablesMissing(problem)
        missing.is_outdated = code in _TABLES_OUTDATED
        return missing
    if code in _KILLED:
        return OutcomeUnknown(backend=url, problem=f"the statement was ended: {problem}")
    if code in _ACCESS_DENIED:
        return access_denied(url, GRANTS, problem)
    if code in _NO_DATABASE:
        return ConfigurationError(
            f"{url}: there is no such database, or none was chosen: create it, or name another: {problem}"
        )
    if code in _READ_ONLY:
        problem = f"this server takes no writes: a replica, or read_only is on: {problem}"
    elif code in _DISK_FULL:
        problem = f"the server's disk is full: {problem}"
    return BackendUnavailable(backend=url, problem=problem)
