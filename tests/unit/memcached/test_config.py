"""Hazard: a URL that is parsed differently from what its author meant."""

from __future__ import annotations

import ssl

import holdfast
from holdfast.backends.memcached.config import MemcachedConfig, config_of
from holdfast.url import parse
from holdfast.url_parts import Node


def config(url: str) -> MemcachedConfig:
    return config_of(parse(url))


def test_options_have_defaults() -> None:
    assert config("memcached://") == MemcachedConfig(
        url="memcached://",
        nodes=(Node("localhost", 11211),),
        user="",
        password="",
        tls=None,
        prefix="holdfast:",
        connect_timeout=3.0,
        io_timeout=5.0,
        max_connections=16,
    )


def test_hosts_may_have_ports_and_brackets() -> None:
    parsed = config("memcached://B.example:1,[::1]:2,a.example?prefix=app:&io_timeout=1.5&connect_timeout=2")

    assert parsed.nodes == (Node("::1", 2), Node("a.example", 11211), Node("b.example", 1))
    assert (parsed.prefix, parsed.io_timeout, parsed.connect_timeout) == ("app:", 1.5, 2.0)
    assert [str(node) for node in parsed.nodes] == ["[::1]:2", "a.example:11211", "b.example:1"]


def test_a_password_is_used_and_never_shown() -> None:
    parsed = config("memcached://us%40er:pa%3Ass@host")

    assert (parsed.user, parsed.password) == ("us@er", "pa:ss")
    assert "pa:ss" not in repr(parsed)
    assert "pa" not in parsed.url.partition("@")[0].partition(":***")[2]
    assert holdfast.Client("memcached://user:secret@host").url == "memcached://user:***@host"


def test_tls_verifies_the_server_by_default() -> None:
    checked, unchecked = config("memcacheds://host").tls, config("memcacheds://host?verify=none").tls

    assert checked is not None
    assert unchecked is not None
    assert (checked.verify_mode, checked.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert unchecked.verify_mode == ssl.CERT_NONE
