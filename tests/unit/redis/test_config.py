"""Hazard: a URL is parsed wrongly: the wrong server, database or user, or a typo that is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.redis.config import RedisConfig, config_of
from holdfast.url import parse
from holdfast.url_parts import Node


def config(url: str, **options: Any) -> RedisConfig:
    return config_of(parse(url, options), is_asyncio=False)


@pytest.mark.parametrize(
    ("url", "nodes", "db"),
    [
        ("redis://cache", [("cache", 6379)], 0),
        ("redis://cache:7000/3", [("cache", 7000)], 3),
        ("redis://", [("localhost", 6379)], 0),
        ("redis://[::1]:7000/1", [("::1", 7000)], 1),
        ("redis://[::1]", [("::1", 6379)], 0),
        ("rediss://cache/2", [("cache", 6379)], 2),
        ("redis+unix:///run/redis.sock", [("/run/redis.sock", 0)], 0),
        ("redis+unix:///run/a%20b.sock?db=4", [("/run/a b.sock", 0)], 4),
        ("redis+sentinel://a,b:1,[::2]/locks/5", [("a", 26379), ("b", 1), ("::2", 26379)], 5),
        ("redis+sentinel://a/locks", [("a", 26379)], 0),
        ("redis+cluster://a,b:7001", [("a", 6379), ("b", 7001)], 0),
        ("redis+cluster://a/0", [("a", 6379)], 0),
    ],
)
def test_a_url_names_the_nodes_and_the_database(url: str, nodes: list[tuple[str, int]], db: int) -> None:
    parsed = config(url)

    assert list(parsed.nodes) == [Node(*node) for node in nodes]
    assert parsed.db == db


@pytest.mark.parametrize(
    ("url", "user", "password"),
    [
        ("redis://cache", None, None),
        ("redis://:p%40ss%2Fw%3A1@cache", None, "p@ss/w:1"),
        ("redis://u%3A1:pw@cache", "u:1", "pw"),
        ("redis://user@cache", "user", None),
        ("redis+unix://user:pw@/run/redis.sock", "user", "pw"),
        ("redis+unix:///run/redis.sock?user=user&password=p%26w", "user", "p&w"),
        ("redis+sentinel://user:pw@a,b/locks", "user", "pw"),
        ("redis+cluster://user:p:w@a,b", "user", "p:w"),
    ],
)
def test_a_url_has_the_user_and_the_password(url: str, user: str | None, password: str | None) -> None:
    parsed = config(url)

    assert parsed.login.arguments.get("username") == user
    assert parsed.login.arguments.get("password") == password
    if password is not None:
        assert password not in parsed.url
        assert password not in repr(parsed)


def test_sentinels_have_users_of_their_own() -> None:
    parsed = config("redis+sentinel://user:pw@a/locks?sentinel_user=watch&sentinel_password=dog&tls=yes&verify=none")

    assert parsed.service == "locks"
    assert parsed.sentinel_login.arguments["username"] == "watch"
    assert parsed.sentinel_login.arguments["password"] == "dog"  # noqa: S105
    assert parsed.sentinel_login.is_tls
    assert parsed.login.is_tls
    assert parsed.url == (
        "redis+sentinel://user:***@a/locks?sentinel_user=watch&sentinel_password=***&tls=yes&verify=none"
    )


def test_certificates_are_verified_by_default(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.touch()

    strict, lax = config(f"rediss://cache?ca_certs={file}").login, config("rediss://cache?verify=none").login

    assert strict.arguments["ssl_cert_reqs"] == "required"
    assert strict.arguments["ssl_check_hostname"] is True
    assert strict.arguments["ssl_ca_certs"] == str(file)
    assert lax.arguments["ssl_cert_reqs"] == "none"
    assert lax.arguments["ssl_check_hostname"] is False
    assert not config("redis://cache").login.is_tls


def test_options_and_their_defaults() -> None:
    default, custom = (
        config("redis://cache"),
        config("redis://cache", prefix="", method="setnx", replicas=2, io_timeout=0.5),
    )

    assert (default.prefix, default.method, default.compat, default.evictions_allowed) == (
        "holdfast:",
        "queue",
        None,
        False,
    )
    assert (default.connect_timeout, default.io_timeout, default.replicas) == (3.0, 5.0, 0)
    assert default.client_name.startswith("holdfast-")
    assert (custom.prefix, custom.method, custom.replicas, custom.io_timeout) == ("", "setnx", 2, 0.5)
    assert config("redis://cache?eviction=allow&compat=python-redis-lock").evictions_allowed


def test_making_a_client_sends_no_request() -> None:
    for url in ("redis://nowhere.invalid", "redis+sentinel://nowhere.invalid/x", "redis+cluster://nowhere.invalid"):
        client = holdfast.Client(url)

        assert client.guarantees.order.value == "by turns"
        client.close()
