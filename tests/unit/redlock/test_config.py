"""Hazard: a URL of several servers is parsed wrongly: node, database, password or option; or a password is shown."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import holdfast
from holdfast.backends.redlock.config import RedlockConfig, config_of
from holdfast.url import parse, redlock_url
from holdfast.url_parts import Node


def config(url: str, **options: Any) -> RedlockConfig:
    return config_of(parse(url, options), is_asyncio=False)


@pytest.mark.parametrize(
    ("url", "nodes"),
    [
        ("redlock://a,b,c", [("a", 6379), ("b", 6379), ("c", 6379)]),
        ("redlock://a:1,b:2,[::1]:3,d:4,e:5", [("a", 1), ("b", 2), ("::1", 3), ("d", 4), ("e", 5)]),
        ("redlock://a/1,b/2,c", [("a", 6379), ("b", 6379), ("c", 6379)]),
        ("redlock://a:1,a:2,a:3", [("a", 1), ("a", 2), ("a", 3)]),
    ],
)
def test_a_url_names_all_nodes(url: str, nodes: list[tuple[str, int]]) -> None:
    parsed = config(url).redis

    assert parsed.nodes == tuple(Node(*node) for node in nodes)
    assert parsed.shape == "several"


def test_each_node_has_its_own_user_password_and_database() -> None:
    parsed = config("redlock://u:p%2C1@a:1/3,:p2@b:2,c:3/7").redis

    logins = [parsed.logins[node] for node in parsed.nodes]
    assert [login.arguments.get("username") for login, _ in logins] == ["u", None, None]
    assert [login.arguments.get("password") for login, _ in logins] == ["p,1", "p2", None]
    assert [db for _, db in logins] == [3, 0, 7]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redlock://u:secret@a,b,c", "redlock://u:***@a,b,c"),
        ("redlock://:secret@a:1/0,:secret@b:2/1,c", "redlock://:***@a:1/0,:***@b:2/1,c"),
        ("redlock://a,b,u:secret@c/5?max_ttl=9", "redlock://a,b,u:***@c/5?max_ttl=9"),
        ("redlock://a/0,:sec/ret@b,c", "redlock://a/0,:***@b,c"),
    ],
)
def test_no_password_of_any_node_is_shown(url: str, shown: str) -> None:
    assert parse(url).redacted == shown


def test_options_and_their_defaults() -> None:
    default, custom = config("redlock://a,b,c"), config("redlock://a,b,c?max_ttl=5", node_timeout=0.2, quarantine=False)

    assert (default.max_ttl, default.node_timeout, default.quarantine) == (60.0, 0.5, True)
    assert (default.redis.prefix, default.redis.connect_timeout) == ("holdfast:", 1.0)
    assert (custom.max_ttl, custom.node_timeout, custom.quarantine) == (5.0, 0.2, False)
    assert config("redlock://a,b,c?connect_timeout=4").redis.connect_timeout == 4.0
    assert config("redlock://a,b,c?tls=yes&verify=none").redis.login.is_tls


def test_an_even_number_warns_and_fewer_than_three_need_an_option(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config("redlock://:secret@a,b,c,d")
    config("redlock://a?nodes=any")
    config("redlock://a,b,c")

    (warning,) = caplog.messages
    assert "has 4 nodes" in warning
    assert "odd number" in warning
    assert "secret" not in warning


# ── a list of URLs ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("urls", "url"),
    [
        (["redis://a:1/0", "redis://b:2/1", "redis://c"], "redlock://a:1/0,b:2/1,c"),
        (["redis://u:p@a", "redis://:q@b", "redis://c"], "redlock://u:p@a,:q@b,c"),
        (["redis://a?prefix=x", "redis://b", "redis://c?prefix=x"], "redlock://a,b,c?prefix=x"),
        (["rediss://a", "rediss://b", "rediss://c?verify=none"], "redlock://a,b,c?verify=none&tls=yes"),
    ],
)
def test_urls_of_single_servers_make_one_redlock_url(urls: list[str], url: str) -> None:
    assert redlock_url(urls) == url
    assert config(redlock_url(urls)).redis.nodes == config(url).redis.nodes


@pytest.mark.parametrize("kind", [holdfast.Client, holdfast.AsyncClient])
@pytest.mark.parametrize("form", [list, tuple])
def test_a_client_takes_a_list_shows_no_password_and_pickles(kind: type[Any], form: type[Any]) -> None:
    urls = form(["redis://:secret@a.invalid:1/2", "redis://b.invalid", "redis://:secret@c.invalid"])

    client = kind(urls, ttl=7, max_ttl=20)
    copy = pickle.loads(pickle.dumps(client))

    for each in (client, copy):
        assert each.url == "redlock://:***@a.invalid:1/2,b.invalid,:***@c.invalid"
        assert each._ttl == 7
        assert each._started().backend._config.max_ttl == 20
        assert each.guarantees.exclusion.value == "best-effort"
        assert "secret" not in repr(each)
