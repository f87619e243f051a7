"""Hazard: a URL that is parsed differently from what its author meant."""

from __future__ import annotations

import ssl

import pytest

import holdfast
from holdfast.backends.nats.config import NatsConfig, config_of
from holdfast.url import parse
from holdfast.url_parts import Node


def config(url: str) -> NatsConfig:
    return config_of(parse(url))


def test_options_have_defaults() -> None:
    assert config("nats://") == NatsConfig(
        url="nats://",
        nodes=(Node("localhost", 4222),),
        user="",
        password="",
        tls=None,
        bucket="holdfast",
        replicas=0,
        clock_skew=1.0,
        connect_timeout=3.0,
        max_connections=16,
    )


def test_hosts_may_have_ports_and_stay_in_their_order() -> None:
    parsed = config("nats://b.example:1,[::1]:2,a.example?bucket=app_1&replicas=3&clock_skew=500ms")

    assert parsed.nodes == (Node("b.example", 1), Node("::1", 2), Node("a.example", 4222))
    assert (parsed.bucket, parsed.replicas, parsed.clock_skew) == ("app_1", 3, 0.5)


def test_a_password_or_token_is_used_and_never_shown() -> None:
    for url in ("nats://us%40er:pa%3Ass@host", "nats://:pa%3Ass@host"):
        parsed = config(url)

        assert parsed.password == "pa:ss"  # noqa: S105 (of a test)
        assert "pa:ss" not in repr(parsed)
        assert "pa%3Ass" not in repr(parsed)


def test_natss_verifies_the_server() -> None:
    tls = config("natss://host").tls

    assert tls is not None
    assert tls.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("nats://token@host", "nats://:token@host"),
        ("nats://host/path", "bucket="),
        ("nats://host?bucket=a.b", "bucket"),
        ("nats://host?bucket=", "bucket"),
        ("nats://host?replicas=2", "replicas"),
        ("nats://host?clock_skew=0", "clock_skew"),
        ("nats://host?ca_certs=/none", "ca_certs"),
    ],
)
def test_a_wrong_part_is_named(url: str, named: str) -> None:
    with pytest.raises(holdfast.ConfigurationError, match=named):
        config(url)
