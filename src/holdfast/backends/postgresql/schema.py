"""The DDL: schema.sql, for one schema of the database. `holdfast init` runs or prints it."""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING

from holdfast.core.tickets import WAITER_LEASE, WOKEN_LEASE
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.url import Address

SCHEMA = "public"
# Of the tables and functions; a higher one is refused by an older holdfast. What it can live beside, such as another
# table, a column with a default or another function, is added without: who misses it creates what is missing.
VERSION = 1
NEWEST = "holdfast_marks"  # the table that was added last: where it is, all is
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


def ddl(address: Address) -> str:
    """All that has to be run, where holdfast's own user may not."""
    schema = address.options.get("schema", SCHEMA)
    create = "" if schema == SCHEMA else f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};\n\n"
    return create + tables(schema)


def tables(schema: str) -> str:
    """The tables and functions; what exists already stays as it is, or is replaced by the same."""
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
