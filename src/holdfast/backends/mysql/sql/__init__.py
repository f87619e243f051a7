"""The DDL, for one database: schema.sql."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING

from holdfast.backends.sql_protocol import schema_sql, us
from holdfast.core.tickets import POLL_INTERVAL_BEHIND, WAITER_LEASE, WOKEN_LEASE
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.url import Address

# The version of the tables and procedures: all programs that share them must agree on it. Additions that an older
# holdfast can ignore (a table, a procedure) need no new version: a client that misses one creates it.
VERSION = 2
FENCE_IDLE = 3600.0  # seconds for which the last fence of an unused lock is kept; after that the clock is the floor
REAP_EVERY = 256  # new locks, on average, after which a client removes rows of unused locks
REAP_ROWS = 4 * REAP_EVERY  # rows that it examines: more than were added since
# Seconds that a woken waiter lives without a poll. Waiters get no notification, so a waiter far behind may poll only
# after POLL_INTERVAL_BEHIND.
WOKEN = POLL_INTERVAL_BEHIND + WOKEN_LEASE

# The server's clock. UTC_TIMESTAMP has no time zone and no daylight saving time.
NOW = "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))"

AGENT_MAX = 255  # characters of the column `agent`
_OBJECT = re.compile(r"^(?:CREATE TABLE IF NOT EXISTS|CREATE PROCEDURE|DROP PROCEDURE IF EXISTS) (\w+)", re.MULTILINE)
_DATABASE = re.compile(r"[^\0`/\\.]{1,64}")


def database_of(address: Address) -> str:
    """The database that an address names.

    Raises:
        ConfigurationError: it names none, or the name is invalid.
    """
    database = address.path.removeprefix("/")
    if not _DATABASE.fullmatch(database):
        raise ConfigurationError(
            f"url must name the database that the locks are in, {address.scheme}://host/database, not {database!r}"
        )
    return database


def lock_id(name: str) -> bytes:
    """The primary key of a name in the tables."""
    return sha256(name.encode()).digest()


def ddl(address: Address) -> str:
    """The DDL, as input for `mysql` or `mariadb`. An existing table stays; a procedure is replaced by the same."""
    return f"USE `{database_of(address)}`;\n\n{_text()}"


def statements() -> list[tuple[str, str]]:
    """The statements of the DDL, each with the name of the table or procedure that it creates or drops, or ""."""
    parsed: list[tuple[str, str]] = []
    delimiter = ";"
    lines: list[str] = []
    for line in _text().splitlines():
        if line.startswith("DELIMITER "):
            delimiter = line.removeprefix("DELIMITER ")
        elif line.endswith(delimiter):
            sql = "\n".join([*lines, line.removesuffix(delimiter)]).strip()
            match = _OBJECT.search(sql)
            parsed.append((match[1] if match else "", sql))
            lines = []
        else:
            lines.append(line)
    return parsed


def _text() -> str:
    return schema_sql(
        __name__,
        version=VERSION,
        now=NOW,
        waiter_lease=us(WAITER_LEASE),
        woken_lease=us(WOKEN),
        fence_idle=us(FENCE_IDLE),
        reap_rows=REAP_ROWS,
    )
