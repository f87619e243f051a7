"""Hazard: the documented grants are more than locks need. Each is revoked in turn, and then some step is refused."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator

import psycopg
import pymysql
import pytest

import holdfast
from holdfast.url import parse
from tests.integration.conftest import OpenClient
from tests.support.mysql import shared as mysql
from tests.support.permissions import use_everything
from tests.support.postgresql import shared as postgresql

GRANT = re.compile(r"GRANT (?P<rights>.*) ON (?P<objects>.*) TO (?P<user>.*);")


def single_rights(grants: list[str]) -> Iterator[tuple[str, str, str]]:
    """Each right on each table, procedure or schema, and the user."""
    for grant in grants:
        match = GRANT.fullmatch(grant)
        assert match is not None, grant
        for right in match["rights"].split(", "):
            for item in match["objects"].split(", "):
                yield right, item, match["user"]


def test_each_grant_on_postgresql_is_needed() -> None:
    url = postgresql.restricted_url()
    schema = parse(url).options["schema"]

    def use() -> None:
        use_everything(url, uuid.uuid4().hex)
        # These run for one new lock, register or record of 256, and remove old rows.
        with psycopg.connect(postgresql.server().url_of("app")) as connection:
            for name in ("reap", "reap_marks", "reap_records"):
                connection.execute(f"SELECT {schema}.holdfast_{name}(1)".encode())

    use()

    needless = []
    for right, item, user in single_rights(postgresql.grants_on(schema)[1:]):
        postgresql.server().rows(f"REVOKE {right} ON {item} FROM {user}".encode())
        try:
            use()
        except (holdfast.AccessDenied, psycopg.errors.InsufficientPrivilege):
            pass
        else:
            needless.append(f"{right} ON {item}")
        postgresql.server().rows(f"GRANT {right} ON {item} TO {user}".encode())
    assert not needless, needless


@pytest.mark.parametrize("method", ["unique", "row", "version"])
def test_each_grant_on_mysql_is_needed(method: str) -> None:
    url = mysql.restricted_url(method=method)
    server, database = mysql.server(), parse(url).path.removeprefix("/")

    def use() -> None:
        use_everything(url, uuid.uuid4().hex)
        # These run for one new lock, register or record of 256, and remove old rows.
        with (
            contextlib.closing(server.connect(database, "app", password="secret")) as connection,  # noqa: S106
            connection.cursor() as cursor,
        ):
            cursor.execute("CALL holdfast_reap('')")
            for table in ("locks", "marks", "gates") if method == "row" else ("locks", "marks"):
                cursor.execute(f"DELETE FROM holdfast_{table} WHERE id = ''")  # noqa: S608  (our own names)

    use()

    needless = []
    for right, item, user in single_rights(mysql.grants_on(database, method)):
        server.run(f"REVOKE {right} ON {item} FROM {user}")
        try:
            use()
        except (holdfast.AccessDenied, pymysql.err.OperationalError):
            pass
        else:
            needless.append(f"{right} ON {item}")
        server.run(f"GRANT {right} ON {item} TO {user}")
    assert not needless, needless


def test_the_documented_rights_are_enough_to_create_the_tables(open_client: OpenClient) -> None:
    role = f"creator_{uuid.uuid4().hex[:8]}"
    schema = postgresql.fresh_url().partition("schema=")[2]
    for sql in (
        f"CREATE ROLE {role} LOGIN",
        f"CREATE SCHEMA {schema}",
        f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}",
    ):
        postgresql.server().rows(sql.encode())
    database = mysql.fresh_database()
    rights = "SELECT, INSERT, UPDATE, DELETE, EXECUTE, CREATE, CREATE ROUTINE, ALTER ROUTINE"
    mysql.server().run(f"CREATE USER {role}@'%'", f"GRANT {rights} ON {database}.* TO {role}@'%'")

    for url in (
        postgresql.server().url_of(role, schema=schema),
        mysql.server().url_of(database, user=role, tls="no"),
    ):
        with open_client(url).lock("a", timeout=30):
            pass
