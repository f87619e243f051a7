"""Hazard: `holdfast init` does not create the tables, prints a password, or contacts a server for --print."""

from __future__ import annotations

import uuid

from psycopg import sql

import holdfast
from holdfast.cli import main
from tests.integration.cli.conftest import CliStore
from tests.support.postgresql import shared


def test_init_creates_the_tables_and_keeps_existing_locks(store: CliStore) -> None:
    url = shared.fresh_url()
    assert store.run("init", url).out == f"{url}: the tables exist\n"
    with holdfast.Client(url) as client, client.lock("a") as lease:
        assert store.run("init", url).status == 0

        lease.renew()
        assert [info.name for info in client.locks()] == ["a"]


def test_printed_sql_can_be_run_by_another_user(store: CliStore) -> None:
    server, schema, user = shared.server(), f"test_{uuid.uuid4().hex}", f"user_{uuid.uuid4().hex[:8]}"
    url = server.url_of(user, schema=schema)
    names = {"schema": sql.Identifier(schema), "user": sql.Identifier(user)}
    server.rows(sql.SQL("CREATE ROLE {user} LOGIN").format(**names))
    refused = store.run("init", url)
    assert refused.status == 2
    assert "holdfast init --print" in refused.errors

    server.rows(store.run("init", "--print", url).out)
    server.rows(sql.SQL("GRANT USAGE ON SCHEMA {schema} TO {user}").format(**names))
    rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}"
    server.rows(sql.SQL(rights).format(**names))

    assert store.run("init", url).status == 0
    with holdfast.Client(url) as client, client.lock("a", timeout=0):
        pass


def test_print_contacts_no_server_and_prints_no_password(store: CliStore) -> None:
    printed = store.run("init", "--print", "postgresql://app:s3cret@nowhere.invalid/shop?schema=locks")

    assert (printed.status, printed.errors) == (0, "")
    assert printed.out.startswith('CREATE SCHEMA IF NOT EXISTS "locks";')
    assert "s3cret" not in printed.out


def test_init_exits_with_125_when_the_server_is_unavailable(store: CliStore) -> None:
    result = store.run("init", "postgresql://app:s3cret@127.0.0.1:1/shop")

    assert result.status == 125
    assert "s3cret" not in result.errors


def test_init_exits_with_2_for_an_invalid_url(store: CliStore) -> None:
    assert store.run("init", "postgresql://db.example/shop?tables=yes").status == 2
    assert main(["init", "nowhere"]) == 2
