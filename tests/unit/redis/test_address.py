"""Hazard: a URL that is taken for another one: the wrong server, database or user, or a typo that is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.redis.address import Node, Place, place_of
from holdfast.url import parse


def place(url: str, **options: Any) -> Place:
    return place_of(parse(url, options), is_asyncio=False)


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
def test_where(url: str, nodes: list[tuple[str, int]], db: int) -> None:
    found = place(url)

    assert list(found.nodes) == [Node(*node) for node in nodes]
    assert found.db == db


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
def test_who(url: str, user: str | None, password: str | None) -> None:
    found = place(url)

    assert found.login.arguments.get("username") == user
    assert found.login.arguments.get("password") == password
    if password is not None:
        assert password not in found.url
        assert password not in repr(found)


def test_sentinels_have_users_of_their_own() -> None:
    found = place("redis+sentinel://user:pw@a/locks?sentinel_user=watch&sentinel_password=dog&tls=yes&verify=none")

    assert found.service == "locks"
    assert found.sentinel_login.arguments["username"] == "watch"
    assert found.sentinel_login.arguments["password"] == "dog"  # noqa: S105
    assert found.sentinel_login.is_tls
    assert found.login.is_tls
    assert found.url == (
        "redis+sentinel://user:***@a/locks?sentinel_user=watch&sentinel_password=***&tls=yes&verify=none"
    )


def test_certificates_are_verified_unless_told_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.touch()

    strict, lax = place(f"rediss://cache?ca_certs={file}").login, place("rediss://cache?verify=none").login

    assert strict.arguments["ssl_cert_reqs"] == "required"
    assert strict.arguments["ssl_check_hostname"] is True
    assert strict.arguments["ssl_ca_certs"] == str(file)
    assert lax.arguments["ssl_cert_reqs"] == "none"
    assert lax.arguments["ssl_check_hostname"] is False
    assert not place("redis://cache").login.is_tls


def test_options_and_their_defaults() -> None:
    usual, told = place("redis://cache"), place("redis://cache", prefix="", method="setnx", replicas=2, io_timeout=0.5)

    assert (usual.prefix, usual.method, usual.compat, usual.evictions_allowed) == ("holdfast:", "queue", None, False)
    assert (usual.connect_timeout, usual.io_timeout, usual.replicas) == (3.0, 5.0, 0)
    assert usual.client_name.startswith("holdfast-")
    assert (told.prefix, told.method, told.replicas, told.io_timeout) == ("", "setnx", 2, 0.5)
    assert place("redis://cache?eviction=allow&compat=python-redis-lock").evictions_allowed


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://a,b", r"names 2 servers.*redis\+cluster://.*redis\+sentinel://"),
        ("redis://cache:x", "port that is no number"),
        ("redis://cache:0", "port that is no number from 1 to 65535"),
        ("redis://cache:70000", "port that is no number"),
        ("redis://cache/x", "database that is no number"),
        ("redis://cache/-1", "database that is no number"),
        ("redis://[::1", "bracket"),
        ("redis+cluster://a,,b", "empty host"),
        ("redis+cluster://a,a", "the same server twice"),
        ("redis+cluster://a/1", "a Cluster has none but 0"),
        ("redis+cluster://a?compat=python-redis-lock", "does not work on a Cluster"),
        ("redis+sentinel://a", r"no service: redis\+sentinel://host1,host2,host3/service/0"),
        ("redis+sentinel://a/locks/x", "database that is no number"),
        ("redis+unix://", "path of a socket"),
        ("redis+unix://host/run/redis.sock", "path of a socket"),
        ("redis://cache?method=quue", "method='quue': it must be queue or setnx or getset"),
        ("redis://cache?eviction=yes", "eviction='yes': it must be refuse or allow"),
        ("redis://cache?compat=pottery", "compat='pottery': it must be python-redis-lock"),
        ("redis://cache?replicas=one", "replicas='one': it must be a whole number"),
        ("redis://cache?replicas=-1", "replicas=-1: it must not be negative"),
        ("redis://cache?replicas=1&method=getset", "method=getset, which cannot wait"),
        ("redis://cache?io_timeout=soon", "io_timeout='soon': it must be a number of seconds"),
        ("redis://cache?connect_timeout=0", "connect_timeout=0: it must be more than 0"),
        ("redis://cache?connect_timeout=nan", "connect_timeout=nan: it must be more than 0"),
        ("redis://cache?client_name=a%20b", "client_name='a b'"),
        ("redis://cache?prefix=a{b", "braces are for a whole"),
        ("redis://cache?prefix=a%0Ab", "control characters"),
        ("redis://cache?ca_certs=x", "unknown option 'ca_certs'"),
        ("redis+cluster://cache?ca_certs=x", "ca_certs= but no TLS"),
        ("redis+cluster://cache?tls=maybe", "tls='maybe': it must be no or yes"),
        ("rediss://cache?ca_certs=/nowhere.pem", "ca_certs='/nowhere.pem', which is not a file"),
        ("rediss://cache?keyfile=/dev/null", "keyfile= without certfile="),
        ("rediss://cache?verify=no", "verify='no': it must be required or none"),
    ],
)
def test_what_is_refused(url: str, says: str) -> None:
    with pytest.raises(holdfast.ConfigurationError, match=says):
        place(url)


def test_making_a_client_asks_no_server() -> None:
    for url in ("redis://nowhere.invalid", "redis+sentinel://nowhere.invalid/x", "redis+cluster://nowhere.invalid"):
        client = holdfast.Client(url)

        assert client.guarantees.order.value == "FIFO"
        client.close()
