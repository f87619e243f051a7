"""Hazard: code of a role that may create objects in the schema of the locks runs with the rights of a client."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from psycopg import sql

import holdfast
from holdfast import ConfigurationError
from holdfast import url as urls
from holdfast.backends.postgresql.io.blocking import create_tables
from holdfast.backends.postgresql.sql import tables_ddl
from tests.integration.conftest import OpenClient
from tests.support.postgresql.servers import Server


class OpenSchema:
    """A schema in which every role may create objects, and a role that does."""

    def __init__(self, server: Server, url: str) -> None:
        self._server = server
        self.schema, self.role = parse_qs(urlsplit(url).query)["schema"][0], f"mallory_{uuid.uuid4().hex[:8]}"
        self.do("CREATE SCHEMA {schema}")
        self.do("CREATE ROLE {role} LOGIN")
        self.do("GRANT USAGE, CREATE ON SCHEMA {schema} TO PUBLIC")

    def do(self, statement: str, *, as_role: bool = False) -> list[tuple[object, ...]]:
        names = {"schema": sql.Identifier(self.schema), "role": sql.Identifier(self.role)}
        with self._server.connect() as connection:
            if as_role:
                connection.execute(sql.SQL("SET SESSION AUTHORIZATION {role}").format(**names))
            cursor = connection.execute(sql.SQL(statement).format(**names))
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def open_schema(server: Server, url: str) -> Iterator[OpenSchema]:
    made = OpenSchema(server, url)
    yield made
    made.do("DROP OWNED BY {role}; DROP ROLE {role}")


def use_everything(client: holdfast.Client) -> None:
    with client.lock("a", timeout=0) as lease:
        lease.renew()
    with client.semaphore("p", 1, timeout=0):
        assert client.semaphore("p", 1).acquire(timeout=0.01) is None
    with client.rwlock("r", timeout=0).read(), client.semaphore("s", 2, timeout=0), client.lock("o", owner="job"):
        client.locks()
    with client.lock_all(["x", "y"], timeout=0):
        pass
    client.once_per("1h", name="nightly")(len)("x")


def test_functions_of_another_role_are_not_run(url: str, open_schema: OpenSchema, open_client: OpenClient) -> None:
    """The role has created our tables first, and changed one of our functions."""
    open_schema.do(tables_ddl(open_schema.schema).replace("{", "{{").replace("}", "}}"), as_role=True)
    open_schema.do("GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO PUBLIC", as_role=True)
    open_schema.do(
        "CREATE OR REPLACE FUNCTION {schema}.holdfast_clock() RETURNS bigint LANGUAGE sql AS $$ SELECT 1::bigint $$",
        as_role=True,
    )

    refused = f"belongs to the role {open_schema.role}"
    with pytest.raises(ConfigurationError, match=refused):
        open_client(url).lock("a").acquire(timeout=0)
    with pytest.raises(ConfigurationError, match=refused):
        create_tables(urls.parse(url))


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE {schema}.holdfast_locks (name text)",
        "CREATE VIEW {schema}.holdfast_schema AS SELECT 2 AS version",
        "CREATE FUNCTION {schema}.holdfast_renew(text, text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    ],
)
def test_a_holdfast_object_of_an_untrusted_role_is_refused(
    url: str, open_schema: OpenSchema, open_client: OpenClient, statement: str
) -> None:
    open_schema.do(statement, as_role=True)

    with pytest.raises(ConfigurationError, match=f"belongs to the role {open_schema.role}"):
        open_client(url).lock("a").acquire(timeout=0)


def test_a_role_with_an_explicit_create_grant_is_trusted(
    url: str, open_schema: OpenSchema, open_client: OpenClient
) -> None:
    open_schema.do("GRANT CREATE ON SCHEMA {schema} TO {role}")
    open_schema.do(tables_ddl(open_schema.schema).replace("{", "{{").replace("}", "}}"), as_role=True)

    use_everything(open_client(url))


TRAPS = """
    CREATE TABLE {schema}.sprung (by text);
    GRANT INSERT ON {schema}.sprung TO PUBLIC;
    CREATE FUNCTION {schema}.band(bigint, integer) RETURNS bigint LANGUAGE plpgsql AS
        $$BEGIN INSERT INTO {schema}.sprung VALUES ('&'); RETURN 1; END$$;
    CREATE OPERATOR {schema}.& (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = {schema}.band);
    CREATE FUNCTION {schema}.times(numeric, integer) RETURNS numeric LANGUAGE plpgsql AS
        $$BEGIN INSERT INTO {schema}.sprung VALUES ('*'); RETURN 1; END$$;
    CREATE OPERATOR {schema}.* (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = {schema}.times);
    CREATE FUNCTION {schema}.over(bigint, numeric) RETURNS double precision LANGUAGE plpgsql AS
        $$BEGIN INSERT INTO {schema}.sprung VALUES ('/'); RETURN 1; END$$;
    CREATE OPERATOR {schema}./ (LEFTARG = bigint, RIGHTARG = numeric, FUNCTION = {schema}.over);
    CREATE FUNCTION {schema}.set_config(text, text, boolean) RETURNS text LANGUAGE plpgsql AS
        $$BEGIN INSERT INTO {schema}.sprung VALUES ('set_config'); RETURN ''; END$$;
    CREATE FUNCTION {schema}.starts_with(name, text) RETURNS boolean LANGUAGE plpgsql AS
        $$BEGIN INSERT INTO {schema}.sprung VALUES ('starts_with'); RETURN true; END$$
"""


def test_operators_and_functions_of_another_role_in_the_search_path_are_not_run(
    server: Server, url: str, open_schema: OpenSchema, open_client: OpenClient
) -> None:
    open_schema.do(TRAPS, as_role=True)
    user = f"user_{uuid.uuid4().hex[:8]}"
    open_schema.do(f"CREATE ROLE {user} LOGIN SUPERUSER; ALTER ROLE {user} SET search_path = {{schema}}, pg_catalog")

    use_everything(open_client(server.url_of(user, schema=open_schema.schema)))
    client = open_client(url)
    use_everything(client)

    assert open_schema.do("SELECT * FROM {schema}.sprung") == []
    assert "every role of the database may create objects" in client.warnings[0]


def test_every_function_has_a_search_path_of_its_own(server: Server, url: str, open_schema: OpenSchema) -> None:
    create_tables(urls.parse(url))

    functions = server.rows(
        "SELECT proname FROM pg_proc WHERE pronamespace = %(schema)s::regnamespace "
        "AND proconfig IS DISTINCT FROM ARRAY['search_path=pg_catalog, pg_temp']",
        {"schema": open_schema.schema},
    )

    assert functions == [("holdfast_clock",)], "it is inlined, and its operator is qualified instead"
