"""Hazard: two names with one key, a key that memcached refuses, or names that move to another server without need."""

from __future__ import annotations

import pytest

from holdfast.backends.memcached.protocol.keys import KEY_MAX, check_prefix, key_of, name_of, node_of, register_key_of
from holdfast.errors import ConfigurationError
from holdfast.url_parts import Node

NAMES = ["a", "A", "a ", "a b", "a%20b", "a\0", "a\n", "ä", "🔒", "a/b", "%sha256:0", "x" * 512, "x" * 511, "é" * 512]


def test_every_name_has_a_distinct_and_valid_key() -> None:
    keys = [key_of("holdfast:", name) for name in NAMES]

    assert len(set(keys)) == len(NAMES)
    for key in keys:
        assert len(key) <= KEY_MAX
        assert all(ord("!") <= byte <= ord("~") for byte in key)


def test_a_key_is_decoded_to_its_name_unless_it_is_a_digest() -> None:
    for name in NAMES:
        decoded = name_of("p:", key_of("p:", name))
        assert decoded == name if len(name) < 100 else decoded is None
    assert name_of("p:", b"other:a") is None


def test_registers_have_distinct_keys_that_are_not_locks() -> None:
    names = [*NAMES, "%mark:a", "mark:a", "x" * 528]
    registers = [register_key_of("p:", name) for name in names]

    assert len({*registers, *(key_of("p:", name) for name in names)}) == 2 * len(names)
    assert all(len(key) <= KEY_MAX for key in [*registers, register_key_of("x" * 128, "x" * 528)])
    assert {name_of("p:", key) for key in registers} == {None}


@pytest.mark.parametrize("prefix", ["a b", "a\n", "ä", "50%", "x" * 129])
def test_a_prefix_that_cannot_begin_a_key_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        check_prefix(prefix)


def test_removing_a_server_moves_only_its_own_names() -> None:
    nodes = tuple(Node(f"host-{number}", 11211) for number in range(4))
    keys = [key_of("p:", f"name-{number}") for number in range(400)]
    before = {key: node_of(key, nodes) for key in keys}

    after = {key: node_of(key, nodes[:-1]) for key in keys}

    assert {key for key in keys if after[key] != before[key]} == {key for key in keys if before[key] == nodes[-1]}
    assert min(list(before.values()).count(node) for node in nodes) > 60
    assert before == {key: node_of(key, nodes[::-1]) for key in keys}, "in any order"
