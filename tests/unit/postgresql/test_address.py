"""A URL that is read wrongly leads to another server, shows a password, or fails far from its cause."""

from __future__ import annotations

import pytest

from holdfast.backends.postgresql.config import Endpoint, PostgresqlConfig, config_of, connection_parameters
from holdfast.backends.postgresql.protocol.queue import decode_name, encode_name
from holdfast.url import SCHEMES, parse


def place(url: str) -> PostgresqlConfig:
    return config_of(parse(url))


def test_what_a_url_says() -> None:
    found = place("postgresql://me:p%40ss@db.example:5433/shop?schema=locks&sslmode=verify-full&connect_timeout=1.5")

    assert found.endpoints == (Endpoint("db.example", 5433),)
    assert found.parameters["user"] == "me"
    assert found.parameters["password"] == "p@ss"  # noqa: S105 (that is the point)
    assert found.parameters["dbname"] == "shop"
    assert found.parameters["sslmode"] == "verify-full"
    assert found.schema == '"locks"'
    assert found.connect_timeout == 1.5


def test_no_message_shows_the_password() -> None:
    found = place("postgresql://me:secret@db.example/shop?password=secret")

    assert "secret" not in found.url
    assert "secret" not in repr(found)


def test_hosts_are_tried_in_order() -> None:
    found = place("postgresql://a.example,[::1]:5433,10.0.0.1/shop")

    tries = connection_parameters(found, {Endpoint("a.example", 5432): ["192.0.2.1", "192.0.2.2"]})

    assert [(one["host"], one.get("hostaddr"), one["port"]) for one in tries] == [
        ("a.example", "192.0.2.1", "5432"),
        ("a.example", "192.0.2.2", "5432"),
        ("::1", None, "5433"),
        ("10.0.0.1", None, "5432"),
    ]


def test_a_socket_is_given_by_its_folder() -> None:
    assert place("postgresql:///shop?host=/run/postgresql").endpoints == (Endpoint("/run/postgresql", 5432),)


def test_the_table_of_schemes_knows_every_option() -> None:
    from holdfast.backends.postgresql.config import LIBPQ_OPTIONS

    assert sorted(SCHEMES["postgresql"].options) == sorted(
        ("schema", "method", "connect_timeout", "connections", "host", "port", *LIBPQ_OPTIONS)
    )


@pytest.mark.parametrize("name", ["a", "\0", "\\", "\\0", "\\\0", "\0\\", "\\\\0", "a\0b\\c\\\\\0", "é ", "0\\0\0"])
def test_a_name_is_stored_so_that_it_comes_back(name: str) -> None:
    assert "\0" not in encode_name(name)
    assert decode_name(encode_name(name)) == name
