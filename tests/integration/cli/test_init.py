"""`holdfast init`: tables that are not there afterwards, a password printed, a server asked that should not be."""

from __future__ import annotations

import uuid

from psycopg import sql

import holdfast
from holdfast.cli import main
from tests.integration.cli.conftest import Place
from tests.support.postgresql import shared


def test_tables_are_created_once_and_stay(place: Place) -> None:
    url = shared.fresh_url()
    assert place.run("init", url).out == f"{url}: the tables are there\n"
    with holdfast.Client(url) as client, client.lock("a") as lease:
        assert place.run("init", url).status == 0

        lease.renew()
        assert [info.name for info in client.locks()] == ["a"]


def test_what_is_printed_can_be_run_by_somebody_else(place: Place) -> None:
    server, schema, user = shared.server(), f"test_{uuid.uuid4().hex}", f"user_{uuid.uuid4().hex[:8]}"
    url = server.url_of(user, schema=schema)
    names = {"schema": sql.Identifier(schema), "user": sql.Identifier(user)}
    server.rows(sql.SQL("CREATE ROLE {user} LOGIN").format(**names))
    refused = place.run("init", url)
    assert refused.status == 2
    assert "holdfast init --print" in refused.errors

    server.rows(place.run("init", "--print", url).out)
    server.rows(sql.SQL("GRANT USAGE ON SCHEMA {schema} TO {user}").format(**names))
    rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}"
    server.rows(sql.SQL(rights).format(**names))

    assert place.run("init", url).status == 0
    with holdfast.Client(url) as client, client.lock("a", timeout=0):
        pass


def test_printing_asks_no_server_and_tells_no_password(place: Place) -> None:
    printed = place.run("init", "--print", "postgresql://app:s3cret@nowhere.invalid/shop?schema=locks")

    assert (printed.status, printed.errors) == (0, "")
    assert printed.out.startswith('CREATE SCHEMA IF NOT EXISTS "locks";')
    assert "s3cret" not in printed.out


def test_a_server_that_cannot_be_asked(place: Place) -> None:
    result = place.run("init", "postgresql://app:s3cret@127.0.0.1:1/shop")

    assert result.status == 125
    assert "s3cret" not in result.errors


def test_a_url_that_cannot_be_used(place: Place) -> None:
    assert place.run("init", "postgresql://db.example/shop?tables=yes").status == 2
    assert main(["init", "nowhere"]) == 2
