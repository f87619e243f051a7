"""A URL that is read wrongly leads to another server, shows a password, or fails far from its cause."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest

from holdfast.backends.mysql.config import MysqlConfig, config_of
from holdfast.errors import ConfigurationError
from holdfast.url import SCHEMES, parse


def place(url: object, **options: str) -> MysqlConfig:
    return config_of(parse(url, options))


def test_what_a_url_says() -> None:
    found = place("mysql://me:p%40ss@db.example:3307/shop?method=row&connect_timeout=1.5&tls=no")

    assert (found.host, found.port, found.socket) == ("db.example", 3307, "")
    assert (found.user, found.password, found.database) == ("me", b"p@ss", "shop")
    assert (found.method, found.connect_timeout) == ("row", 1.5)
    assert (found.tls, found.prefers_tls) == (None, False)


def test_what_it_need_not_say() -> None:
    found = place("mariadb://db.example/shop")

    assert (found.port, found.user, found.password, found.method) == (3306, None, b"", "unique")
    assert found.prefers_tls
    assert place("mysql://[::1]:3307/shop").host == "::1"
    assert place("mysql:///shop?socket=/run/s.sock").socket == "/run/s.sock"


def test_no_message_shows_the_password() -> None:
    found = place("mysql://me:secret@db.example/shop")

    assert "secret" not in found.url
    assert "secret" not in repr(found)
    assert "secret" not in place("mysql://me@db.example/shop?password=secret").url


def test_the_two_schemes_are_one() -> None:
    assert SCHEMES["mysql"] == SCHEMES["mariadb"]


def connection(**arguments: Any) -> Any:
    return pymysql.Connection(defer_connect=True, user="me", password="sécret", **arguments)  # noqa: S106


def test_a_connection_of_the_driver_says_where_it_leads() -> None:
    found = place(connection(host="db.example", port=3307, database="shop", ssl_disabled=True), method="version")

    assert (found.host, found.port, found.database, found.method) == ("db.example", 3307, "shop", "version")
    assert (found.user, found.password) == ("me", "sécret".encode("latin1"))
    assert "cret" not in found.url + repr(found)
    assert place(connection(unix_socket="/run/s.sock", database="shop")).socket == "/run/s.sock"


def test_a_function_is_called_by_nobody_before_it_is_needed() -> None:
    found = place(lambda: 1 / 0, method="row")

    assert found.connect is not None
    assert found.method == "row"


def test_objects_that_say_too_little_or_too_much_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no database"):
        place(connection(host="db.example"))
    with pytest.raises(ConfigurationError, match="tls is what the connection itself says"):
        place(connection(host="db.example", database="shop"), tls="yes")


def test_a_connection_of_a_subclass_is_refused_because_it_may_be_connected_elsewhere() -> None:
    Tunnel: Any = type("Tunnel", (pymysql.connections.Connection,), {})  # noqa: N806 (a class)

    with pytest.raises(ConfigurationError, match="Tunnel, which holdfast does not know"):
        place(Tunnel(defer_connect=True, host="db.example", database="shop"))

    assert place(lambda: Tunnel(host="db.example")).connect is not None
