"""Names of nodes are exact and reversible, are ordered by ZooKeeper's numbers, and show who created them."""

from __future__ import annotations

import pytest

from holdfast.backends.zookeeper.protocol import nodes
from holdfast.backends.zookeeper.protocol.nodes import (
    escaped,
    node_prefix,
    parse_node,
    path_problem,
    queue_entries,
    sequence_distance,
    unescaped,
)

NONCE = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("order:42", "order:42"),
        ("a/b", "a%2Fb"),
        ("100%", "100%25"),
        (".", "%2E"),
        ("..", "%2E."),
        ("zookeeper", "%7Aookeeper"),
        ("zookeepers", "zookeepers"),
        ("a\0b", "a%00b"),
        ("\x9f", "%C2%9F"),
        ("ä ", "ä "),
        ("😀", "%F0%9F%98%80"),
        ("\ue000", "%EE%80%80"),
        ("%sessions", "%25sessions"),
    ],
)
def test_escaped_names_are_valid_and_reversible(name: str, node: str) -> None:
    assert escaped(name) == node
    assert unescaped(node) == name
    assert path_problem(f"/locks/{node}") == ""


@pytest.mark.parametrize("node", [nodes.SESSIONS, "a%2fb", "%41", "%", "%ff", "zookeeper"])
def test_a_node_is_no_lock_when_its_name_is_not_escaped(node: str) -> None:
    assert unescaped(node) is None


@pytest.mark.parametrize("path", ["a", "/", "/a/", "/a//b", "/./a", "/a/..", "/zookeeper/a", "/a\0", "/\x85", "/😀"])
def test_path_problem_names_why_zookeeper_would_refuse_a_path(path: str) -> None:
    assert path_problem(path)


@pytest.mark.parametrize("layout", nodes.LAYOUTS)
@pytest.mark.parametrize(("limit", "exclusive"), [(1, True), (None, False), (5, False)])
def test_parse_node_returns_all_that_the_rule_needs(layout: str, limit: int | None, exclusive: bool) -> None:  # noqa: FBT001
    node = node_prefix(layout, 0xF100005D2F8A0001, NONCE, limit, exclusive=exclusive) + "0000000017"

    parsed = parse_node(node)

    assert parsed == (node, 17, NONCE, 0xF100005D2F8A0001, limit, exclusive, True)
    assert not parsed.is_foreign


@pytest.mark.parametrize(
    ("node", "number"),
    [
        ("_c_d1a2c7f0-1c1e-4a48-8b73-0f1f3c3a52d4-lock-0000000003", 3),
        ("lock-0000000003", 3),
        ("0123456789abcdef0123456789abcdef__lock__0000000003", 3),
        ("0123456789abcdef0123456789abcdef__rlock__0000000003", 3),
        ("_c_d1a2c7f0-1c1e-4a48-8b73-0f1f3c3a52d4-__READ__0000000003", 3),
        ("n_0000000003", 3),
        ("lock--2147483648", -(2**31)),
        ("x__lock__-2147483648", -(2**31)),
        ("lock--000000001", -1),
    ],
)
def test_a_sequential_node_of_another_program_counts_as_exclusive(node: str, number: int) -> None:
    parsed = parse_node(node)

    assert parsed is not None
    assert (parsed.number, parsed.exclusive, parsed.is_foreign) == (number, True, True)


@pytest.mark.parametrize("node", ["config", "b", "a-17", "a%2Fb"])
def test_a_node_without_a_number_is_not_in_the_queue(node: str) -> None:
    assert parse_node(node) is None


def test_queue_entries_are_ordered_by_number() -> None:
    listed = ["z__lock__0000000009", "_c_a-lock-0000000010", "other", "_c_z-lock-0000000008"]

    assert [queue_entry.number for queue_entry in queue_entries(listed)] == [8, 9, 10]


@pytest.mark.parametrize("turned", range(4))
def test_queue_entries_are_ordered_when_numbers_wrap_around(turned: int) -> None:
    listed = ["lock-2147483646", "lock-2147483647", "lock--2147483648", "lock--2147483647"]

    ordered = queue_entries(listed[turned:] + listed[:turned])

    assert [ticket.node for ticket in ordered] == listed
    assert sequence_distance(-(2**31), 2**31 - 1) == 1
