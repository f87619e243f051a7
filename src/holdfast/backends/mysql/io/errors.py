"""What the server's errors, and the want of an answer, mean: translated here and nowhere else.

A statement that fails has changed nothing: each is a transaction of its own, and so is each procedure, which rolls back
what it did. The exception is one that was killed: it may have been committed just before.
"""

from __future__ import annotations

from holdfast.errors import BackendUnavailable, ConfigurationError, HoldfastError, OutcomeUnknown

# Lock wait timeout, deadlock (Galera's conflicts too), the row has changed, NOWAIT: nobody is wrong; nothing happened.
_CONFLICTS = (1205, 1213, 1020, 3572)
# No such table, no such procedure, or with other parameters: not created yet, or not any more, or of another version.
_TABLES_MISSING = (1146, 1305, 1318, 1054)
# Interrupted, out of time, killed, shut down, failed while committing: who knows how far it got.
_KILLED = (1317, 1969, 3024, 1927, 1053, 1180, 1078, 1079, 4031)
# Access denied to a database, table, column, procedure, privilege.
_ACCESS_DENIED = (1044, 1142, 1143, 1227, 1370, 1419)
# --read-only, super_read_only, a read-only transaction.
_READ_ONLY = (1290, 1792, 1836)
_FULL = (3, 1021, 1114)
_NO_DATABASE = (1046, 1049)  # none chosen, an unknown one


class TransactionConflict(Exception):
    """Nothing happened, and the same request may be given again at once. Never leaves this package."""


class TablesMissing(Exception):
    """Our tables and procedures are not there. Never leaves this package."""


def error_from(code: int, message: str, url: str) -> Exception:
    """What to raise for an error that the server sent."""
    problem = f"{message} ({code})"
    if code in _CONFLICTS:
        return TransactionConflict(problem)
    if code in _TABLES_MISSING:
        return TablesMissing(problem)
    if code in _KILLED:
        return OutcomeUnknown(backend=url, problem=f"the statement was ended: {problem}")
    if code in _ACCESS_DENIED:
        return ConfigurationError(f"{url}: this user lacks a right that locks need: {problem}")
    if code in _NO_DATABASE:
        return ConfigurationError(
            f"{url}: there is no such database, or none was chosen: create it, or name another: {problem}"
        )
    if code in _READ_ONLY:
        problem = f"this server takes no writes: a replica, or read_only is on: {problem}"
    elif code in _FULL:
        problem = f"the server's disk is full: {problem}"
    return BackendUnavailable(backend=url, problem=problem)


def creation_error(error: HoldfastError, url: str) -> HoldfastError:
    """Say what to do if our tables, or what older ones lack, could not be created or used, for want of a right."""
    if not isinstance(error, ConfigurationError):
        return error
    return ConfigurationError(
        f"{error}: have somebody who may run what `holdfast init --print '{url}'` prints, then grant this user SELECT, "
        "INSERT, UPDATE, DELETE and EXECUTE on the database, or on its tables and procedures holdfast_…"
    )


def unavailable(url: str, problem: str) -> BackendUnavailable:
    return BackendUnavailable(backend=url, problem=problem)


def outcome_unknown(url: str, problem: str) -> OutcomeUnknown:
    return OutcomeUnknown(backend=url, problem=problem)
