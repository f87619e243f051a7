"""The DDL: schema.sql, for one schema of the database.

    python -m holdfast.backends.postgresql.schema [SCHEMA]

prints it, for a DBA to run where holdfast's own user may not create tables.
"""

from __future__ import annotations

import re
from importlib import resources

from holdfast.core.tickets import WAITER_LEASE, WOKEN_LEASE
from holdfast.errors import ConfigurationError

SCHEMA = "public"
VERSION = 1  # of the tables and functions
FENCE_IDLE = 3600.0  # seconds for which an unused lock's last fence is remembered; after that the clock is the floor
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def quoted(schema: str) -> str:
    """The schema's name in SQL.

    Raises:
        ConfigurationError: not a name that a schema can have.
    """
    if not _NAME.fullmatch(schema):
        raise ConfigurationError(f"schema must be a name of letters, digits and _, at most 63, not {schema!r}")
    return f'"{schema}"'


def ddl(schema: str) -> str:
    """All of it; what exists already stays as it is, or is replaced by the same."""
    values = {
        "schema": quoted(schema),
        "version": VERSION,
        "waiter_lease": _us(WAITER_LEASE),
        "woken_lease": _us(WOKEN_LEASE),
        "fence_idle": _us(FENCE_IDLE),
    }
    text = resources.files(__package__).joinpath("schema.sql").read_text()
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


if __name__ == "__main__":
    import sys

    sys.stdout.write(ddl(*(sys.argv[1:2] or [SCHEMA])))
