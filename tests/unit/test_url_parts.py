"""Hazard: a part of a URL is parsed differently from what its author meant, in all backends at once."""

from __future__ import annotations

import pytest

from holdfast.errors import ConfigurationError
from holdfast.url_parts import (
    Node,
    Option,
    choice,
    flag,
    integer,
    login_and_hosts,
    node_of,
    nodes_of,
    seconds,
    values_of,
)


@pytest.mark.parametrize(
    ("text", "node", "shown"),
    [
        ("a", Node("a", 7), "a:7"),
        ("a:1", Node("a", 1), "a:1"),
        ("a:", Node("a", 7), "a:7"),
        ("A%2Eexample:65535", Node("A.example", 65535), "A.example:65535"),
        ("[::1]", Node("::1", 7), "[::1]:7"),
        ("[::1]:2", Node("::1", 2), "[::1]:2"),
        ("[fe80::1%eth0]", Node("fe80::1%eth0", 7), "[fe80::1%eth0]:7"),
        ("[fe80::1%25eth0]:2", Node("fe80::1%eth0", 2), "[fe80::1%eth0]:2"),
    ],
)
def test_node_of_parses_host_and_port(text: str, node: Node, shown: str) -> None:
    assert node_of(text, 7) == node
    assert str(node) == shown


@pytest.mark.parametrize(
    "text",
    ["", ":1", "a b", "a%0D%0Ab", "[::1", "[::1]x", "a:0", "a:65536", "a:-1", "a:²", "a:1:2", f"a:{'9' * 5000}"],
    ids=lambda text: text[:9],
)
def test_node_of_refuses_a_bad_host_or_port(text: str) -> None:
    with pytest.raises(ConfigurationError):
        node_of(text, 7)


def test_nodes_of_refuses_a_server_that_is_named_twice() -> None:
    assert nodes_of("a,b:1", 7) == (Node("a", 7), Node("b", 1))
    with pytest.raises(ConfigurationError, match="twice"):
        nodes_of("a,b,a:7", 7)


@pytest.mark.parametrize(
    ("netloc", "parts"),
    [
        ("a,b", ("", None, "a,b")),
        ("me@a", ("me", None, "a")),
        ("me:@a", ("me", "", "a")),
        (":pw@a", ("", "pw", "a")),
        ("m%40e:p%3Aw:%2F@a", ("m@e", "p:w:/", "a")),
        ("me:p@w@a", ("me", "p@w", "a")),
    ],
)
def test_login_and_hosts_splits_and_decodes(netloc: str, parts: tuple[str, str | None, str]) -> None:
    assert login_and_hosts(netloc, "/path") == parts


OPTIONS = (
    Option("prefix", "p:", "the prefix"),
    seconds("wait", None, "seconds to wait", minimum=0.5),
    integer("size", "3", "the size", maximum=9)._replace(field="max_size"),
    choice("mode", "slow", "the mode", {"slow": 1, "fast": 2}),
    flag("check", "on", "whether to check"),
)


WAIT = "wait must be a number of seconds or text like '500ms', at least 0.5 and at most 3600 s"


def test_options_have_defaults_and_fields() -> None:
    assert values_of({}, OPTIONS) == {"prefix": "p:", "wait": None, "max_size": 3, "mode": 1, "check": True}
    assert values_of(
        {"prefix": "", "wait": "500ms", "size": "9", "mode": "fast", "check": "FALSE", "x": "y"}, OPTIONS
    ) == {
        "prefix": "",
        "wait": 0.5,
        "max_size": 9,
        "mode": 2,
        "check": False,
    }


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "wait",
            "0.4",
            f"{WAIT}, not '0.4'",
        ),
        (
            "wait",
            "inf",
            f"{WAIT}, not 'inf'",
        ),
        ("wait", "", f"{WAIT}, not ''"),
        ("size", "10", "size must be a whole number from 1 to 9, not '10'"),
        ("size", " 1", "size must be a whole number from 1 to 9, not ' 1'"),
        ("size", "²", "size must be a whole number from 1 to 9, not '²'"),
        ("size", "9" * 5000, f"size must be a whole number from 1 to 9, not '{'9' * 5000}'"),
        ("mode", "Fast", "mode must be one of slow, fast, not 'Fast'"),
        ("check", "maybe", "check must be yes or no, not 'maybe'"),
    ],
    ids=lambda text: text[:9],
)
def test_a_wrong_value_is_refused_with_the_valid_ones(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        values_of({name: text}, OPTIONS)

    assert str(refused.value) == message
