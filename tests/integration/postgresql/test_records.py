"""Hazard: tables of an older holdfast have no records; expired records stay; two transactions replace one record."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from psycopg import sql

from holdfast import ConfigurationError
from holdfast import url as urls
from holdfast.backends.postgresql.io.blocking import create_tables
from holdfast.backends.postgresql.sql import tables_ddl
from holdfast.core.ports import Record, StoreMissing
from holdfast_lab.conformance.lab import Store
from holdfast_lab.conformance.verbs import Verbs
from tests.support.postgresql.servers import Server
from tests.support.processes import eventually

OURS, THEIRS = Record("a" * 32, "{}"), Record("b" * 32, "[1]")
BEFORE_RECORDS = """
    DROP TABLE {schema}.holdfast_records;
    DROP FUNCTION {schema}.holdfast_swap_record, {schema}.holdfast_reap_records
"""


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store(url)
    yield opened
    opened.close()


@pytest.fixture
def schema(url: str) -> str:
    return parse_qs(urlsplit(url).query)["schema"][0]


def test_a_read_creates_no_tables_and_a_write_adds_them_to_those_of_an_older_holdfast(
    server: Server, store: Store, url: str, schema: str
) -> None:
    client = store.open()
    with pytest.raises(StoreMissing):
        client.read_record("a")
    create_tables(urls.parse(url))
    server.rows(sql.SQL(BEFORE_RECORDS).format(schema=sql.Identifier(schema)))
    held = client.ticket("a")
    client.try_acquire(held)

    assert client.read_record("a") is None
    assert store.open().read_record("a") is None
    assert client.swap_record("a", "", OURS) == OURS
    assert client.swap_record("a", "", THEIRS) == OURS
    assert client.release(held) == [True]


def test_the_error_names_the_fix_when_the_user_may_not_add_the_table(server: Server, schema: str) -> None:
    user = f"user_{uuid.uuid4().hex[:8]}"
    names = {"schema": sql.Identifier(schema), "user": sql.Identifier(user)}
    rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}"
    server.rows(sql.SQL("CREATE ROLE {user} LOGIN").format(**names))
    server.rows(sql.SQL("CREATE SCHEMA {schema}").format(**names))
    server.rows(tables_ddl(schema))
    server.rows(sql.SQL(BEFORE_RECORDS).format(**names))
    server.rows(sql.SQL("GRANT USAGE ON SCHEMA {schema} TO {user}").format(**names))
    server.rows(sql.SQL(rights).format(**names))
    client = Verbs(server.url_of(user, schema=schema))

    assert client.read_record("a") is None
    with pytest.raises(ConfigurationError, match=r"of an older holdfast: .* does not exist .*holdfast init --print"):
        client.swap_record("a", "", OURS)

    server.rows(tables_ddl(schema))
    with pytest.raises(ConfigurationError, match=r"lacks a right .*holdfast_records"):
        client.swap_record("a", "", OURS)
    server.rows(sql.SQL(rights).format(**names))
    assert client.swap_record("a", "", OURS) == OURS
    client.close()


def test_a_new_record_removes_expired_ones(server: Server, store: Store, schema: str) -> None:
    client = store.open()
    client.swap_record("kept", "", OURS, keep=3600.0)
    names = {"schema": sql.Identifier(schema)}
    server.rows(sql.SQL("INSERT INTO {schema}.holdfast_records VALUES ('old', 'nonce', '{{}}', 1)").format(**names))
    # One new row in 256 triggers the reaper, by the last bits of the clock; with this clock every one does.
    clock = "CREATE OR REPLACE FUNCTION {schema}.holdfast_clock() RETURNS bigint LANGUAGE sql AS $$SELECT {now}$$"
    now = sql.Literal((time.time_ns() // 1000) & ~255)
    server.rows(sql.SQL(clock).format(now=now, **names))

    client.swap_record("new", "", OURS)

    remaining = server.rows(sql.SQL("SELECT name FROM {schema}.holdfast_records ORDER BY name").format(**names))
    assert remaining == [("kept",), ("new",)]


@pytest.mark.parametrize("commits", [True, False])
def test_a_call_waits_for_the_transaction_that_replaces_the_record(
    server: Server, store: Store, schema: str, *, commits: bool
) -> None:
    client = store.open()
    client.swap_record("a", "", OURS)
    swap = sql.SQL("SELECT * FROM {}.holdfast_swap_record('a', {}, {}, '[1]', 100000000)").format(
        sql.Identifier(schema), OURS.nonce, THEIRS.nonce
    )
    answers: list[Record | None] = []

    with server.connect() as other:
        other.autocommit = False
        other.execute(swap)
        thread = threading.Thread(target=lambda: answers.append(client.swap_record("a", OURS.nonce, None)))
        thread.start()
        eventually(lambda: server.is_blocked(f"%{schema}%holdfast_swap_record%"))
        if commits:
            other.commit()
        else:
            other.rollback()
        thread.join(30)

    assert answers == [THEIRS if commits else None]


def test_records_are_added_while_a_long_transaction_uses_the_other_tables(
    server: Server, store: Store, url: str, schema: str
) -> None:
    names = {"schema": sql.Identifier(schema)}
    create_tables(urls.parse(url))
    server.rows(sql.SQL(BEFORE_RECORDS).format(**names))

    with server.connect() as other:
        other.autocommit = False
        for table in ("holdfast_status", "holdfast_locks", "holdfast_tickets"):
            other.execute(sql.SQL("SELECT * FROM {schema}.{table}").format(table=sql.Identifier(table), **names))

        assert store.open().swap_record("a", "", OURS) == OURS
