"""Hazard: the locks of a database are kept on another server than its data, or as another user, or without its TLS."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.backends.mysql.config import config_of as mysql_config
from holdfast.backends.postgresql.config import config_of as postgresql_config
from holdfast.django.stores import Database, Store, store_of
from holdfast.errors import ConfigurationError
from holdfast.url import parse

LOGIN = {"NAME": "shop", "USER": "sh@p:", "PASSWORD": "p/w", "HOST": "db", "PORT": "6432"}


def store(vendor: str, entry: dict[str, Any] | None = None, /, **settings: Any) -> Store:
    return store_of({"DATABASE": "default", **(entry or {})}, Database(vendor, settings))


def test_a_database_of_postgresql_gives_server_login_and_tls() -> None:
    options = {"sslmode": "verify-full", "sslrootcert": "/ca.pem", "pool": True, "isolation_level": 2}

    config = postgresql_config(parse(*store("postgresql", **LOGIN, OPTIONS=options)))

    assert [tuple(endpoint) for endpoint in config.endpoints] == [("db", 6432)]
    assert config.password == "p/w"  # noqa: S105
    expected = {"user": "sh@p:", "dbname": "shop", "sslmode": "verify-full", "sslrootcert": "/ca.pem"}
    assert expected.items() <= config.parameters.items()
    assert "p/w" not in config.url


@pytest.mark.parametrize(
    ("host", "port", "endpoints"),
    [
        ("", "", [("", 0)]),
        ("", "5433", [("", 5433)]),
        ("/run/postgresql", "", [("/run/postgresql", 5432)]),
        ("a,b", "1,2", [("a", 1), ("b", 2)]),
        ("a,b", 7, [("a", 7), ("b", 7)]),
        ("::1", "", [("::1", 5432)]),
    ],
)
def test_hosts_of_postgresql_are_those_of_libpq(host: str, port: str, endpoints: list[tuple[str, int]]) -> None:
    config = postgresql_config(parse(*store("postgresql", NAME="shop", HOST=host, PORT=port)))

    assert [tuple(endpoint) for endpoint in config.endpoints] == endpoints


def test_a_database_of_mysql_gives_server_login_and_tls() -> None:
    result = store("mysql", **LOGIN, OPTIONS={"ssl_mode": "REQUIRED", "charset": "utf8mb4", "init_command": "SET x=1"})

    config = mysql_config(parse(*result))

    assert (config.host, config.port, config.user, config.password) == ("db", 6432, "sh@p:", b"p/w")
    assert config.database == "shop"
    assert config.tls is not None
    assert not config.prefers_tls


@pytest.mark.parametrize(
    "settings", [{"HOST": "/run/mysqld.sock"}, {"HOST": "localhost", "OPTIONS": {"unix_socket": "/run/mysqld.sock"}}]
)
def test_a_socket_of_mysql_is_used(settings: dict[str, Any]) -> None:
    config = mysql_config(parse(*store("mysql", NAME="shop", **settings)))

    assert config.socket == "/run/mysqld.sock"


def test_files_of_mysql_for_tls_are_used() -> None:
    result = store("mysql", **LOGIN, OPTIONS={"ssl": {"ca": "/ca.pem", "cert": "/c.pem", "key": "/k.pem"}})

    expected = {"tls": "yes", "ca_certs": "/ca.pem", "certfile": "/c.pem", "keyfile": "/k.pem"}
    assert expected.items() <= result.keywords.items()


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("/srv/my shop/db.sqlite3", "sqlite:///srv/my%20shop/db.sqlite3.locks"),
        (":memory:", "memory://"),
        ("file:memorydb_default?mode=memory&cache=shared", "memory://"),
    ],
)
def test_the_locks_of_a_database_file_are_in_a_file_beside_it(name: str, url: str) -> None:
    assert store("sqlite", NAME=name).url == url


@pytest.mark.parametrize(
    ("vendor", "settings", "message"),
    [
        ("oracle", LOGIN, "a database of the kind 'oracle', in which holdfast keeps no locks: give a URL"),
        ("postgresql", {**LOGIN, "OPTIONS": {"service": "shop"}}, r"DATABASES\['default'\]\['OPTIONS'\]\['service'\]"),
        ("postgresql", {**LOGIN, "OPTIONS": {"assume_role": "x"}}, "may name another server or user"),
        ("postgresql", {**LOGIN, "HOST": "a,b,c", "PORT": "1,2"}, "has 3 hosts and 2 ports"),
        ("postgresql", {"HOST": "db"}, "has no NAME"),
        ("mysql", {**LOGIN, "OPTIONS": {"read_default_file": "/etc/my.cnf"}}, "may name another server or user"),
        ("mysql", {**LOGIN, "OPTIONS": {"ssl": {"cipher": "x"}}}, "must be a dict with ca, cert and key"),
        ("mysql", {**LOGIN, "OPTIONS": {"ssl_mode": "ON"}}, "must be one of DISABLED"),
        ("sqlite", {"NAME": "file:/srv/db?mode=ro"}, "is a URI of sqlite"),
    ],
)
def test_a_database_that_is_not_supported_is_refused(vendor: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refusal:
        store(vendor, **settings)

    assert "p/w" not in str(refusal.value)


def test_keys_of_the_entry_override_the_settings_of_the_database() -> None:
    entry = {"PASSWORD": "other", "TTL": "1m", "OPTIONS": {"schema": "locks", "sslmode": "require"}}

    result = store("postgresql", entry, **LOGIN, OPTIONS={"sslmode": "prefer"})

    assert result.keywords == {"password": "other", "ttl": "1m", "schema": "locks", "sslmode": "require"}
