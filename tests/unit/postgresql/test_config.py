"""Hazard: a URL that is parsed wrongly leads to another server, shows a password, or fails far from its cause."""

from __future__ import annotations

import pytest

from holdfast.backends.postgresql.config import Endpoint, PostgresqlConfig, config_of, connection_parameters
from holdfast.backends.postgresql.protocol.queue import decode_name, encode_name
from holdfast.url import parse


def make_config(url: str) -> PostgresqlConfig:
    return config_of(parse(url))


def test_config_of_reads_every_part_of_the_url() -> None:
    found = make_config(
        "postgresql://me:p%40ss@db.example:5433/shop?schema=locks&sslmode=verify-full&connect_timeout=1.5"
    )

    assert found.endpoints == (Endpoint("db.example", 5433),)
    assert found.parameters["user"] == "me"
    assert found.password == "p@ss"  # noqa: S105 (that is the point)
    assert found.parameters["dbname"] == "shop"
    assert found.parameters["sslmode"] == "verify-full"
    assert found.schema == '"locks"'
    assert found.connect_timeout == 1.5


def test_repr_and_messages_do_not_show_the_password() -> None:
    found = make_config("postgresql://me:secret@db.example/shop?password=secret")

    assert "secret" not in found.url
    assert "secret" not in repr(found)


def test_hosts_are_tried_in_order() -> None:
    found = make_config("postgresql://a.example,[::1]:5433,10.0.0.1/shop")

    tries = connection_parameters(found, "", {Endpoint("a.example", 5432): ["192.0.2.1", "192.0.2.2"]})

    assert [(one["host"], one.get("hostaddr"), one["port"]) for one in tries] == [
        ("a.example", "192.0.2.1", "5432"),
        ("a.example", "192.0.2.2", "5432"),
        ("::1", None, "5433"),
        ("10.0.0.1", None, "5432"),
    ]


def test_config_of_accepts_the_folder_of_a_unix_socket() -> None:
    assert make_config("postgresql:///shop?host=/run/postgresql").endpoints == (Endpoint("/run/postgresql", 5432),)


@pytest.mark.parametrize("name", ["a", "\0", "\\", "\\0", "\\\0", "\0\\", "\\\\0", "a\0b\\c\\\\\0", "é ", "0\\0\0"])
def test_decode_name_inverts_encode_name(name: str) -> None:
    assert "\0" not in encode_name(name)
    assert decode_name(encode_name(name)) == name
