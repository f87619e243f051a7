"""Hazard: a URL that is parsed wrongly leads to another server, shows a password, or fails far from its cause."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from holdfast.backends.postgresql.config import Endpoint, PostgresqlConfig, config_of, connection_parameters
from holdfast.backends.postgresql.protocol.queue import decode_name, encode_name
from holdfast.errors import ConfigurationError
from holdfast.url import parse


def make_config(url: str) -> PostgresqlConfig:
    return config_of(parse(url))


def test_config_of_reads_every_part_of_the_url() -> None:
    config = make_config(
        "postgresql://me:p%40ss@db.example:5433/shop?schema=locks&sslmode=verify-full&connect_timeout=1.5"
    )

    assert config.endpoints == (Endpoint("db.example", 5433),)
    assert config.parameters["user"] == "me"
    assert config.password == "p@ss"  # noqa: S105 (of a test)
    assert config.parameters["dbname"] == "shop"
    assert config.parameters["sslmode"] == "verify-full"
    assert config.schema == '"locks"'
    assert config.connect_timeout == 1.5


def test_repr_and_messages_do_not_show_the_password() -> None:
    config = make_config("postgresql://me:secret@db.example/shop?password=secret")

    assert "secret" not in config.url
    assert "secret" not in repr(config)


def test_hosts_are_tried_in_order() -> None:
    config = make_config("postgresql://a.example,[::1]:5433,10.0.0.1/shop")

    attempts = connection_parameters(config, "", {Endpoint("a.example", 5432): ["192.0.2.1", "192.0.2.2"]})

    assert [(options["host"], options.get("hostaddr"), options["port"]) for options in attempts] == [
        ("a.example", "192.0.2.1", "5432"),
        ("a.example", "192.0.2.2", "5432"),
        ("::1", None, "5433"),
        ("10.0.0.1", None, "5432"),
    ]


def test_config_of_accepts_the_folder_of_a_unix_socket() -> None:
    assert make_config("postgresql:///shop?host=/run/postgresql").endpoints == (Endpoint("/run/postgresql", 5432),)


def test_pooler_is_an_option() -> None:
    assert not make_config("postgresql://h/d").is_pooled
    assert make_config("postgresql://h/d?pooler=transaction").is_pooled


def test_listen_url_takes_missing_parts_from_the_url() -> None:
    config = make_config(
        "postgresql://me:secret@pool.example:6432/shop?sslmode=verify-full&application_name=web&schema=locks"
        "&pooler=transaction&listen_url=postgresql://db.example"
    )

    assert config.listen is not None
    assert config.listen.endpoints == (Endpoint("db.example", 5432),)
    assert config.listen.parameters == config.parameters
    assert config.listen.password == "secret"  # noqa: S105 (of a test)
    assert not config.listen.is_pooled


@pytest.mark.parametrize(("login", "password"), [("", "secret"), ("me@", "secret"), ("me:x@", "x"), ("other@", "")])
def test_listen_url_does_not_send_the_password_of_one_user_for_another(login: str, password: str) -> None:
    config = make_config(f"postgresql://me:secret@pool/d?pooler=transaction&listen_url=postgresql://{login}db")

    assert config.listen is not None
    assert config.listen.password == password


def test_listen_url_has_parts_of_its_own() -> None:
    query = "pooler=transaction&listen_url=" + quote("postgresql://you:own@db:1/real?sslmode=require", safe="")
    config = make_config(f"postgresql://me:secret@pool/alias?sslmode=disable&{query}")

    assert config.listen is not None
    parameters = config.listen.parameters
    assert [parameters[name] for name in ("user", "dbname", "sslmode")] == ["you", "real", "require"]
    for text in (config.url, config.listen.url, repr(config)):
        assert "secret" not in text
        assert "own" not in text


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("pooler=session", "pooler must be one of none, transaction"),
        ("pooler=transaction&method=advisory", r"method=advisory does not work with pooler=transaction.*method=queue"),
        ("listen_url=postgresql://db", "listen_url is for pooler=transaction"),
        ("pooler=transaction&listen_url=redis://me:secret@db", "listen_url: its scheme must be postgresql, not redis"),
        ("pooler=transaction&listen_url=me:secret@db", "listen_url: url must look like scheme"),
        ("pooler=transaction&listen_url=postgresql://me:secret@db?schema=x", "listen_url: the option 'schema'"),
        ("pooler=transaction&listen_url=postgresql://me:secret@db?sslmod=x", r"listen_url: .* has no option 'sslmod'"),
        ("pooler=transaction&listen_url=postgresql://db:secret", "listen_url: url has a port"),
    ],
)
def test_options_that_do_not_go_together_are_refused(query: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        make_config(f"postgresql://h/d?{query}")

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("name", ["a", "\0", "\\", "\\0", "\\\0", "\0\\", "\\\\0", "a\0b\\c\\\\\0", "é ", "0\\0\0"])
def test_decode_name_inverts_encode_name(name: str) -> None:
    assert "\0" not in encode_name(name)
    assert decode_name(encode_name(name)) == name
