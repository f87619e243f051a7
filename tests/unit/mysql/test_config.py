"""Hazard: a URL that is parsed wrongly leads to another server, shows a password, or fails far from its cause."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest

from holdfast.backends.mysql.config import MysqlConfig, config_of
from holdfast.errors import ConfigurationError
from holdfast.url import SCHEMES, parse


def make_config(url: object, **options: str) -> MysqlConfig:
    return config_of(parse(url, options))


def test_config_of_reads_every_part_of_the_url() -> None:
    config = make_config("mysql://me:p%40ss@db.example:3307/shop?method=row&connect_timeout=1.5&tls=no")

    assert (config.host, config.port, config.socket) == ("db.example", 3307, "")
    assert (config.user, config.password, config.database) == ("me", b"p@ss", "shop")
    assert (config.method, config.connect_timeout) == ("row", 1.5)
    assert (config.tls, config.prefers_tls) == (None, False)


def test_config_of_fills_in_defaults() -> None:
    config = make_config("mariadb://db.example/shop")

    assert (config.port, config.user, config.password, config.method) == (3306, None, b"", "unique")
    assert config.prefers_tls
    assert make_config("mysql://[::1]:3307/shop").host == "::1"
    assert make_config("mysql:///shop?socket=/run/s.sock").socket == "/run/s.sock"


def test_repr_and_messages_do_not_show_the_password() -> None:
    config = make_config("mysql://me:secret@db.example/shop")

    assert "secret" not in config.url
    assert "secret" not in repr(config)
    assert "secret" not in make_config("mysql://me@db.example/shop?password=secret").url


def test_mysql_and_mariadb_schemes_are_equal() -> None:
    assert SCHEMES["mysql"] == SCHEMES["mariadb"]


def connection(**arguments: Any) -> Any:
    return pymysql.Connection(defer_connect=True, user="me", password="sécret", **arguments)  # noqa: S106


def test_config_of_a_driver_connection_has_its_server_and_login() -> None:
    config = make_config(connection(host="db.example", port=3307, database="shop", ssl_disabled=True), method="version")

    assert (config.host, config.port, config.database, config.method) == ("db.example", 3307, "shop", "version")
    assert (config.user, config.password) == ("me", "sécret".encode("latin1"))
    assert "cret" not in config.url + repr(config)
    assert make_config(connection(unix_socket="/run/s.sock", database="shop")).socket == "/run/s.sock"


def test_a_connect_function_is_not_called_before_it_is_needed() -> None:
    config = make_config(lambda: 1 / 0, method="row")

    assert config.connect is not None
    assert config.method == "row"


def test_incomplete_or_unsupported_objects_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no database"):
        make_config(connection(host="db.example"))
    with pytest.raises(ConfigurationError, match="tls is read from the connection"):
        make_config(connection(host="db.example", database="shop"), tls="yes")


def test_a_connection_of_a_subclass_is_refused_because_it_may_be_connected_elsewhere() -> None:
    Tunnel: Any = type("Tunnel", (pymysql.connections.Connection,), {})  # noqa: N806 (a class)

    with pytest.raises(ConfigurationError, match="Tunnel, which holdfast does not know"):
        make_config(Tunnel(defer_connect=True, host="db.example", database="shop"))

    assert make_config(lambda: Tunnel(host="db.example")).connect is not None
