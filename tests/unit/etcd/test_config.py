"""Hazard: a URL is parsed wrongly, so that a client uses another server, shows a password, or fails later."""

from __future__ import annotations

from holdfast.backends.etcd.config import EtcdConfig, config_of
from holdfast.url import parse
from holdfast.url_parts import Node


def config_from(url: str) -> EtcdConfig:
    return config_of(parse(url))


def test_config_of_parses_all_parts_of_a_url() -> None:
    config = config_from(
        "etcd://me:p%40ss@one.example,[::1]:2380,10.0.0.1:3?prefix=app/&raw_names=true&connect_timeout=1.5"
    )

    assert config.nodes == (Node("one.example", 2379), Node("::1", 2380), Node("10.0.0.1", 3))
    assert (config.user, config.password) == ("me", "p@ss")
    assert (config.prefix, config.raw_names, config.method) == ("app/", True, "queue")
    assert config.connect_timeout == 1.5
    assert config.tls is None
    assert str(config.nodes[1]) == "[::1]:2380"


def test_no_message_shows_the_password() -> None:
    config = config_from("etcd://me:secret@one.example")

    assert "secret" not in config.url
    assert "secret" not in repr(config)


def test_tls_checks_certificates_and_names_by_default() -> None:
    strict, lax = config_from("etcds://one.example").tls, config_from("etcds://one.example?verify=none").tls

    assert strict is not None
    assert strict.check_hostname
    assert lax is not None
    assert not lax.check_hostname
