"""Hazard: a URL is parsed wrongly, so that a client uses another server, shows a password, or fails later."""

from __future__ import annotations

from holdfast.backends.etcd.config import EtcdConfig, Node, config_of
from holdfast.url import parse


def place(url: str) -> EtcdConfig:
    return config_of(parse(url))


def test_config_of_parses_all_parts_of_a_url() -> None:
    found = place("etcd://me:p%40ss@one.example,[::1]:2380,10.0.0.1:3?prefix=app/&raw_names=true&connect_timeout=1.5")

    assert found.nodes == (Node("one.example", 2379), Node("::1", 2380), Node("10.0.0.1", 3))
    assert (found.user, found.password) == ("me", "p@ss")
    assert (found.prefix, found.raw_names, found.method) == ("app/", True, "queue")
    assert found.connect_timeout == 1.5
    assert found.tls is None
    assert str(found.nodes[1]) == "[::1]:2380"


def test_no_message_shows_the_password() -> None:
    found = place("etcd://me:secret@one.example")

    assert "secret" not in found.url
    assert "secret" not in repr(found)


def test_tls_checks_certificates_and_names_by_default() -> None:
    strict, lax = place("etcds://one.example").tls, place("etcds://one.example?verify=none").tls

    assert strict is not None
    assert strict.check_hostname
    assert lax is not None
    assert not lax.check_hostname
