"""The DDL: schema.sql, for one schema of the database. `holdfast init` runs it or prints it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.backends.sql_protocol import schema_sql, us
from holdfast.core.tickets import WAITER_LEASE, WOKEN_LEASE
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.url import Address

SCHEMA = "public"
# The version of the tables and functions. An older holdfast refuses tables of a higher version. Additions that it can
# ignore (a table, a column with a default, a function) need no new version: a client that misses one creates it.
VERSION = 2
NEWEST_TABLE = "holdfast_records"  # the table that was added last: if it exists, all tables do
FENCE_IDLE = 3600.0  # seconds for which the last fence of an unused lock is kept; after that the clock is the floor
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def quoted(schema: str) -> str:
    """The schema's name in SQL.

    Raises:
        ConfigurationError: a schema cannot have this name.
    """
    if not _NAME.fullmatch(schema):
        raise ConfigurationError(f"schema must be a name of letters, digits and _, at most 63, not {schema!r}")
    return f'"{schema}"'


def ddl(address: Address) -> str:
    """All DDL, for an administrator to run if holdfast's own user lacks the right."""
    schema = address.options.get("schema", SCHEMA)
    create = "" if schema == SCHEMA else f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};\n\n"
    search = "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false);\n\n"
    return create + search + tables_ddl(schema)


def tables_ddl(schema: str) -> str:
    """The DDL of the tables and functions. An existing table stays; an existing function is replaced by the same.

    It is for a session or transaction with the search_path of our own.
    """
    return schema_sql(
        __name__,
        schema=quoted(schema),
        version=VERSION,
        waiter_lease=us(WAITER_LEASE),
        woken_lease=us(WOKEN_LEASE),
        fence_idle=us(FENCE_IDLE),
    )


def ownership_query(schema: str) -> str:
    """The query for roles that could run code with our rights: a client executes what the owners of our objects wrote.

    It returns one row: whether holdfast_schema exists; whether every role may create objects in the schema; then one
    object of ours with an owner that is not trusted, and that owner, or NULL. Trusted owners are the current user,
    superusers, the owners of the database and of the schema, and roles with an explicit CREATE grant on the schema.
    """
    return f"""
    WITH namespace AS (
        SELECT n.oid, n.nspowner, coalesce(n.nspacl, acldefault('n', n.nspowner)) AS acl
        FROM pg_namespace n WHERE n.nspname = '{schema}'
    ),
    creators AS (
        SELECT a.grantee FROM namespace, aclexplode(namespace.acl) AS a WHERE a.privilege_type = 'CREATE'
    ),
    ours AS (
        SELECT c.oid, c.relname AS name, c.relowner AS owner
        FROM pg_class c JOIN namespace ON namespace.oid = c.relnamespace
        WHERE starts_with(c.relname, 'holdfast_')
    ),
    objects AS (
        SELECT 'table ' || ours.name AS what, ours.owner FROM ours
        UNION ALL
        SELECT 'function ' || f.proname, f.proowner FROM pg_proc f JOIN namespace ON namespace.oid = f.pronamespace
        WHERE starts_with(f.proname, 'holdfast_')
        UNION ALL
        SELECT 'trigger ' || t.tgname, f.proowner FROM pg_trigger t JOIN ours ON ours.oid = t.tgrelid
        JOIN pg_proc f ON f.oid = t.tgfoid WHERE NOT t.tgisinternal
    ),
    untrusted AS (
        SELECT o.what, r.rolname
        FROM objects o JOIN pg_roles r ON r.oid = o.owner, namespace p, pg_database d, pg_roles me
        WHERE d.datname = current_database() AND me.rolname = current_user
        AND NOT (
            r.rolsuper OR r.oid = me.oid OR r.oid = d.datdba OR pg_has_role(r.oid, p.nspowner, 'USAGE')
            OR NOT me.rolsuper AND pg_has_role(r.oid, 'USAGE')
            OR EXISTS (SELECT 1 FROM creators c WHERE c.grantee <> 0 AND pg_has_role(r.oid, c.grantee, 'USAGE'))
        )
        ORDER BY 1 LIMIT 1
    )
    SELECT
        EXISTS (SELECT 1 FROM ours WHERE ours.name = 'holdfast_schema'),
        EXISTS (SELECT 1 FROM creators c WHERE c.grantee = 0), s.what, s.rolname
    FROM (SELECT 1) AS one LEFT JOIN untrusted s ON true
    """  # noqa: S608  (`quoted` has checked the name of the schema)
