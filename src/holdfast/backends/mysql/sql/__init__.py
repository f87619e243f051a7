"""The DDL, for one database: schema.sql."""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING

from holdfast.backends.mysql.protocol.values import us
from holdfast.core.tickets import POLL_INTERVAL_BEHIND, WAITER_LEASE, WOKEN_LEASE
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.url import Address

VERSION = 2  # of the tables and procedures: what programs have to agree on that use the same ones
FENCE_IDLE = 3600.0  # seconds for which an unused lock's last fence is remembered; after that the clock is the floor
REAP_EVERY = 256  # locks that are new, on average, until somebody looks for rows of locks that nobody uses
REAP_ROWS = 4 * REAP_EVERY  # and looks at so many: more than were added since
# Nobody tells a waiter that it is its turn. One far behind may find out as late as this, should all ahead of it leave.
WOKEN = POLL_INTERVAL_BEHIND + WOKEN_LEASE

# The server's clock. UTC_TIMESTAMP knows no time zones and no daylight saving.
NOW = "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))"

_DATABASE = re.compile(r"[^\0`/\\.]{1,64}")


def database_of(address: Address) -> str:
    """The database that an address names.

    Raises:
        ConfigurationError: it names none, or not one.
    """
    database = address.path.removeprefix("/")
    if not _DATABASE.fullmatch(database):
        raise ConfigurationError(
            f"url must name the database that the locks are in, {address.scheme}://host/database, not {database!r}"
        )
    return database


def ddl(address: Address) -> str:
    """What `mysql < file` or `mariadb < file` runs; what exists already stays as it is, or is replaced by the same."""
    return f"USE `{database_of(address)}`;\n\n{_text()}"


def statements() -> list[str]:
    """The same, one by one, for a connection that has chosen its database."""
    found: list[str] = []
    delimiter = ";"
    connections: list[str] = []
    for line in _text().splitlines():
        if line.startswith("DELIMITER "):
            delimiter = line.removeprefix("DELIMITER ")
        elif line.endswith(delimiter):
            found.append("\n".join([*connections, line.removesuffix(delimiter)]).strip())
            connections = []
        else:
            connections.append(line)
    return found


def _text() -> str:
    values = {
        "version": VERSION,
        "now": NOW,
        "waiter_lease": us(WAITER_LEASE),
        "woken_lease": us(WOKEN),
        "fence_idle": us(FENCE_IDLE),
        "reap_rows": REAP_ROWS,
    }
    text = resources.files(__package__).joinpath("schema.sql").read_text()
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text
